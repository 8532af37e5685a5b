"""The suite's core against a real vLLM on CPU: ids, logprobs, tools, all wires, aborts.

make test-engines
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import orjson
import pytest

from explorer.records import Call, CallStatus, CaptureLevel, FailureKind, LogprobKind, RolloutId
from tests.live import Live

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKED = "What is the weather in Paris?"


def stored(live: Live, rollout: str) -> tuple[Call, ...]:
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    return record.calls


def whole(call: Call, calls: tuple[Call, ...]) -> list[int]:
    """Prompt and completion of a call from its deltas."""
    assert call.prompt_delta is not None
    assert call.completion is not None
    before: list[int] = []
    if call.stored_parent_id is not None:
        parent = next(each for each in calls if each.call_id == call.stored_parent_id)
        before = whole(parent, calls)[: call.prefix_len]
    return [*before, *call.prompt_delta.tolist(), *call.completion.tolist()]


def test_the_certificate_passes(live: Live) -> None:
    certificate = live.application.certificate
    assert certificate is not None
    assert certificate.engine_name == "vllm"
    assert certificate.engine_version.startswith("0.3")
    assert certificate.capture_level is CaptureLevel.TOKENS
    assert certificate.logprob_kind is LogprobKind.PROCESSED
    assert certificate.passing


def test_what_is_stored_is_what_vllm_gave(live: Live, vllm: str) -> None:
    rollout, key = live.create()
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": ASKED}],
        "temperature": 0.8,
        "seed": 7,
        "max_tokens": 40,
    }
    assert live.chat(key, **body).status_code == 200
    (call,) = stored(live, rollout)
    direct = httpx.post(
        vllm + "/v1/chat/completions",
        json=body | {"return_token_ids": True, "logprobs": True, "top_logprobs": 0},
        timeout=120,
    ).json()
    choice = direct["choices"][0]
    assert call.prompt_delta is not None
    assert call.prompt_delta.tolist() == direct["prompt_token_ids"]
    assert call.completion is not None
    assert call.completion.tolist() == choice["token_ids"]
    assert call.logprobs is not None
    given = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    np.testing.assert_allclose(call.logprobs, np.array(given, np.float32), atol=1e-5)


def test_a_rollout_is_trainable_and_its_trace_has_the_engines_ids(live: Live) -> None:
    rollout, key = live.create()
    said: list[dict[str, Any]] = [{"role": "user", "content": ASKED}]
    for _ in range(2):
        reply = live.chat(key, messages=said, max_tokens=60, temperature=1.0).json()
        said += [reply["choices"][0]["message"], {"role": "user", "content": "And in Rome?"}]
    live.api("POST", f"/api/v1/rollouts/{rollout}/reward", {"reward": 1.0, "ok": True})
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    shown = live.api("GET", f"/api/v1/rollouts/{rollout}")
    assert shown["verdict"]["trainable"], shown["verdict"]
    trace = live.api("GET", f"/api/v1/rollouts/{rollout}/training-trace")
    calls = stored(live, rollout)
    assert str(calls[0].completion.tolist()[:3])[1:-1] in str(trace)  # type: ignore[union-attr]


@pytest.mark.parametrize("streaming", ["synthesised", "passthrough"])
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_tools_on_every_wire_streamed_both_ways(live: Live, wire: str, streaming: str) -> None:
    """Until the model calls the tool (it is small, and sampled), then its answer goes back."""
    rollout, key = live.create(streaming=streaming, sampling={"temperature": 0.8})
    runner = {"chat": _chat_tool, "responses": _responses_tool, "messages": _messages_tool}
    assert any(runner[wire](live, key) for _ in range(12)), "the model never called the tool"
    calls = stored(live, rollout)
    assert {call.status for call in calls} == {CallStatus.COMMITTED}
    assert {call.capture_level for call in calls} == {CaptureLevel.TOKENS}
    asked = next(call for call in calls if call.finish_reason == "tool_calls")
    went_on = calls[-1]
    for call in calls:
        assert call.logprobs is not None
        assert call.completion is not None
        assert call.logprobs.size == call.completion.size == call.usage_completion
        assert np.isfinite(call.logprobs).all()
    # The second prompt is the tool's answer behind the first; it shares at least the question.
    assert went_on.prompt_len is not None
    assert asked.prompt_len is not None
    assert went_on.prompt_len > asked.prompt_len
    assert len(whole(went_on, calls)) == went_on.prompt_len + (went_on.completion_len or 0)


def _chat_tool(live: Live, key: str) -> bool:
    tools: Any = [{"type": "function", "function": WEATHER}]
    said: Any = [{"role": "user", "content": ASKED}]
    with openai.OpenAI(base_url=live.url + "/v1", api_key=key) as client:
        with client.chat.completions.stream(
            model="tiny", messages=said, tools=tools, max_tokens=80
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return False
        called = message.tool_calls[0]
        assert called.id.startswith("call_")
        told = {
            "role": "assistant",
            "content": message.content,
            "reasoning": getattr(message, "reasoning", None),
            "tool_calls": [
                {
                    "id": called.id,
                    "type": "function",
                    "function": {
                        "name": called.function.name,
                        "arguments": called.function.arguments,
                    },
                }
            ],
        }
        said += [told, {"role": "tool", "tool_call_id": called.id, "content": "sunny"}]
        client.chat.completions.create(model="tiny", messages=said, tools=tools, max_tokens=40)
    return True


def _responses_tool(live: Live, key: str) -> bool:
    tools: Any = [{"type": "function", "strict": False, **WEATHER}]
    with openai.OpenAI(base_url=live.url + "/v1", api_key=key) as client:
        with client.responses.stream(
            model="tiny", input=ASKED, tools=tools, max_output_tokens=80
        ) as stream:
            first = stream.get_final_response()
        calls = [item for item in first.output if item.type == "function_call"]
        if not calls:
            return False
        client.responses.create(
            model="tiny",
            previous_response_id=first.id,
            tools=tools,
            max_output_tokens=40,
            input=[
                {
                    "type": "function_call_output",
                    "call_id": calls[0].call_id,
                    "output": "sunny",
                }
            ],
        )
    return True


def _messages_tool(live: Live, key: str) -> bool:
    tool: Any = {"name": "get_weather", "input_schema": WEATHER["parameters"]}
    said: list[Any] = [{"role": "user", "content": ASKED}]
    with anthropic.Anthropic(base_url=live.url, api_key=key) as client:
        with client.messages.stream(
            model="tiny", max_tokens=80, messages=said, tools=[tool]
        ) as stream:
            first = stream.get_final_message()
        uses = [block for block in first.content if block.type == "tool_use"]
        if not uses:
            return False
        result = {"type": "tool_result", "tool_use_id": uses[0].id, "content": "sunny"}
        said += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(model="tiny", max_tokens=40, messages=said, tools=[tool])
    return True


def test_plain_completions_and_counting(live: Live) -> None:
    rollout, key = live.create()
    with openai.OpenAI(base_url=live.url + "/v1", api_key=key) as client:
        reply = client.completions.create(model="tiny", prompt="The weather", max_tokens=12)
    (call,) = stored(live, rollout)
    assert call.capture_level is CaptureLevel.TOKENS
    assert call.completion is not None
    assert call.logprobs is not None
    assert call.completion.size == call.logprobs.size == reply.usage.completion_tokens  # type: ignore[union-attr]
    with anthropic.Anthropic(base_url=live.url, api_key=key) as claude:
        said: Any = [{"role": "user", "content": ASKED}]
        counted = claude.messages.count_tokens(model="tiny", messages=said).input_tokens
        sent = claude.messages.create(model="tiny", max_tokens=5, messages=said)
        # A last turn of the assistant is gone on with, so its prompt ends in another way.
        said += [{"role": "assistant", "content": "The weather"}]
        begun = claude.messages.count_tokens(model="tiny", messages=said).input_tokens
        went_on = claude.messages.create(model="tiny", max_tokens=5, messages=said)
    assert counted == sent.usage.input_tokens + (sent.usage.cache_read_input_tokens or 0)
    assert begun == went_on.usage.input_tokens + (went_on.usage.cache_read_input_tokens or 0)


def test_a_prompt_that_is_too_long_is_told_in_each_wires_words(live: Live) -> None:
    _, key = live.create()
    long = "weather " * 1200
    with openai.OpenAI(base_url=live.url + "/v1", api_key=key) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="tiny", input=long)
        assert caught.value.code == "context_length_exceeded"
    with (
        anthropic.Anthropic(base_url=live.url, api_key=key) as claude,
        pytest.raises(anthropic.BadRequestError, match="prompt is too long"),
    ):
        claude.messages.create(
            model="tiny", max_tokens=5, messages=[{"role": "user", "content": long}]
        )


def running(vllm: str) -> float:
    """How many requests the engine works on."""
    metrics = httpx.get(vllm + "/metrics", timeout=30).text
    return sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("vllm:num_requests_running")
    )


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for `condition`; a test that waits in vain fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _slow(live: Live, key: str, into: list[httpx.Response]) -> threading.Thread:
    def work() -> None:
        into.append(live.chat(key, max_tokens=900, ignore_eos=True, min_tokens=900))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_aborted_generation_is_kept_and_never_trains(live: Live, vllm: str) -> None:
    rollout, key = live.create()
    replies: list[httpx.Response] = []
    # Held until all are there, so that none is over before it is aborted.
    assert httpx.post(vllm + "/pause?mode=keep", timeout=30).status_code == 200
    threads = [_slow(live, key, replies) for _ in range(6)]
    until(lambda: live.application.proxy.in_flight == 6)
    time.sleep(0.5)
    assert httpx.post(vllm + "/resume", timeout=30).status_code == 200
    time.sleep(0.1)
    assert httpx.post(vllm + "/abort_requests", json={}).status_code == 200
    for thread in threads:
        thread.join(60)
    aborted = [call for call in stored(live, rollout) if call.status is CallStatus.ABORTED]
    assert aborted
    assert {call.failure_kind for call in aborted} == {FailureKind.ENGINE_ABORTED}
    assert any(call.completion is not None and call.completion.size for call in aborted)
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
    calls = live.api("GET", f"/api/v1/rollouts/{rollout}/calls")["calls"]
    assert {call["role"] for call in calls if call["status"] == "aborted"} == {"failed"}


def test_a_paused_engine_holds_the_call_until_it_goes_on(live: Live, vllm: str) -> None:
    rollout, key = live.create()
    replies: list[httpx.Response] = []
    assert httpx.post(vllm + "/pause?mode=keep", timeout=30).status_code == 200
    try:
        thread = _slow(live, key, replies)
        time.sleep(1.5)
        assert not replies
    finally:
        assert httpx.post(vllm + "/resume", timeout=30).status_code == 200
    thread.join(120)
    assert replies[0].status_code == 200
    (call,) = stored(live, rollout)
    assert call.status is CallStatus.COMMITTED
    assert call.completion_len == 900
    assert "min_tokens" in call.constraints


@pytest.mark.parametrize("streaming", ["synthesised", "passthrough"])
def test_a_client_that_leaves_frees_the_engine(live: Live, vllm: str, streaming: str) -> None:
    rollout, key = live.create(streaming=streaming)
    body = {
        "model": "tiny",
        "stream": True,
        "max_tokens": 900,
        "min_tokens": 900,
        "messages": [{"role": "user", "content": ASKED}],
    }
    raw = orjson.dumps(body)
    head = (
        f"POST /k/{key}/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2]))) as link:
        link.sendall(head.encode() + raw)
        until(lambda: live.application.proxy.in_flight == 1)
        time.sleep(0.1)
    until(lambda: bool(stored(live, rollout)) and running(vllm) == 0)
    (call,) = stored(live, rollout)
    assert (call.status, call.failure_kind) == (CallStatus.ABORTED, FailureKind.CLIENT_GONE)
