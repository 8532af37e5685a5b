"""Chained hashes of a token sequence at every block boundary.

Owns: the state of a sequence (one hash a block, and the tail), and how it grows.
Must not know: calls, or what the hashes are looked up in.

Equal hashes mean equal prefixes: each is 16 bytes of BLAKE2b over the one before and
the block's ids, so two different prefixes would need 2**64 tries to collide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from explorer.records import IdArray

BLOCK_TOKENS = 128
TOKEN_BYTES = 4
HASH_BYTES = 16
START_HASH = b"\x00" * HASH_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class SequenceState:
    """The hashes of one sequence, shared with the sequence that it extends.

    `hashes` holds cuts ``base + 1 …``; earlier cuts are found through `up`. `tail` is
    the int32 little-endian bytes after the last cut.
    """

    length: int
    up: SequenceState | None
    base: int
    hashes: tuple[bytes, ...]
    tail: bytes

    @property
    def cuts(self) -> int:
        """How many whole blocks the sequence has."""
        return self.base + len(self.hashes)

    def hash_at(self, cut: int) -> bytes:
        """The hash after `cut` blocks."""
        state: SequenceState | None = self
        while state is not None:
            if cut > state.base:
                return state.hashes[cut - state.base - 1]
            state = state.up
        return START_HASH

    def descending(self) -> Iterator[tuple[int, bytes]]:
        """Every ``(cut, hash)`` from the last to the empty start."""
        state: SequenceState | None = self
        ceiling = self.cuts
        while state is not None:
            for cut in range(min(ceiling, state.cuts), state.base, -1):
                yield cut, state.hashes[cut - state.base - 1]
            ceiling = min(ceiling, state.base)
            state = state.up
        yield 0, START_HASH

    def truncated(self, cut: int, block: int) -> SequenceState:
        """The state of the first `cut` blocks, sharing this one's hashes."""
        return SequenceState(cut * block, self, cut, (), b"")


EMPTY_STATE = SequenceState(0, None, 0, (), b"")


def token_bytes(ids: IdArray) -> bytes:
    """The ids as little-endian int32."""
    return np.ascontiguousarray(ids, dtype="<i4").tobytes()


def extend(state: SequenceState, ids: IdArray, block: int = BLOCK_TOKENS) -> SequenceState:
    """The state of ``sequence + ids``; costs one pass over `ids` alone."""
    if ids.size == 0:
        return state
    data = state.tail + token_bytes(ids)
    step = block * TOKEN_BYTES
    whole = len(data) // step * step
    length = state.length + int(ids.size)
    if whole == 0:
        return SequenceState(length, state.up, state.base, state.hashes, data)
    last = state.hash_at(state.cuts)
    fresh = []
    for start in range(0, whole, step):
        part = data[start : start + step]
        last = hashlib.blake2b(last + part, digest_size=HASH_BYTES).digest()
        fresh.append(last)
    return SequenceState(length, state, state.cuts, tuple(fresh), data[whole:])
