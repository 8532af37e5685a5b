"""JSON that every strict reader accepts, from values that may hold anything.

Owns: how arrays, text that is not valid Unicode and numbers that are not finite are
written.
Must not know: what is written.
"""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import orjson

from explorer.records import LogprobArray

# orjson writes 254 levels.
_DEEPEST = 200
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def dump(value: Any) -> bytes:
    """UTF-8 JSON; NaN and infinities become null, float32 keeps its shortest form."""
    try:
        return orjson.dumps(value, option=_OPTIONS, default=plain_value)
    except TypeError:
        return orjson.dumps(clean(value), option=_OPTIONS, default=plain_value)


def plain_value(value: Any) -> Any:
    """What JSON has no form for: bytes in hexadecimal, anything else as its text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def clean(value: Any, depth: int = 0) -> Any:
    """A copy without unpaired surrogates, without integers over 64 bits, and no deeper
    than the writer goes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (dict, list, tuple)) and depth > _DEEPEST:
        return "(nested too deeply)"
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    if type(value) is int and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def non_finite(logprobs: LogprobArray, missing: np.ndarray[Any, Any]) -> list[list[Any]]:
    """``[position, "nan" | "inf" | "-inf"]`` for every value that JSON cannot hold,
    apart from the missing ones, which are null."""
    places = np.flatnonzero(~np.isfinite(logprobs) & ~missing)
    return [[int(place), str(float(logprobs[place]))] for place in places]
