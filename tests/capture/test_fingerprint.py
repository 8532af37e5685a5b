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


OURS = "call_0198c0de00007000800000000000abcd_"


def generation(*tool_ids: str, **changed: Any) -> dict[str, Any]:
    calls = [
        {"id": tool_id, "function": {"name": "edit", "arguments": '{"path": "a"}'}}
        for tool_id in tool_ids
    ]
    return {"role": "assistant", "content": "x", "tool_calls": calls} | changed


def test_a_turn_with_our_ids_is_the_generation_they_came_from_whatever_became_of_it() -> None:
    sampled = message_digest(generation(OURS + "0", OURS + "1"))
    rewritten = generation(OURS + "0", OURS + "1", content=None, reasoning="why")
    rewritten["tool_calls"][0]["function"] = {
        "name": "invalid",
        "arguments": '{"replace_all": false, "path": "a"}',
    }
    rewritten["tool_calls"][1]["function"]["arguments"] = "{}"
    assert message_digest(rewritten) == sampled


@pytest.mark.parametrize(
    "other",
    [
        generation(OURS + "0"),
        generation(OURS + "1", OURS + "0"),
        generation(OURS.replace("abcd", "abce") + "0", OURS.replace("abcd", "abce") + "1"),
        generation(OURS + "0", "call_theirs"),
        generation(OURS + "0", OURS + "1", role="user"),
        generation(),
    ],
)
def test_other_ids_are_another_generation(other: dict[str, Any]) -> None:
    assert message_digest(generation(OURS + "0", OURS + "1")) != message_digest(other)


def test_turns_with_anyone_elses_ids_are_compared_by_what_they_call() -> None:
    one, other = generation("call_theirs"), generation("call_others")
    assert message_digest(one) == message_digest(other)
    other["tool_calls"][0]["function"]["arguments"] = '{"path": "b"}'
    assert message_digest(one) != message_digest(other)
