"""Keys and values of tokens already read, for running sequences and for later prompts.

Owns: `KeyValueCache` (one sequence) and `PrefixPool` (finished ones, found again by prefix).
Must not know: the network, sampling, requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from explorer.engine.tiny.weights import Floats, ModelShape


class SequenceCache(Protocol):
    """What one network keeps of the tokens of one sequence."""

    length: int

    def prefix(self, length: int) -> Self:
        """A copy of the first `length` tokens."""
        ...


Cache = TypeVar("Cache", bound=SequenceCache)


class KeyValueCache:
    """Keys and values of one sequence, (layers, kv heads, capacity, head size) each."""

    __slots__ = ("keys", "length", "shape", "values")

    def __init__(self, shape: ModelShape, capacity: int = 64) -> None:
        self.shape = shape
        size = (shape.layers, shape.kv_heads, capacity, shape.head_dim)
        self.keys: Floats = np.empty(size, np.float32)
        self.values: Floats = np.empty(size, np.float32)
        self.length = 0

    def reserve(self, extra: int) -> None:
        """Make room for `extra` more tokens; grows by doubling."""
        needed, capacity = self.length + extra, self.keys.shape[2]
        if needed <= capacity:
            return
        grown = KeyValueCache(self.shape, max(needed, 2 * capacity))
        grown.keys[:, :, : self.length] = self.keys[:, :, : self.length]
        grown.values[:, :, : self.length] = self.values[:, :, : self.length]
        self.keys, self.values = grown.keys, grown.values

    def prefix(self, length: int) -> KeyValueCache:
        """A copy of the first `length` tokens."""
        copy = KeyValueCache(self.shape, length + 64)
        copy.keys[:, :, :length] = self.keys[:, :, :length]
        copy.values[:, :, :length] = self.values[:, :, :length]
        copy.length = length
        return copy


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Cache]):
    ids: tuple[int, ...]
    cache: Cache


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(i for i in range(shorter) if left[i] != right[i])


class PrefixPool(Generic[Cache]):
    """The last sequences, so that a prompt that extends one is not read again.

    Holds at most `limit_tokens` tokens and forgets the least recently used first.
    """

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self._kept: OrderedDict[int, _Kept[Cache]] = OrderedDict()
        self._next = 0

    def keep(self, ids: Sequence[int], cache: Cache) -> None:
        """Remember a sequence; `cache` must not be written in its first tokens afterwards."""
        known = tuple(ids[: cache.length])
        if not known or len(known) > self.limit_tokens:
            return
        for name, old in list(self._kept.items()):
            if len(old.ids) <= len(known) and known[: len(old.ids)] == old.ids:
                del self._kept[name]  # the longer one serves both
        self._kept[self._next] = _Kept(known, cache)
        self._next += 1
        while sum(len(entry.ids) for entry in self._kept.values()) > self.limit_tokens:
            self._kept.popitem(last=False)

    def find(self, ids: Sequence[int]) -> Cache | None:
        """A copy of the longest usable prefix; the last id is always left to be read."""
        wanted = tuple(ids)
        best, length = -1, 0
        for name, entry in self._kept.items():
            shared = min(common_length(entry.ids, wanted), len(wanted) - 1)
            if shared >= length and shared > 0:
                best, length = name, shared
        if best < 0:
            return None
        self._kept.move_to_end(best)
        return self._kept[best].cache.prefix(length)

    def clear(self) -> None:
        """Forget everything, as needed when the weights change."""
        self._kept.clear()
