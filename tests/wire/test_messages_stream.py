"""The Messages stream: events that real clients read, and that lose nothing."""

from __future__ import annotations

from typing import Any

import anthropic
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.wire import messages, sse
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import WireError
from tests.wire.replies import CALL_ID, REPLY, canned, events_of, replies, reply, sampled


def ask(display: str = "summarized", **fields: Any) -> NeutralRequest:
    body = {
        "model": "m",
        "max_tokens": 64,
        "stream": True,
        "thinking": {"type": "adaptive", "display": display},
        "messages": [{"role": "user", "content": "go"}],
    }
    return messages.parse_request(orjson.dumps(body | fields))


def stream_of(
    told: dict[str, Any], pieces: list[tuple[str, str]], display: str = "summarized"
) -> tuple[bytes, dict[str, Any]]:
    """(the whole stream, the served reply it must be equal to)."""
    request = ask(display)
    served = messages.serve(told, request, CALL_ID)
    made = messages.streamer(request, CALL_ID, "shown-early")
    parts = [made.live(reasoning, text) for reasoning, text in pieces]
    return b"".join(parts) + made.finish(served), served


LIVE = [("Two files,", ""), ("\nso two calls… ✓", ""), ("", "  Reading"), ("", " both. \n")]


@pytest.mark.parametrize("pieces", [[], LIVE[:1], LIVE[:3], LIVE])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_every_cut_of_the_bytes_gives_the_served_reply(pieces: Any, display: str) -> None:
    stream, served = stream_of(REPLY, pieces, display)
    assert messages.merge_stream(events_of(stream)) == served
    for cut in range(len(stream)):
        decoder = sse.Decoder()
        events = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert messages.merge_stream(events) == served


@settings(max_examples=150)
@given(st.data(), replies, st.sampled_from(["summarized", "omitted"]))
def test_any_reply_in_any_pieces_is_merged_back(
    data: st.DataObject, told: dict[str, Any], display: str
) -> None:
    message = told["choices"][0]["message"]
    pieces = data.draw(sampled(message["reasoning"] or "", message["content"] or ""))
    stream, served = stream_of(told, pieces, display)
    assert messages.merge_stream(events_of(stream)) == served


def shape(events: list[sse.Event]) -> list[str]:
    names = []
    for event in events:
        told = orjson.loads(event.data)
        assert told["type"] == event.name
        inner = told.get("delta", {}).get("type") or told.get("content_block", {}).get("type")
        names.append(f"{event.name}:{inner}" if inner else event.name)
    return names


BLOCKS = [
    "message_start",
    "content_block_start:thinking",
    "content_block_delta:thinking_delta",
    "content_block_delta:signature_delta",
    "content_block_stop",
    "content_block_start:text",
    "content_block_delta:text_delta",
    "content_block_stop",
    "content_block_start:tool_use",
    "content_block_delta:input_json_delta",
    "content_block_stop",
    "content_block_start:tool_use",
    "content_block_delta:input_json_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]


def test_sse_19_every_start_has_its_stop_and_only_message_stop_ends_it() -> None:
    stream, _ = stream_of(REPLY, [])
    assert shape(events_of(stream)) == BLOCKS
    assert b"[DONE]" not in stream
    starts = [
        orjson.loads(e.data) for e in events_of(stream) if e.name == "content_block_start"
    ]
    assert [start["index"] for start in starts] == [0, 1, 2, 3]
    assert starts[1]["content_block"] == {"type": "text", "text": ""}
    assert starts[2]["content_block"]["input"] == {}


def test_arguments_are_sent_as_the_model_wrote_them() -> None:
    stream, _ = stream_of(REPLY, [])
    deltas = [orjson.loads(event.data).get("delta", {}) for event in events_of(stream)]
    written = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
    assert written == ['{ "path": "a/b",  "n": 1}', '{"command":"ls \\u2713"}']


def test_usage_is_true_in_both_places() -> None:
    stream, served = stream_of(REPLY, [])
    first, *_, delta, _ = (orjson.loads(event.data) for event in events_of(stream))
    assert first["message"]["usage"]["input_tokens"] == 36
    assert first["message"]["model"] == "policy-1"
    assert delta["usage"] == served["usage"]
    live, _ = stream_of(REPLY, LIVE)
    first, *_, delta, _ = (orjson.loads(event.data) for event in events_of(live))
    assert first["message"]["usage"]["input_tokens"] == 0
    assert delta["usage"] == served["usage"]


def test_dia_01_reasoning_and_signature_are_both_replayed() -> None:
    stream, served = stream_of(REPLY, LIVE)
    deltas = [orjson.loads(event.data).get("delta", {}) for event in events_of(stream)]
    thought = "".join(delta.get("thinking", "") for delta in deltas)
    signatures = [delta["signature"] for delta in deltas if "signature" in delta]
    assert thought == REPLY["choices"][0]["message"]["reasoning"]
    assert signatures == [served["content"][0]["signature"]]
    assert signatures[0]


def test_reasoning_that_goes_on_behind_text_is_a_block_of_its_own() -> None:
    told = reply(content="ab", reasoning="one two")
    stream, served = stream_of(told, [("one", ""), ("", "a"), (" two", ""), ("", "b")])
    kinds = [
        name for name in shape(events_of(stream)) if name.startswith("content_block_start")
    ]
    assert kinds == [f"content_block_start:{kind}" for kind in ("thinking", "text", "thinking")]
    merged = messages.merge_stream(events_of(stream))
    assert merged == served
    assert merged["content"][0]["thinking"] == "one two"


def client(address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=address, api_key="k", max_retries=0)


CALLS = [{"path": "a/b", "n": 1}, {"command": "ls ✓"}]


def check(message: Any) -> None:
    thinking, text, first, second = message.content
    assert message.id == "msg_" + CALL_ID
    assert thinking.thinking == "Two files,\nso two calls… ✓"
    assert thinking.signature.startswith("rx1_")
    assert text.text == "  Reading both. \n"
    assert [first.input, second.input] == CALLS
    assert message.stop_reason == "tool_use"
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 100
    assert message.usage.output_tokens == 30


PARAMS: dict[str, Any] = {
    "model": "m",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "go"}],
}


def read_by_client(stream: bytes) -> Any:
    with (
        canned(stream, "text/event-stream") as (address, seen),
        client(address) as sdk,
        sdk.messages.stream(**PARAMS) as reading,
    ):
        message = reading.get_final_message()
    assert messages.parse_request(seen[0]).stream is True
    return message


@pytest.mark.parametrize("pieces", [[], LIVE])
def test_sse_18_the_real_client_reads_the_stream(pieces: Any) -> None:
    stream, _ = stream_of(REPLY, pieces)
    check(read_by_client(stream))


def test_the_real_client_reads_the_whole_reply_and_echoes_it() -> None:
    body = messages.encode_reply(messages.serve(REPLY, ask(), CALL_ID))
    with canned(body, "application/json") as (address, seen), client(address) as sdk:
        message = sdk.messages.create(**PARAMS)
        check(message)
        sent = [*PARAMS["messages"], {"role": "assistant", "content": message.content}]
        sdk.messages.create(**PARAMS | {"messages": sent})
    assert messages.parse_request(seen[0]).stream is False
    echoed = messages.parse_request(seen[1]).messages[-1]
    wrote = REPLY["choices"][0]["message"]
    assert echoed["reasoning"] == wrote["reasoning"]
    assert echoed["content"] == wrote["content"]
    assert [call["id"] for call in echoed["tool_calls"]] == [
        call["id"] for call in wrote["tool_calls"]
    ]


def test_tool_08_a_call_without_arguments_is_read_as_an_empty_object() -> None:
    told = reply(
        content=None, tool_calls=[{"id": "x", "function": {"name": "now", "arguments": ""}}]
    )
    stream, served = stream_of(told, [])
    assert messages.merge_stream(events_of(stream)) == served
    (block,) = read_by_client(stream).content
    assert block.type == "tool_use"
    assert block.input == {}


def test_the_real_client_counts() -> None:
    body = messages.count_reply(41)
    with canned(body, "application/json") as (address, seen), client(address) as sdk:
        counted = sdk.messages.count_tokens(model="m", messages=PARAMS["messages"])
    assert counted.input_tokens == 41
    assert messages.parse_request(seen[0]).messages == PARAMS["messages"]


def test_a_fault_inside_a_stream_is_told_as_overload() -> None:
    begun = messages.streamer(ask(), CALL_ID, "m").live("", "Hel")
    stream = begun + messages.error_event(WireError(502, "engine_unavailable", "it died"))
    assert messages.merge_stream(events_of(stream))["_error"]["type"] == "overloaded_error"
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        read_by_client(stream)
    closed = messages.error_event(WireError(400, "rollout_closed", "over"))
    assert orjson.loads(events_of(closed)[0].data)["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "rollout_closed", anthropic.PermissionDeniedError),
        (401, "unknown_key", anthropic.AuthenticationError),
        (429, "capacity_reached", anthropic.RateLimitError),
        (503, "store_failed", anthropic.InternalServerError),
    ],
)
def test_the_real_client_knows_our_errors(status: int, code: str, expected: Any) -> None:
    refusal = messages.refusal(WireError(status, code, "words of ours"))
    with (
        canned(refusal.body, "application/json", refusal.status) as (address, _),
        client(address) as sdk,
        pytest.raises(expected, match="words of ours"),
    ):
        sdk.messages.create(**PARAMS)
