"""The weight fence of a real server: weights that change under load, a dead trainer, SDKs that
are told to come back, a server that is killed in the middle of an update."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from google import genai
from google.genai import errors as google_errors
from google.genai import types as google_types
from safetensors.numpy import load_file, save_file

from explorer import runfile
from explorer.engine.tiny import TinyEngine
from explorer.engine.tiny.weights import SHIPPED
from explorer.records import RolloutId
from tests.live import Live, serving

SHIPPED_FILE = SHIPPED / "model.safetensors"
AT_ONCE = 6


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped policy after a step of some trainer."""
    tensors = load_file(SHIPPED_FILE)
    rng = np.random.default_rng(3)
    moved = {
        name: value + rng.normal(0, 0.2, value.shape).astype(value.dtype)
        for name, value in tensors.items()
    }
    path = tmp_path_factory.mktemp("weights") / "step-8.safetensors"
    save_file(moved, path)
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("fence") / "store.duckdb"
    with serving(TinyEngine(), store, fence_wait_s=0.2) as running:
        yield running


def weights(live: Live, status: int = 200, **body: Any) -> Any:
    """A trainer's word."""
    return live.api("POST", "/api/v1/weights", body, status=status)


def long_call(live: Live, key: str, max_tokens: int = 220) -> None:
    answer = live.chat(key, max_tokens=max_tokens, ignore_eos=True, temperature=1.0)
    assert answer.status_code == 200, answer.text


def by_name(live: Live, rollout_id: str) -> Any:
    """The verdict's findings by code."""
    found = live.api("GET", f"/api/v1/rollouts/{rollout_id}/findings")["findings"]
    return [item["code"] for item in found]


def test_weights_change_under_load_and_every_span_is_the_engines_own(
    live: Live, other: Path
) -> None:
    weights(live, state="ready", weight_version=7, weights_path=str(SHIPPED))
    rollout_id, key = live.create()
    with ThreadPoolExecutor(AT_ONCE + 2) as pool:
        early = [pool.submit(long_call, live, key) for _ in range(AT_ONCE)]
        deadline = time.time() + 20
        while live.api("GET", "/api/v1/weights")["in_flight"] < AT_ONCE:
            assert time.time() < deadline
        told = weights(live, state="syncing", weight_version=8, drain="none")
        assert (told["state"], told["weight_version"], told["coming"]) == ("syncing", 7, 8)
        assert told["in_flight"] > 0
        assert told["drained"] is False
        after = weights(live, state="ready", weight_version=8, weights_path=str(other))
        assert (after["state"], after["weight_version"]) == ("ready", 8)
        late = [pool.submit(long_call, live, key, 20) for _ in range(2)]
        for sent in (*early, *late):
            sent.result()
    record = live.store.record(RolloutId(rollout_id))
    assert record is not None
    crossed = 0
    for call in record.calls:
        raw = json.loads(
            next(b.data for b in live.store.bodies(call.call_id) if b.kind.value == "reply")
        )
        said = raw["choices"][0]["weight_versions"]
        kept = [
            {"version": span.version_label, "start": span.start, "end": span.end}
            for span in call.weight_spans
        ]
        assert kept == said
        versions = [span.weight_version for span in call.weight_spans]
        if len(said) == 2:
            crossed += 1
            assert versions == [7, 8]
            assert [span.end for span in call.weight_spans] == [said[0]["end"], 220]
            assert "version_crossed" in {note.code for note in call.notes}
        else:
            assert versions == [call.weight_version_start]
    assert crossed >= 1
    new = [call for call in record.calls if call.completion_len == 20]
    assert len(new) == 2
    for call in new:
        assert (call.weight_version_start, call.weight_version_end) == (8, 8)
        assert not call.notes
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    assert "version_crossed" in by_name(live, rollout_id)
    tree = live.api("GET", f"/api/v1/rollouts/{rollout_id}")
    assert tree["verdict"]["trainable"] is False
    # The certificate stays in force: the same process, other weights.
    certificate = live.application.certificate
    assert certificate is not None
    assert {call.certificate_id for call in new} == {certificate.certificate_id}


def test_new_weights_answer_otherwise_and_the_old_ones_exactly_as_before(
    live: Live, other: Path
) -> None:
    _, key = live.create()

    def said() -> Any:
        answer = live.chat(key, temperature=0, max_tokens=30, return_token_ids=True)
        return answer.json()["choices"][0]["token_ids"]

    weights(live, state="ready", weight_version=9, weights_path=str(SHIPPED))
    before = said()
    weights(live, state="ready", weight_version=10, weights_path=str(other))
    assert said() != before
    told = weights(live, state="ready", weight_version=9, weights_path=str(SHIPPED_FILE))
    assert told["weight_version"] == 9
    assert said() == before
    newest = live.api("GET", "/api/v1/weights?limit=1")["updates"][0]
    assert newest["detail"]["back_from"] == 10


@pytest.mark.parametrize(
    "spoil",
    [
        "missing",
        "garbage",
        "lacks",
        "shape",
        "dtype",
        "nan",
        "folder",
        "long",
        "endless",
        "float8",
    ],
)
def test_a_file_that_does_not_fit_leaves_the_weights_and_says_why(
    live: Live, tmp_path: Path, spoil: str
) -> None:
    weights(live, state="ready", weight_version=11, weights_path=str(SHIPPED))
    tensors = load_file(SHIPPED_FILE)
    name = "model.norm.weight"
    path = tmp_path / "w.safetensors"
    words = {
        "missing": "there is no",
        "garbage": "cannot be read",
        "lacks": f"lacks tensor `{name}`",
        "shape": f"`{name}` is",
        "dtype": f"`{name}` is float16",
        "nan": "NaN",
        "folder": "there is no",
        "long": "cannot be read",
        "endless": "not a file of weights",
        "float8": "cannot be read",
    }[spoil]
    if spoil == "garbage":
        path.write_bytes(b"\xff" * 100)
    elif spoil == "folder":
        path = tmp_path
    elif spoil == "long":
        path = Path("/" + "a" * 5000)
    elif spoil == "float8":
        told = json.dumps({name: {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}})
        path.write_bytes(len(told).to_bytes(8, "little") + told.encode() + b"1234")
    elif spoil == "endless":
        path = Path("/proc/kmsg")  # a plain file to look at; who reads it waits for ever
    elif spoil != "missing":
        if spoil == "lacks":
            del tensors[name]
        elif spoil == "shape":
            tensors[name] = tensors[name][:-1].copy()
        elif spoil == "dtype":
            tensors[name] = tensors[name].astype(np.float16)
        else:
            tensors[name][3] = np.nan
        save_file(tensors, path)
    refused = weights(live, 400, state="ready", weight_version=12, weights_path=str(path))
    assert words in refused["error"]["message"]
    standing = live.api("GET", "/api/v1/weights")
    assert (standing["state"], standing["weight_version"]) == ("ready", 11)
    rollout_id, key = live.create()
    long_call(live, key, 5)
    call = live.store.record(RolloutId(rollout_id)).calls[0]  # type: ignore[union-attr]
    assert (call.weight_version_end, call.notes) == (11, ())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"state": "done", "weight_version": 1},
        *(
            {"state": "ready", "weight_version": wrong}
            for wrong in (True, 1.0, -1, "1", None, 2**60)
        ),
        {"state": "ready", "weight_version": 1, "lease_s": 5},
        {"state": "ready", "weight_version": 1, "weights_path": "relative"},
        {"state": "ready", "weight_version": 1, "engine_weight_label": "a,b"},
        {"state": "syncing", "weight_version": 1, "lease_s": True},
        {"state": "syncing", "weight_version": 1, "wait_s": -1},
        {"state": "syncing", "weight_version": 1, "drain": "abort"},
        {"state": "syncing", "weight_version": 1, "drain": ["wait"]},
    ],
)
def test_what_is_no_announcement_is_refused_and_changes_nothing(
    live: Live, body: dict[str, Any]
) -> None:
    before = live.api("GET", "/api/v1/weights")
    assert weights(live, 400, **body)["error"]["code"] == "bad_request"
    assert live.api("GET", "/api/v1/weights") == before


def test_every_sdk_reads_the_refusal_and_may_try_again(live: Live) -> None:
    rollout_id, key = live.create()
    weights(live, state="ready", weight_version=20, weights_path=str(SHIPPED))
    weights(live, state="syncing", weight_version=21, lease_s=60, wait_s=0)
    message: Any = {"role": "user", "content": "hi"}
    client = openai.OpenAI(api_key=key, base_url=f"{live.url}/v1", max_retries=0)
    openai_calls: list[Any] = [
        lambda: client.chat.completions.create(model="m", messages=[message]),
        lambda: client.chat.completions.create(model="m", messages=[message], stream=True),
        lambda: client.completions.create(model="m", prompt="hi"),
        lambda: client.responses.create(model="m", input="hi"),
    ]
    for call in openai_calls:
        with pytest.raises(openai.RateLimitError) as refused:
            call()
        assert "version 21 of the weights" in refused.value.message
        assert refused.value.response.headers["x-should-retry"] == "true"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 10
    messages = anthropic.Anthropic(api_key=key, base_url=live.url, max_retries=0)
    with pytest.raises(anthropic.RateLimitError) as said:
        messages.messages.create(model="m", max_tokens=5, messages=[message])
    assert said.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
    google = genai.Client(api_key=key, http_options=google_types.HttpOptions(base_url=live.url))
    with pytest.raises(google_errors.ClientError) as busy:
        google.models.generate_content(model="m", contents="hi")
    assert (busy.value.code, busy.value.status) == (429, "RESOURCE_EXHAUSTED")
    # It waits as the header says, and gets through once the weights are there.
    weights(live, state="syncing", weight_version=21, lease_s=2, wait_s=0)
    patient = openai.OpenAI(api_key=key, base_url=f"{live.url}/v1", max_retries=3)
    word: dict[str, Any] = {
        "state": "ready",
        "weight_version": 21,
        "weights_path": str(SHIPPED),
    }
    timer = threading.Timer(0.5, lambda: weights(live, **word))
    timer.start()
    answer = patient.chat.completions.create(model="m", messages=[message], max_tokens=3)
    timer.join()
    assert answer.choices[0].message is not None
    record = live.store.record(RolloutId(rollout_id))
    assert record is not None
    fates = [(call.status.value, call.failure_kind) for call in record.calls]
    assert fates[-1] == ("committed", None)
    assert {fate for fate in fates[:-1]} == {("refused", "fenced")}
    tree = live.api("GET", f"/api/v1/rollouts/{rollout_id}/tree")
    assert len(tree["nodes"]) == 1


def test_a_dead_trainer_does_not_hold_calls_for_ever_and_nothing_lies(live: Live) -> None:
    weights(live, state="ready", weight_version=30, weights_path=str(SHIPPED))
    weights(live, state="syncing", weight_version=31, lease_s=1, wait_s=0)
    rollout_id, key = live.create()
    assert live.chat(key, max_tokens=3).status_code == 429
    time.sleep(1.05)
    assert live.chat(key, max_tokens=3).status_code == 200
    standing = live.api("GET", "/api/v1/weights")
    assert (standing["state"], standing["weight_version"]) == ("ready", None)
    assert "lease ran out" in standing["unknown_because"]
    assert standing["updates"][0]["state"] == "unknown"
    metrics = httpx.get(
        f"{live.url}/metrics", headers={"authorization": f"Bearer {live.token}"}
    ).text
    assert "rollout_explorer_fence_version_unknown 1" in metrics
    assert "fence_weight_version" not in metrics
    weights(live, state="ready", weight_version=31, weights_path=str(SHIPPED))
    assert live.chat(key, max_tokens=3).status_code == 200
    record = live.store.record(RolloutId(rollout_id))
    assert record is not None
    refused, doubted, good = record.calls
    assert refused.status.value == "refused"
    assert (doubted.weight_version_start, doubted.weight_version_end) == (None, None)
    assert [note.code for note in doubted.notes] == ["version_unknown"]
    assert (good.weight_version_end, good.notes) == (31, ())
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    shown = live.api("GET", f"/api/v1/rollouts/{rollout_id}/calls/{doubted.call_id}")
    reasons = {span["reason"] for span in shown["mask"]} if "mask" in shown else set()
    assert not reasons or "sampled" not in reasons
    assert "version_crossed" in by_name(live, rollout_id)


def test_syncing_answers_when_the_last_call_in_flight_has_ended(live: Live) -> None:
    weights(live, state="ready", weight_version=40, weights_path=str(SHIPPED))
    rollout_id, key = live.create()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(long_call, live, key)
        deadline = time.time() + 20
        while not live.api("GET", "/api/v1/weights")["in_flight"]:
            assert time.time() < deadline
        told = weights(live, state="syncing", weight_version=41, wait_s=30)
        assert (told["drained"], told["in_flight"]) == (True, 0)
        running.result()
    weights(live, state="ready", weight_version=41, weights_path=str(SHIPPED))
    call = live.store.record(RolloutId(rollout_id)).calls[0]  # type: ignore[union-attr]
    assert (call.weight_version_start, call.weight_version_end) == (40, 40)
    assert not {note.code for note in call.notes} & {"version_crossed", "version_unknown"}


def start(store: Path) -> tuple[subprocess.Popen[bytes], runfile.RunFile]:
    """A server of its own process, ready."""
    command = [sys.executable, "-m", "explorer", "serve", "--port", "0", "--store", str(store)]
    environment = os.environ | {"ROLLOUT_EXPLORER_FENCE_WAIT_S": "0.2"}
    log = store.with_suffix(".log")
    with log.open("ab") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, env=environment
        )
    deadline = time.time() + 60
    while time.time() < deadline:
        run = runfile.read(store)
        if run is not None and run.pid == child.pid:
            return child, run
        assert child.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError("the server did not start")


def ask(run: runfile.RunFile, method: str, path: str, **body: Any) -> Any:
    """One API call as the operator."""
    answer = httpx.request(
        method, run.url + path, json=body or None, timeout=60,
        headers={"authorization": f"Bearer {run.token}"},
    )  # fmt: skip
    assert answer.status_code < 300, answer.text
    return answer.json()


def kill(child: subprocess.Popen[bytes]) -> None:
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def test_a_killed_server_comes_back_with_its_fence_and_its_weights(
    tmp_path: Path, other: Path
) -> None:
    store = tmp_path / "store.duckdb"
    child, run = start(store)
    try:
        path = "/api/v1/weights"
        ask(run, "POST", path, state="ready", weight_version=8, weights_path=str(other))
        key = ask(run, "POST", "/api/v1/rollouts", task="t")["capture_key"]
        ask(run, "POST", path, state="syncing", weight_version=9, lease_s=600, wait_s=0)
        kill(child)
        child, run = start(store)
        standing = ask(run, "GET", path)
        assert (standing["state"], standing["coming"]) == ("syncing", 9)
        assert standing["weight_version"] == 8
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        headers = {"authorization": f"Bearer {key}"}
        address = "/v1/chat/completions"
        assert httpx.post(run.url + address, json=chat, headers=headers).status_code == 429
        # The update was given up: the old version is announced again, without loading.
        ask(run, "POST", path, state="ready", weight_version=8, engine_weight_label="8")
        asked = httpx.post(run.url + address, json=chat, headers=headers, timeout=60)
        assert asked.status_code == 200
        assert asked.json()["system_fingerprint"] == fingerprint_of(other)
        # The file is gone: then nobody knows, and says so.
        ask(run, "POST", path, state="ready", weight_version=10, weights_path=str(other))
        kill(child)
        moved = other.rename(other.with_suffix(".gone"))
        try:
            child, run = start(store)
            standing = ask(run, "GET", path)
        finally:
            moved.rename(other)
        assert standing["weight_version"] is None
        assert "could not be loaded again" in standing["unknown_because"]
    finally:
        kill(child)


def fingerprint_of(path: Path) -> str:
    from explorer.engine.tiny.runtime import fingerprint

    return fingerprint(path)
