"""Digests against the published and the doubly confirmed vectors."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.custody.digest import chain_hash, cumulative_hash, encode_tokens

CUMULATIVE_EMPTY = "17088fc6f8fd317bf02bd83e106f7ca2dfb7b9cfc63927c2387d4c87f29578ef"
CUMULATIVE_1_TO_5 = "9901d8eb23d4383dc2f1a0aac0deca59b6c27071f8d4131997f8f4a0e692cfb8"
CHAIN_ROOT = "48e57a14b92bae4715336b34ecfc6570ae173a5248b845655d1446592c7c26c6"
CHAIN_CHILD = "64331b75313b5ac2083d786ede9ede247c96fbab1e04936effd04b22888993ab"


def test_golden_cumulative() -> None:
    assert cumulative_hash([]).hex() == CUMULATIVE_EMPTY
    assert cumulative_hash([1, 2, 3, 4, 5]).hex() == CUMULATIVE_1_TO_5


def test_golden_chain() -> None:
    root = chain_hash(None, [1, 2, 3])
    assert root.hex() == CHAIN_ROOT
    assert chain_hash(root, np.array([4, 5], np.int32)).hex() == CHAIN_CHILD


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_array_and_list_agree(ids: list[int]) -> None:
    array = np.array(ids, dtype=np.int32)
    assert cumulative_hash(array) == cumulative_hash(ids)
    assert chain_hash(None, array) == chain_hash(None, ids)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_full_u64_range(ids: list[int]) -> None:
    plain = len(ids).to_bytes(8, "big") + b"".join(i.to_bytes(8, "big") for i in ids)
    assert encode_tokens(ids) == plain
    assert encode_tokens(np.array(ids, dtype=np.uint64)) == plain


def test_cut_matters_for_the_chain_only() -> None:
    assert chain_hash(chain_hash(None, [1]), [2]) != chain_hash(None, [1, 2])


@pytest.mark.parametrize("bad", [True, 1.0, "1", None])
def test_not_an_integer(bad: Any) -> None:
    with pytest.raises(TypeError):
        cumulative_hash([bad])


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_out_of_range(bad: int) -> None:
    with pytest.raises(ValueError, match="fit"):
        chain_hash(None, [bad])


def test_bad_arrays() -> None:
    with pytest.raises(ValueError, match="negative"):
        cumulative_hash(np.array([-1], dtype=np.int32))
    with pytest.raises(TypeError):
        cumulative_hash(np.array([1.0]))
    with pytest.raises(TypeError):
        cumulative_hash(np.array([True]))
    with pytest.raises(ValueError, match="one-dimensional"):
        cumulative_hash(np.zeros((2, 2), dtype=np.int32))


@pytest.mark.parametrize("parent", [b"", b"x" * 31, hashlib.sha512(b"").digest()])
def test_parent_must_be_a_digest(parent: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        chain_hash(parent, [1])
