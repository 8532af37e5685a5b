"""JSON in one spelling, for hashing.

Owns: the canonical text of a JSON value and of a tool's arguments.
Must not know: what the text is hashed into.

UTF-8 without white space, keys sorted, only quote, backslash and control characters escaped.
Floats have the shortest digits that read back; from 1e16 on they are written `1e+16`. That
spelling is pinned here because fingerprints of two machines must not differ with the version
of a JSON library.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from explorer.custody.errors import FingerprintError

# What NeMo Gym's encoder allows; deeper values have no fingerprint there either.
MAX_DEPTH = 253
INTEGERS = range(-(1 << 63), 1 << 64)
FIRST_SCIENTIFIC, LAST_SCIENTIFIC = 17, -5

_ESCAPES = {'"': '\\"', "\\": "\\\\"} | {chr(code): f"\\u{code:04x}" for code in range(0x20)}
_ESCAPES |= {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SPECIAL = re.compile('["\\\\\x00-\x1f]')


def canonical_json(value: Any) -> str:
    """`value` in the one spelling.

    Raises:
        FingerprintError: an integer beyond 64 bits, a lone surrogate, a key that is not a
            string, a type that JSON lacks, or too many levels.
    """
    pieces: list[str] = []
    _write(value, pieces, MAX_DEPTH)
    return "".join(pieces)


def _write(value: Any, pieces: list[str], levels: int) -> None:
    if isinstance(value, str):
        pieces.append(_text(value))
    elif value is None:
        pieces.append("null")
    elif isinstance(value, bool):
        pieces.append("true" if value else "false")
    elif isinstance(value, int):
        if value not in INTEGERS:
            raise FingerprintError("an integer does not fit 64 bits")
        pieces.append(str(value))
    elif isinstance(value, float):
        pieces.append(_float(value))
    elif isinstance(value, list | tuple):
        _write_list(value, pieces, _deeper(levels))
    elif isinstance(value, dict):
        _write_object(value, pieces, _deeper(levels))
    else:
        raise FingerprintError(f"JSON has no {type(value).__name__}")


def _deeper(levels: int) -> int:
    if not levels:
        raise FingerprintError(f"a value is nested over {MAX_DEPTH} levels")
    return levels - 1


def _write_list(value: list[Any] | tuple[Any, ...], pieces: list[str], levels: int) -> None:
    pieces.append("[")
    for index, item in enumerate(value):
        if index:
            pieces.append(",")
        _write(item, pieces, levels)
    pieces.append("]")


def _write_object(value: dict[Any, Any], pieces: list[str], levels: int) -> None:
    if not all(isinstance(key, str) for key in value):
        raise FingerprintError("an object has a key that is not a string")
    pieces.append("{")
    # The order of code points is that of UTF-8 bytes.
    for index, key in enumerate(sorted(value)):
        pieces.append("," * bool(index) + _text(key) + ":")
        _write(value[key], pieces, levels)
    pieces.append("}")


def _text(value: str) -> str:
    check_text(value)
    return '"' + _SPECIAL.sub(lambda match: _ESCAPES[match.group()], value) + '"'


def check_text(value: str) -> bytes:
    """The UTF-8 of `value`.

    Raises:
        FingerprintError: an unpaired surrogate.
    """
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise FingerprintError("a string holds an unpaired surrogate") from None


def _float(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return sign + "0.0"
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    point = len(whole) - leading + int(exponent or 0)
    digits = digits.rstrip("0")
    return sign + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    """`digits` with the decimal point after the first `point` of them."""
    if LAST_SCIENTIFIC < point <= 0:
        return "0." + "0" * -point + digits
    if 0 < point < FIRST_SCIENTIFIC:
        padded = digits.ljust(point, "0")
        return f"{padded[:point]}.{padded[point:] or '0'}"
    fraction = "." + digits[1:] if len(digits) > 1 else ""
    exponent = f"{point - 1:+d}" if point > 0 else str(point - 1)
    return f"{digits[0]}{fraction}e{exponent}"


def canonical_arguments(value: Any) -> str:
    """A tool's arguments in the one spelling.

    Text is read as JSON if it is JSON (NaN, infinities and repeated keys are taken as
    Python takes them), else it is used as it is, without the white space around it.

    Raises:
        FingerprintError: as `canonical_json`.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return canonical_json(value)
    try:
        parsed = json.loads(value)
    except RecursionError:
        raise FingerprintError("a tool's arguments are nested too deeply") from None
    except ValueError:
        return value.strip()
    return canonical_json(parsed)
