"""Digests of messages: equal for the same message however it was re-serialised."""

from __future__ import annotations

from typing import Any

import pytest

from explorer.capture.fingerprint import message_digest, message_digests, system_digest

CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content": "hi"}, {"content": [{"type": "text", "text": "hi"}]}),
        ({"content": "hi"}, {"content": [{"text": "h"}, {"text": "i"}]}),
        ({"content": "\n\nhi"}, {"content": "hi"}),
        ({"content": None}, {"content": ""}),
        ({"content": "hi"}, {"content": "hi", "reasoning": "why", "refusal": None}),
        ({"content": "hi", "tool_calls": []}, {"content": "hi", "tool_calls": None}),
        (
            {"content": None, "tool_calls": [CALL]},
            {
                "content": "",
                "tool_calls": [{"id": "y", "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
        ),
    ],
)
def test_the_same_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert message_digest({"role": "assistant"} | one) == message_digest(
        {"role": "assistant"} | other
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content": "hi"}, {"content": "ho"}),
        ({"content": "hi"}, {"role": "user", "content": "hi"}),
        ({"content": ""}, {"content": "", "tool_calls": [CALL]}),
        ({"content": "hi"}, {"content": [{"type": "image_url", "image_url": "hi"}]}),
    ],
)
def test_another_message(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = ({"role": "assistant"} | item for item in (one, other))
    assert message_digest(first) != message_digest(second)


def test_leading_system_messages_are_told_apart_from_the_rest() -> None:
    user = {"role": "user", "content": "x"}
    with_system = [{"role": "system", "content": "s"}, user]
    assert message_digests(with_system) == message_digests([user])
    assert system_digest(with_system) is not None
    assert system_digest([user]) is None
