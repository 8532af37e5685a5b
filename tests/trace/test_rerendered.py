"""Why unchanged messages came back in other tokens: each cause only where the ids prove it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.records import Call, CallId, Note
from explorer.trace.breaks import PrefixBreak
from explorer.trace.causes import BreakCause
from explorer.trace.tree import build_tree
from explorer.trace.verdict import judge
from tests.trace.build import make_call, record

OPEN = [1, 2, 3, 4]  # the task and the opening of the assistant's turn
THINK = list(range(20, 32))
TEXT = list(range(40, 50))
# {"name": "bash", "arguments": {"command": "ls -la", "timeout": 5}} … stop mark
CALL = [60, 61, 62, 63, 70, 71, 72, 73, 74, 71, 75, 71, 76, 64, 65, 66, 9]
COMPACT = [60, 61, 62, 63, 70, 81, 72, 73, 74, 81, 75, 81, 76, 64, 65, 66, 9]
RESULT = [90, 91, 92]
FACTS: dict[str, Any] = {"system_digest": "S", "tools_digest": "T", "n_tools": 1}


def broke(
    sampled: Sequence[int], then: Sequence[int], prompt: Sequence[int] = OPEN, **fields: Any
) -> PrefixBreak:
    """The break of a prompt that has `then` where a turn had been sampled."""
    facts = FACTS | {"message_digests": ("u",), "reply_digest": "r"} | fields
    first = make_call("a", 1, prompt, sampled, **facts)
    again = make_call("b", 2, [*OPEN[:3], *then], [7], message_digests=("u", "r", "t"), **FACTS)
    found = build_tree([first, again]).nodes[CallId("b")].break_
    assert found is not None
    assert found.rendered_anew
    return found


def cause(sampled: Sequence[int], then: Sequence[int], **fields: Any) -> str:
    return broke(sampled, [4, *then, *RESULT], **fields).cause.value


def test_a_front_that_is_gone_is_reasoning() -> None:
    assert cause([*THINK, *TEXT, 9], [*TEXT, 9]) == "reasoning_dropped"
    assert cause([*THINK, *TEXT, 9], [*TEXT, 9], usage_reasoning=12) == "reasoning_dropped"
    # An empty block of reasoning in its place.
    assert cause([*THINK, *TEXT, 9], [20, 21, 31, *TEXT, 9]) == "reasoning_dropped"
    # What follows was written anew as well: the first difference is what is named.
    tools = {"finish_reason": "tool_calls"}
    assert cause([*THINK, *TEXT, *CALL], [*TEXT, *COMPACT], **tools) == "reasoning_dropped"


def test_a_front_that_the_engine_did_not_count_as_reasoning_is_not_claimed_to_be() -> None:
    assert cause([*THINK, *TEXT, 9], [*TEXT, 9], usage_reasoning=0) == "unknown"


def test_an_answer_that_only_ends_alike_proves_nothing() -> None:
    assert cause([*THINK, *TEXT, 9], [55, 56, TEXT[-1], 9]) == "unknown"
    assert cause([50], [51]) == "unknown"


def test_first_or_last_tokens_that_differ_are_the_templates_edge() -> None:
    # A blank before the stop mark is trimmed, or joined with it.
    assert cause([*TEXT, 5, 9], [*TEXT, 9]) == "template_boundary"
    assert cause([*TEXT, 5, 9], [*TEXT, 6]) == "template_boundary"
    # A blank at the front.
    assert cause([5, *TEXT, 9], [*TEXT, 9]) == "template_boundary"
    assert cause([*TEXT, 9], [5, *TEXT, 9]) == "template_boundary"


def test_the_opening_of_a_turn_is_the_templates_edge_too() -> None:
    """What the template had put before the first sampled token stands there no more."""
    found = broke([*TEXT, 9], [4, *TEXT, 9, *RESULT], prompt=[*OPEN, 8])
    assert (found.offset, found.cause) == (4, BreakCause.TEMPLATE_BOUNDARY)
    found = broke([*THINK, *TEXT, 9], [4, *TEXT, 9, *RESULT], prompt=[*OPEN, 8])
    assert found.cause is BreakCause.REASONING_DROPPED


TOOLS = {"finish_reason": "tool_calls"}


def test_a_tool_call_written_anew() -> None:
    spoken, anew = [*TEXT, *CALL], [*TEXT, *COMPACT]
    assert cause(spoken, anew, **TOOLS) == "reserialised_arguments"
    assert cause(spoken, anew, usage_reasoning=0, **TOOLS) == "reserialised_arguments"
    assert cause([*THINK, *spoken], [*THINK, *anew], usage_reasoning=12, **TOOLS) == (
        "reserialised_arguments"
    )
    noted = {"finish_reason": "stop", "notes": (Note("tool_calls_with_stop"),)}
    assert cause(spoken, anew, **noted) == "reserialised_arguments"
    # Members that changed places, and one more.
    moved = [*TEXT, 60, 61, 62, 63, *range(110, 118), *range(100, 108), 77, 65, 66, 9]
    members = [*TEXT, 60, 61, 62, 63, *range(100, 108), *range(110, 118), 64, 65, 66, 9]
    assert cause(members, moved, **TOOLS) == "reserialised_arguments"
    # Broken arguments became an empty object.
    assert cause(spoken, [*TEXT, 60, 61, 62, 63, 77, 65, 66, 9], **TOOLS) == (
        "reserialised_arguments"
    )


def test_without_a_tool_call_no_arguments_were_written_anew() -> None:
    assert cause([*TEXT, *CALL], [*TEXT, *COMPACT]) == "unknown"


def test_a_break_that_may_lie_in_reasoning_is_not_called_arguments() -> None:
    """Seen with Qwen Code: a blank at the end of the reasoning is gone, and the call behind
    it was written anew too."""
    sampled, then = [*THINK, 5, 33, *TEXT, *CALL], [*THINK, 33, *TEXT, *COMPACT]
    assert cause(sampled, then, usage_reasoning=14, **TOOLS) == "unknown"
    assert cause(sampled, then, **TOOLS) == "unknown"


def test_text_that_left_its_place_is_not_called_arguments() -> None:
    """Seen with OpenCode: the call came back first, the text behind its result."""
    sampled, then = [*THINK, *TEXT, *CALL], [*THINK, *CALL, *RESULT, *TEXT]
    assert cause(sampled, then, usage_reasoning=6, **TOOLS) == "unknown"


def test_the_turn_that_broke_may_be_an_earlier_one() -> None:
    """A user's word ends what is shown of the reasoning of all turns before it."""
    first = make_call(
        "a", 1, OPEN, [*THINK, 60, 9], message_digests=("u",), reply_digest="r1", **FACTS
    )
    whole = [*OPEN, *THINK, 60, 9, *RESULT]
    second = make_call(
        "b",
        2,
        whole,
        [*THINK, *TEXT, 9],
        message_digests=("u", "r1", "t"),
        reply_digest="r2",
        parent=first,
        **FACTS,
    )
    later = make_call(
        "c",
        3,
        [*OPEN, 60, 9, *RESULT, *TEXT, 9, 99],
        [7],
        message_digests=("u", "r1", "t", "r2", "v"),
        **FACTS,
    )
    found = build_tree([first, second, later]).nodes[CallId("c")].break_
    assert found is not None
    assert found.offset == len(OPEN)
    # Two tokens of the first answer are too few to prove anything.
    assert found.cause is BreakCause.UNKNOWN
    longer = make_call(
        "a", 1, OPEN, [*THINK, *CALL], message_digests=("u",), reply_digest="r1", **FACTS
    )
    whole = [*OPEN, *THINK, *CALL, *RESULT]
    second = make_call(
        "b",
        2,
        whole,
        [*THINK, *TEXT, 9],
        message_digests=("u", "r1", "t"),
        reply_digest="r2",
        parent=longer,
        **FACTS,
    )
    later = make_call(
        "c",
        3,
        [*OPEN, *CALL, *RESULT, *TEXT, 9, 99],
        [7],
        message_digests=("u", "r1", "t", "r2", "v"),
        **FACTS,
    )
    found = build_tree([longer, second, later]).nodes[CallId("c")].break_
    assert found is not None
    assert found.cause is BreakCause.REASONING_DROPPED


SMALL = st.lists(st.integers(0, 3), max_size=14)


@given(
    sampled=SMALL.filter(bool),
    then=SMALL,
    reasoning=st.sampled_from([None, 0, 3]),
    finish=st.sampled_from(["stop", "tool_calls"]),
)
def test_any_two_turns_have_a_cause_and_only_one_that_fits(
    sampled: list[int], then: list[int], reasoning: int | None, finish: str
) -> None:
    """Few different ids, so that everything seems to come again."""
    facts: dict[str, Any] = FACTS | {"message_digests": ("u",), "reply_digest": "r"}
    facts |= {"usage_reasoning": reasoning, "finish_reason": finish}
    first = make_call("a", 1, OPEN, sampled, **facts)
    again = make_call("b", 2, [*OPEN, *then], [7], message_digests=("u", "r", "t"), **FACTS)
    found = build_tree([first, again]).nodes[CallId("b")].break_
    if found is None or not found.rendered_anew:
        return
    if found.cause is BreakCause.RESERIALISED_ARGUMENTS:
        assert finish == "tool_calls"
        assert found.offset > len(OPEN) + 4
    if found.cause is BreakCause.REASONING_DROPPED:
        assert reasoning != 0
        assert len(then) >= 3


def mask_02() -> tuple[Call, Call]:
    return make_call("a", 1, [1, 2], [3, 4]), make_call("b", 2, [1, 2, 3, 9, 5], [6])


def test_mask_02_a_prefix_break_names_place_and_both_ids() -> None:
    first, second = mask_02()
    judgement = judge(record(first, second))
    node = judgement.tree.nodes[CallId("b")]
    assert node.parent_id is None
    assert node.break_ is not None
    assert (node.break_.offset, node.break_.expected_id, node.break_.actual_id) == (3, 4, 9)
    # Nothing is known of the messages, so nothing is claimed.
    assert node.break_.cause is BreakCause.UNKNOWN
    assert not node.break_.rendered_anew
    (found,) = [item for item in judgement.findings if item.code == "prefix_break"]
    assert "at 3: expected 4 got 9" in found.message
    # Turn 1 keeps its own valid row; nothing is trimmed.
    assert judgement.masks[CallId("a")].bits().tolist() == [0, 0, 1, 1]
    assert judgement.masks[CallId("b")].bits().tolist() == [0, 0, 0, 0, 0, 1]


def test_mask_04_a_system_text_that_changed() -> None:
    said: dict[str, Any] = {"tools_digest": "T", "n_tools": 1}
    fifth = make_call(
        "a", 5, [1, 2, 3, 4], [5], system_digest="12118", message_digests=("u",), **said
    )
    sixth = make_call(
        "b", 6, [1, 9, 3, 4, 5], [6], system_digest="12541", message_digests=("u", "t"), **said
    )
    judgement = judge(record(fifth, sixth))
    node = judgement.tree.nodes[CallId("b")]
    assert node.parent_id is None
    assert node.break_ is not None
    assert (node.break_.offset, node.break_.cause) == (1, BreakCause.SYSTEM_CHANGED)
    # Both branches are rows of their own.
    assert [judgement.masks[CallId(name)].supervised for name in "ab"] == [1, 1]


@pytest.mark.parametrize("size", [20_000])
def test_answers_that_repeat_themselves_cost_no_more(size: int) -> None:
    began = time.perf_counter()
    assert cause([5] * size, [5] * (size // 2) + [6] + [5] * size, **TOOLS) == "unknown"
    assert cause([6, *[5] * size], [5] * (size + 1)) in ("unknown", "template_boundary")
    assert time.perf_counter() - began < 2.0
