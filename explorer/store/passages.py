"""Pieces of a rollout's text with their place: what a search looks through.

Owns: `Passage`, where a character of it stands among the tokens, and its packed form.
Must not know: how text is read from calls, how it is searched, the side file.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import orjson
from numpy.typing import NDArray

from explorer.records import CallId

NO_TOKENS = -1
# Stands for a token whose bytes nobody knows: no query can hold it.
UNKNOWN_TOKEN = "\udfff"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Stretch:
    """Characters ``[start, end)`` of a passage that have one speaker and one kind."""

    start: int
    end: int
    role: str
    kind: str

    @property
    def who(self) -> tuple[str, str]:
        """Role and kind."""
        return self.role, self.kind


@dataclass(frozen=True)
class Passage:
    """Text that one call added to its rollout.

    Attributes:
        label: the call's turn as the turn tree names it.
        turn: its number along its branch, from 1; 0 when it is in no tree.
        first_token: place of its first token in the branch; `NO_TOKENS` for the text of a
            message that the tokens do not have.
        lengths: characters of each token; empty without tokens.
        stretches: cover the text in order.
        message: the message it is, by its address on the message page; empty with tokens.
        unknown: tokens whose bytes nobody knows.
        repeated: the tokens are new, but the text is what an earlier call said already: a
            prompt that was rendered anew.
    """

    call_id: CallId
    label: str
    turn: int
    first_token: int
    text: str
    lengths: NDArray[np.uint16] = field(compare=False)
    stretches: tuple[Stretch, ...]
    message: str = ""
    unknown: int = 0
    repeated: bool = False

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64)

    def tokens(self, start: int, end: int) -> tuple[int, int] | None:
        """The tokens that hold characters ``[start, end)``, as places in the branch.

        Tokens that only finish the last character belong to it.
        """
        if self.first_token == NO_TOKENS:
            return None
        ends = self._ends
        first = int(np.searchsorted(ends, start, side="right"))
        # The next token with a character of its own ends the hit.
        last = int(np.searchsorted(ends, end, side="left")) + 1
        while last < ends.size and self.lengths[last] == 0:
            last += 1
        return self.first_token + first, self.first_token + min(last, ends.size)

    def part(self, first: int, after: int, *, repeated: bool) -> Passage:
        """The tokens numbered ``[first, after)`` as a passage of their own."""
        ends = self._ends
        start = int(ends[first - 1]) if first else 0
        end = int(ends[after - 1]) if after else 0
        return replace(
            self,
            first_token=self.first_token + first,
            text=self.text[start:end],
            lengths=self.lengths[first:after],
            stretches=tuple(
                Stretch(max(each.start, start) - start, min(each.end, end) - start, *each.who)
                for each in self.stretches
                if each.start < end and each.end > start
            ),
            unknown=self.text.count(UNKNOWN_TOKEN, start, end),
            repeated=repeated,
        )

    def token_from(self, place: int) -> int:
        """Number of the first token that begins at `place` or after it."""
        return int(np.searchsorted(self._ends, place, side="left")) + 1 if place else 0

    def tokens_until(self, place: int) -> int:
        """How many tokens end at `place` or before it."""
        return int(np.searchsorted(self._ends, place, side="right"))

    def stretch_at(self, place: int) -> Stretch:
        """Who says the character at `place`, and what it is."""
        starts = [each.start for each in self.stretches]
        return self.stretches[max(0, bisect_right(starts, place) - 1)]


def pack_stretches(stretches: Sequence[Stretch]) -> bytes:
    """Stretches as the side file has them."""
    return orjson.dumps([[each.start, each.end, each.role, each.kind] for each in stretches])


def read_stretches(data: bytes) -> tuple[Stretch, ...]:
    """Undo `pack_stretches`; ValueError or TypeError when it holds anything else."""
    return tuple(
        Stretch(int(start), int(end), str(role), str(kind))
        for start, end, role, kind in orjson.loads(data)
    )


def pack_lengths(lengths: NDArray[np.uint16]) -> bytes:
    """Token lengths as the side file has them: mostly small numbers, so they shrink."""
    return zlib.compress(lengths.astype("<u2").tobytes(), 1)


def read_lengths(data: bytes) -> NDArray[np.uint16]:
    """Undo `pack_lengths`; zlib.error or ValueError when it holds anything else."""
    return np.frombuffer(zlib.decompress(data), dtype="<u2").astype(np.uint16)
