"""`kill -9` under load, twenty times at random instants: no reply seen whole is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import orjson
import pytest

from explorer import runfile
from explorer.records import CallId, CallStatus, FailureKind, RolloutId
from explorer.store.duckdb_store import DuckDBStore, StoreOptions

KILLS = 20
AT_ONCE = 12


def start(script: Path, store: Path) -> tuple[subprocess.Popen[bytes], runfile.RunFile]:
    """A server of its own process, ready."""
    command = [sys.executable, "-m", "explorer", "serve", "--port", "0"]
    command += ["--engine", f"scripted:{script}", "--store", str(store)]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.time() + 60
    while time.time() < deadline:
        run = runfile.read(store)
        if run is not None and run.pid == child.pid:
            return child, run
        if child.poll() is not None:
            assert child.stderr is not None
            raise AssertionError(child.stderr.read().decode())
        time.sleep(0.02)
    raise AssertionError("the server did not start")


async def hammer(
    run: runfile.RunFile, child: subprocess.Popen[bytes], kill_after_s: float
) -> tuple[list[str], dict[str, str]]:
    """Calls until the kill. Gives rollout ids, and the rollout of every call whose reply
    was read whole (unary and streamed)."""
    seen: dict[str, str] = {}
    rollouts: list[str] = []
    async with aiohttp.ClientSession() as session:
        keys = []
        for _ in range(4):
            async with session.post(
                run.url + "/api/v1/rollouts", headers={"Authorization": f"Bearer {run.token}"}
            ) as made:
                answer = await made.json()
                rollouts.append(answer["rollout_id"])
                keys.append((answer["rollout_id"], answer["capture_key"]))

        async def worker(number: int) -> None:
            rollout, key = keys[number % len(keys)]
            for turn in range(100_000):
                streamed = (turn + number) % 3 == 0
                body = {
                    "messages": [{"role": "user", "content": f"{number} {turn}"}],
                    "stream": streamed,
                }
                try:
                    async with session.post(
                        run.url + "/v1/chat/completions",
                        data=orjson.dumps(body),
                        headers={"x-api-key": key},
                    ) as response:
                        raw = await response.read()
                except (aiohttp.ClientError, OSError):
                    return
                assert response.status == 200
                if streamed:
                    if raw.endswith(b"data: [DONE]\n\n"):
                        seen[orjson.loads(raw[6 : raw.index(b"\n")])["id"]] = rollout
                else:
                    seen[orjson.loads(raw)["id"]] = rollout

        async def killer() -> None:
            await asyncio.sleep(kill_after_s)
            os.kill(child.pid, signal.SIGKILL)

        await asyncio.gather(killer(), *(worker(n) for n in range(AT_ONCE)))
    return rollouts, seen


@pytest.mark.slow
def test_db_03_kill_nine_loses_no_call_that_a_client_saw_whole(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(
        json.dumps({"replies": [{"when": {"contains": ""}, "text": "ok " * 40, "delay_ms": 5}]})
    )
    store_path = tmp_path / "store.duckdb"
    dice = random.Random(20261129)
    total = aborted = 0
    rollouts: list[str] = []
    for _ in range(KILLS):
        child, run = start(script, store_path)
        made, seen = asyncio.run(hammer(run, child, dice.uniform(0.05, 1.2)))
        child.wait(10)
        assert child.stderr is not None
        child.stderr.close()
        rollouts += made
        store = DuckDBStore(store_path, StoreOptions(min_free_bytes=0))
        try:
            for response_id, rollout in seen.items():
                call = store.call(CallId(response_id.removeprefix("chatcmpl-")))
                assert call is not None, f"{response_id} was answered and is not stored"
                assert call.rollout_id == rollout
                assert call.status is CallStatus.COMMITTED
                assert call.completion is not None
                assert call.logprobs is not None
                assert call.completion.size == call.logprobs.size
            for response_id in list(seen)[-20:]:
                bodies = store.bodies(CallId(response_id.removeprefix("chatcmpl-")))
                assert len(bodies) == 3
            for rollout in made:
                record = store.record(RolloutId(rollout))
                assert record is not None
                assert record.open_calls == ()
                aborted += sum(
                    call.failure_kind is FailureKind.LOST_ON_RESTART for call in record.calls
                )
            assert store.health().quarantined == 0
        finally:
            store.close_now()
        total += len(seen)
    assert total > 20 * KILLS, "the load was too light to show anything"
    assert aborted > 0, "no call was in flight at any kill"
