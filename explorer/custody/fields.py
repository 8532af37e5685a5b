"""Strict fields of the custody records: what a value may be, and how it is stored.

Owns: the kinds of fields and the base class that parses, checks and writes a record.
Must not know: which records there are.

Nothing is coerced from one type to another, except that a column of floats and a number of
seconds accept JSON integers.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from explorer.custody.errors import RecordError
from explorer.custody.staging import is_digest, token_array

Kind = Callable[[Any], Any]


def shown(value: Any) -> str:
    """A value as a message may show it: simple and short, else only its type."""
    # The text of a very long integer is refused by Python itself.
    if isinstance(value, str | float | bool) or (type(value) is int and abs(value) < 1 << 64):
        return f"{value!r:.80}"
    return f"a value of type {type(value).__name__}"


def ident(value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise RecordError("expected a string that is not empty")
    return text(value)


def text(value: Any) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise RecordError(f"expected a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RecordError("the string holds an unpaired surrogate") from None
    return value


def nat(value: Any) -> int:
    """An integer of at least 0; what digests count has 64 bits."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise RecordError(f"expected an integer of at least 0, got {shown(value)}")
    return value


def flag(value: Any) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise RecordError(f"expected a boolean, got {type(value).__name__}")
    return value


def number(value: Any) -> float:
    """A finite number; an integer becomes a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"expected a number, got {type(value).__name__}")
    try:
        converted = float(value)
    except OverflowError:
        raise RecordError("the number is too large") from None
    if not math.isfinite(converted):
        raise RecordError("the number is not finite")
    return converted


def hex_digest(value: Any) -> str:
    """64 lowercase hexadecimal characters."""
    if not is_digest(value):
        raise RecordError("expected 64 lowercase hexadecimal characters")
    return str(value)


def one_of(*allowed: str) -> Kind:
    """One of these strings."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise RecordError(f"expected one of {', '.join(allowed)}, got {shown(value)}")
        return value

    return check


def constant(wanted: int) -> Kind:
    """Exactly this integer."""

    def check(value: Any) -> int:
        if type(value) is not int or value != wanted:
            raise RecordError(f"expected {wanted}, got {shown(value)}")
        return value

    return check


def optional(kind: Kind) -> Kind:
    """Null or what `kind` takes."""
    return lambda value: None if value is None else kind(value)


def sequence(kind: Kind) -> Kind:
    """A list, stored as a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise RecordError(f"expected a list, got {type(value).__name__}")
        return tuple(map(kind, value))

    return check


def mapping(value: Any) -> dict[str, Any]:
    """An object with string keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RecordError("expected an object with string keys")
    return dict(value)


def token_column(value: Any) -> NDArray[np.uint64]:
    """Token ids, stored as an array that cannot be written to."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise RecordError(f"expected a list of token ids, got {type(value).__name__}")
    try:
        column = token_array(value)
    except (TypeError, ValueError) as error:
        raise RecordError(str(error)) from None
    column.setflags(write=False)
    return column


def float_column(value: Any) -> NDArray[np.float64]:
    """Finite floats, stored as an array that cannot be written to."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype.kind != "f":
            raise RecordError(f"expected one dimension of floats, got {value.dtype}")
    elif not isinstance(value, list | tuple) or not set(map(type, value)) <= {int, float}:
        raise RecordError("expected a list of numbers")
    try:
        column = np.array(value, np.float64)
    except OverflowError:
        raise RecordError("a number of the list is too large") from None
    if not np.isfinite(column).all():
        raise RecordError("a number of the list is not finite")
    column.setflags(write=False)
    return column


def of(kind: Kind, **options: Any) -> Any:
    """A dataclass field of this kind."""
    return dataclasses.field(metadata={"kind": kind}, **options)


_known: dict[type[Any], tuple[tuple[str, Kind, bool], ...]] = {}


def _kinds(cls: type[Any]) -> tuple[tuple[str, Kind, bool], ...]:
    """(name, kind, has a default) of every field."""
    if cls in _known:
        return _known[cls]
    missing = dataclasses.MISSING
    _known[cls] = tuple(
        (
            field.name,
            field.metadata["kind"],
            field.default is not missing or field.default_factory is not missing,
        )
        for field in dataclasses.fields(cls)
    )
    return _known[cls]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """A record that cannot exist in a wrong form.

    Raises:
        RecordError: on construction, for a field or a rule between fields.
    """

    NAME: ClassVar[str] = "record"

    def __post_init__(self) -> None:
        for name, kind, _ in _kinds(type(self)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except RecordError as error:
                raise RecordError(f"{self.NAME}.{name}: {error.detail}") from None
        self.check()

    def check(self) -> None:
        """The rules between fields."""

    def refuse_unless(self, holds: bool, rule: str) -> None:
        """Raises `RecordError` with the rule where it does not hold."""
        if not holds:
            raise RecordError(f"{self.NAME}: {rule}")

    @classmethod
    def parse(cls, payload: object) -> Self:
        """The record behind a JSON object.

        Raises:
            RecordError: not an object, an unknown or missing field, or a wrong value.
        """
        if isinstance(payload, cls):
            return payload
        if not isinstance(payload, Mapping):
            kind = type(payload).__name__
            raise RecordError(f"{cls.NAME}: expected an object, got {kind}")
        known = {name: has_default for name, _, has_default in _kinds(cls)}
        unknown = [key for key in payload if key not in known]
        if unknown:
            raise RecordError(f"{cls.NAME}: unknown field {shown(unknown[0])}")
        for name, has_default in known.items():
            if not has_default and name not in payload:
                raise RecordError(f"{cls.NAME}: {name} is missing")
        return cls(**payload)

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values; `parse` reads it back."""
        return {name: plain(getattr(self, name)) for name, _, _ in _kinds(type(self))}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and dump(self.to_json()) == dump(other.to_json())

    def __hash__(self) -> int:
        return hash(dump(self.to_json()))


def plain(value: Any) -> Any:
    """A field's value as JSON values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def dump(value: Any) -> str:
    """Compact JSON in ASCII with sorted keys: the spelling of ledger lines."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(line: bytes | str) -> Any:
    """Parses one JSON text; numbers that are not finite and repeated keys are refused.

    Raises:
        RecordError: it is not JSON.
    """
    try:
        return json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecordError:
        raise
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise RecordError(f"not JSON: {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RecordError("an object names a key twice")
    return found
