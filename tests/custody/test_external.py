"""External custody whole, over real HTTP: harness, proxy, worker, engine, storage, framework.

The tokens that a framework verifies are those that this server records by itself when it keeps
them: the same conversation is led twice, and compared token for token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.custody.errors import ReceiptVerificationError
from explorer.custody.records import RolloutManifest
from explorer.demo.tasks import SYSTEM, TOOLS, run_tool
from explorer.engine.http import HttpEngine
from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from explorer.errors import ConfigurationError
from explorer.external_custody import ExternalCustody
from explorer.integrations.nemo_gym.__main__ import front_of
from explorer.integrations.nemo_gym.control import (
    OWN_PATH,
    PEER_PATH,
    ControlError,
    RolloutControlClient,
)
from explorer.integrations.nemo_gym.directory import DirectorySink
from explorer.integrations.nemo_gym.duckdb_sink import DuckDBSink
from explorer.integrations.nemo_gym.receipts import receipt_of, training_row
from explorer.records import CaptureLevel
from explorer.settings import load
from explorer.trace.custody_calls import custody_calls
from explorer.trace.receipts import receipts_of
from tests.custody.fronts import EngineApp, served
from tests.live import Live, serving

VARIABLE = "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN"
TOKEN = "control-" + "x7" * 16
SCRIPT = {
    "replies": [
        {"text": "Let me look.", "tool_calls": [{"name": "look", "arguments": {"at": "é"}}]},
        {"text": "", "tool_calls": [{"name": "lookup", "arguments": {}}] * 2},
        {"text": "The answer is 85."},
    ],
    "repeat": True,
}


@dataclass
class Place:
    """A server with external custody before a worker."""

    live: Live
    storage: Any
    engine: EngineApp
    folder: Path

    def manifest(self, rollout_id: str, path: str = PEER_PATH) -> RolloutManifest:
        client = RolloutControlClient(self.live.url, TOKEN, path=path)
        return asyncio.run(client.manifest(rollout_id))


@contextlib.contextmanager
def external(
    engine: Any, storage: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[Place]:
    monkeypatch.setenv(VARIABLE, TOKEN)
    app = engine if isinstance(engine, EngineApp) else EngineApp(engine)
    with (
        served(app) as behind,
        served(front_of(behind, storage, lambda: 5)) as front,
        serving(
            HttpEngine(front),
            folder / "external.duckdb",
            custody="external",
            engine=front,
            **settings,
        ) as live,
    ):
        yield Place(live, storage, app, folder)


def talk(live: Live, key: str, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """The demo's task for an agent with tools, up to its answer."""
    said: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What is 47 + 38? Use the calculator."},
    ]
    replies: list[dict[str, Any]] = []
    for _ in range(6):
        response = live.chat(key, messages=said, tools=TOOLS, **wanted)
        assert response.status_code == 200, response.text
        replies.append(response.json())
        message = replies[-1]["choices"][0]["message"]
        said = [*said, {k: v for k, v in message.items() if v is not None}]
        calls = message.get("tool_calls") or []
        if not calls:
            break
        for call in calls:
            result = run_tool(call["function"]["name"], call["function"]["arguments"])
            said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return replies


def tiny() -> Any:
    return TinyEngine(None)


def scripted() -> Any:
    return ScriptedEngine(SCRIPT)


@pytest.mark.parametrize("made", [tiny, scripted])
@pytest.mark.parametrize("kind", ["directory", "duckdb"])
@pytest.mark.parametrize("ledger", ["duckdb", "files"])
def test_it_equals_the_embedded_record_token_for_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any, kind: str, ledger: str
) -> None:
    wanted = {"seed": 7, "temperature": 1.0, "max_tokens": 160}
    with (
        served(EngineApp(made())) as engine,
        serving(HttpEngine(engine), tmp_path / "embedded.duckdb") as live,
    ):
        rollout_id, key = live.create()
        embedded_replies = talk(live, key, wanted)
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
        record = live.store.record(rollout_id)  # type: ignore[arg-type]
    assert record is not None
    calls = custody_calls(record)
    receipt = receipts_of(record)[0].receipt
    assert receipt.failure_reason is None, receipt.failure_reason
    from explorer.custody.rebuild import verify_and_linearize

    mine = verify_and_linearize(receipt, [call.staged for call in calls.calls])

    storage: Any = (
        DirectorySink(tmp_path / "s") if kind == "directory" else DuckDBSink(tmp_path / "s.db")
    )
    chosen = {} if ledger == "duckdb" else {"custody_ledger": tmp_path / "ledger"}
    with external(made(), storage, tmp_path, monkeypatch, **chosen) as place:
        rollout_id, key = place.live.create()
        replies = talk(place.live, key, wanted)
        manifest = place.manifest(rollout_id)
        assert manifest == place.manifest(rollout_id, OWN_PATH)
        assert manifest.failures == ()
        found = receipt_of(manifest, reward=1.0, declared_response_id=replies[-1]["id"])
        row = training_row(found, storage)
        assert (tmp_path / "external.custody.duckdb").exists() is (ledger == "duckdb")
        assert (tmp_path / "ledger").exists() is (ledger == "files")
    assert len(row.link_spans) == len(mine.link_spans) == len(replies) > 1
    assert row.token_ids.tolist() == mine.token_ids.tolist()
    assert row.token_mask.tolist() == mine.token_mask.tolist()
    assert row.prompt_len == mine.prompt_len
    assert row.logprobs.astype("f4").tolist() == mine.logprobs.astype("f4").tolist()
    hashes = [(call.chain_hash, call.cumulative_hash) for call in receipt.manifest]
    assert hashes == [(each.chain_hash, each.cumulative_hash) for each in found.manifest]
    assert set(row.weight_versions) == {5}
    for one, other in zip(embedded_replies, replies, strict=True):
        same = one["choices"][0]["message"]["content"]
        assert other["choices"][0]["message"]["content"] == same
    if kind == "duckdb":
        storage.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    storage = DirectorySink(tmp_path / "staged")
    with external(scripted(), storage, tmp_path, monkeypatch) as found:
        yield found


def test_no_token_is_in_the_store_and_nothing_here_may_train(place: Place) -> None:
    rollout_id, key = place.live.create()
    replies = talk(place.live, key, {})
    place.live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    record = place.live.store.record(rollout_id)  # type: ignore[arg-type]
    assert record is not None
    for call in record.calls:
        assert call.capture_level is CaptureLevel.TEXT
        assert call.completion is None
        assert call.logprobs is None
        assert call.prompt_delta is None
    ids = place.storage.fetch([f"{rollout_id}/{record.calls[0].call_id}"])[0].token_ids_delta
    told = json.dumps(ids.tolist()[:12])[1:-1].replace(", ", ",")
    for reply in replies:
        assert "ng_commit_coords" not in reply
        assert "prompt_token_ids" not in reply
        assert "token_ids" not in reply["choices"][0]
        assert not reply["choices"][0].get("logprobs")
    shown = place.live.api("GET", f"/api/v1/rollouts/{rollout_id}")
    assert shown["verdict"]["trainable"] is False, shown
    refused = place.live.api("GET", f"/api/v1/rollouts/{rollout_id}/training-trace", status=409)
    assert refused["error"]["code"] == "not_trainable"
    for call in record.calls:
        for kind in ("request", "submitted", "reply"):
            raw = httpx.get(
                f"{place.live.url}/api/v1/rollouts/{rollout_id}/raw/{call.call_id}?kind={kind}",
                headers={"authorization": f"Bearer {place.live.token}"},
            ).text
            assert told not in raw.replace(" ", "")


def test_the_control_token_is_written_nowhere(place: Place) -> None:
    rollout_id, key = place.live.create()
    talk(place.live, key, {})
    place.manifest(rollout_id)
    assert TOKEN not in repr(place.live.application.settings)
    assert TOKEN not in repr(RolloutControlClient("http://x", TOKEN))
    place.live.api("GET", "/api/v1/engine")
    for path in place.folder.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("path", [PEER_PATH, OWN_PATH])
def test_case_46_who_may_read_a_manifest(place: Place, path: str) -> None:
    rollout_id, key = place.live.create()
    talk(place.live, key, {})
    address = place.live.url + path.format(rollout_id=rollout_id)

    def ask(value: bytes | None, method: str = "GET", where: str = address) -> httpx.Response:
        headers = [] if value is None else [(b"authorization", value)]
        return httpx.request(method, where, headers=headers)

    right = f"Bearer {TOKEN}".encode()
    for wrong in (
        *(None, b"", b"Bearer", right[:-1], right + b"x", right.lower()),
        *(b"bearer " + TOKEN.encode(), b"Basic " + TOKEN.encode(), TOKEN.encode()),
        *(b"Bearer \xff\xfe", "Bearer é".encode(), b"Bearer  " + TOKEN.encode()),
        f"Bearer {place.live.token}".encode(),
    ):
        answer = ask(wrong)
        assert answer.status_code == 401, wrong
        assert "records" not in answer.text
    twice = httpx.get(address, headers=[(b"authorization", right), (b"authorization", right)])
    assert twice.status_code == 401
    good = ask(right)
    assert good.status_code == 200
    assert good.headers["cache-control"] == "no-store"
    assert len(RolloutManifest.parse(good.json()).records) == 3
    for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        assert ask(right, method).status_code == 405, method
    unknown = ask(right, where=place.live.url + path.format(rollout_id="nobody"))
    assert (unknown.status_code, unknown.json()["records"]) == (200, [])
    for bad in ("a%20b", "a%2Fb", "..%2F..%2Fx", "%C3%A4", "a%0A", "a:b"):
        illegal = ask(right, where=place.live.url + path.format(rollout_id=bad))
        assert illegal.status_code == 400, bad
    assert ask(None, where=place.live.url + path.format(rollout_id="a%20b")).status_code == 401


def test_a_framework_is_not_slowed_down_and_a_guesser_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DirectorySink(tmp_path / "s")
    limits = {"rate_per_minute": 60.0, "rate_burst": 5}
    with external(scripted(), storage, tmp_path, monkeypatch, **limits) as place:
        address = place.live.url + PEER_PATH.format(rollout_id="x")
        right = {"authorization": f"Bearer {TOKEN}"}
        assert {httpx.get(address, headers=right).status_code for _ in range(20)} == {200}
        wrong = {"authorization": "Bearer x"}
        told = [httpx.get(address, headers=wrong).status_code for _ in range(12)]
        assert set(told) == {401, 429}
        assert httpx.get(address, headers=right).status_code == 200


def test_there_are_no_manifests_where_this_server_keeps_the_tokens(tmp_path: Path) -> None:
    with serving(scripted(), tmp_path / "s.duckdb") as live:
        for path in (PEER_PATH, OWN_PATH):
            answer = httpx.get(
                live.url + path.format(rollout_id="x"),
                headers={"authorization": f"Bearer {live.token}"},
            )
            assert answer.status_code == 404


def test_the_client_says_what_is_wrong(place: Place) -> None:
    rollout_id, _ = place.live.create()
    wrong = RolloutControlClient(place.live.url, "another")
    with pytest.raises(ControlError, match="401"):
        asyncio.run(wrong.manifest(rollout_id))
    with pytest.raises(ControlError, match="400"):
        place.manifest("a/../b")
    away = RolloutControlClient("http://127.0.0.1:9", TOKEN)
    with pytest.raises(ControlError, match="did not answer"):
        asyncio.run(away.manifest(rollout_id))


class Quiet(EngineApp):
    """Shows tokens to captured calls only, so that a probe finds text."""

    async def _answer(self, path: str, raw: bytes, name: str) -> tuple[int, bytes]:
        status, body = await super()._answer(path, raw, name)
        if path.endswith("/completions") and b"return_tokens_as_token_ids" not in raw:
            reply = json.loads(body)
            reply.pop("prompt_token_ids", None)
            for choice in reply.get("choices", []):
                choice |= {"token_ids": None, "logprobs": None}
            body = json.dumps(reply).encode()
        return status, body


def test_sampling_is_neutral_whatever_a_probe_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody will train on these tokens: they are drawn as they are where we keep them."""
    storage = DirectorySink(tmp_path / "s")
    with external(Quiet(scripted()), storage, tmp_path, monkeypatch) as place:
        level = place.live.api("GET", "/api/v1/engine")["certificate"]["capture_level"]
        assert level == "text"
        rollout_id, key = place.live.create()
        place.live.chat(key, top_p=0.5, top_k=3, presence_penalty=1.0)
        asked = place.engine.seen[-1]
        assert (asked["top_p"], asked["top_k"], asked["presence_penalty"]) == (1.0, -1, 0.0)
        assert asked["temperature"] == 1.0
        assert len(place.manifest(rollout_id).records) == 1


def test_an_edited_history_is_served_and_the_receipt_is_poisoned(place: Place) -> None:
    rollout_id, key = place.live.create()
    user = {"role": "user", "content": "hi"}
    place.live.chat(key, messages=[user])
    edited = [user, {"role": "assistant", "content": "never said"}, user]
    assert place.live.chat(key, messages=edited).status_code == 200
    manifest = place.manifest(rollout_id)
    assert [item.reason for item in manifest.failures] == ["unresolved_parent"]
    receipt = receipt_of(manifest)
    assert receipt.failure_reason == "unresolved_parent"
    with pytest.raises(ReceiptVerificationError) as caught:
        training_row(receipt, place.storage)
    assert caught.value.code == "rollout_failed"


def test_a_route_that_nobody_knows_poisons(place: Place) -> None:
    rollout_id, key = place.live.create()
    head = {"authorization": f"Bearer {key}"}
    place.live.chat(key)
    for address in ("/v1/models",):
        httpx.get(place.live.url + address, headers=head)
    assert place.manifest(rollout_id).failures == ()
    answer = httpx.post(f"{place.live.url}/v1/generate", headers=head, json={"prompt": "x"})
    assert answer.status_code == 404
    assert [item.reason for item in place.manifest(rollout_id).failures] == [
        "unresolved_parent"
    ]


def test_plain_completions_are_refused_over_the_wire(place: Place) -> None:
    _, key = place.live.create()
    answer = httpx.post(
        f"{place.live.url}/v1/completions",
        headers={"authorization": f"Bearer {key}"},
        json={"model": "m", "prompt": "x"},
    )
    assert answer.status_code == 400
    assert "embedded" in answer.json()["error"]["message"]


def test_many_calls_at_once_are_all_committed(place: Place) -> None:
    from concurrent.futures import ThreadPoolExecutor

    rollouts = [place.live.create() for _ in range(6)]

    def ask(number: int) -> int:
        _, key = rollouts[number % 6]
        message = {"role": "user", "content": f"question {number}"}
        return place.live.chat(key, messages=[message]).status_code

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(ask, range(36))) == {200}
    for rollout_id, _ in rollouts:
        manifest = place.manifest(rollout_id)
        assert (len(manifest.records), manifest.failures) == (6, ())


def test_a_worker_without_acknowledgement_poisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine itself stands where a worker should."""
    monkeypatch.setenv(VARIABLE, TOKEN)
    with (
        served(EngineApp(scripted())) as engine,
        serving(
            HttpEngine(engine), tmp_path / "s.duckdb", custody="external", engine=engine
        ) as live,
    ):
        rollout_id, key = live.create()
        assert live.chat(key).status_code == 200
        client = RolloutControlClient(live.url, TOKEN)
        failures = asyncio.run(client.manifest(rollout_id)).failures
    assert [item.reason for item in failures] == [
        "worker_response_missing_commit_coordinates",
        "request_finished_without_staged_coordinates",
    ]


@pytest.mark.parametrize(
    ("settings", "environ", "words"),
    [
        ({"engine": "tiny"}, {VARIABLE: TOKEN}, "needs a worker"),
        ({"engine": "scripted:x"}, {VARIABLE: TOKEN}, "needs a worker"),
        ({"top_logprobs": 2}, {VARIABLE: TOKEN}, "TOP_LOGPROBS"),
        ({}, {}, "needs a control token"),
        ({}, {VARIABLE: ""}, "needs a control token"),
        ({}, {VARIABLE: "é"}, "printable ASCII"),
        ({}, {VARIABLE: " x"}, "printable ASCII"),
        ({"nemo_gym_control_token_env": "MINE"}, {VARIABLE: TOKEN}, "set MINE to"),
        ({"custody_ledger": Path(__file__) / "x"}, {VARIABLE: TOKEN}, "cannot start"),
    ],
)
def test_what_cannot_work_is_refused_at_start(
    tmp_path: Path, settings: dict[str, Any], environ: dict[str, str], words: str
) -> None:
    base = {"custody": "external", "engine": "http://worker:1", "store": tmp_path / "s.duckdb"}
    chosen = load(**base | settings)
    with pytest.raises(ConfigurationError, match=words):
        ExternalCustody.of(chosen, environ)
    assert not list(tmp_path.iterdir())


def test_another_variable_may_hold_the_token(tmp_path: Path) -> None:
    chosen = load(
        custody="external",
        engine="http://worker:1",
        store=tmp_path / "s.duckdb",
        nemo_gym_control_token_env="MINE",
    )
    made = ExternalCustody.of(chosen, {"MINE": TOKEN})
    assert made is not None
    made.close()
    assert ExternalCustody.of(load(store=tmp_path / "s.duckdb"), {}) is None


GYM = os.environ.get("ROLLOUT_EXPLORER_NEMO_GYM_PYTHON")


@pytest.mark.skipif(GYM is None, reason="names no interpreter with nemo-gym")
def test_the_real_package_takes_our_manifest_and_what_our_worker_staged(place: Place) -> None:
    """Its own records read both, and its own verification gives the same row."""
    rollout_id, key = place.live.create()
    replies = talk(place.live, key, {})
    manifest = place.manifest(rollout_id)
    receipt = receipt_of(manifest, reward=1.0, declared_response_id=replies[-1]["id"])
    calls = place.storage.fetch([row.staging_key for row in receipt.manifest])
    snapshots = [call.to_json() for call in calls]
    for snapshot in snapshots:
        snapshot.pop("extras")
    admissions = []
    for record in manifest.records:
        raw = httpx.get(
            f"{place.live.url}/api/v1/rollouts/{rollout_id}/raw/{record.model_call_id}"
            "?kind=submitted",
            headers={"authorization": f"Bearer {place.live.token}"},
        )
        admissions.append(raw.json()["ng_capture"])
    assert [each["mode"] for each in admissions] == ["text", "token_in", "token_in"]
    asked = [
        ["parse", ["RolloutManifest", manifest.to_json()]],
        ["receipt", [{"receipt": receipt.to_json(), "snapshots": snapshots}, []]],
        *(["parse", ["CaptureAdmission", each]] for each in admissions),
    ]
    peer = Path(__file__).with_name("peer.py")
    done = subprocess.run(
        [str(GYM), str(peer)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    parsed, verified, *admitted = json.loads(done.stdout)
    assert [each["value"] for each in admitted] == admissions
    assert RolloutManifest.parse(parsed["value"]) == manifest
    row = training_row(receipt, place.storage)
    assert verified["value"]["token_ids"] == row.token_ids.tolist()
    assert verified["value"]["logprobs"] == row.logprobs.tolist()
    assert verified["value"]["model_call_ids"] == list(row.model_call_ids)
