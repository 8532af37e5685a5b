"""The index against an oracle that scans everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.records import CallId, IdArray
from explorer.trace.blocks import EMPTY_STATE
from explorer.trace.prefix import Match, PrefixIndex, shared_length
from tests.trace.build import ids

Pair = tuple[list[int], list[int]]
TOKENS = st.lists(st.integers(0, 1), max_size=9)
PAIRS = st.lists(st.tuples(TOKENS, TOKENS), max_size=8)


def filled(pairs: list[Pair], block: int) -> PrefixIndex:
    index = PrefixIndex(block)
    for place, (prompt, completion) in enumerate(pairs):
        index.add(CallId(str(place)), place, ids(prompt), ids(completion))
    return index


def oracle_parent(pairs: list[Pair], prompt: list[int]) -> Match | None:
    best: Match | None = None
    for place, (head, completion) in enumerate(pairs):
        full = head + completion
        if prompt[: len(full)] != full or (not completion and len(full) == len(prompt)):
            continue
        if best is None or len(full) > best.length:
            best = Match(CallId(str(place)), len(full))
    return best


@given(PAIRS, TOKENS, st.integers(1, 4))
def test_parent_is_what_a_scan_finds(pairs: list[Pair], prompt: list[int], block: int) -> None:
    assert filled(pairs, block).find_parent(ids(prompt)) == oracle_parent(pairs, prompt)


@given(PAIRS, TOKENS, st.integers(1, 4))
def test_longest_shared_is_what_a_scan_finds(
    pairs: list[Pair], prompt: list[int], block: int
) -> None:
    index = filled(pairs, block)
    fulls = {CallId(str(place)): ids(head + tail) for place, (head, tail) in enumerate(pairs)}

    def read(call_id: CallId, start: int, end: int) -> IdArray:
        return fulls[call_id][start:end]

    state = index.extend(EMPTY_STATE, ids(prompt))
    # Twice: the second answer comes from the blocks that the first one ordered.
    for _ in range(2):
        found = index.longest_shared(state, lambda start, end: ids(prompt)[start:end], read)
        if not pairs:
            assert found is None
            continue
        assert found is not None
        longest = max(shared_length(ids(prompt), full) for full in fulls.values())
        assert found.length == longest
        assert shared_length(ids(prompt), fulls[found.call_id]) == longest


@given(TOKENS, TOKENS, TOKENS, TOKENS, st.integers(1, 4))
def test_a_delta_gives_the_state_of_the_whole(
    prompt: list[int], completion: list[int], delta: list[int], more: list[int], block: int
) -> None:
    index = PrefixIndex(block)
    index.add(CallId("a"), 1, ids(prompt), ids(completion))
    short = index.add(CallId("b"), 2, ids(delta), ids(more), parent=CallId("a"))
    whole = index.extend(EMPTY_STATE, ids(prompt + completion + delta + more))
    assert short.length == whole.length
    assert short.tail == whole.tail
    assert list(short.descending()) == list(whole.descending())


def test_ties_go_to_the_earliest() -> None:
    index = PrefixIndex()
    index.add(CallId("late"), 2, ids([1]), ids([2]))
    index.add(CallId("early"), 1, ids([1, 2]), ids([]))
    assert index.find_parent(ids([1, 2, 3])) == Match(CallId("early"), 2)
    assert index.find_parent(ids([1, 2])) == Match(CallId("late"), 2)


def test_a_preferred_twin_wins() -> None:
    index = PrefixIndex()
    state = index.extend(EMPTY_STATE, ids([1, 2]))
    index.register(CallId("failed"), 1, state, sampled=True, preferred=False)
    index.register(CallId("good"), 2, state, sampled=True)
    assert index.find_parent(ids([1, 2, 3])) == Match(CallId("good"), 2)


def test_only_cuts_where_something_ends_are_read() -> None:
    index = PrefixIndex(block=2)
    index.add(CallId("short"), 1, ids([1]), ids([2]))
    prompt = ids(range(1, 100))
    read: list[tuple[int, int]] = []

    def read_prompt(start: int, end: int) -> IdArray:
        read.append((start, end))
        return prompt[start:end]

    state = index.extend(EMPTY_STATE, prompt)
    assert index.find_parent_of(state, read_prompt) == Match(CallId("short"), 2)
    assert read == [(2, 2)]


@given(TOKENS, TOKENS, st.integers(1, 3))
def test_a_truncated_state_grows_like_any_other(
    prompt: list[int], more: list[int], block: int
) -> None:
    index = PrefixIndex(block)
    whole = index.extend(EMPTY_STATE, ids(prompt))
    for cut in range(whole.cuts + 1):
        grown = index.extend(whole.truncated(cut, block), ids(more))
        plain = index.extend(EMPTY_STATE, ids(prompt[: cut * block] + more))
        assert list(grown.descending()) == list(plain.descending())
        assert (grown.length, grown.tail) == (plain.length, plain.tail)


def test_memory_is_a_tail_and_one_hash_a_block() -> None:
    index = PrefixIndex(block=128)
    first = index.add(CallId("a"), 1, np.arange(30_000, dtype=np.int32), ids([7]))
    second = index.add(CallId("b"), 2, ids([8] * 100), ids([9]), parent=CallId("a"))
    assert len(first.hashes) + len(second.hashes) == 30_102 // 128
    assert len(second.tail) < 128 * 4


def test_misuse() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PrefixIndex(block=0)
    with pytest.raises(KeyError):
        PrefixIndex().add(CallId("b"), 2, ids([1]), ids([2]), parent=CallId("gone"))
