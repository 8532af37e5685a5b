"""Google generateContent: the served response and errors."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from explorer.errors import EngineMalformed
from explorer.wire import google
from explorer.wire.protocol import CONTEXT_OVERFLOW, WireError
from tests.wire.googling import ask, call, turns
from tests.wire.replies import (
    CALL_ID,
    REPLY,
    hostile_replies,
    reply,
)


def test_the_served_response() -> None:
    served = google.serve(REPLY, ask(), CALL_ID)
    (candidate,) = served["candidates"]
    thought, text, first, _ = candidate["content"]["parts"]
    assert thought == {"text": "Two files,\nso two calls… ✓", "thought": True}
    assert text["text"] == "  Reading both. \n"
    assert base64.b64decode(text["thoughtSignature"]).startswith(b"rx1_")
    assert first["functionCall"] == {
        "id": f"call_{CALL_ID.replace('-', '')}_0",
        "name": "read",
        "args": {"path": "a/b", "n": 1},
    }
    assert candidate["finishReason"] == "STOP"
    assert served["responseId"] == CALL_ID
    assert served["usageMetadata"] == {
        "promptTokenCount": 100,
        "candidatesTokenCount": 18,
        "thoughtsTokenCount": 12,
        "totalTokenCount": 130,
        "cachedContentTokenCount": 64,
    }


def parts_of(told: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    request = ask(generationConfig={"thinkingConfig": config})
    served = google.serve(told, request, CALL_ID)
    parts: list[dict[str, Any]] = served["candidates"][0]["content"]["parts"]
    return parts


@pytest.mark.parametrize(
    "told",
    [
        REPLY,
        reply(content="only text", reasoning="R"),
        reply(content=None, reasoning="only reasoning"),
        reply(
            content=None,
            reasoning="R",
            tool_calls=[{"id": "x", "function": {"name": "f", "arguments": "{}"}}],
        ),
    ],
)
@pytest.mark.parametrize("shown", [True, False])
def test_reasoning_comes_back_although_clients_drop_thoughts(
    told: dict[str, Any], shown: bool
) -> None:
    parts = parts_of(told, includeThoughts=shown)
    assert bool(parts[0].get("thought")) is shown
    kept = [part for part in parts if not part.get("thought")]
    # Python's client sends bytes back with URL-safe letters.
    for part in kept:
        if "thoughtSignature" in part:
            plain = part["thoughtSignature"]
            part["thoughtSignature"] = plain.replace("+", "-").replace("/", "_")
    (echoed,) = turns({"role": "model", "parts": orjson.loads(orjson.dumps(kept))})
    wrote = told["choices"][0]["message"]
    assert echoed["reasoning"] == wrote["reasoning"]
    assert echoed["content"] == (wrote["content"] or "")
    assert [entry["id"] for entry in echoed.get("tool_calls", [])] == [
        entry["id"] for entry in wrote.get("tool_calls") or []
    ]


def test_dia_02_no_reasoning_no_signature() -> None:
    assert parts_of(reply(content="x")) == [{"text": "x"}]
    assert parts_of(reply(content="")) == []


def test_foreign_signatures_say_nothing() -> None:
    (made,) = turns(
        {"role": "model", "parts": [call("f", {}) | {"thoughtSignature": "bGFic2ln"}]}
    )
    assert "reasoning" not in made


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("length", "MAX_TOKENS"),
        ("abort", "OTHER"),
        (None, "OTHER"),
    ],
)
def test_finish_reasons(finish: Any, expected: str) -> None:
    served = google.serve(reply(content="x", finish_reason=finish), ask(), CALL_ID)
    assert served["candidates"][0]["finishReason"] == expected


def test_tool_08_empty_arguments_are_an_empty_object_and_broken_ones_come_back() -> None:
    made = [{"id": "x", "function": {"name": "f", "arguments": text}} for text in ("", '{"a')]
    empty, broken = parts_of(reply(content=None, tool_calls=made))
    assert empty["functionCall"]["args"] == {}
    assert broken["functionCall"]["args"] == {"__unparsed_arguments": '{"a'}
    (echoed,) = turns({"role": "model", "parts": [broken]})
    assert echoed["tool_calls"][0]["function"]["arguments"] == '{"a'


@settings(max_examples=200)
@given(hostile_replies)
def test_no_reply_breaks_it(told: dict[str, Any]) -> None:
    served = google.serve(told, ask(), CALL_ID)
    try:
        written = google.encode_reply(served)
    except EngineMalformed:
        return
    assert orjson.loads(written)["responseId"] == CALL_ID


@pytest.mark.parametrize(
    ("status", "code", "expected", "name"),
    [
        (400, "bad_request", 400, "INVALID_ARGUMENT"),
        (401, "unknown_key", 401, "UNAUTHENTICATED"),
        (403, "access_denied", 403, "PERMISSION_DENIED"),
        (404, "not_found", 404, "NOT_FOUND"),
        (413, "body_too_large", 413, "INVALID_ARGUMENT"),
        (429, "capacity_reached", 429, "RESOURCE_EXHAUSTED"),
        (500, "internal_error", 500, "INTERNAL"),
        (502, "engine_unavailable", 502, "UNAVAILABLE"),
        (504, "engine_timeout", 504, "DEADLINE_EXCEEDED"),
        (400, "rollout_closed", 400, "FAILED_PRECONDITION"),
        (429, "budget_exhausted", 400, "FAILED_PRECONDITION"),
    ],
)
def test_refusals(status: int, code: str, expected: int, name: str) -> None:
    refusal = google.refusal(WireError(status, code, "words of ours"))
    assert refusal.status == expected
    told = orjson.loads(refusal.body)["error"]
    assert told == {"code": expected, "message": "words of ours", "status": name}


def test_a_prompt_that_is_too_long_is_worded_as_googles() -> None:
    error = WireError(413, CONTEXT_OVERFLOW, "x", prompt_tokens=9000, limit_tokens=8192)
    refusal = google.refusal(error)
    assert refusal.status == 400
    assert orjson.loads(refusal.body)["error"] == {
        "code": 400,
        "message": "The input token count (9000) exceeds the maximum number of tokens "
        "allowed (8192).",
        "status": "INVALID_ARGUMENT",
    }
