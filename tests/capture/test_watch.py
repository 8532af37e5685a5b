"""An engine that stops giving ids is told from a call that went wrong."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest

from explorer.capture.watch import LIMIT, SetUpWatch
from explorer.engine.protocol import PROBE_ID, EngineReply, EngineRequest
from explorer.engine.tiny import TinyEngine
from explorer.errors import EngineSetUpWrong
from explorer.records import CallStatus, Purpose
from tests.live import serving
from tests.trace.build import make_call

GOOD = make_call("a", 1, [1, 2], [3, 4])
BARE = replace(GOOD, completion=None, logprobs=None)


def test_the_same_lack_in_a_row_is_the_engines_fault() -> None:
    told: list[str] = []
    watch = SetUpWatch(lambda: told.append("trouble"))
    for _ in range(LIMIT - 1):
        watch.saw(BARE, promised=True)
    watch.saw(GOOD, promised=True)  # one good call, and it was the others' own fault
    for _ in range(LIMIT - 1):
        watch.saw(BARE, promised=True)
    watch.check(Purpose.TRAIN)
    watch.saw(BARE, promised=True)
    watch.saw(BARE, promised=True)
    with pytest.raises(EngineSetUpWrong, match="token ids switched on"):
        watch.check(Purpose.TRAIN)
    watch.check(Purpose.EVAL)
    assert told == ["trouble"]
    assert watch.found["ids_missing"] == 2 * LIMIT
    watch.probed()
    watch.check(Purpose.TRAIN)


def test_nobody_promised_or_nothing_came() -> None:
    watch = SetUpWatch()
    for _ in range(2 * LIMIT):
        watch.saw(BARE, promised=False)
        watch.saw(replace(BARE, status=CallStatus.FAILED), promised=True)
        watch.saw(replace(BARE, injected=True), promised=True)
    watch.check(Purpose.TRAIN)


class Forgetful(TinyEngine):
    """An engine that was started again without token ids."""

    forgets = False

    async def generate(self, request: EngineRequest) -> EngineReply:
        while self.forgets and request.request_id.startswith(PROBE_ID):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # it cannot be asked before it is well again
        reply = await super().generate(request)
        if not self.forgets or request.request_id.startswith(PROBE_ID):
            return reply
        body = orjson.loads(reply.body)
        for choice in body["choices"]:
            choice["token_ids"] = choice["logprobs"] = None
        return replace(reply, body=orjson.dumps(body))


def test_tok_18_a_set_up_error_is_not_a_rollout_error(tmp_path: Path) -> None:
    engine = Forgetful()
    with serving(engine, tmp_path / "store.duckdb") as live:
        _, key = live.create()
        assert live.chat(key, max_tokens=4).status_code == 200
        engine.forgets = True
        for _ in range(LIMIT):
            assert live.chat(key, max_tokens=4).status_code == 200
        refused = live.api("POST", "/api/v1/rollouts", {"run": "r"}, status=409)["error"]
        assert refused["code"] == "engine_set_up_wrong"
        assert "token ids" in refused["message"]
        live.api("POST", "/api/v1/rollouts", {"purpose": "eval"}, status=201)
        page = httpx.get(live.url + "/runs").text
        assert 'role="alert"' in page
        assert "lack what the engine was certified to give" in page
        ready = httpx.get(live.url + "/readyz")
        assert (ready.status_code, ready.json()["engine"]) == (503, "set up wrongly")
        metrics = httpx.get(live.url + "/metrics").text
        assert f'call_findings_total{{code="ids_missing"}} {LIMIT}' in metrics
        # The engine is probed again, and what it then says counts.
        engine.forgets = False
        for _ in range(100):
            if httpx.get(live.url + "/readyz").status_code == 200:
                break
            time.sleep(0.1)
        live.api("POST", "/api/v1/rollouts", {"run": "r"}, status=201)
        assert 'role="alert"' not in httpx.get(live.url + "/runs").text
