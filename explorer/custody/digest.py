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
# Ids that are encoded at a time, so that a long sequence takes no memory of its length.
_CHUNK = 8_192

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
    return encode_u64(len(tokens)) + _encoded_ids(tokens).tobytes()


def _encoded_ids(tokens: Tokens) -> NDArray[np.uint64]:
    """Each id as 8 big-endian bytes; as `encode_tokens` raises."""
    if not isinstance(tokens, np.ndarray):
        # numpy would take a boolean for a number.
        if not set(map(type, tokens)) <= {int}:
            return np.frombuffer(b"".join(map(encode_u64, tokens)), ">u8")
        try:
            tokens = np.array(list(tokens), np.uint64)
        except OverflowError:
            raise ValueError("a token id does not fit an unsigned 64-bit integer") from None
    check_ids(tokens)
    return tokens.astype(">u8")


def check_ids(tokens: NDArray[Any]) -> None:
    """Raises `TypeError` or `ValueError` where `encode_tokens` takes no such array."""
    if tokens.ndim != 1:
        raise ValueError(f"expected a one-dimensional array, got {tokens.ndim} dimensions")
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"expected integer ids, got {tokens.dtype}")
    if tokens.dtype.kind == "i" and tokens.size and int(tokens.min()) < 0:
        raise ValueError("a token id is negative")


def cumulative_hash(*pieces: Tokens) -> bytes:
    """SHA-256 over a whole sequence: prompt ids, then generated ids, in one piece or more.

    Raises:
        TypeError, ValueError: as `encode_tokens`.
    """
    state = hashlib.sha256(PREFIX_TAG + encode_u64(sum(map(len, pieces))))
    for piece in pieces:
        for start in range(0, max(len(piece), 1), _CHUNK):
            state.update(_encoded_ids(piece[start : start + _CHUNK]).data)
    return state.digest()


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
    return chain_hash_of(parent, encode_tokens(delta))


def chain_hash_of(parent: bytes | None, *encoded: bytes) -> bytes:
    """As `chain_hash`, for a delta as `encode_tokens` encodes it, in one piece or more.

    Raises:
        ValueError: `parent` is not 32 bytes.
    """
    if parent is None:
        link = _ROOT_MARK
    elif len(parent) == DIGEST_BYTES:
        link = _CHILD_MARK + bytes(parent)
    else:
        raise ValueError(f"a parent chain hash has {DIGEST_BYTES} bytes, not {len(parent)}")
    return hashlib.sha256(b"".join((CHAIN_TAG, link, *encoded))).digest()
