"""What changed between two JSON bodies, key by key, every value in its own spelling.

Owns: which keys differ, and how a value is named and cut. Must not know: HTML, calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from explorer.web.contexts_requests import KeyChange
from explorer.web.pretty import Pairs, Spelled, dumps, loads, safe_text
from explorer.web.text_diff import READ_BYTES

MOST: Final = 60
VALUE_CHARS: Final = 240

Change = tuple[str, str, Any, Any]


def key_changes(before: bytes, after: bytes) -> tuple[tuple[KeyChange, ...], str]:
    """The keys that differ, and what could not be said."""
    if before == after:
        return (), "Sent as it was asked, to the last byte."
    if max(len(before), len(after)) > READ_BYTES:
        return (), "Too large to compare key by key; the bodies below are whole on demand."
    try:
        sides = [loads(data) for data in (before, after)]
        found = list(islice(_walk("", sides[0], sides[1]), MOST + 1))
    except (ValueError, RecursionError):
        return (), "Not JSON that can be read on both sides, so not compared key by key."
    if not found:
        return (), "The same JSON; the bytes differ only in white space or escapes."
    note = f"Only the first {MOST} changes are shown." if len(found) > MOST else ""
    changes = tuple(
        KeyChange(safe_text(path) or "(all of it)", kind, _text(old), _text(new))
        for path, kind, old, new in found[:MOST]
    )
    return changes, note


def _text(value: Any) -> str:
    if value is _ABSENT:
        return ""
    text = dumps(value)
    if len(text) <= VALUE_CHARS:
        return safe_text(text)
    return f"{safe_text(text[:VALUE_CHARS])} … {len(text) - VALUE_CHARS:,} more characters"


_ABSENT: Final = object()


def _walk(path: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, Pairs) and isinstance(new, Pairs):
        yield from _objects(path, old, new)
    elif _is_array(old) and _is_array(new):
        for at, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from _walk(f"{path}[{at}]", one, other)
        for at in range(len(old), len(new)):
            yield f"{path}[{at}]", "added", _ABSENT, new[at]
        for at in range(len(new), len(old)):
            yield f"{path}[{at}]", "removed", old[at], _ABSENT
    elif not _same(old, new):
        yield path, "changed", old, new


def _objects(path: str, old: Pairs, new: Pairs) -> Iterator[Change]:
    # As a parser reads it: of a repeated key the last value counts.
    mine, theirs = dict(old), dict(new)
    for key in dict.fromkeys([*mine, *theirs]):
        name = f"{path}.{key}" if path else key
        if key not in mine:
            yield name, "added", _ABSENT, theirs[key]
        elif key not in theirs:
            yield name, "removed", mine[key], _ABSENT
        else:
            yield from _walk(name, mine[key], theirs[key])


def _is_array(value: Any) -> bool:
    return isinstance(value, list) and not isinstance(value, Pairs)


def _same(old: Any, new: Any) -> bool:
    """A number is no text that spells it, and 1 is not 1.0: that is another body."""
    return (
        isinstance(old, Spelled) == isinstance(new, Spelled)
        and type(old) is type(new)
        and bool(old == new)
    )
