"""Reading a request body whose every value may be of any JSON type.

Owns: typed reads that refuse with the path of the wrong value, and the notes of what a
translation left out.
Must not know: any dialect's fields.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from explorer.errors import BadRequest
from explorer.records import Note

_LONGEST_DETAIL = 200


class Notes:
    """Notes of one request, each told once: a history repeats itself in every call."""

    def __init__(self) -> None:
        self._kept: dict[Note, None] = {}

    def add(self, code: str, detail: Any) -> None:
        """One fact; `detail` may be whatever the request held."""
        text = detail if isinstance(detail, str) else type(detail).__name__
        self._kept[Note(code, text[:_LONGEST_DETAIL])] = None

    def all(self) -> tuple[Note, ...]:
        """Every note, in the order first seen."""
        return tuple(self._kept)


def wrong(path: str, must: str) -> BadRequest:
    """The refusal of the value at `path`."""
    return BadRequest(f"`{path}` must be {must}", param=path)


def text(value: Any, path: str) -> str:
    """A string.

    Raises:
        BadRequest: it is none.
    """
    if not isinstance(value, str):
        raise wrong(path, "a string")
    return value


def mapping(value: Any, path: str) -> dict[str, Any]:
    """An object.

    Raises:
        BadRequest: it is none.
    """
    if not isinstance(value, dict):
        raise wrong(path, "an object")
    return value


def items(value: Any, path: str) -> list[Any]:
    """An array; null is an empty one.

    Raises:
        BadRequest: it is none.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(path, "an array")
    return value


def number(value: Any, path: str) -> float:
    """A number.

    Raises:
        BadRequest: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(path, "a number")
    return value


def whole(value: Any, path: str) -> int:
    """A whole number, written as such or as ``1.0``.

    Raises:
        BadRequest: it is none.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(path, "a whole number")
    return value


def texts(value: Any, path: str) -> list[str]:
    """An array of strings.

    Raises:
        BadRequest: it is none.
    """
    return [text(entry, f"{path}[{place}]") for place, entry in enumerate(items(value, path))]


def compact(value: Any, path: str) -> str:
    """`value` as JSON without blanks, keys in the order sent.

    Raises:
        BadRequest: it is nested too deeply to be written.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # more than 254 levels
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise BadRequest(f"`{path}` is nested too deeply", param=path) from error
