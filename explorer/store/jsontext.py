"""JSON text for columns: fast where it is exact, careful where it would not be.

Owns: turning plain values into JSON text and back without loss.
Must not know: records or tables.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

# orjson reads an integer of more than 64 bits as a float, losing digits.
_LONG_NUMBER = re.compile(r"\d{19}")


def dump(value: object) -> str:
    """Render a value; `TypeError` for what JSON cannot hold, `ValueError` for a cycle.

    orjson writes NaN as null and refuses big integers and lone surrogates; in all
    three cases the standard library keeps the value (as NaN, digits, or an escape).
    """
    try:
        raw = orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"))
    if b"null" in raw:
        return json.dumps(value, separators=(",", ":"))
    return raw.decode()


def load(text: str) -> Any:
    """Parse what `dump` wrote; `ValueError` for anything that is not JSON."""
    if _LONG_NUMBER.search(text):
        return json.loads(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)
