"""Small sums that can be kept as JSON and put together again.

Owns: how each kind of sum is gathered, written, read back and merged; their caps.
Must not know: what is summed.

Whatever is gathered, what is written stays small: a tally names its most frequent values and
says how much it does not name. What is read back may come from anywhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from explorer.errors import InvalidValue
from explorer.trace.jsontext import clean, dump

TEXT = 200
VALUE = 1000
KEYS = 40
NAMED = 20
MARKS = 100
_HELD = 5000
_BIGGEST = 2**53


class Sum(Protocol):
    """Something that adds up."""

    def to_json(self) -> Any:
        """As it is kept."""

    def absorb(self, told: Any) -> None:
        """Adds what another one of its kind was kept as.

        Raises:
            InvalidValue: it is none.
        """


def told(value: Any) -> Any:
    """A value that may stand in a tally: short, and JSON for every reader."""
    if isinstance(value, Mapping):
        found = {_text(key): _plain(item) for key, item in list(value.items())[:KEYS]}
        size = sum(
            len(key) + (len(item) if isinstance(item, str) else 20)
            for key, item in found.items()
        )
        return found if size <= VALUE else f"({len(value)} keys, too long)"
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < _BIGGEST else str(value)[:TEXT]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _text(value if isinstance(value, str) else dump(value).decode())


def _text(value: Any) -> str:
    text = str(clean(str(value)))
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


class Count:
    """A whole number."""

    def __init__(self) -> None:
        self.n = 0

    def add(self, more: int = 1) -> None:
        self.n += int(more)

    def to_json(self) -> int:
        return self.n

    def absorb(self, told: Any) -> None:
        self.n += _whole(told)


class Total:
    """A sum of numbers."""

    def __init__(self) -> None:
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.sum += value

    def to_json(self) -> float | None:
        # A sum that left the range of numbers is none.
        return self.sum if math.isfinite(self.sum) else None

    def absorb(self, told: Any) -> None:
        self.sum += math.nan if told is None else _number(told)


class Range:
    """The least and the greatest number."""

    def __init__(self) -> None:
        self.least: float | None = None
        self.most: float | None = None

    def add(self, value: Any) -> None:
        """A number; anything else is passed over."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if not math.isfinite(value) or abs(value) >= 2**63:
            return
        self.least = value if self.least is None else min(self.least, value)
        self.most = value if self.most is None else max(self.most, value)

    def to_json(self) -> list[float] | None:
        return None if self.least is None or self.most is None else [self.least, self.most]

    def absorb(self, told: Any) -> None:
        if told is None:
            return
        if not isinstance(told, list) or len(told) != 2:
            raise InvalidValue("a range is two numbers or null")
        for value in told:
            self.add(_number(value))


class Tally:
    """How often each value came: the most frequent ones, and how much more there was."""

    def __init__(self, named: int = NAMED) -> None:
        self._named = named
        # Texts are their own keys; anything else is known by its JSON.
        self._counts: dict[str | bytes, int] = {}
        self.more = 0

    def add(self, value: Any, n: int = 1) -> None:
        """`n` more of a value that is JSON already (see `told`)."""
        if n:
            self._add(value, n)

    def _add(self, value: Any, n: int) -> None:
        text = type(value) is str
        key = value if text else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        known = self._counts.get(key)
        if known is not None:
            self._counts[key] = known + n
        elif len(self._counts) < _HELD:
            self._counts[key] = n
        else:
            self.more += n

    def to_json(self) -> dict[str, Any]:
        keyed = [
            (-n, orjson.dumps(key) if isinstance(key, str) else key)
            for key, n in self._counts.items()
        ]
        keyed.sort()
        beyond = -sum(n for n, _ in keyed[self._named :])
        return {
            "values": [[orjson.loads(key), -n] for n, key in keyed[: self._named]],
            "more": self.more + beyond,
        }

    def absorb(self, told: Any) -> None:
        if not isinstance(told, dict) or not isinstance(told.get("values"), list):
            raise InvalidValue("a tally is `values` and `more`")
        self.more += _whole(told.get("more"))
        for pair in told["values"]:
            if not isinstance(pair, list) or len(pair) != 2 or not _fits(pair[0]):
                raise InvalidValue("a tally's values are pairs of a value and a number")
            self._add(pair[0], _whole(pair[1]))


class Distinct:
    """How many different texts came: exact while they are few, else between two numbers.

    Few are kept as short digests, so that those of two parts that are the same count once.
    """

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._least = self._most = 0

    def add(self, text: str) -> None:
        digest = hashlib.sha256(text.encode("utf-8", "backslashreplace"))
        self._marks.add(digest.hexdigest()[:12])

    def to_json(self) -> dict[str, Any]:
        n = len(self._marks)
        return {
            "at_least": max(n, self._least),
            "at_most": n + self._most,
            "marks": sorted(self._marks) if n <= MARKS and not self._most else [],
        }

    def absorb(self, told: Any) -> None:
        marks = told.get("marks") if isinstance(told, dict) else None
        if not isinstance(marks, list):
            raise InvalidValue("a number of different ones is `at_least`, `at_most`, `marks`")
        least, most = _whole(told.get("at_least")), _whole(told.get("at_most"))
        good = all(isinstance(mark, str) and len(mark) == 12 for mark in marks)
        if not good or len(marks) > MARKS:
            raise InvalidValue(f"`marks` are at most {MARKS} texts of 12 characters")
        if marks:
            self._marks.update(marks)
        else:
            self._least, self._most = max(self._least, least), self._most + most


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidValue("a count is a whole number from 0 up")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise InvalidValue("a number is expected")
    found: float = value
    return found


def _fits(value: Any) -> bool:
    """Whether a value is one that `told` gives."""
    if isinstance(value, dict):
        return len(value) <= KEYS and all(
            len(key) <= TEXT and not isinstance(item, dict | list) and _fits(item)
            for key, item in value.items()
        )
    if isinstance(value, str):
        return len(value) <= TEXT
    return value is None or isinstance(value, bool | int | float)
