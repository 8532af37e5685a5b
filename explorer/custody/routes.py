"""The envelope of routed experts: which experts each token went through, as one text.

Owns: `nrlre1:<dtype>:<T>x<L>x<K>:<base64>`, the older nested lists, the array in base64 that
vLLM sends, which rows belong to what a call generated, what stands for routes that are kept
elsewhere. Must not know: models, where routes are kept.

The values are row-major: tokens, then layers, then the chosen experts. A route that is missing
is -1. The digest of a call's extras covers the text as it is.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Sequence
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from explorer.custody.errors import RecordError
from explorer.custody.staging import extras_digest

MAGIC = "nrlre1"
MISSING = -1
_DTYPES = {"int8": "<i1", "int16": "<i2", "int32": "<i4"}
_HEAD = re.compile(
    rf"{MAGIC}:(?P<dtype>[a-z0-9]+):(?P<shape>[1-9][0-9]{{0,9}}(?:x[1-9][0-9]{{0,9}}){{2}}):"
)

# NumPy reads the header as a literal, and lets through what that raises.
_BAD_HEADER = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, TokenError)


class Routes(NamedTuple):
    """Routes by token, layer and choice; `dtype` is that of the envelope."""

    values: NDArray[np.signedinteger[Any]]
    dtype: str


def encode_routes(
    values: NDArray[Any] | Sequence[Sequence[Sequence[int]]], dtype: str = "int16"
) -> str:
    """The envelope of routes.

    Raises:
        RecordError: not three dimensions of whole numbers that fit the type.
    """
    if dtype not in _DTYPES:
        raise RecordError(f"routes are {', '.join(_DTYPES)}, not {dtype!r}")
    array = values if isinstance(values, np.ndarray) else _nested(values)
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "iu":
        raise RecordError("routes are whole numbers by token, layer and choice")
    limits = np.iinfo(_DTYPES[dtype])
    if int(array.min()) < limits.min or int(array.max()) > limits.max:
        raise RecordError(f"a route does not fit {dtype}")
    shape = "x".join(map(str, array.shape))
    raw = np.ascontiguousarray(array, _DTYPES[dtype]).tobytes()
    return f"{MAGIC}:{dtype}:{shape}:{base64.b64encode(raw).decode()}"


def decode_routes(payload: object) -> Routes:
    """Routes from an envelope, or from nested lists.

    Raises:
        RecordError: it is neither, or does not hold what its head says.
    """
    if isinstance(payload, list):
        return Routes(_nested(payload), "int32")
    dtype, shape, body = _head(payload)
    kind = np.dtype(_DTYPES[dtype])
    wanted = shape[0] * shape[1] * shape[2] * kind.itemsize
    # Said before it is decoded, so that nobody is made to hold more than was announced.
    if len(body) != 4 * -(-wanted // 3):
        raise RecordError("routes do not have as many bytes as their shape says")
    try:
        raw = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RecordError(f"routes are no base64: {error}") from None
    if len(raw) != wanted:
        raise RecordError("routes do not have as many bytes as their shape says")
    return Routes(np.frombuffer(raw, kind).reshape(shape), dtype)


def routed_tokens(payload: object) -> int:
    """How many tokens have routes, from the head alone.

    Raises:
        RecordError: as `decode_routes`, as far as the head goes.
    """
    return len(_nested(payload)) if isinstance(payload, list) else _head(payload)[1][0]


def route_span(carry_len: int, generation_len: int, staged_len: int) -> str:
    """Which rows of a call's routes belong to its generated tokens.

    Returns:
        `full`: one row each of carry and generation; `tail`: the last `generation_len` rows;
        `sentinel`: none, so every route is `MISSING`.
    """
    if staged_len > 0 and staged_len == carry_len + generation_len:
        return "full"
    return "tail" if 0 < generation_len <= staged_len else "sentinel"


def as_envelope(routes: object) -> str:
    """Routes in any form that an engine sends them in, as the envelope.

    Args:
        routes: an envelope, nested lists, or a NumPy file (version 1 or 2) in base64.

    Raises:
        RecordError: it is none of these, or holds other than three dimensions of whole numbers.
    """
    if isinstance(routes, str) and not routes.startswith(f"{MAGIC}:"):
        array = _npy(routes)
    else:
        array, dtype = decode_routes(routes)
        if isinstance(routes, str):
            return encode_routes(array, dtype)
    most, least = int(array.max(initial=0)), int(array.min(initial=0))
    small = "int8" if least >= -128 and most < 128 else "int16"
    fits = least >= -(2**15) and most < 2**15
    return encode_routes(array, small if fits else "int32")


def commitment(envelope: str) -> str:
    """Stands for routes that are kept elsewhere: the envelope's head, then the digest of
    the extras that hold it, in place of its payload."""
    head = envelope.rpartition(":")[0]
    return f"{head}:{extras_digest({'routed_experts': envelope})}"


def committed_extras(text: str) -> str:
    """The extras digest of a `commitment`.

    Raises:
        RecordError: it is none.
    """
    _, _, digest = _head(text)
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise RecordError("a commitment to routes ends in a digest")
    return digest


def _npy(text: str) -> NDArray[Any]:
    """The array of a NumPy file in base64; its header is never evaluated as code."""
    try:
        raw = io.BytesIO(base64.b64decode(text, validate=True))
        version = np.lib.format.read_magic(raw)
        if version == (1, 0):
            shape, by_columns, kind = np.lib.format.read_array_header_1_0(raw)
        elif version == (2, 0):
            shape, by_columns, kind = np.lib.format.read_array_header_2_0(raw)
        else:
            raise RecordError(f"routes are in a NumPy file of version {version}")
    except _BAD_HEADER as error:
        raise RecordError(f"routes are no array in base64: {str(error)[:200]}") from None
    rest = raw.read()
    sizes = len(shape) == 3 and all(type(size) is int and size > 0 for size in shape)
    if kind.kind not in "iu" or kind.hasobject or not sizes:
        raise RecordError("routes are whole numbers by token, layer and choice")
    # In Python's numbers: a shape of a stranger may be beyond 64 bits.
    if shape[0] * shape[1] * shape[2] * kind.itemsize != len(rest):
        raise RecordError("routes do not have as many bytes as their shape says")
    return np.frombuffer(rest, kind).reshape(shape, order="F" if by_columns else "C")


def _head(payload: object) -> tuple[str, tuple[int, int, int], str]:
    if not isinstance(payload, str):
        raise RecordError(f"routes are a text or lists, not a {type(payload).__name__}")
    found = _HEAD.match(payload)
    if found is None:
        raise RecordError(f"routes begin with {MAGIC}:dtype:TxLxK: and positive sizes")
    if found["dtype"] not in _DTYPES:
        raise RecordError(f"routes are {', '.join(_DTYPES)}, not {found['dtype']!r}")
    tokens, layers, choices = map(int, found["shape"].split("x"))
    return found["dtype"], (tokens, layers, choices), payload[found.end() :]


def _nested(payload: object) -> NDArray[np.int64]:
    """Nested lists as an array; each list has the length of its siblings."""
    if not isinstance(payload, list | tuple) or not payload:
        raise RecordError("routes are not empty")
    layers = [_list(row) for row in payload]
    choices = [_list(row) for layer in layers for row in layer]
    if len(set(map(len, layers))) != 1 or len(set(map(len, choices))) != 1:
        raise RecordError("routes are ragged")
    if any(type(value) is not int for row in choices for value in row):
        raise RecordError("a route is no whole number")
    try:
        return np.array([list(layer) for layer in layers], np.int64)
    except (OverflowError, ValueError) as error:
        raise RecordError(f"routes cannot be read: {error}") from None


def _list(value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise RecordError("routes are lists by token, layer and choice")
    return value
