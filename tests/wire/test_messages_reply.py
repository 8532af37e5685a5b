"""Anthropic Messages: the served message and errors."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.errors import EngineMalformed
from explorer.wire import messages
from explorer.wire.protocol import CONTEXT_OVERFLOW, WireError
from tests.wire.messaging import ask, turns
from tests.wire.replies import (
    CALL_ID,
    REPLY,
    hostile_replies,
    replies,
    reply,
)

OURS = f"call_{CALL_ID.replace('-', '')}_0"


def test_the_served_message() -> None:
    served = messages.serve(REPLY, ask(), CALL_ID)
    assert served["id"] == "msg_" + CALL_ID
    assert [block["type"] for block in served["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert served["content"][1]["text"] == "  Reading both. \n"
    assert served["content"][2] == {
        "type": "tool_use",
        "id": OURS,
        "name": "read",
        "input": {"path": "a/b", "n": 1},
    }
    assert served["stop_reason"] == "tool_use"
    assert served["usage"] == {
        "input_tokens": 36,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 0,
        "output_tokens": 30,
    }
    assert orjson.loads(messages.encode_reply(served)) == served


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_an_echoed_reply_gives_back_what_the_model_wrote(display: str) -> None:
    """Reasoning too, where the client never saw its text."""
    request = ask(thinking={"type": "adaptive", "display": display})
    served = messages.serve(REPLY, request, CALL_ID)
    assert bool(served["content"][0]["thinking"]) is (display == "summarized")
    sent = orjson.loads(messages.encode_reply(served))
    (echoed,) = turns({"role": "assistant", "content": sent["content"]})
    wrote = REPLY["choices"][0]["message"]
    assert echoed["reasoning"] == wrote["reasoning"]
    assert echoed["content"] == wrote["content"]
    assert [call["id"] for call in echoed["tool_calls"]] == [
        call["id"] for call in wrote["tool_calls"]
    ]
    for call, original in zip(echoed["tool_calls"], wrote["tool_calls"], strict=True):
        assert orjson.loads(call["function"]["arguments"]) == orjson.loads(
            original["function"]["arguments"]
        )


def test_dia_02_reasoning_without_a_signature_gets_ours_never_an_empty_one() -> None:
    served = messages.serve(reply(content="x", reasoning="R"), ask(), CALL_ID)
    signature = served["content"][0]["signature"]
    assert signature == "rx1_" + base64.b64encode(b"R").decode()
    plain = messages.serve(reply(content="x"), ask(), CALL_ID)
    assert [block["type"] for block in plain["content"]] == ["text"]
    assert "signature" not in orjson.dumps(plain).decode()


@pytest.mark.parametrize(
    ("finish", "stopped", "calls", "expected"),
    [
        ("stop", None, False, ("end_turn", None)),
        ("stop", "END", False, ("stop_sequence", "END")),
        ("stop", "other", False, ("end_turn", None)),
        ("length", None, False, ("max_tokens", None)),
        ("length", None, True, ("max_tokens", None)),
        ("stop", None, True, ("tool_use", None)),
        ("tool_calls", None, True, ("tool_use", None)),
        ("abort", None, True, (None, None)),
        (None, None, False, (None, None)),
    ],
)
def test_stop_reasons(finish: Any, stopped: Any, calls: bool, expected: Any) -> None:
    made = [{"id": "x", "function": {"name": "f", "arguments": "{}"}}] if calls else None
    told = reply(content="x", tool_calls=made, finish_reason=finish, stop_reason=stopped)
    served = messages.serve(told, ask(stop_sequences=["END"]), CALL_ID)
    assert (served["stop_reason"], served["stop_sequence"]) == expected


def call_with(arguments: Any) -> dict[str, Any]:
    function = {"name": "now", "arguments": arguments}
    told = reply(content=None, tool_calls=[{"id": "x", "function": function}])
    block: dict[str, Any] = messages.serve(told, ask(), CALL_ID)["content"][0]
    return block


def test_tool_08_empty_arguments_are_no_arguments() -> None:
    block = call_with("")
    assert block["input"] == {}
    assert block["input"].written == ""
    assert b'"input":{}' in orjson.dumps(block)


@pytest.mark.parametrize(
    "broken", ['{"a": ', "[1]", "null", '{"a": NaN}', '{"a": 1e999}', "\x00"]
)
def test_arguments_that_are_no_object_stand_whole_under_their_own_name(broken: str) -> None:
    assert call_with(broken)["input"] == {"__unparsed_arguments": broken}


def test_large_whole_numbers_in_arguments_stay_exact() -> None:
    block = call_with('{"n": 123456789012345678901234567890}')
    assert b'{"n":123456789012345678901234567890}' in messages.encode_reply(block)


def test_an_empty_reply_has_no_blocks() -> None:
    served = messages.serve(reply(content=""), ask(), CALL_ID)
    assert served["content"] == []
    assert messages.serve({}, ask(), CALL_ID)["stop_reason"] is None


@settings(max_examples=200)
@given(hostile_replies)
def test_no_reply_breaks_it(told: dict[str, Any]) -> None:
    served = messages.serve(told, ask(), CALL_ID)
    try:
        written = messages.encode_reply(served)
    except EngineMalformed:
        return
    assert orjson.loads(written)["type"] == "message"


@given(replies, st.sampled_from(["summarized", "omitted"]))
def test_every_reply_survives_the_way_out_and_back(told: dict[str, Any], display: str) -> None:
    served = messages.serve(
        told, ask(thinking={"type": "enabled", "display": display}), CALL_ID
    )
    sent = orjson.loads(messages.encode_reply(served))["content"]
    (echoed,) = turns({"role": "assistant", "content": sent})
    wrote = told["choices"][0]["message"]
    assert echoed["content"] == (wrote["content"] or "")
    assert echoed.get("reasoning", "") == (wrote["reasoning"] or "")
    assert [call["id"] for call in echoed.get("tool_calls", [])] == [
        call["id"] for call in wrote["tool_calls"]
    ]


@pytest.mark.parametrize(
    ("status", "code", "expected", "kind"),
    [
        (400, "bad_request", 400, "invalid_request_error"),
        (401, "unknown_key", 401, "authentication_error"),
        (403, "access_denied", 403, "permission_error"),
        (404, "not_found", 404, "not_found_error"),
        (413, "body_too_large", 413, "request_too_large"),
        (429, "capacity", 429, "rate_limit_error"),
        (502, "engine_unavailable", 502, "api_error"),
        (503, "store_failed", 503, "overloaded_error"),
        (400, "rollout_closed", 403, "permission_error"),
        (429, "budget_exhausted", 403, "permission_error"),
    ],
)
def test_refusals(status: int, code: str, expected: int, kind: str) -> None:
    refusal = messages.refusal(WireError(status, code, "words"))
    assert refusal.status == expected
    told = orjson.loads(refusal.body)
    assert told["type"] == "error"
    assert told["error"] == {"type": kind, "message": "words"}


def test_a_prompt_that_is_too_long_is_worded_so_that_agents_shorten_it() -> None:
    error = WireError(413, CONTEXT_OVERFLOW, "x", prompt_tokens=9000, limit_tokens=8192)
    refusal = messages.refusal(error)
    assert refusal.status == 400
    told = orjson.loads(refusal.body)["error"]
    assert told["type"] == "invalid_request_error"
    assert told["message"] == "prompt is too long: 9000 tokens > 8192 maximum"
    bare = orjson.loads(messages.refusal(WireError(400, CONTEXT_OVERFLOW, "x")).body)
    assert bare["error"]["message"] == "prompt is too long"
