"""Arrow arrays from the record's values, and back.

Owns: how each kind of column is built: lists of ids from arrays with one copy in all, null
logprobs, JSON as text, text that is no valid Unicode.
Must not know: which columns there are, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from explorer.records import NULL_LOGPROB_BITS, IdArray, LogprobArray
from explorer.trace.jsontext import clean, dump


def json_text(value: Any) -> str:
    """A value as JSON text; what JSON has no form for reads as in every other export."""
    return dump(value).decode()


def json_value(text: str) -> Any:
    """The value of such a text."""
    return orjson.loads(text)


def valid(text: Any) -> str | None:
    """Text that Arrow takes: unpaired surrogates are written out."""
    if text is None:
        return None
    found = text.hex() if isinstance(text, bytes) else str(text)
    return found if found.isascii() else str(clean(found))


def list_array(values: Sequence[np.ndarray[Any, Any] | None], kind: Any) -> Any:
    """A list column from one array a row; None is a null row.

    Each value is copied once, into the buffer that the file is written from.
    """
    sizes = [0 if value is None else value.size for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    present = [value for value in values if value is not None]
    numpy_type = kind.to_pandas_dtype()
    flat = (
        np.concatenate(present).astype(numpy_type, copy=False)
        if present
        else np.zeros(0, numpy_type)
    )
    return _listed(offsets, pa.array(flat, type=kind), values)


def logprob_array(values: Sequence[LogprobArray | None], *, numbers_only: bool) -> Any:
    """A list column of logprobs; the record's "missing" becomes null.

    Args:
        numbers_only: null for everything that is no finite number.
    """
    sizes = [0 if value is None else value.size for value in values]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    present = [value for value in values if value is not None]
    flat = np.concatenate(present) if present else np.zeros(0, np.float32)
    missing = ~np.isfinite(flat)
    if not numbers_only:
        missing = flat.view(np.uint32) == NULL_LOGPROB_BITS
    return _listed(
        offsets, pa.array(flat, type=pa.float32(), mask=missing, from_pandas=False), values
    )


class Versions(NamedTuple):
    """Whole numbers, and where there is none."""

    numbers: np.ndarray[Any, np.dtype[np.int64]]
    gaps: np.ndarray[Any, np.dtype[np.bool_]]


def version_array(values: Sequence[Versions]) -> Any:
    """A list column of whole numbers."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([numbers.size for numbers, _ in values], out=offsets[1:])
    if not values:
        return pa.array([], type=pa.list_(pa.int64()))
    flat = np.concatenate([numbers for numbers, _ in values])
    missing = np.concatenate([gaps for _, gaps in values])
    return _listed(offsets, pa.array(flat, type=pa.int64(), mask=missing), values)


def _listed(offsets: np.ndarray[Any, Any], flat: Any, rows: Sequence[Any]) -> Any:
    nulls = np.array([row is None for row in rows], np.bool_)
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        flat,
        mask=pa.array(nulls) if nulls.any() else None,
    )


def ids_of(array: Any, row: int) -> IdArray | None:
    """One row of a list column of ids."""
    found = array[row].values
    return None if found is None else found.to_numpy(zero_copy_only=False).astype(np.int32)


def logprobs_of(array: Any, row: int) -> LogprobArray | None:
    """One row of a list column of logprobs; null is the record's "missing" again."""
    found = array[row].values
    if found is None:
        return None
    made: LogprobArray = (
        np.frombuffer(
            found.buffers()[1] or b"", np.float32, len(found), found.offset * 4
        ).copy()
        if len(found)
        else np.zeros(0, np.float32)
    )
    if found.null_count:
        missing = ~found.is_valid().to_numpy(zero_copy_only=False)
        made.view(np.uint32)[missing] = NULL_LOGPROB_BITS
    return made
