"""Digests over token ids, byte-compatible with the NeMo Gym staging format.

Owns: the primitive encodings, `cumulative_hash` and `chain_hash`.
Must not know: records, calls, the store; standard library and numpy only.

Every integer is an unsigned 64-bit big-endian number, a list of tokens is its
count followed by its ids, and a domain tag is simply the first bytes hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 32
PREFIX_TAG = b"nemo-gym-staging-prefix-v2"
CHAIN_TAG = b"nemo-gym-staging-chain-v1"

_U64_LIMIT = 1 << 64
_ROOT_MARK = b"\x00"
_CHILD_MARK = b"\x01"

Tokens = NDArray[np.integer[Any]] | Sequence[int]


def encode_u64(value: int) -> bytes:
    """`value` as 8 bytes.

    Raises:
        TypeError: not a true integer (a boolean and a float are refused).
        ValueError: outside 0 .. 2**64 - 1.
    """
    if type(value) is int and 0 <= value < _U64_LIMIT:
        return value.to_bytes(8, "big")
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"expected an integer, got {type(value).__name__}")
    if not 0 <= value < _U64_LIMIT:
        raise ValueError("the integer does not fit an unsigned 64-bit integer")
    return int(value).to_bytes(8, "big")


def encode_tokens(tokens: Tokens) -> bytes:
    """The count of `tokens`, then each id, all as 8 big-endian bytes.

    Raises:
        TypeError: an id that is not a true integer.
        ValueError: a negative id, one over 2**64 - 1, or an array that is not flat.
    """
    if isinstance(tokens, np.ndarray):
        return encode_u64(tokens.size) + _array_bytes(tokens)
    return encode_u64(len(tokens)) + b"".join(map(encode_u64, tokens))


def _array_bytes(tokens: NDArray[np.integer[Any]]) -> bytes:
    if tokens.ndim != 1:
        raise ValueError(f"expected a one-dimensional array, got {tokens.ndim} dimensions")
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"expected integer ids, got {tokens.dtype}")
    if tokens.dtype.kind == "i" and tokens.size and int(tokens.min()) < 0:
        raise ValueError("a token id is negative")
    return tokens.astype(">u8").tobytes()


def cumulative_hash(tokens: Tokens) -> bytes:
    """SHA-256 over a whole sequence: prompt ids, then generated ids.

    Raises:
        TypeError, ValueError: as `encode_tokens`.
    """
    return hashlib.sha256(PREFIX_TAG + encode_tokens(tokens)).digest()


def chain_hash(parent: bytes | None, delta: Tokens) -> bytes:
    """SHA-256 that links a call's new ids to the chain hash of its parent.

    It depends on how a sequence was cut into deltas, so two calls with the same
    `cumulative_hash` can have different chain hashes.

    Args:
        parent: the parent's 32 raw bytes, or None for a root.
        delta: prompt ids that the parent does not hold, then generated ids.

    Raises:
        TypeError, ValueError: as `encode_tokens`, or `parent` is not 32 bytes.
    """
    if parent is None:
        link = _ROOT_MARK
    elif len(parent) == DIGEST_BYTES:
        link = _CHILD_MARK + bytes(parent)
    else:
        raise ValueError(f"a parent chain hash has {DIGEST_BYTES} bytes, not {len(parent)}")
    return hashlib.sha256(CHAIN_TAG + link + encode_tokens(delta)).digest()
