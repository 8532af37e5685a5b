"""The reference worker over real HTTP: what it asks, what it adds, what never fails a reply."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click import UsageError

from explorer.custody.digest import chain_hash
from explorer.custody.records import CommitCoords, StagedCallRecord, StageResult
from explorer.engine.scripted import ScriptedEngine
from explorer.integrations.nemo_gym.__main__ import front_of, sink_of, version_of
from explorer.integrations.nemo_gym.directory import DirectorySink
from explorer.integrations.nemo_gym.duckdb_sink import DuckDBSink
from explorer.integrations.nemo_gym.prefixes import Prefixes
from explorer.integrations.nemo_gym.worker_front import with_coordinates
from tests.custody.fronts import EngineApp, root, served
from tests.custody.test_sinks import record

ROOT = Path(__file__).parents[2]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}


class Place:
    """A worker before an engine with a script."""

    def __init__(self, url: str, engine: EngineApp, sink: Any) -> None:
        self.url, self.engine, self.sink = url, engine, sink

    def chat(self, body: Any = None, **more: Any) -> httpx.Response:
        whole = (ASKED if body is None else body) | more
        return httpx.post(f"{self.url}/v1/chat/completions", json=whole, timeout=30)


def placed(script: Any, sink: Any, **options: Any) -> Iterator[Place]:
    app = EngineApp(ScriptedEngine(script))
    with (
        served(app) as engine,
        served(front_of(engine, sink, lambda: 7, **options)) as url,
    ):
        yield Place(url, app, sink)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    script = {"replies": [{"text": "Hello."}, {"text": "Again."}], "repeat": True}
    yield from placed(script, DirectorySink(tmp_path / "staged"))


def coordinates(response: httpx.Response) -> CommitCoords:
    assert response.status_code == 200, response.text
    return CommitCoords.parse(response.json()["ng_commit_coords"])


def continued(first: httpx.Response, call: str = "b", **values: Any) -> dict[str, Any]:
    """The request that goes on after a reply, with its admission."""
    coords = coordinates(first)
    said = first.json()["choices"][0]["message"]
    messages = [*ASKED["messages"], said, {"role": "user", "content": "and?"}]  # type: ignore[misc]
    admission = {
        "rollout_id": "r1",
        "model_call_id": call,
        "parent_call_id": coords.model_call_id,
        "prev_len": coords.cum_len,
        "mode": "token_in",
        "staging_chain": [coords.staging_key],
        "parent_chain_hash": coords.chain_hash,
    }
    return ASKED | {"messages": messages, "ng_capture": admission | values}


def test_a_root_and_its_child_are_staged_and_acknowledged(place: Place) -> None:
    first = place.chat(ng_capture=root(), top_logprobs=0, stream=False, stream_options=None)
    one = coordinates(first)
    body = first.json()
    prompt, ids = body["prompt_token_ids"], body["choices"][0]["token_ids"]
    assert (one.disposition, one.weight_version, one.staging_key) == ("staged", 7, "r1/a")
    assert (one.prev_len, one.cum_len) == (0, len(prompt) + len(ids))
    assert one.chain_hash == chain_hash(None, prompt + ids).hex()
    asked = place.engine.seen[-1]
    assert "ng_capture" not in asked
    assert "required_prefix_token_ids" not in asked
    assert (asked["stream"], asked["logprobs"], asked["top_logprobs"]) == (False, True, 0)
    assert asked["return_token_ids"] is asked["return_tokens_as_token_ids"] is True
    second = place.chat(continued(first))
    two = coordinates(second)
    assert (two.disposition, two.parent_call_id, two.prev_len) == ("staged", "a", one.cum_len)
    staged: list[Any] = place.sink.fetch(["r1/a", "r1/b"])
    assert staged[0].token_ids_delta.tolist() == prompt + ids
    whole = np.concatenate([call.token_ids_delta for call in staged]).tolist()
    answer = second.json()
    assert whole == answer["prompt_token_ids"] + answer["choices"][0]["token_ids"]
    assert second.headers["x-engine"] == "yes"


def test_the_engines_own_bytes_stay_as_they_are(place: Place) -> None:
    plain, captured = place.chat(), place.chat(ng_capture=root())
    assert "ng_commit_coords" not in plain.json()
    told = captured.text
    start = told.index('"ng_commit_coords"')
    assert start == 1
    rest = json.loads(told)
    del rest["ng_commit_coords"]
    assert set(rest) == set(plain.json())
    coords = record_coords()
    raw = b' { "a" : 1.50, "b":NaN}'
    assert with_coordinates(raw, coords).endswith(b', "a" : 1.50, "b":NaN}')
    assert json.loads(with_coordinates(b"{}", coords)) == {"ng_commit_coords": coords.to_json()}
    forged = with_coordinates(b'{"ng_commit_coords": {"x": 1}, "a": 1}', coords)
    assert json.loads(forged) == {"ng_commit_coords": coords.to_json(), "a": 1}
    assert forged.count(b"ng_commit_coords") == 1
    assert with_coordinates(b"<html>", coords) == b"<html>"


def record_coords() -> CommitCoords:
    call = record()
    names = (
        *("rollout_id", "model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len"),
        *("weight_version", "digest", "extras_digest", "chain_hash", "cumulative_hash"),
    )
    values = {name: getattr(call, name) for name in names}
    return CommitCoords(**values, staging_key=call.staging_key)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"staging_chain": ["r1/gone"]}, "not in storage"),
        ({"parent_chain_hash": "0" * 64}, "another chain hash"),
        ({"prev_len": 3}, "another length"),
        ({"rollout_id": "r2"}, "of another rollout"),
    ],
)
def test_a_prefix_that_cannot_be_had_fails_the_capture_and_not_the_reply(
    place: Place, changed: dict[str, Any], why: str
) -> None:
    first = place.chat(ng_capture=root())
    second = place.chat(continued(first, **changed))
    coords = coordinates(second)
    assert coords.disposition == "capture_failed", why
    assert second.json()["choices"][0]["message"]["content"] == "Again."
    with pytest.raises(LookupError):
        place.sink.fetch([f"{changed.get('rollout_id', 'r1')}/b"])


def test_a_prompt_without_the_prefix_fails_the_capture_and_not_the_reply(place: Place) -> None:
    first = place.chat(ng_capture=root())
    edited = continued(first)
    edited["messages"][0] = {"role": "user", "content": "something else"}
    assert coordinates(place.chat(edited)).disposition == "capture_failed"


def test_numbers_that_only_python_reads_fail_no_reply(place: Place) -> None:
    """NaN sends a body to the slower reader, which keeps integers of any size."""
    body = ASKED | {"ng_capture": root(), "top_p": float("nan"), "extra": 10**30}
    response = httpx.post(
        f"{place.url}/v1/chat/completions", content=json.dumps(body).encode(), timeout=30
    )
    assert coordinates(response).disposition == "staged"
    assert place.engine.seen[-1]["extra"] == 10**30


@pytest.mark.parametrize("bad", [None, {}, "x", [1], root() | {"x": 1}, root() | {"mode": "m"}])
def test_an_admission_that_is_none_gets_no_coordinates(place: Place, bad: Any) -> None:
    response = place.chat(ng_capture=bad)
    assert response.status_code == 200
    assert "ng_commit_coords" not in response.json()
    assert response.json()["choices"][0]["message"]["content"]


def test_a_stream_cannot_be_captured(place: Place) -> None:
    response = place.chat(ng_capture=root(), stream=True)
    assert response.status_code == 400
    assert "stream false" in response.json()["error"]["message"]
    assert not place.engine.seen


def test_everything_else_is_passed_on(place: Place) -> None:
    assert httpx.get(f"{place.url}/v1/models").json()["data"][0]["id"] == "scripted"
    streamed = place.chat(stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert streamed.headers["x-engine"] == "yes"
    gone = httpx.post(f"{place.url}/nothing%2Fat/all?x=%41", content=b"{")
    assert place.engine.addresses[-1] == b"/nothing%2Fat/all?x=%41"
    assert (gone.status_code, gone.json()["error"]["message"]) == (404, "no such route")


@pytest.mark.parametrize(
    "reply",
    [
        {"status": 500, "body": {"error": {"message": "no"}}},
        {"status": 200, "body": "<html>"},
        {"status": 200, "body": {"choices": []}},
        {"text": "x", "fault": "no_prompt_ids"},
        {"text": "x", "fault": "no_logprobs"},
        {"text": "x", "logprobs": [float("nan")] * 3},
        {"text": "x", "logprobs": [-0.5]},
        {"text": "x", "fault": "wrong_usage"},
        {"text": "x", "finish_reason": "abort"},
        {"text": "x", "patch": {"usage": {"prompt_tokens": 3}}},
        {"text": "x", "patch": {"choices": [{"message": {}}] * 2}},
    ],
)
def test_replies_that_hold_no_capture_are_served(tmp_path: Path, reply: Any) -> None:
    for place in placed([reply, reply], DirectorySink(tmp_path)):
        plain, captured = place.chat(), place.chat(ng_capture=root())
        assert captured.status_code == plain.status_code
        if reply.get("status") == 500 or reply.get("body") == "<html>":
            assert captured.content == plain.content
        else:
            told = json.loads(captured.text)
            assert told["ng_commit_coords"]["disposition"] == "capture_failed"
        assert not list(tmp_path.rglob("*.json"))


class Broken:
    """A storage that does what it is told to."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        if self.error is not None:
            raise self.error
        return StageResult(ok=False, error="full")

    def fetch(self, keys: Sequence[str]) -> Any:
        raise RuntimeError("the storage is gone")


@pytest.mark.parametrize("error", [None, OSError("disk"), RuntimeError("whatever")])
def test_a_broken_storage_never_fails_the_reply(error: Exception | None) -> None:
    for place in placed([{"text": "Hello."}] * 2, Broken(error)):
        first = place.chat(ng_capture=root())
        assert coordinates(first).disposition == "capture_failed"
        admission = root("b") | {
            "mode": "token_in",
            "parent_call_id": "a",
            "prev_len": 3,
            "staging_chain": ["k"],
            "parent_chain_hash": "0" * 64,
        }
        second = place.chat(ng_capture=admission)
        assert coordinates(second).disposition == "capture_failed"
        assert second.json()["choices"][0]["message"]["content"] == "Hello."


def test_an_engine_that_takes_the_prefix_is_given_it(tmp_path: Path) -> None:
    script = {"replies": [{"text": "Hello."}], "repeat": True}
    for place in placed(script, DirectorySink(tmp_path), sends_prefix=True):
        first = place.chat(ng_capture=root(), required_prefix_token_ids=[5])
        assert "required_prefix_token_ids" not in place.engine.seen[-1]
        place.chat(continued(first))
        wanted = place.sink.fetch(["r1/a"])[0].token_ids_delta.tolist()
        assert place.engine.seen[-1]["required_prefix_token_ids"] == wanted


def test_a_client_that_leaves_ends_the_generation(tmp_path: Path) -> None:
    for place in placed([{"text": "x", "delay_ms": 20_000}], DirectorySink(tmp_path)):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{place.url}/v1/chat/completions",
                json=ASKED | {"ng_capture": root()},
                timeout=0.5,
            )
        assert place.engine.gone.wait(10)
        assert not list(tmp_path.rglob("*.json"))


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    front = front_of("http://127.0.0.1:9", DirectorySink(tmp_path), lambda: 1)
    with served(front) as url:
        for more in ({}, {"ng_capture": root()}):
            response = httpx.post(f"{url}/v1/chat/completions", json=ASKED | more, timeout=30)
            assert response.status_code == 502
            assert "no whole reply" in response.json()["error"]["message"]


def test_many_calls_are_staged_at_once(tmp_path: Path) -> None:
    script = {"replies": [{"text": "Hello."}], "repeat": True}
    for place in placed(script, DuckDBSink(tmp_path / "s.duckdb")):
        found: list[CommitCoords] = []

        def ask(number: int, place: Place = place, found: Any = found) -> None:
            found.append(coordinates(place.chat(ng_capture=root(str(number)))))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {coords.disposition for coords in found} == {"staged"}
        assert len(place.sink.fetch([f"r1/{number}" for number in range(16)])) == 16


def test_a_prefix_is_fetched_once_and_memory_is_bounded(place: Place) -> None:
    class Counting:
        def __init__(self) -> None:
            self.asked: list[Sequence[str]] = []

        def fetch(self, keys: Sequence[str]) -> Any:
            self.asked.append(keys)
            return place.sink.fetch(keys)

    first = place.chat(ng_capture=root())
    from explorer.custody.records import CaptureAdmission

    admission = CaptureAdmission.parse(continued(first)["ng_capture"])
    source = Counting()
    kept = Prefixes(source)
    assert kept.of(admission) is kept.of(admission)
    assert len(source.asked) == 1
    small = Prefixes(source, kept_bytes=8)
    small.of(admission)
    small.of(admission)
    assert len(source.asked) == 3
    assert kept.of(CaptureAdmission.parse(root())) is None


def test_the_command_starts_and_refuses(tmp_path: Path) -> None:
    """It refuses where the digests are not the frozen ones, before it listens."""
    script = (
        "import sys\n"
        "import explorer.custody.digest as digest\n"
        "digest.CHAIN_TAG = b'another'\n"
        "from explorer.integrations.nemo_gym.__main__ import main\n"
        "main()\n"
    )
    words = ["--engine", "http://127.0.0.1:9", "--weight-version", "1"]
    words += ["--sink", f"directory:{tmp_path}", "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"ConformanceError" in done.stderr
    assert b"Uvicorn running" not in done.stderr


def test_options_name_a_sink_and_a_version(tmp_path: Path) -> None:
    assert isinstance(sink_of(f"directory:{tmp_path}/d"), DirectorySink)
    made = sink_of(f"duckdb:{tmp_path}/x.duckdb")
    assert isinstance(made, DuckDBSink)
    made.close()
    for bad in ("", "directory:", "s3:x", "x"):
        with pytest.raises(UsageError):
            sink_of(bad)
    assert version_of("12")() == 12
    file = tmp_path / "version"
    read = version_of(f"file:{file}")
    file.write_text("3\n")
    assert read() == 3
    file.write_text("4")
    assert read() == 4
    for bad in ("", "x", "-1", "1.5"):
        with pytest.raises(UsageError):
            version_of(bad)


def test_a_version_that_cannot_be_read_leaves_the_reply_alone(tmp_path: Path) -> None:
    app = EngineApp(ScriptedEngine([{"text": "Hello."}]))
    read = version_of(f"file:{tmp_path}/missing")
    with served(app) as engine, served(front_of(engine, DirectorySink(tmp_path), read)) as url:
        response = httpx.post(
            f"{url}/v1/chat/completions", json=ASKED | {"ng_capture": root()}, timeout=30
        )
        assert response.status_code == 200
        assert "ng_commit_coords" not in response.json()
