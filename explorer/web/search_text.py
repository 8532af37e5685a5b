"""Finds a text in a text, and cuts out what stands around it.

Owns: what equals what when letters' case does not count, and how a hit reads.
Must not know: where texts come from. No patterns: what is asked for is what is found.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from explorer.errors import InvalidValue
from explorer.web.pretty import safe_text

MOST_QUERY = 1_000
BEFORE, AFTER, MOST_HIT = 50, 110, 200
# They belong to the character before them.
_JOINED = frozenset("\u200d\ufe0e\ufe0f")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A hit with what stands around it, safe and in one line."""

    before: str
    match: str
    after: str


def read_search(text: str) -> str:
    """The query of an address, as it is searched.

    Raises:
        InvalidValue: longer than anything worth searching for.
    """
    text = text.strip("\r\n")
    if len(text) > MOST_QUERY:
        raise InvalidValue(
            f"`q` has {len(text):,} characters; a search takes at most {MOST_QUERY:,}",
            path="q",
        )
    return text if text.strip() else ""


def folded(text: str) -> str:
    """`text` without its case, every character still in its place."""
    # The only letter whose small form has two characters; and sigma at a word's end.
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


class Needle:
    """A query, looked for in many texts."""

    def __init__(self, query: str, *, case: bool) -> None:
        self._case = case
        self._query = query if case else folded(query)

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of every hit, left to right, none overlapping another."""
        if not self._query:
            return
        whole = text if self._case else folded(text)
        size = len(self._query)
        at = whole.find(self._query)
        while at >= 0:
            yield at, at + size
            at = whole.find(self._query, at + size)

    def count(self, text: str) -> int:
        """How many hits `places` gives."""
        if not self._query:
            return 0
        return (text if self._case else folded(text)).count(self._query)


def _one_line(text: str) -> str:
    shown = safe_text(text.replace("\udfff", "\ufffd"))
    return shown.replace("\n", "↵").replace("\t", "→")


def _whole_start(text: str) -> str:
    """`text` without the marks at its beginning that belong to a character left out."""
    at = 0
    while at < len(text) and (unicodedata.combining(text[at]) or text[at] in _JOINED):
        at += 1
    return text[at:]


def excerpt(text: str, start: int, end: int) -> Excerpt:
    """The hit ``[start, end)`` of `text` and what stands around it."""
    low, high = max(0, start - BEFORE), min(len(text), end + AFTER)
    before, after = text[low:start], text[end:high]
    match = text[start:end]
    if len(match) > MOST_HIT:
        match, after, high = match[:MOST_HIT], "", end - 1
    return Excerpt(
        before=("…" if low else "") + _one_line(_whole_start(before) if low else before),
        match=_one_line(match),
        after=_one_line(after) + ("…" if high < len(text) else ""),
    )
