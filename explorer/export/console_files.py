"""An answer of the SQL console as a file: CSV that a spreadsheet may open, and Parquet.

Owns: how a value is written in each. Must not know: queries, HTTP.
"""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.console import Answer, Cell, Typed

# A spreadsheet takes a text that begins like this for a formula, and runs it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_ARROW: dict[str, Any] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}


def text_of(value: Cell | Typed, kind: str) -> str:
    """A value as text, every digit of it; a null has none and is the caller's."""
    if isinstance(value, Typed):
        return value.text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and kind == "FLOAT":
        # The shortest text that gives the same 32 bits again.
        return str(np.float32(value))
    return str(value)


def csv(answer: Answer) -> bytes:
    """RFC 4180 with UTF-8: texts are quoted, so that an empty one differs from a null, and a
    text that begins like a formula gets an apostrophe before it; numbers stay as they are."""
    lines = [",".join(_quoted(name) for name, _ in answer.columns)]
    kinds = [kind for _, kind in answer.columns]
    for row in answer.rows:
        lines.append(
            ",".join(_field(value, kind) for value, kind in zip(row, kinds, strict=True))
        )
    return ("\r\n".join(lines) + "\r\n").encode()


def _field(value: Cell | Typed, kind: str) -> str:
    if value is None:
        return ""
    text = text_of(value, kind)
    if isinstance(value, (int, float)):
        return text
    if isinstance(value, Typed) and _DECIMAL.fullmatch(kind):
        return text
    return _quoted(text)


def _quoted(text: str) -> str:
    if text.startswith(_FORMULA):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"'


def parquet(answer: Answer) -> bytes:
    """Columns with Parquet's own types; what it has none for (128-bit numbers, intervals,
    lists, structs) is text, lists and structs as JSON."""
    names: list[str] = []
    arrays = []
    for index, (name, kind) in enumerate(answer.columns):
        # Readers take columns by name.
        count = names.count(name)
        while count and f"{name}_{count}" in names:
            count += 1
        names.append(f"{name}_{count}" if count else name)
        arrays.append(_array([row[index] for row in answer.rows], kind))
    held = io.BytesIO()
    table = pa.Table.from_arrays(arrays, names=names)
    pq.write_table(table, held, compression="zstd")
    return held.getvalue()


def _array(values: list[Cell | Typed], kind: str) -> Any:
    wanted = _ARROW.get(kind)
    scale = _DECIMAL.fullmatch(kind)
    if scale:
        wanted = pa.decimal128(int(scale[1]), int(scale[2]))
    if wanted is not None and not any(isinstance(value, Typed) for value in values):
        try:
            return pa.array(values, type=wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass  # not what the type promised: as text
    texts = pa.array(
        [None if value is None else text_of(value, kind) for value in values], pa.string()
    )
    if wanted is None or pa.types.is_binary(wanted):
        return texts
    try:
        return texts.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return texts  # such as the date `infinity`
