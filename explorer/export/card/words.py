"""Markdown from text that may hold anything.

Owns: how foreign text stands on a card (as what it is, and never as markup), numbers,
tables, lists of a tally.
Must not know: what is said.

A character that could begin markup in any renderer is written as a character reference:
the text reads the same, and no structure comes from it. Foreign text stands in no code span
and in no address.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from explorer.trace.jsontext import clean, dump

NOT_MEASURED = "not measured"
NOT_TOLD = "not told"
# Of a few named values, what people look for first.
_FIRST = ("kind", "model", "name", "passing")
# What stays as it is: none of it begins markup inside of a line.
_PLAIN = re.compile(r"[A-Za-z0-9 ,;/'\"%?()\-+.:_]")
_LINE_START = re.compile(r"^(?:[-+]|\d{1,9}[.)])(?= |$)")
_WORD = re.compile(r"[A-Za-z0-9]")


def plain(value: Any) -> str:
    """Foreign text in one line of Markdown."""
    text = str(clean(str(value)))
    shown = "".join(_shown(text, place) for place in range(len(text))).strip(" ")
    marker = _LINE_START.match(shown)
    if marker is None:
        return shown
    last = marker.end() - 1
    return f"{shown[:last]}&#{ord(shown[last])};{shown[last + 1 :]}"


def _shown(text: str, place: int) -> str:
    character = text[place]
    after = text[place + 1 : place + 2]
    if character.isascii():
        if not character.isprintable():
            picture = 0x2421 if character == "\x7f" else 0x2400 + ord(character)
            return chr(picture)
        before = text[place - 1 : place] if place else ""
        if _PLAIN.fullmatch(character) and not _marks(character, before, after):
            return character
        return f"&#{ord(character)};"
    if unicodedata.category(character) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"):
        return f"(U+{ord(character):04X})"
    return character


def _marks(character: str, before: str, after: str) -> bool:
    """Whether a character that is plain elsewhere could make markup here."""
    if character == ":":
        return after != " "  # an address, or the name of a picture
    if character == "_":
        return not (_WORD.fullmatch(before) and _WORD.fullmatch(after))  # emphasis
    if character == ".":
        return before in ("w", "W")  # an address without its scheme
    return character == "-" and (after == "-" or before == "-")  # a rule, a heading


def quoted(text: str) -> str:
    """A person's own words of several lines, as a quotation."""
    lines = [plain(line) for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def code(text: str) -> str:
    """Our own constant in a code span; anything else as foreign text."""
    return f"`{text}`" if re.fullmatch(r"[A-Za-z0-9_./+:=-]{1,200}", text) else plain(text)


def many(n: int, word: str) -> str:
    """A number of things."""
    return f"{number(n)} {word}" if n == 1 else f"{number(n)} {word}s"


def number(value: float | int) -> str:
    """A number for people."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.6g}"


def spread(value: Sequence[float] | None, none: str = NOT_MEASURED) -> str:
    """A range."""
    if value is None:
        return none
    least, most = value
    return number(least) if least == most else f"{number(least)} to {number(most)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join(lines)


def value_words(value: Any, *, none: str = NOT_TOLD) -> str:
    """A tally's value: a text, a number, or a few named ones."""
    if value is None or value == "":
        return none
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        if not value:
            return "nothing"
        if all(item is None or item == "" for item in value.values()):
            return none
        ordered = sorted(value.items(), key=lambda item: (item[0] not in _FIRST, item[0]))
        return ", ".join(f"{plain(key)}: {_inner(item)}" for key, item in ordered)
    return plain(value)


def _inner(value: Any) -> str:
    if value is None or value == "":
        return NOT_TOLD
    return plain(value if isinstance(value, str) else dump(value).decode())


def tally_rows(tally: Mapping[str, Any], *, none: str = NOT_TOLD) -> list[tuple[str, str]]:
    """Cells for each value, and one for what is not named."""
    rows = [(value_words(value, none=none), number(n)) for value, n in tally["values"]]
    if tally["more"]:
        rows.append(("others, not named here", number(tally["more"])))
    return rows


def tally_words(tally: Mapping[str, Any], *, none: str = NOT_TOLD) -> str:
    """The same in one line."""
    rows = tally_rows(tally, none=none)
    return "; ".join(f"{words} ({n})" for words, n in rows) or "none"


def distinct_words(told: Mapping[str, Any]) -> str:
    """How many different ones."""
    least, most = told["at_least"], told["at_most"]
    return number(least) if least == most else f"{number(least)} to {number(most)}"


def size_words(size: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
