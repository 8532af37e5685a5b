"""Arrow arrays from the record's values, and back.

Owns: how each kind of column is built: lists of ids from arrays with one copy in all, null
logprobs, JSON as text, text that is no valid Unicode.
Must not know: which columns there are, files.
"""

from __future__ import annotations

import contextlib
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


def text_array(values: Sequence[Any], wanted: Any) -> Any:
    """A column of texts, or of lists of texts, none of them bytes; what is no valid Unicode
    or no text is written out."""
    # Nearly all of it is plain text, and most of a dataset's columns are: Arrow is asked first.
    with contextlib.suppress(UnicodeEncodeError, pa.ArrowException):
        return pa.array(values, type=wanted)
    if pa.types.is_list(wanted):
        made: list[Any] = [
            None if value is None else [valid(each) for each in value] for value in values
        ]
    else:
        made = [valid(value) for value in values]
    return pa.array(made, type=wanted)


def list_array(values: Sequence[np.ndarray[Any, Any] | None], kind: Any) -> Any:
    """A list column from one array a row; None is a null row.

    Each value is copied once, into the buffer that the file is written from.
    """
    offsets, flat = _joined(values, kind.to_pandas_dtype())
    return _listed(offsets, _masked(flat, None, kind), values)


def logprob_array(values: Sequence[LogprobArray | None], *, numbers_only: bool) -> Any:
    """A list column of logprobs; the record's "missing" becomes null.

    Args:
        numbers_only: null for everything that is no finite number.
    """
    offsets, flat = _joined(values, np.float32)
    known = _fresh(flat.size, np.bool_)
    if numbers_only:
        np.isfinite(flat, out=known)
    else:
        np.not_equal(flat.view(np.uint32), NULL_LOGPROB_BITS, out=known)
    return _listed(offsets, _masked(flat, known, pa.float32()), values)


class Versions(NamedTuple):
    """A row of whole numbers that are the same over long stretches: `(start, end, number)`,
    null elsewhere."""

    length: int
    runs: Sequence[tuple[int, int, int]]


def version_array(values: Sequence[Versions]) -> Any:
    """A list column of whole numbers."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([row.length for row in values], out=offsets[1:])
    flat, known = _fresh(offsets[-1], np.int64), _fresh(offsets[-1], np.bool_)
    flat.fill(0)
    known.fill(False)
    for row, begin in zip(values, offsets.tolist(), strict=False):
        for start, end, number in row.runs:
            flat[begin + start : begin + end] = number
            known[begin + start : begin + end] = True
    return _listed(offsets, _masked(flat, known, pa.int64()), values)


def _joined(
    values: Sequence[np.ndarray[Any, Any] | None], dtype: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Where each row ends, and all rows one after the other."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else value.size for value in values], out=offsets[1:])
    flat = _fresh(offsets[-1], dtype)
    present = [value for value in values if value is not None]
    if present:
        np.concatenate(present, out=flat, casting="unsafe")
    return offsets, flat


def _fresh(size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An array in memory of Arrow's pool: it keeps what a batch gave back, while the system
    would be asked for new pages for each."""
    # An empty buffer is none to numpy.
    room = pa.allocate_buffer(max(int(size), 1) * np.dtype(dtype).itemsize)
    return np.frombuffer(room, dtype, int(size))


def _masked(
    flat: np.ndarray[Any, Any], known: np.ndarray[Any, np.dtype[np.bool_]] | None, kind: Any
) -> Any:
    """An array over the same memory, null where a value is not known."""
    bits = None
    if known is not None and not known.all():
        bits = pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, flat.size, [bits, pa.py_buffer(flat)])


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
