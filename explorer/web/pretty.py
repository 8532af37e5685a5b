"""Raw bodies as readable text: indented, with every number as it was spelled.

Owns: reading JSON without losing a digit, cutting before formatting, and showing
characters that could hide or reorder text.
Must not know: dialects, HTML.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from explorer.trace.decode import visible

CUT_BYTES: Final = 48 * 1024
PARSE_BYTES: Final = 8 * 1024 * 1024
# Steps of indentation; a step more for every bracket would make gigabytes of a body.
DEEPEST: Final = 32
# Lists and objects within each other; no call has a tenth of that.
MOST_LEVELS: Final = 150

# Everything `decode.visible` spells out, but line ends and tabs, found fast.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


class Spelled(str):
    """A JSON number or constant exactly as it was written."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order, repeated ones kept."""

    def get(self, name: str, default: Any = None) -> Any:
        """The last value of a key, as a parser would give it."""
        for key, value in reversed(self):
            if key == name:
                return value
        return default


def safe_text(text: str) -> str:
    """`text` with hidden characters spelled out; line ends and tabs stay."""
    return _HIDDEN.sub(lambda found: visible(found.group()), text)


def loads(data: bytes | str) -> Any:
    """JSON with numbers as `Spelled` and objects as `Pairs`.

    Raises:
        ValueError: not JSON, or nested too deeply to read.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    try:
        found = json.loads(
            text,
            parse_int=Spelled,
            parse_float=Spelled,
            parse_constant=Spelled,
            object_pairs_hook=Pairs,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # What can be read may still be too deep for what is done with it afterwards.
    if _deeper_than(MOST_LEVELS, found):
        raise ValueError("nested too deeply")
    return found


def _deeper_than(most: int, value: Any) -> bool:
    """Whether lists and objects stand in each other more often than `most`."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [
            inner
            for item in level
            if isinstance(item, list)
            for inner in ((each[1] for each in item) if isinstance(item, Pairs) else item)
            if isinstance(inner, list)
        ]
        if not level:
            return False
    return True


def dumps(value: Any, indent: int = 2) -> str:
    """Indented text of what `loads` gave."""
    parts: list[str] = []
    _write(value, indent, 0, parts)
    return "".join(parts)


def _write(value: Any, indent: int, depth: int, parts: list[str]) -> None:
    if isinstance(value, Spelled):
        parts.append(str(value))
    elif isinstance(value, str):
        parts.append(json.dumps(value, ensure_ascii=False))
    elif isinstance(value, Pairs | list):
        is_object = isinstance(value, Pairs)
        if not value:
            parts.append("{}" if is_object else "[]")
            return
        if all(isinstance(item, Spelled) for item in value):
            # Ids one a line would be all that a reader sees.
            parts.append(f"[{', '.join(map(str, value))}]")
            return
        pad = "\n" + " " * (indent * min(depth + 1, DEEPEST))
        parts.append("{" if is_object else "[")
        for number, item in enumerate(value):
            parts.append(("," if number else "") + pad)
            if is_object:
                parts.append(json.dumps(item[0], ensure_ascii=False) + ": ")
                item = item[1]
            _write(item, indent, depth + 1, parts)
        pad = "\n" + " " * (indent * min(depth, DEEPEST))
        parts.append(pad + ("}" if is_object else "]"))
    else:
        parts.append(json.dumps(value))


@dataclass(frozen=True, slots=True)
class Shown:
    """A body as text, with what was done to it and how much was left out."""

    text: str
    note: str
    cut_chars: int


def body_text(data: bytes, *, whole: bool) -> Shown:
    """A body for reading; cut before anything else is done to it."""
    if not whole and len(data) > CUT_BYTES:
        text = data[:CUT_BYTES].decode("utf-8", errors="replace")
        rest = len(data) - CUT_BYTES
        return Shown(safe_text(text), "cut, so shown as it came", rest)
    if len(data) <= PARSE_BYTES:
        try:
            text = dumps(loads(data))
        except (ValueError, RecursionError):
            pass
        else:
            return Shown(safe_text(text), "indented; numbers in their original spelling", 0)
    text = data.decode("utf-8", errors="replace")
    return Shown(safe_text(text), "shown as it came", 0)
