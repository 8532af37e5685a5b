"""The chat dialect: requests, stripping, the synthesised stream and errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import BadRequest
from explorer.wire import chat, sse
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import WireError

REPLY: dict[str, Any] = {
    "id": "chatcmpl-upstream",
    "object": "chat.completion",
    "created": 5,
    "model": "m",
    "prompt_token_ids": [1, 2],
    "prompt_logprobs": None,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "reasoning": "because"},
            "logprobs": {"content": [{"token": "hi", "logprob": -0.5}]},
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": [7],
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    "vendor_extra": {"kept": True},
}


def request(**more: Any) -> NeutralRequest:
    body = {"messages": [{"role": "user", "content": "x"}]} | more
    return chat.parse_request(orjson.dumps(body))


def events_of(*parts: bytes) -> list[sse.Event]:
    decoder = sse.Decoder()
    return [event for part in parts for event in decoder.feed(part)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"{}", "non-empty array"),
        (b'{"messages":[1]}', "must be an object"),
        (b'{"messages":[{"role":"user"}],"n":3}', "`n` must be 1"),
    ],
)
def test_bad_requests_say_what_to_change(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        chat.parse_request(body)


def test_tok_13_n_above_one_is_refused_and_one_is_not() -> None:
    assert request(n=1).body["n"] == 1
    with pytest.raises(BadRequest):
        request(n=2)


def test_capture_fields_are_stripped_and_everything_else_passes() -> None:
    served = chat.serve(REPLY, request(), "abc")
    assert served["id"] == "chatcmpl-abc"
    assert "prompt_token_ids" not in served
    assert "token_ids" not in served["choices"][0]
    assert served["choices"][0]["logprobs"] is None
    assert served["choices"][0]["message"] == REPLY["choices"][0]["message"]
    assert served["vendor_extra"] == {"kept": True}
    assert served["usage"] == REPLY["usage"]


def test_capture_fields_stay_when_the_caller_asked() -> None:
    served = chat.serve(REPLY, request(return_token_ids=True, logprobs=True), "abc")
    assert served["prompt_token_ids"] == [1, 2]
    assert served["choices"][0]["token_ids"] == [7]
    assert served["choices"][0]["logprobs"] == REPLY["choices"][0]["logprobs"]


def test_reasoning_is_hidden_only_when_the_caller_said_so() -> None:
    served = chat.serve(REPLY, request(include_reasoning=False), "abc")
    assert served["choices"][0]["message"] == {"role": "assistant", "content": "hi"}


def test_the_stored_reply_is_not_changed_by_serving() -> None:
    before = orjson.dumps(REPLY)
    chat.serve(REPLY, request(), "abc")
    assert orjson.dumps(REPLY) == before


def test_lp_01_nothing_we_serve_holds_nan_or_infinity() -> None:
    body = chat.encode_reply({"x": float("nan"), "y": float("-inf")})
    assert body == b'{"x":null,"y":null}'


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
CALLS = st.lists(st.tuples(TEXT, TEXT), max_size=3)


@given(TEXT | st.none(), TEXT | st.none(), CALLS, st.booleans())
def test_the_stream_is_lossless(
    content: str | None, reasoning: str | None, calls: list[tuple[str, str]], usage: bool
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": a, "arguments": b}}
            for n, (a, b) in enumerate(calls)
        ]
    reply = REPLY | {"choices": [REPLY["choices"][0] | {"message": message}]}
    asked = request(stream=True, logprobs=True, stream_options={"include_usage": usage})
    served = chat.serve(reply, asked, "abc")
    stream = chat.streamer(asked, "abc", "m").finish(served)
    assert stream.endswith(chat.DONE)
    merged = chat.merge_stream(events_of(stream))
    assert merged["_complete"] is True
    (choice,) = merged["choices"]
    said = {key: value for key, value in choice["message"].items() if value not in (None, "")}
    meant = {key: value for key, value in message.items() if value not in (None, "")}
    assert said == meant
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] == REPLY["choices"][0]["logprobs"]
    assert ("usage" in merged and merged["usage"] == REPLY["usage"]) is usage


def test_sse_12_usage_after_the_finish_lands() -> None:
    merged = chat.merge_stream(
        events_of(
            b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}],'
            b'"usage":null}\n\n'
            b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\n'
            b"data: [DONE]\n\n"
        )
    )
    assert merged["usage"] == {"prompt_tokens": 9, "completion_tokens": 1}


def test_sse_13_null_and_empty_mean_nothing_new() -> None:
    merged = chat.merge_stream(
        events_of(
            b'data: {"choices":[]}\n\ndata: {"choices":null}\n\n'
            b'data: {"choices":[{"index":0,"delta":null}]}\n\n'
            b'data: {"choices":[{"index":0,"delta":{"content":"a"},'
            b'"finish_reason":"stop"}]}\n\n'
        )
    )
    assert merged["choices"][0]["message"]["content"] == "a"


def test_sse_15_an_error_event_is_kept_apart() -> None:
    merged = chat.merge_stream(
        events_of(
            b'data: {"choices":[{"index":0,"delta":{"content":"par"}}]}\n\n'
            b'data: {"error":{"message":"worker lost","code":500}}\n\n'
        )
    )
    assert merged["_error"]["message"] == "worker lost"
    assert "_complete" not in merged


def test_tool_02_a_delta_without_a_name_never_starts_a_call() -> None:
    deltas = [
        {"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}},
        {"index": 0, "id": "c2", "function": {"name": "", "arguments": '{"q"'}},
        {"index": 0, "id": "c3", "function": {"name": "", "arguments": ":1}"}},
    ]
    body = b"".join(
        sse.encode(orjson.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [d]}}]}))
        for d in deltas
    )
    (call,) = chat.merge_stream(events_of(body))["choices"][0]["message"]["tool_calls"]
    assert call == {"id": "c1", "function": {"name": "look", "arguments": '{"q":1}'}}


def test_tool_10_an_index_gap_keeps_both_calls() -> None:
    body = b"".join(
        sse.encode(
            orjson.dumps(
                {
                    "choices": [
                        {
                            "index": 0,
                            "delta": {
                                "tool_calls": [
                                    {"index": n, "id": f"c{n}", "function": {"name": f"f{n}"}}
                                ]
                            },
                        }
                    ]
                }
            )
        )
        for n in (0, 2)
    )
    calls = chat.merge_stream(events_of(body))["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["c0", "c2"]


def test_an_error_inside_a_stream_ends_with_done() -> None:
    parts = chat.error_event(WireError(502, "upstream_failed", "gone"))
    assert [event.data for event in events_of(parts)][-1] == "[DONE]"


@given(TEXT, TEXT, CALLS, st.lists(st.integers(0, 8), max_size=4))
def test_text_passed_on_early_and_the_rest_make_the_whole_reply(
    content: str, reasoning: str, calls: list[tuple[str, str]], cuts: list[int]
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning": reasoning}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": a, "arguments": b}}
            for n, (a, b) in enumerate(calls)
        ]
    asked = request(stream=True)
    reply = REPLY | {"choices": [REPLY["choices"][0] | {"message": message}]}
    served = chat.serve(reply, asked, "abc")
    streamer = chat.streamer(asked, "abc", "m")
    early = [streamer.live(reasoning, "")] if reasoning else []
    position = 0
    for cut in cuts:
        early.append(streamer.live("", content[position : position + cut]))
        position += cut
    merged = chat.merge_stream(events_of(*early, streamer.finish(served)))
    said = {k: v for k, v in merged["choices"][0]["message"].items() if v not in (None, "")}
    assert said == {key: value for key, value in message.items() if value not in (None, "")}
    assert merged["choices"][0]["finish_reason"] == "stop"
