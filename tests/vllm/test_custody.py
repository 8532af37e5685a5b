"""External custody before a real vLLM, which has no `required_prefix_token_ids`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.custody.errors import ReceiptVerificationError
from explorer.custody.rebuild import verify_and_linearize
from explorer.demo.tasks import SYSTEM, TOOLS, run_tool
from explorer.engine.http import HttpEngine
from explorer.integrations.nemo_gym.__main__ import front_of
from explorer.integrations.nemo_gym.control import RolloutControlClient
from explorer.integrations.nemo_gym.directory import DirectorySink
from explorer.integrations.nemo_gym.receipts import receipt_of, training_row
from explorer.trace.custody_calls import custody_calls
from explorer.trace.receipts import receipts_of
from tests.custody.fronts import served
from tests.live import Live, serving

VARIABLE, TOKEN = "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN", "t" * 32
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 160, "seed": 3}


def talk(live: Live, key: str, question: str) -> list[dict[str, Any]]:
    """A task for an agent with tools, up to its answer."""
    said: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    replies: list[dict[str, Any]] = []
    for _ in range(4):
        response = live.chat(key, messages=said, tools=TOOLS, **GREEDY)
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


@pytest.mark.parametrize("question", ["What is 47 + 38? Use the calculator.", "What is 2 + 3?"])
def test_what_a_framework_verifies_is_what_this_server_records_itself(
    vllm: str, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    rollout_id, key = live.create()
    talk(live, key, question)
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    record = live.store.record(rollout_id)  # type: ignore[arg-type]
    assert record is not None
    embedded = receipts_of(record)[0].receipt
    mine = verify_and_linearize(embedded, [call.staged for call in custody_calls(record).calls])
    storage = DirectorySink(tmp_path / "staged")
    with (
        served(front_of(vllm, storage, lambda: 4)) as front,
        serving(
            HttpEngine(front), tmp_path / "s.duckdb", custody="external", engine=front
        ) as outside,
    ):
        rollout_id, key = outside.create()
        replies = talk(outside, key, question)
        manifest = asyncio.run(RolloutControlClient(outside.url, TOKEN).manifest(rollout_id))
        assert manifest.failures == ()
        receipt = receipt_of(manifest, declared_response_id=replies[-1]["id"])
        row = training_row(receipt, storage)
        for name in ("prompt_token_ids", "ng_commit_coords"):
            assert name not in replies[-1]
    assert row.token_ids.tolist() == mine.token_ids.tolist()
    assert row.token_mask.tolist() == mine.token_mask.tolist()
    assert row.logprobs == pytest.approx(mine.logprobs, abs=1e-3)
    assert [link.generation_len for link in row.link_spans] == [
        link.generation_len for link in mine.link_spans
    ]


def test_a_prompt_that_does_not_begin_with_its_parent_is_served_and_never_verifies(
    vllm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness sends the same words under another template argument: the parent is found
    by them, and only the worker sees that the tokens are others."""
    monkeypatch.setenv(VARIABLE, TOKEN)
    storage = DirectorySink(tmp_path / "staged")
    with (
        served(front_of(vllm, storage, lambda: 4)) as front,
        serving(
            HttpEngine(front), tmp_path / "s.duckdb", custody="external", engine=front
        ) as outside,
    ):
        rollout_id, key = outside.create()
        user = {"role": "user", "content": "hello"}
        first = outside.chat(key, messages=[user], **GREEDY).json()["choices"][0]["message"]
        between = {"role": "user", "content": "inserted"}
        echoed = {"role": "assistant", "content": first["content"]}
        second = outside.chat(key, messages=[user, between, echoed, user], **GREEDY)
        assert second.status_code == 200
        manifest = asyncio.run(RolloutControlClient(outside.url, TOKEN).manifest(rollout_id))
    assert [item.reason for item in manifest.failures] == [
        "worker_capture_failed",
        "request_finished_without_staged_coordinates",
    ]
    with pytest.raises(ReceiptVerificationError, match="worker_capture_failed"):
        training_row(receipt_of(manifest), storage)


def test_side_routes_reach_the_engine_through_the_worker(vllm: str, tmp_path: Path) -> None:
    with served(front_of(vllm, DirectorySink(tmp_path), lambda: 1)) as front:
        assert httpx.get(f"{front}/version").json() == httpx.get(f"{vllm}/version").json()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        told = httpx.post(f"{front}/tokenize", json=body).json()
        assert told == httpx.post(f"{vllm}/tokenize", json=body).json()
        with httpx.stream(
            "POST",
            f"{front}/v1/chat/completions",
            json=body | {"stream": True, "max_tokens": 4},
        ) as response:
            text = "".join(response.iter_text())
        assert text.rstrip().endswith("data: [DONE]")
