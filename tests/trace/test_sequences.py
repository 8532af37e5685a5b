"""Assembled sequences are the engine's prompts, whatever the deltas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import RecordInconsistent
from explorer.records import Call, CallId
from explorer.trace.sequences import Sequences
from tests.trace.build import full_len, ids, make_call, two_turns

STEPS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 30), st.lists(st.integers(0, 99), max_size=4)),
    min_size=1,
    max_size=12,
)


def grown(steps: list[tuple[int, int, list[int]]]) -> dict[str, tuple[Call, list[int]]]:
    """Each step continues some earlier call after some prefix of it."""
    made: list[tuple[Call, list[int]]] = []
    for number, (parent, cut, extra) in enumerate(steps):
        sampled = [100 + number]
        if not made:
            prompt = [1, *extra]
            call = make_call(str(number), number, prompt, sampled)
        else:
            base, base_prompt = made[parent % len(made)]
            assert base.completion is not None
            full = base_prompt + base.completion.tolist()
            shared = cut % len(full) + 1
            prompt = full[:shared] + extra
            call = make_call(
                str(number), number, prompt, sampled, parent=base, prefix_len=shared
            )
        made.append((call, prompt))
    return {str(call.call_id): (call, prompt) for call, prompt in made}


@given(STEPS, st.integers(0, 40), st.integers(0, 40), st.integers(0, 30))
def test_prompt_full_and_slice(
    steps: list[tuple[int, int, list[int]]], start: int, end: int, cache: int
) -> None:
    made = grown(steps)
    sequences = Sequences([call for call, _ in made.values()], cache_tokens=cache)
    for _ in range(2):
        for call, prompt in made.values():
            assert call.completion is not None
            full = prompt + call.completion.tolist()
            assert sequences.prompt(call.call_id).tolist() == prompt
            assert sequences.full(call.call_id).tolist() == full
            assert sequences.slice(call.call_id, start, end).tolist() == full[start:end]


def test_depth_does_not_recurse() -> None:
    calls = [make_call("0", 0, [1], [2])]
    prompt = [1]
    for number in range(1, 3000):
        prompt = [*prompt, 2, 3]
        calls.append(make_call(str(number), number, prompt, [2], parent=calls[-1]))
    sequences = Sequences(reversed(calls))
    assert sequences.problem(CallId("2999")) is None
    assert sequences.full_length(CallId("2999")) == full_len(calls[-1])
    assert sequences.prompt(CallId("2999")).tolist() == prompt


def test_a_prompt_cannot_be_written_into() -> None:
    first, second = two_turns()
    prompt = Sequences([first, second]).prompt(second.call_id)
    with pytest.raises(ValueError, match="read-only"):
        prompt[0] = 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_len": 9}, "prefix and delta make 5 tokens"),
        ({"prefix_len": 7}, "the stored parent has 4"),
        ({"prefix_len": -1}, "the stored parent has 4"),
        ({"stored_parent_id": None}, "no stored parent"),
        ({"stored_parent_id": CallId("gone")}, "not in the record"),
        ({"stored_parent_id": CallId("b")}, "cycle"),
        ({"prompt_delta": None}, "no prompt ids"),
    ],
)
def test_a_delta_that_does_not_fit(change: dict[str, object], words: str) -> None:
    first, second = two_turns()
    broken = replace(second, **change)  # type: ignore[arg-type]
    child = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=second)
    sequences = Sequences([first, broken, child])
    with pytest.raises(RecordInconsistent, match=words):
        sequences.prompt(broken.call_id)
    with pytest.raises(RecordInconsistent):
        sequences.slice(child.call_id, 0, 3)
    assert sequences.prompt(first.call_id).tolist() == [1, 2]


def test_a_longer_cycle_and_an_empty_prompt() -> None:
    first, second = two_turns()
    looped = replace(first, stored_parent_id=second.call_id)
    assert "cycle" in str(Sequences([looped, second]).problem(second.call_id))
    empty = make_call("e", 1, [], [3])
    assert Sequences([empty]).problem(empty.call_id) == "the prompt is empty"
    assert Sequences([replace(empty, prompt_delta=ids([]))]).problem(empty.call_id)
