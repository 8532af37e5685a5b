"""The weight fence drives a real vLLM in development mode: pause, label, cache, resume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from explorer.engine.http import HttpEngine
from explorer.records import RolloutId
from tests.live import Live, serving
from tests.vllm.conftest import MODEL


@pytest.fixture(scope="module")
def fenced(vllm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Our server, which may drive the engine."""
    store = tmp_path_factory.mktemp("fenced") / "store.duckdb"
    engine = HttpEngine(vllm, tokenizer=str(MODEL))
    with serving(engine, store, fence_engine_control="auto", fence_wait_s=0.2) as running:
        yield running


def told(live: Live, **body: Any) -> Any:
    return live.api("POST", "/api/v1/weights", body)


def test_an_update_pauses_the_engine_names_its_weights_and_lets_it_go_on(
    fenced: Live, vllm: str
) -> None:
    told(fenced, state="ready", weight_version=7)
    assert httpx.get(f"{vllm}/weight_info").json() == {"weight_version": "7"}
    rollout_id, key = fenced.create()
    body: dict[str, Any] = {"max_tokens": 600, "ignore_eos": True, "temperature": 1.0}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(fenced.chat, key, **body)
        deadline = time.time() + 60
        while not fenced.api("GET", "/api/v1/weights")["in_flight"]:
            assert time.time() < deadline
        time.sleep(0.3)
        standing = told(fenced, state="syncing", weight_version=8, drain="pause")
        assert (standing["in_flight"], standing["drained"]) == (1, False)
        assert httpx.get(f"{vllm}/is_paused").json() == {"is_paused": True}
        assert fenced.chat(key, max_tokens=3).status_code == 429
        time.sleep(0.5)
        assert not running.done()
        rpc = {"method": "reload_weights", "kwargs": {}}
        assert httpx.post(f"{vllm}/collective_rpc", json=rpc, timeout=60).status_code == 200
        told(fenced, state="ready", weight_version=8, engine_weight_label="step-8")
        assert running.result().status_code == 200
    assert httpx.get(f"{vllm}/is_paused").json() == {"is_paused": False}
    assert httpx.get(f"{vllm}/weight_info").json() == {"weight_version": "step-8"}
    assert fenced.chat(key, max_tokens=3).status_code == 200
    newest = fenced.api("GET", "/api/v1/weights?limit=1")["updates"][0]
    assert [(step["step"], step["ok"]) for step in newest["detail"]["steps"]] == [
        ("update_weight_version", True),
        ("reset_prefix_cache", True),
        ("resume", True),
    ]
    record = fenced.store.record(RolloutId(rollout_id))
    assert record is not None
    crossed, refused, good = sorted(record.calls, key=lambda call: call.sequence)
    assert refused.failure_kind == "fenced"
    assert (crossed.weight_version_start, crossed.weight_version_end) == (7, 8)
    assert "version_crossed" in {note.code for note in crossed.notes}
    assert (good.weight_version_start, good.weight_version_end) == (8, 8)
    assert [(s.version_label, s.weight_version) for s in good.weight_spans] == [("step-8", 8)]
    assert not {note.code for note in good.notes} & {"version_crossed", "version_unknown"}


def test_weights_that_change_behind_our_back_are_noticed(fenced: Live, vllm: str) -> None:
    told(fenced, state="ready", weight_version=9)
    rollout_id, key = fenced.create()
    other = {"new_version": "smuggled"}
    assert httpx.post(f"{vllm}/update_weight_version", json=other).status_code == 200
    assert fenced.chat(key, max_tokens=3).status_code == 200
    record = fenced.store.record(RolloutId(rollout_id))
    assert record is not None
    notes = {note.code: note.detail for note in record.calls[0].notes}
    assert "'smuggled'" in notes["version_unknown"]


def test_the_engines_own_routes_are_not_reachable_through_the_proxy(fenced: Live) -> None:
    _, key = fenced.create()
    headers = {"authorization": f"Bearer {key}"}
    for path in ("/pause", "/resume", "/update_weight_version", "/collective_rpc"):
        for base in (fenced.url, f"{fenced.url}/k/{key}", f"{fenced.url}/v1"):
            assert httpx.post(base + path, headers=headers, json={}).status_code in (404, 405)
