"""Finds secrets in bytes, also where they are escaped, and hides them in text.

Owns: scanning one piece of text, the views of it without escapes, and masking.
Must not know: rollouts, calls, where the text comes from.

JSON inside JSON is usual in a trace (the arguments of a tool call), so text is read as it
is and with its escapes undone, up to three times. Every view remembers where its bytes
come from: a match always covers whole escapes of the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from explorer.trace.secret_kinds import RULES, Kind

BLOCK = "█"
MOST_VIEWS = 4
# Shorter ones would hide ordinary words wherever they stand.
SHORTEST_VALUE = 8
# What is left of a secret where a text was cut.
SHORTEST_PIECE, SHORTEST_END = 4, 6
MOST_VALUES = 500

_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\"\\/bfnrt'])")
_SHORT = {ord("b"): 8, ord("f"): 12, ord("n"): 10, ord("r"): 13, ord("t"): 9}
_CUT_MARKS = "….\n "


@dataclass(frozen=True, slots=True)
class Hit:
    """One match: `start` and `end` in the original bytes; `value` is what a reader of the
    text would take, and is never shown."""

    start: int
    end: int
    kind: Kind
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """Text with some escapes undone; `places[i]` is where byte `i` begins in the original,
    None where they are the same."""

    data: bytes = field(repr=False)
    places: NDArray[np.int64] | None

    def span(self, start: int, end: int) -> tuple[int, int]:
        if self.places is None:
            return start, end
        return int(self.places[start]), int(self.places[end])


def views(data: bytes) -> Iterator[_View]:
    """The text, then without its escapes, then without those that appeared."""
    view = _View(data, None)
    for _ in range(MOST_VIEWS):
        yield view
        if b"\\" not in view.data:
            return
        undone = _undo(view)
        if undone is None:
            return
        view = undone


def _undo(view: _View) -> _View | None:
    data = view.data
    found = [match.span() for match in _ESCAPE.finditer(data)]
    if not found:
        return None
    spans = np.array(found, dtype=np.int64)
    kept = np.ones(len(data), dtype=np.bool_)
    starts, sizes = spans[:, 0], spans[:, 1] - spans[:, 0]
    for offset in range(1, 6):
        kept[starts[sizes > offset] + offset] = False
    bytes_ = np.frombuffer(data, dtype=np.uint8).copy()
    bytes_[starts] = [_one(data[start:end]) for start, end in found]
    inner = np.append(np.flatnonzero(kept), len(data))
    places = inner if view.places is None else view.places[inner]
    return _View(bytes_[kept].tobytes(), places)


def _one(escape: bytes) -> int:
    """The one byte that an escape stands for; `?` for a character beyond ASCII."""
    if escape[1] in b"ux":
        code = int(escape[2:], 16)
        return code if code < 128 else 63
    return _SHORT.get(escape[1], escape[1])


def scan(data: bytes) -> list[Hit]:
    """Every match in `data`, by place; none lies inside another."""
    found: list[tuple[int, int, int, Kind, bytes]] = []
    for view in views(data):
        for order, start, end in _flat(view.data):
            first, last = view.span(start, end)
            found.append((first, -last, order, RULES[order].kind, view.data[start:end]))
    found.sort(key=lambda each: each[:3])
    hits: list[Hit] = []
    reached = {True: -1, False: -1}
    for first, negative, _, kind, value in found:
        if -negative > reached[kind.blocks]:
            reached[kind.blocks] = -negative
            hits.append(Hit(first, -negative, kind, value))
    return hits


def _flat(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(number of the rule, start, end) in one view."""
    lower = data.lower()
    for order, rule in enumerate(RULES):
        for anchor in rule.anchors:
            at = lower.find(anchor)
            while at >= 0:
                found = rule.match(data, at)
                if found is not None:
                    yield order, *found
                    at = max(found[1], at + 1)
                else:
                    at += 1
                at = lower.find(anchor, at)


def places_of(data: bytes, values: Sequence[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """Where any of `values` stands in `data`, as it is or escaped: start, end, value."""
    if not values:
        return
    for view in views(data):
        for value in values:
            at = view.data.find(value)
            while at >= 0:
                yield *view.span(at, at + len(value)), value
                at = view.data.find(value, at + len(value))


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that overlap or touch made one."""
    made: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


class Masker:
    """Hides what looks like a secret, and the secrets it is told, in any text.

    Args:
        values: secrets that were found elsewhere; they are hidden without the words that
            gave them away there.
        free: what looks like a secret and may be seen all the same: a person said so.
    """

    __slots__ = ("_free", "_values")

    def __init__(
        self, values: Sequence[bytes] = (), free: frozenset[bytes] = frozenset()
    ) -> None:
        self._free = free
        kept = [value for value in values if len(value) >= SHORTEST_VALUE][:MOST_VALUES]
        self._values = tuple(sorted(set(kept), key=len, reverse=True))

    def __repr__(self) -> str:
        return f"Masker({len(self._values)} values)"

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """What is to be hidden in `data`."""
        found = [
            (hit.start, hit.end)
            for hit in scan(data)
            if hit.kind.blocks and hit.value not in self._free
        ]
        found += [(start, end) for start, end, _ in places_of(data, self._values)]
        return joined(found)

    def data(self, data: bytes) -> bytes:
        """`data` with every byte of a secret overwritten by `*`."""
        spans = self.spans(data)
        if not spans:
            return data
        made = bytearray(data)
        for start, end in spans:
            made[start:end] = b"*" * (end - start)
        return bytes(made)

    def text(self, text: str, *, mark: str = BLOCK) -> str:
        """`text` with every character of a secret replaced by `mark`, also of one that is
        cut by the end of the text."""
        if len(text) < SHORTEST_PIECE:
            return text
        data = text.encode("utf-8", "surrogatepass")
        spans = joined([*self.spans(data), *self._cut(text, data)])
        if not spans:
            return text
        parts, at = [], 0
        for start, end in spans:
            parts.append(data[at:start].decode("utf-8", "surrogatepass"))
            parts.append(mark * (end - start))
            at = end
        parts.append(data[at:].decode("utf-8", "surrogatepass"))
        return "".join(parts)

    def _cut(self, text: str, data: bytes) -> Iterator[tuple[int, int]]:
        """The beginning of a secret at the end of a cut text, the end of one at its start."""
        end = len(text.rstrip(_CUT_MARKS).encode("utf-8", "surrogatepass"))
        start = len(data) - len(text.lstrip(_CUT_MARKS).encode("utf-8", "surrogatepass"))
        for value in self._values:
            # Only where its first (last) characters stand is the rest compared.
            at = data.find(value[:SHORTEST_PIECE], max(start, end - len(value) + 1), end)
            while at >= 0:
                if value.startswith(data[at:end]):
                    yield at, end
                    break
                at = data.find(value[:SHORTEST_PIECE], at + 1, end)
            last = value[-SHORTEST_END:]
            at = data.rfind(last, start, min(end, start + len(value) - 1))
            while at >= 0:
                if value.endswith(data[start : at + len(last)]):
                    yield start, at + len(last)
                    break
                at = data.rfind(last, start, at + len(last) - 1)


_ANYTHING = Masker()


def masked_text(text: str) -> str:
    """`text` with everything that looks like a secret overwritten, character by character:
    for text of which nothing else is known."""
    return _ANYTHING.text(text)
