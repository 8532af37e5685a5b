"""Tokens as HTML: one element per token, in blocks that a browser may skip.

Owns: the markup of tokens, where blocks are cut, and how high they are guessed to be.
Must not know: turns, roles, HTTP.

This is the one place that builds HTML without a template: a hundred thousand elements
per page leave no time for one call each. Every piece of trace text passes `escape`.
The text of the elements is the text of the tokens: marks for white space and later
bytes of a character are drawn by the style sheet, so that copying and finding work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from explorer.trace.decode import REST_MARK, Piece, visible
from explorer.web.branch import METRICS, TRAINED, BranchView

BLOCK: Final = 512
LONGEST_BLOCK: Final = 768
ANCHOR_EVERY: Final = 64
CHARS_PER_LINE: Final = 104
HEIGHTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Look:
    """How tokens are drawn: the metric, ids printed or not, and one extra anchor."""

    metric: str = "logprob"
    ids: bool = False
    anchor: int | None = None


def token_text(piece: Piece) -> str:
    """The text of a token's element, hidden characters spelled out, as HTML."""
    if not piece.known:
        return escape(piece.display)
    if piece.text == "\n":
        return "\n"  # its class draws the mark: one element less, and there are many
    if piece.partial is None and piece.text.isascii() and piece.text.isprintable():
        return escape(piece.text, quote=False)
    if piece.text.isspace() and not set(piece.text) - {" ", "\n", "\t"}:
        return _white(piece.text)
    shown = piece.display.removeprefix(REST_MARK)
    if "\ufffd" in piece.text:
        # Invalid bytes: the display names each of them.
        return f"<b class=ctl>{escape(shown, quote=False)}</b>" if shown else ""
    return "".join(map(_character, piece.text))


def _character(character: str) -> str:
    if character in " \n\t":
        return _white(character)
    shown = visible(character)
    if shown == character:
        return escape(character, quote=False)
    return f"<b class=ctl>{escape(shown, quote=False)}</b>"


def _white(text: str) -> str:
    return text.replace("\n", "<u></u>\n").replace("\t", "<u class=t></u>\t")


def base_classes(piece: Piece) -> str:
    """Classes that no metric changes: special, later bytes only, line end, spaces only."""
    names = []
    if piece.special or not piece.known:
        names.append("s")
    if piece.partial == "rest" and not piece.text:
        names.append("u")
    if piece.text == "\n":
        names.append("n")
    elif piece.text and not piece.text.strip(" "):
        names.append("w")
    return " ".join(names)


def cuts(newlines: Sequence[int], start: int, end: int) -> list[int]:
    """Where blocks begin and end: after a line end where there is one.

    A block is a box of its own, so a cut anywhere else shows a line break that no
    token made.

    Args:
        newlines: positions of tokens that end a line, ascending.
    """
    edges = [start]
    place = 0
    while end - edges[-1] > LONGEST_BLOCK:
        first = edges[-1]
        best = None
        while place < len(newlines) and newlines[place] < first + LONGEST_BLOCK:
            after = newlines[place] + 1
            if after > first:
                best = after
                if after >= first + BLOCK:
                    break
            place += 1
        edges.append(best if best is not None else first + BLOCK)
    edges.append(end)
    return edges


def height_class(text_chars: int, line_ends: int) -> str:
    """The guessed height of a block as one of the style sheet's classes."""
    lines = max(1, line_ends + text_chars // CHARS_PER_LINE)
    for step in HEIGHTS:
        if lines <= step:
            return f"k{step}"
    return f"k{HEIGHTS[-1]}"


class TokenMarkup:
    """Marks up tokens of one branch.

    Args:
        pieces: one per token of the branch.
    """

    def __init__(self, view: BranchView, pieces: Sequence[Piece], look: Look) -> None:
        self._pieces = pieces
        self._look = look
        self._columns = view.column(look.metric).tolist()
        masked = view.sampled & (view.reasons != TRAINED)
        self._masked = masked.tolist()
        self._names = METRICS[look.metric]
        self._seen: dict[int, tuple[str, str]] = {}
        self._ends = [index for index, piece in enumerate(pieces) if piece.text.endswith("\n")]

    def section(self, start: int, end: int, *, hatched: bool) -> Markup:
        """The blocks of one section; `hatched` says that the section is masked whole."""
        low = bisect_left(self._ends, start)
        ends = self._ends[low : bisect_left(self._ends, end)]
        edges = cuts(ends, start, end)
        blocks = [
            self._block(first, last, hatched=hatched)
            for first, last in pairwise(edges)
            if first < last
        ]
        return Markup("".join(blocks))  # noqa: S704 - every text in it passed `escape`

    def _block(self, start: int, end: int, *, hatched: bool) -> str:
        chars = line_ends = 0
        parts: list[str] = []
        names, seen, look = self._names, self._seen, self._look
        for index in range(start, end):
            piece = self._pieces[index]
            known = seen.get(id(piece))
            if known is None:
                known = seen[id(piece)] = (base_classes(piece), token_text(piece))
            base, text = known
            chars += len(piece.text)
            line_ends += piece.newline
            classes = names[self._columns[index]]
            if not hatched and self._masked[index]:
                classes = f"{classes} x" if classes else "x"
            if base:
                classes = f"{classes} {base}" if classes else base
            extra = ""
            if index % ANCHOR_EVERY == 0 or index == look.anchor:
                extra = f" id=t{index}"
            if look.ids:
                extra += f" data-i={piece.token_id}"
            if not classes:
                parts.append(f"<i{extra}>{text}</i>")
            elif " " in classes:
                parts.append(f'<i{extra} class="{classes}">{text}</i>')
            else:
                parts.append(f"<i{extra} class={classes}>{text}</i>")
        height = height_class(chars, line_ends)
        return f'<div class="k {height}" data-s={start}>{"".join(parts)}</div>'
