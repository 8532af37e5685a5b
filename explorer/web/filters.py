"""The filter language of lists: text in an address or a search box, to terms and back.

Owns: its grammar, its fields in words, and what is said about text that cannot be read.
Must not know: SQL, pages, which other parameters an address has.

`docs/reference/filters.md` describes the same to people; a test compares the fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from explorer.errors import InvalidValue
from explorer.store.queries import Field, Range, Term

NONE_TEXT = "(none)"
META = "meta."
MOST_VALUES = 100
MOST_LETTERS = 400


class Kind(StrEnum):
    """How the values of a field are written."""

    TEXT = "text"
    CHOICE = "choice"
    NUMBER = "number"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Spec:
    """One field of the language."""

    kind: Kind
    words: str
    choices: tuple[str, ...] = ()


_YES_NO = ("yes", "no")
FIELDS: dict[Field, Spec] = {
    Field.ID: Spec(Kind.TEXT, "id"),
    Field.RUN: Spec(Kind.TEXT, "run"),
    Field.TASK: Spec(Kind.TEXT, "task"),
    Field.GROUP: Spec(Kind.TEXT, "group"),
    Field.ATTEMPT: Spec(Kind.NUMBER, "attempt"),
    Field.HARNESS: Spec(Kind.TEXT, "harness"),
    Field.MODEL: Spec(Kind.TEXT, "model"),
    Field.PURPOSE: Spec(Kind.CHOICE, "purpose", ("train", "eval")),
    Field.STATE: Spec(Kind.CHOICE, "state", ("open", "closed", "deleted")),
    Field.OK: Spec(Kind.CHOICE, "went well", _YES_NO),
    Field.TRAINABLE: Spec(Kind.CHOICE, "trainable", _YES_NO),
    Field.REASON: Spec(Kind.TEXT, "first reason against training"),
    Field.FINDINGS: Spec(Kind.CHOICE, "worst finding", ("fatal", "warn", "none")),
    Field.REWARD: Spec(Kind.NUMBER, "reward"),
    Field.SHARE: Spec(Kind.NUMBER, "trainable share"),
    Field.CALLS: Spec(Kind.NUMBER, "calls"),
    Field.FAILED: Spec(Kind.NUMBER, "failed calls"),
    Field.TOKENS: Spec(Kind.NUMBER, "sampled tokens"),
    Field.SUPERVISED: Spec(Kind.NUMBER, "trainable tokens"),
    Field.VERSION: Spec(Kind.NUMBER, "weight version"),
    Field.STALE: Spec(Kind.NUMBER, "versions behind"),
    Field.DELTA_P99: Spec(Kind.NUMBER, "|δ| p99"),
    Field.DELTA_OUTSIDE: Spec(Kind.NUMBER, "share outside the δ band"),
    Field.CROSSED: Spec(Kind.CHOICE, "crossed an update", _YES_NO),
    Field.CREATED: Spec(Kind.TIME, "created"),
    Field.LABEL: Spec(Kind.TEXT, "label"),
}
NAMES = tuple(field.value for field in FIELDS)
# Spelled before ranges were; they stay readable.
OLDER = {"reward_min": "{}..", "reward_max": "..{}"}

_VALUE = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,"][^,]*|))\s*(,|$)')
# A key and its value, quoted or up to the next space; only fields count as keys.
_TYPED = re.compile(
    r"(?<!\S)(-?)("
    + "|".join((*NAMES, r"meta\.[^\s:=\"]+"))
    + r'):((?:"(?:[^"]|"")*"|[^\s"])+)'
)
_AGO = re.compile(r"(\d{1,6})(min|h|d|w)")
_UNITS = {"min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def is_filter(name: str) -> bool:
    """Whether a parameter of this name belongs to the language."""
    return name in NAMES or name in OLDER or (name.startswith(META) and len(name) > len(META))


def read_term(name: str, text: str, now_us: int) -> Term:
    """The term of one parameter.

    Raises:
        InvalidValue: says what can be written instead.
    """
    if len(text) > MOST_LETTERS * 10:
        raise InvalidValue(f"`{name}` is longer than {MOST_LETTERS * 10} characters", path=name)
    if name in OLDER:
        if text[:1] in "!<>(":
            raise InvalidValue(f"`{name}` must be a number", path=name)
        name, text = "reward", OLDER[name].format(text.strip())
    negated = text.startswith("!")
    values = _split(name, text[1:] if negated else text)
    if name.startswith(META):
        found = tuple(_text(value, quoted) for value, quoted in values)
        return Term(Field.META, found, negated, name.removeprefix(META))
    field = Field(name)
    spec = FIELDS[field]
    read = [_value(name, spec, value, quoted, now_us) for value, quoted in values]
    return Term(field, tuple(read), negated)


def _value(name: str, spec: Spec, value: str, quoted: bool, now_us: int) -> str | Range | None:
    if spec.kind is Kind.TEXT:
        return _text(value, quoted)
    if spec.kind is Kind.CHOICE:
        return _choice(name, spec, value)
    if spec.kind is Kind.NUMBER:
        return _range(name, value)
    return _time_range(value, now_us)


def _split(name: str, text: str) -> list[tuple[str, bool]]:
    """The values between commas; a quoted one may hold commas, and quotes doubled."""
    found: list[tuple[str, bool]] = []
    at = 0
    while True:
        match = _VALUE.match(text, at)
        if match is None:
            raise InvalidValue(
                f"`{name}`: a quote is not closed, or something follows it; "
                'write "two, three" and double a quote inside',
                path=name,
            )
        quoted = match[1] is not None
        value = match[1].replace('""', '"') if quoted else match[2].strip()
        if value or quoted:
            found.append((value, quoted))
        at = match.end()
        if not match[3]:
            break
    if not found:
        raise InvalidValue(f"`{name}` has no value", path=name)
    if len(found) > MOST_VALUES:
        raise InvalidValue(f"`{name}` has more than {MOST_VALUES} values", path=name)
    return found


def _text(value: str, quoted: bool) -> str | None:
    return None if value == NONE_TEXT and not quoted else value


def _choice(name: str, spec: Spec, value: str) -> str | None:
    if value in (NONE_TEXT, "unknown"):
        return None
    if value not in spec.choices:
        known = ", ".join((*spec.choices, "unknown"))
        raise InvalidValue(f"`{name}` “{value[:80]}” is not one of {known}", path=name)
    return value


def _number(name: str, text: str) -> float:
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidValue(
            f"`{name}` “{text[:80]}” is not a number, nor a range such as 0..0.5, 10.. or <1",
            path=name,
        )
    return value


def _range(name: str, text: str) -> Range | None:
    if text == NONE_TEXT:
        return None
    low, high = _ends(text)
    (low, low_open), (high, high_open) = _bare(low, ">"), _bare(high, "<")
    found = Range(
        _number(name, low) if low else None,
        _number(name, high) if high else None,
        low_open,
        high_open,
    )
    if found.low is not None and found.high is not None and found.low > found.high:
        raise InvalidValue(f"`{name}` “{text[:80]}” ends before it begins", path=name)
    return found


def _ends(text: str) -> tuple[str, str]:
    """The two bounds of `a..b`, `<b`, `>a` or `a`, their signs kept."""
    low, dots, high = text.partition("..")
    if dots:
        return low.strip(), high.strip()
    if text.startswith("<"):
        return "", text
    return (text, "") if text.startswith(">") else (text, text)


def _bare(bound: str, sign: str) -> tuple[str, bool]:
    """A bound without its sign, and whether it is left out itself; `>=` includes it."""
    if bound.startswith(sign + "="):
        return bound[2:].strip(), False
    return (bound[1:].strip(), True) if bound.startswith(sign) else (bound, False)


def _time_range(text: str, now_us: int) -> Range | None:
    if text == NONE_TEXT:
        raise InvalidValue("`created` takes no (none): all have a time", path="created")
    # An age alone is the time since then.
    low, high = _ends(f"{text}.." if _AGO.fullmatch(text) else text)
    (low, low_open), (high, high_open) = _bare(low, ">"), _bare(high, "<")
    first = _moment(low, now_us, end=low_open) if low else None
    # A day as the last one is meant whole.
    last = _moment(high, now_us, end=not high_open) if high else None
    if first is not None and last is not None and first > last:
        raise InvalidValue(f"`created` “{text[:80]}” ends before it begins", path="created")
    whole = bool(_DAY.fullmatch(high))
    return Range(first, last, low_open and not _DAY.fullmatch(low), high_open or whole)


_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def _moment(text: str, now_us: int, *, end: bool) -> int:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        span = timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return max(0, now_us - span // timedelta(microseconds=1))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        if end and _DAY.fullmatch(text):
            moment += timedelta(days=1)
        since = moment - datetime.fromtimestamp(0, UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidValue(
            f"`created` “{text[:80]}” is not a date, a time as 2026-11-30T12:00, nor an age "
            "as 24h",
            path="created",
        ) from error
    return since // timedelta(microseconds=1)


def typed_terms(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The `key:value` terms of a search box as parameters, and the words that are left."""
    found = tuple(
        (name, "!" * bool(minus) + value) for minus, name, value in _TYPED.findall(text)
    )
    if not found:
        return (), text.strip()
    return found, " ".join(_TYPED.sub(" ", text).split())


def written(value: str | None) -> str:
    """A text value as the language writes it, quoted where it must be."""
    if value is None:
        return NONE_TEXT
    risky = value == NONE_TEXT or value != value.strip() or value[:1] in ("!", '"', "")
    if risky or "," in value:
        return '"' + value.replace('"', '""') + '"'
    return value


def values_of(text: str) -> tuple[bool, tuple[str, ...]]:
    """Whether a parameter's text negates, and its values as they are written there."""
    negated = text.startswith("!")
    try:
        found = _split("", text[1:] if negated else text)
    except InvalidValue:
        return negated, ()
    return negated, tuple(written(value) if quoted else value for value, quoted in found)


def joined(values: Iterable[str]) -> str:
    """Values, as they are written, as one parameter."""
    return ",".join(values)
