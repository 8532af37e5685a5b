"""Columns encoded together are those encoded one call at a time, or none at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from explorer.custody.batch import GROUP, encode_all
from explorer.custody.digest import (
    chain_hash,
    chain_hash_of,
    cumulative_hash,
    encode_tokens,
    encode_u64,
)
from explorer.custody.errors import ReceiptVerificationError
from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import StagedCallBaseSnapshot
from explorer.custody.staging import Columns, encode_columns
from tests.custody.build import forced, linear, random_tree, rehashed

SOUND = linear(1).calls[0]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e300, float("inf"), float("nan")]
MASKED: Any = np.ma.masked_array(np.zeros(4), np.array([False, False, True, True]))


def alone(call: StagedCallBaseSnapshot) -> Columns | None:
    """What the check of one call says; None where it refuses."""
    try:
        return encode_columns(call)
    except (TypeError, ValueError):
        return None


def ids() -> st.SearchStrategy[Any]:
    """Four ids in the form of a record, and in others."""
    sound = st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4).map(
        lambda values: np.array(values, np.uint64)
    )
    other = [
        np.array([1, 2, 3, 4]),
        np.array([1, 2, 3, -4]),
        np.array([1, 0, 1, 1], np.bool_),
        np.array([1.0, 2.0, 3.0, 4.0]),
        np.array([1, 2, 3, 4], ">u8"),
        np.array([[1, 2, 3, 4]], np.uint64),
        np.array([1, 2, 3], np.uint64),
        np.array([], np.uint64),
        np.array(5, np.uint64),
        [1, 2, 3, 4],
        [1, 2, 3, True],
        None,
    ]
    return sound | st.sampled_from(other)


def narrow(values: list[float]) -> Any:
    """The values as 32 bits hold them."""
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def floats() -> st.SearchStrategy[Any]:
    """Four floats in the form of a record, and in others."""
    some = st.lists(st.sampled_from(FLOATS), min_size=4, max_size=4)
    return some.map(np.array) | some | some.map(narrow)


@given(
    st.lists(
        st.tuples(ids(), st.just([0.0, 0.0, 1.0, 1.0]).map(np.array) | floats(), floats()),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([4, 4, 4, 3, 0, True, None]),
)
@example([(SOUND.token_ids_delta, MASKED, SOUND.generation_log_probs_delta)], 4)
@settings(max_examples=500, deadline=None)
def test_together_nothing_is_taken_that_is_refused_alone(
    columns: list[tuple[Any, Any, Any]], delta_len: Any
) -> None:
    names = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
    calls = [
        forced(SOUND, delta_len=delta_len, **dict(zip(names, each, strict=True)))
        for each in columns
    ]
    for found, call in zip(encode_all(calls), calls, strict=True):
        assert found is None or found == alone(call)


@pytest.mark.parametrize("seed", range(20))
def test_records_are_always_encoded_together(seed: int) -> None:
    calls = random_tree(seed, count=8).calls * (GROUP // 4)
    assert len(calls) > GROUP
    found = list(encode_all(calls))
    assert None not in found
    assert found == list(map(encode_columns, calls))


@pytest.mark.parametrize("place", [0, GROUP - 1, GROUP, 2 * GROUP, 2 * GROUP + 1])
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("token_mask_delta", np.array([0.0, 0.0, 1.0, 0.5]), "invalid_snapshot"),
        ("generation_log_probs_delta", np.array([0.0, -1.0, -1.0, -1.0]), "invalid_snapshot"),
        ("generation_log_probs_delta", np.array([0.0, 0.0, -1.0, np.inf]), "invalid_snapshot"),
        ("token_ids_delta", np.array([1, 2, 3], np.uint64), "invalid_snapshot"),
        ("token_ids_delta", np.array([1, 2, 3, 9999], np.uint64), "corrupt_digest"),
        ("token_mask_delta", np.array([0.0, 1.0, 1.0, 1.0]), "corrupt_digest"),
    ],
)
def test_damage_anywhere_in_a_long_rollout_names_its_call(
    place: int, name: str, value: Any, code: str
) -> None:
    rollout = linear(2 * GROUP + 2)
    calls = [*rollout.calls]
    calls[place] = forced(calls[place], **{name: value})
    with pytest.raises(ReceiptVerificationError, match=rf"c{place}\b") as caught:
        verify_and_linearize(rollout.receipt(), calls)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("mask", "code"),
    [
        ([1.0, 0.0, 1.0, 1.0], "invalid_mask_order"),
        ([1.0, 1.0, 1.0, 0.0], "invalid_mask_order"),
        ([0.0, -0.0, 0.0, -0.0], "empty_generation"),
        ([-0.0, -0.0, 1.0, 1.0], None),
        ([1.0, 1.0, 1.0, 1.0], None),
    ],
)
def test_the_shape_of_a_mask(mask: list[float], code: str | None) -> None:
    rollout = linear(3)
    call = rehashed(
        rollout.calls[1],
        token_mask_delta=np.array(mask),
        generation_log_probs_delta=np.zeros(4),
    )
    calls = [rollout.calls[0], call, rollout.calls[2]]
    receipt = forced(rollout.receipt(), manifest=tuple(map(rollout.row, calls)))
    if code is None:
        span = verify_and_linearize(receipt, calls).link_spans[1]
        assert span == ("c1", mask.count(0.0), mask.count(1.0))
    else:
        with pytest.raises(ReceiptVerificationError) as caught:
            verify_and_linearize(receipt, calls)
        assert caught.value.code == code


def test_what_is_no_staged_call_is_met_in_its_place() -> None:
    rollout = linear()
    stranger: Any = rollout.calls[2].to_json()
    with pytest.raises(TypeError, match="expected a staged call, got dict"):
        verify_and_linearize(rollout.receipt(), [*rollout.calls[:2], stranger])
    damaged = forced(rollout.calls[0], weight_version=9)
    with pytest.raises(ReceiptVerificationError, match="wrong_weight_version"):
        verify_and_linearize(rollout.receipt(), [damaged, rollout.calls[1], stranger])


@given(st.lists(st.integers(0, 2**64 - 1), max_size=9), st.integers(0, 9))
def test_a_sequence_in_pieces_has_the_same_hashes(tokens: list[int], place: int) -> None:
    array = np.array(tokens, np.uint64)
    whole = cumulative_hash(tokens)
    assert cumulative_hash(tokens[:place], tokens[place:]) == whole
    assert cumulative_hash(array[:place], tokens[place:]) == whole
    size, encoded = encode_u64(len(tokens)), encode_tokens(tokens)[8:]
    assert chain_hash_of(None, size, encoded) == chain_hash(None, array)


def test_a_long_sequence_is_hashed_whole() -> None:
    tokens = list(range(40_000))
    whole = cumulative_hash(tokens)
    assert cumulative_hash(np.array(tokens)) == whole
    assert cumulative_hash(tokens[:-1], tokens[-1:]) == whole
    for place in (0, 16_383, 16_384, 39_999):
        changed = [*tokens]
        changed[place] += 1
        assert cumulative_hash(changed) != whole
    bad: Any = [*tokens, True]
    with pytest.raises(TypeError):
        cumulative_hash(bad)
    with pytest.raises(ValueError, match="fit"):
        cumulative_hash([*tokens, -1])
