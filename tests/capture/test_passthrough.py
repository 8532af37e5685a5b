"""Streams that are passed on while they are sampled: same record, same checks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from explorer.records import RolloutId
from tests.live import Live, serving

TEXT = "Hello 🦊 there, this comes in pieces."
SCRIPT: list[dict[str, Any]] = [
    {
        "when": {"contains": "slow please"},
        "reasoning": "I think.",
        "text": TEXT,
        "tool_calls": [{"name": "look", "arguments": '{ "q":1 }'}],
        "chunks": 6,
        "chunk_ms": 60,
    },
    {"when": {"contains": "cut please"}, "text": TEXT, "chunks": 6, "fault": "cut"},
    {"when": {"contains": "no done"}, "text": TEXT, "fault": "no_done"},
    {"when": {"contains": "error event"}, "text": TEXT, "fault": "error_event"},
    {"when": {"contains": "miscount"}, "text": TEXT, "fault": "wrong_usage"},
    {"when": {"contains": "limit please"}, "status": 429},
    {"when": {"contains": "long please"}, "text": TEXT, "chunks": 40, "chunk_ms": 100},
    {"when": {"contains": ""}, "text": TEXT, "reasoning": "I think."},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("passthrough") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


def events(live: Live, key: str, text: str) -> tuple[int, list[tuple[float, str]]]:
    """The status, and (seconds, data) of every event as it arrives."""
    started = time.monotonic()
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    found = []
    with httpx.stream(
        "POST",
        live.url + "/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append((time.monotonic() - started, line.removeprefix("data: ")))
    return response.status_code, found


def test_text_comes_early_and_tools_after_the_commit(live: Live) -> None:
    rollout, key = live.create(streaming="passthrough")
    status, found = events(live, key, "slow please")
    assert status == 200
    assert found[-1][1] == "[DONE]"
    deltas = [(at, json.loads(data)["choices"][0]["delta"]) for at, data in found[:-1]]
    first_text = next(at for at, delta in deltas if delta.get("content"))
    last = deltas[-1][0]
    # Seven waits of 60 ms lie between the first piece and the end.
    assert last - first_text > 0.2
    assert "".join(delta.get("content") or "" for _, delta in deltas) == TEXT
    assert "".join(delta.get("reasoning") or "" for _, delta in deltas) == "I think."
    tools = [at for at, delta in deltas if delta.get("tool_calls")]
    texts = [at for at, delta in deltas if delta.get("content")]
    assert len(tools) == 1
    assert min(tools) > max(texts)
    (call,) = live.calls(rollout)
    assert call["status"] == "committed"


def test_the_record_is_that_of_a_synthesised_stream(live: Live) -> None:
    records = []
    for streaming in ("passthrough", "synthesised"):
        rollout, key = live.create(streaming=streaming)
        events(live, key, "hi")
        (call,) = live.calls(rollout)
        record = live.store.record(RolloutId(rollout))
        assert record is not None
        stored = record.calls[0]
        assert stored.completion is not None
        assert stored.prompt_delta is not None
        assert stored.logprobs is not None
        records.append(
            (
                call["status"],
                call["finish_reason"],
                call["capture_level"],
                stored.prompt_delta.tolist(),
                stored.completion.tolist(),
                stored.logprobs.tolist(),
                stored.usage_completion,
                stored.reply_digest,
                stored.preview,
            )
        )
    assert records[0] == records[1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("cut please", "incomplete"),
        ("no done", "incomplete"),
        ("error event", "failed_midstream"),
    ],
)
def test_fin_01_sse_15_a_stream_that_is_not_whole_never_trains(
    live: Live, text: str, kind: str
) -> None:
    rollout, key = live.create(streaming="passthrough")
    status, found = events(live, key, text)
    assert status == 200
    error = json.loads(found[-2][1])["error"]
    assert error["message"].startswith("502 service overloaded")
    (call,) = live.calls(rollout)
    assert (call["status"], call["failure_kind"]) == ("failed", kind)
    assert call["completion_len"] > 0  # kept for people
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
    verdict = live.api("GET", f"/api/v1/rollouts/{rollout}")["verdict"]
    assert verdict["trainable"] is False


def test_tok_15_a_live_stream_is_counted_too(live: Live) -> None:
    rollout, key = live.create(streaming="passthrough")
    events(live, key, "miscount")
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    assert "token_count_mismatch" in [note.code for note in record.calls[0].notes]


def test_a_refused_stream_is_an_http_error(live: Live) -> None:
    rollout, key = live.create(streaming="passthrough")
    status, _ = events(live, key, "limit please")
    assert status == 429
    assert live.calls(rollout)[0]["failure_kind"] == "upstream_status"


def test_other_wires_pass_on_as_well(live: Live) -> None:
    _, key = live.create(streaming="passthrough")
    client = anthropic.Anthropic(base_url=live.url, api_key=key)
    with (
        client,
        client.messages.stream(
            model="m", max_tokens=99, messages=[{"role": "user", "content": "slow please"}]
        ) as stream,
    ):
        assert "".join(stream.text_stream) == TEXT
        blocks = stream.get_final_message().content
    assert [block.type for block in blocks] == ["thinking", "text", "tool_use"]
    with (
        openai.OpenAI(base_url=live.url + "/v1", api_key=key) as openai_client,
        openai_client.responses.stream(model="m", input="slow please") as response,
    ):
        kinds = [event.type for event in response]
        final = response.get_final_response()
    assert final.output_text == TEXT
    assert kinds.index("response.output_text.delta") < kinds.index(
        "response.function_call_arguments.delta"
    )


def test_dis_01_a_client_that_leaves_mid_stream_cancels_the_engine(live: Live) -> None:
    rollout, key = live.create(streaming="passthrough")
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "long please"}],
    }
    with httpx.stream(
        "POST",
        live.url + "/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    ) as response:
        for line in response.iter_lines():
            if "content" in line:
                break
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not live.calls(rollout):
        time.sleep(0.05)
    (call,) = live.calls(rollout)
    assert (call["status"], call["failure_kind"]) == ("aborted", "client_gone")


def test_what_a_stopped_server_had_passed_on_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), path) as live:
        rollout, key = live.create(streaming="passthrough")
        url, headers = live.url + "/v1/chat/completions", {"authorization": f"Bearer {key}"}
        said = [{"role": "user", "content": "long please"}]
        body = {"model": "m", "stream": True, "messages": said}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as response:
            lines = response.iter_lines()
            assert any('"content":"Hel' in line or '"content":"H"' in line for line in lines)
            application = live.application
            asyncio.run_coroutine_threadsafe(application.proxy.stop(), live.loop).result(20)
        (call,) = live.calls(rollout)
        assert (call["status"], call["failure_kind"]) == ("aborted", "shutdown")
        assert call["completion_len"] > 0
        raw = httpx.get(
            f"{live.url}/api/v1/rollouts/{rollout}/raw/{call['call_id']}?kind=reply",
            headers={"authorization": f"Bearer {live.token}"},
        )
        assert raw.content.startswith(b"data: ")


def test_a_live_stream_of_the_built_in_engine_trains(tmp_path: Path) -> None:
    with serving(TinyEngine(), tmp_path / "store.duckdb") as live:
        rollout, key = live.create(streaming="passthrough")
        status, found = events(live, key, "What is 2 + 3?")
        assert (status, found[-1][1]) == (200, "[DONE]")
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
        verdict = live.api("GET", f"/api/v1/rollouts/{rollout}")["verdict"]
        assert verdict["trainable"] is True, verdict
        _, key = live.create(streaming="passthrough")
        status, _ = events(live, key, "word " * 9000)
        assert status == 400  # a refusal is an HTTP error, not an event
