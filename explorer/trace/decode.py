"""Token ids as pieces that people can read, without losing or inventing a byte.

Owns: how a token is drawn: partial characters, invalid bytes, controls, white space.
Must not know: tokenizers; it is given each id's exact bytes.

A character whose bytes are spread over several tokens is drawn once, on its first token;
the others show a small square. Bytes that are no UTF-8 show as ``\\xNN``, controls and
whatever could hide or reorder text as ``\\uNNNN``. Nothing is stripped: the pieces' raw
bytes joined are the sequence's bytes, and their texts joined are its text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from explorer.records import IdArray

REST_MARK = "\u25aa"

Partial = Literal["first", "rest"]

# Letters and marks by category, and yet nothing is seen of them.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_VISIBLE_SPACES = frozenset(" \u3000")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_WHITE = {" ": "·", "\t": "→", "\n": "↵"}


@dataclass(frozen=True, slots=True)
class Piece:
    """One token as it is drawn.

    Attributes:
        text: the characters that begin in this token, U+FFFD for an invalid byte.
        raw: the token's exact bytes; empty when the id is not in the vocabulary.
        partial: "first" when a character begins here and ends in a later token, "rest"
            when the token's first bytes finish an earlier token's character.
        display: `text` made safe and visible.
        newline: the token holds a line feed.
        whitespace: nothing but white space.
        known: whether the id is in the vocabulary.
    """

    token_id: int
    text: str
    raw: bytes
    special: bool
    partial: Partial | None
    display: str
    newline: bool
    whitespace: bool
    known: bool = True


def pieces(
    ids: IdArray | Iterable[int], vocabulary: Mapping[int, tuple[bytes, bool]]
) -> list[Piece]:
    """One piece per id, in order.

    Args:
        vocabulary: each id's bytes and whether the token is special.
    """
    done: list[Piece] = []
    whole: dict[int, Piece | None] = {}
    run: list[int] = []
    for token_id in ids.tolist() if isinstance(ids, np.ndarray) else ids:
        try:
            piece = whole[token_id]
        except KeyError:
            piece = whole[token_id] = _whole(token_id, vocabulary)
        if piece is None:
            run.append(token_id)
            continue
        if run:
            done += _partial_run(run, vocabulary)
            run = []
        done.append(piece)
    if run:
        done += _partial_run(run, vocabulary)
    return done


def _whole(token_id: int, vocabulary: Mapping[int, tuple[bytes, bool]]) -> Piece | None:
    """The piece of a token that is valid text by itself, None for any other."""
    entry = vocabulary.get(token_id)
    if entry is None:
        name = f"⟨{token_id}⟩"
        return Piece(token_id, "", b"", False, None, name, False, False, known=False)
    raw, special = entry
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return Piece(
        token_id=token_id,
        text=text,
        raw=raw,
        special=special,
        partial=None,
        display=visible(text),
        newline="\n" in text,
        whitespace=bool(text) and text.isspace(),
    )


def visible(text: str) -> str:
    """`text` with everything shown that a reader could miss.

    White space is drawn only where there is nothing else; a line feed always is.
    """
    if text and all(character in _WHITE for character in text):
        return "".join(_WHITE[character] for character in text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character == "\n":
        return _WHITE["\n"]
    if character == "\t":
        return _WHITE["\t"]
    category = unicodedata.category(character)
    hidden = category in _HIDDEN_CATEGORIES or character in _INVISIBLE
    odd_space = category == "Zs" and character not in _VISIBLE_SPACES
    if not hidden and not odd_space:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _partial_run(run: list[int], vocabulary: Mapping[int, tuple[bytes, bool]]) -> list[Piece]:
    """Neighbouring tokens none of which is valid text by itself."""
    parts = [vocabulary[token_id] for token_id in run]
    units = _units(b"".join(raw for raw, _ in parts))
    done: list[Piece] = []
    start = 0
    next_unit = 0
    carried = False  # a character that began earlier goes on into this token
    for token_id, (raw, special) in zip(run, parts, strict=True):
        end = start + len(raw)
        mine: list[tuple[int, int, str | None, int]] = []
        while next_unit < len(units) and units[next_unit][0] < end:
            mine.append(units[next_unit])
            next_unit += 1
        goes_on = bool(mine) and mine[-1][1] > end
        finishes = carried
        carried = goes_on or (carried and not mine and units[next_unit - 1][1] > end)
        done.append(_partial_piece(token_id, raw, special, mine, finishes, goes_on))
        start = end
    return done


def _units(data: bytes) -> list[tuple[int, int, str | None, int]]:
    """``(start, end, character or None, byte)`` for each character or invalid byte."""
    units: list[tuple[int, int, str | None, int]] = []
    place = 0
    while place < len(data):
        for size in (1, 2, 3, 4):
            try:
                character = data[place : place + size].decode("utf-8")
            except UnicodeDecodeError:
                continue
            units.append((place, place + len(character.encode()), character, data[place]))
            break
        else:
            units.append((place, place + 1, None, data[place]))
        place = units[-1][1]
    return units


def _partial_piece(
    token_id: int,
    raw: bytes,
    special: bool,
    units: list[tuple[int, int, str | None, int]],
    finishes: bool,
    goes_on: bool,
) -> Piece:
    text = "".join("\ufffd" if unit[2] is None else unit[2] for unit in units)
    shown = "".join(
        f"\\x{unit[3]:02x}" if unit[2] is None else visible(unit[2]) if unit[2] != " " else " "
        for unit in units
    )
    partial: Partial | None = "rest" if finishes else "first" if goes_on else None
    return Piece(
        token_id=token_id,
        text=text,
        raw=raw,
        special=special,
        partial=partial,
        display=(REST_MARK if finishes else "") + shown,
        newline="\n" in text,
        whitespace=False,
    )
