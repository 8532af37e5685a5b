"""The digest of one staged call and of its extras, and how its delta is cut.

Owns: the float32 columns, the typed encoding of extras, the v2 staging digest, `build_delta`,
the versions.
Must not know: records, ledgers, HTTP; standard library and numpy only.

The construction is unkeyed: it proves that two rows agree, not who wrote them.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from explorer.custody.digest import Tokens, check_ids, encode_tokens, encode_u64

SCHEMA_VERSION = 2
DIGEST_VERSION = 2
EXTRAS_DIGEST_VERSION = 1
VERSIONS = (SCHEMA_VERSION, DIGEST_VERSION, EXTRAS_DIGEST_VERSION)
CALL_TAG = b"nemo-gym-staging-call-v2"
EXTRAS_TAG = b"nemo-gym-staging-extras-v1"
MODES = ("text", "token_in")

Floats = NDArray[np.floating[Any]] | Sequence[float]

_is_hex = re.compile("[0-9a-f]{64}").fullmatch
_I64 = range(-(1 << 63), 1 << 63)
# From here on a value narrows to infinity: half a step above the largest binary32.
F32_LIMIT = 2.0**128 - 2.0**103
_U64 = 8
_PRESENT = b"\x01"
_ABSENT = b"\x00"
_CALL_HEAD = CALL_TAG + bytes(VERSIONS)


class StagedFields(Protocol):
    """What the staging digest covers."""

    @property
    def schema_version(self) -> int: ...
    @property
    def digest_version(self) -> int: ...
    @property
    def extras_digest_version(self) -> int: ...
    @property
    def rollout_id(self) -> str: ...
    @property
    def model_call_id(self) -> str: ...
    @property
    def parent_call_id(self) -> str | None: ...
    @property
    def mode(self) -> str: ...
    @property
    def prev_len(self) -> int: ...
    @property
    def delta_len(self) -> int: ...
    @property
    def cum_len(self) -> int: ...
    @property
    def weight_version(self) -> int: ...
    @property
    def token_ids_delta(self) -> Tokens: ...
    @property
    def token_mask_delta(self) -> Floats: ...
    @property
    def generation_log_probs_delta(self) -> Floats: ...
    @property
    def extras_digest(self) -> str: ...
    @property
    def chain_hash(self) -> str: ...
    @property
    def cumulative_hash(self) -> str: ...


class Delta(NamedTuple):
    """The new part of a call: prompt ids that the parent lacks, then generated ids."""

    token_ids: NDArray[np.uint64]
    mask: NDArray[np.float64]
    logprobs: NDArray[np.float64]


class Columns(NamedTuple):
    """The encoded columns of a staged call that keep their rules; all have the same size."""

    size: bytes
    token_ids: bytes
    mask: bytes
    logprobs: bytes


def is_digest(value: object) -> bool:
    """Whether `value` is 64 lowercase hexadecimal characters."""
    return isinstance(value, str) and _is_hex(value) is not None


def encode_text(value: str) -> bytes:
    """`value` as UTF-8 after its length in bytes.

    Raises:
        TypeError: not a string.
        ValueError: it holds an unpaired surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {type(value).__name__}")
    encoded = value.encode()
    return len(encoded).to_bytes(8, "big") + encoded


def encode_f32(values: Floats) -> bytes:
    """The count, then each value as a big-endian binary32, rounded to nearest even.

    Raises:
        TypeError: a value that is not a float (an integer and a boolean are refused).
        ValueError: a value that is not finite, as it is or as a binary32.
    """
    if not isinstance(values, np.ndarray):
        wrong = {kind for kind in set(map(type, values)) if not issubclass(kind, float)}
        if wrong:
            raise TypeError(f"expected floats, got {wrong.pop().__name__}")
        values = np.array(values, np.float64)
    if values.dtype.kind != "f" or values.ndim != 1:
        raise TypeError(f"expected a flat list of floats, got {values.dtype}")
    # Not a number is not below the limit either.
    # A float32 would narrow the limit to itself, and the limit is beyond it.
    if values.size and not float(np.abs(values).max()) < F32_LIMIT:
        raise ValueError("a value is not finite as a 32-bit float")
    return encode_u64(values.size) + values.astype(">f4").tobytes()


def encode_extra(value: Any) -> bytes:
    """One value of the extras, with its type.

    Raises:
        TypeError: a type other than null, boolean, integer, float, string, list, mapping.
        ValueError: an integer beyond 64 bits, a float that is not finite, a bad string.
    """
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"B" + (_PRESENT if value else _ABSENT)
    if isinstance(value, int):
        if value not in _I64:
            raise ValueError("an integer of the extras does not fit 64 bits")
        return b"I" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number of the extras is not finite")
        return b"F" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + encode_text(value)
    if isinstance(value, list):
        return b"L" + encode_u64(len(value)) + b"".join(map(encode_extra, value))
    if isinstance(value, Mapping):
        pairs = sorted((encode_text(key), key) for key in value)
        # The order is that of the keys' bytes, not of their lengths.
        pairs.sort(key=lambda pair: pair[0][8:])
        body = b"".join(text + encode_extra(value[key]) for text, key in pairs)
        return b"D" + encode_u64(len(pairs)) + body
    raise TypeError(f"the extras hold a {type(value).__name__}")


def extras_digest(extras: Mapping[str, Any] | None) -> str:
    """The digest over a call's extras; null and the empty mapping differ.

    Raises:
        TypeError, ValueError: as `encode_extra`, or `extras` is neither mapping nor null.
    """
    if extras is not None and not isinstance(extras, Mapping):
        raise TypeError(f"extras are a mapping or null, not a {type(extras).__name__}")
    try:
        body = encode_extra(extras)
    except RecursionError:
        raise ValueError("the extras are nested too deeply") from None
    version = bytes([EXTRAS_DIGEST_VERSION])
    return hashlib.sha256(EXTRAS_TAG + version + body).hexdigest()


EMPTY_EXTRAS_DIGEST = extras_digest(None)


def check_fields(call: StagedFields) -> None:
    """The rules that a staged call keeps before it is hashed, but for those of its columns.

    Raises:
        TypeError, ValueError: the first rule that it breaks.
    """
    versions = (call.schema_version, call.digest_version, call.extras_digest_version)
    if versions != VERSIONS or set(map(type, versions)) != {int}:
        raise ValueError("the versions are not those of this code")
    if not call.rollout_id or not call.model_call_id:
        raise ValueError("rollout_id and model_call_id must not be empty")
    if call.parent_call_id == "":
        raise ValueError("parent_call_id is null or not empty")
    if call.mode not in MODES:
        raise ValueError(f"mode is one of {MODES}, not {call.mode!r}")
    root = call.parent_call_id is None
    if root and (call.prev_len != 0 or call.mode != "text"):
        raise ValueError("a call without a parent has prev_len 0 and mode text")
    if not root and (call.prev_len == 0 or call.mode != "token_in"):
        raise ValueError("a call with a parent has a prev_len and mode token_in")
    if call.cum_len != call.prev_len + call.delta_len:
        raise ValueError("cum_len is prev_len plus delta_len")


def check_columns(call: StagedFields) -> None:
    """The columns are equally long, the mask is 0 or 1, and only a 1 has a logprob.

    Raises:
        ValueError: they are not.
    """
    if call.delta_len == 0:
        raise ValueError("the delta is empty")
    if call.delta_len != len(call.token_ids_delta):
        raise ValueError("delta_len is not the number of token ids")
    if not (
        len(call.token_mask_delta)
        == len(call.generation_log_probs_delta)
        == len(call.token_ids_delta)
    ):
        raise ValueError("token ids, mask and log-probabilities differ in length")
    mask = np.asarray(call.token_mask_delta)
    carry = mask == 0
    carried = np.count_nonzero(carry)
    if carried + np.count_nonzero(mask == 1) != mask.size:
        raise ValueError("the mask holds something other than 0.0 and 1.0")
    if carried and np.count_nonzero(np.asarray(call.generation_log_probs_delta)[carry]):
        raise ValueError("a token that was not generated has a log-probability")


def encode_columns(call: StagedFields) -> Columns:
    """The columns of one call, checked and encoded.

    Raises:
        TypeError, ValueError: a rule of `check_columns` is broken or a value cannot be encoded.
    """
    check_columns(call)
    counted = (
        encode_tokens(call.token_ids_delta),
        encode_f32(call.token_mask_delta),
        encode_f32(call.generation_log_probs_delta),
    )
    return Columns(counted[0][:_U64], *(column[_U64:] for column in counted))


def staging_digest(call: StagedFields, columns: Columns | None = None) -> str:
    """The v2 digest of one staged call.

    Args:
        columns: those of the call, where they are encoded already.

    Raises:
        TypeError, ValueError: as `check_fields` and `encode_columns`.
    """
    check_fields(call)
    if columns is None:
        columns = encode_columns(call)
    size, token_ids, mask, logprobs = columns
    parent = call.parent_call_id
    payload = (
        _CALL_HEAD,
        encode_text(call.rollout_id),
        encode_text(call.model_call_id),
        _ABSENT if parent is None else _PRESENT + encode_text(parent),
        encode_text(call.mode),
        encode_u64(call.prev_len),
        encode_u64(call.delta_len),
        encode_u64(call.cum_len),
        encode_u64(call.weight_version),
        # Framed twice: an outer length in bytes around an inner count.
        (_U64 + len(token_ids)).to_bytes(_U64, "big"),
        size,
        token_ids,
        (_U64 + len(mask)).to_bytes(_U64, "big"),
        size,
        mask,
        (_U64 + len(logprobs)).to_bytes(_U64, "big"),
        size,
        logprobs,
        _digest_bytes(call.extras_digest, "extras_digest"),
        _PRESENT,
        _digest_bytes(call.chain_hash, "chain_hash"),
        _PRESENT,
        _digest_bytes(call.cumulative_hash, "cumulative_hash"),
    )
    return hashlib.sha256(b"".join(payload)).hexdigest()


def _digest_bytes(value: str, name: str) -> bytes:
    # As `is_digest`, without the price of a call.
    if not isinstance(value, str) or _is_hex(value) is None:
        raise ValueError(f"{name} is not a digest")
    return bytes.fromhex(value)


def build_delta(prompt: Tokens, generated: Tokens, logprobs: Floats, prev_len: int) -> Delta:
    """Cuts the delta of a call: what its parent (`prev_len` ids) does not hold.

    Raises:
        TypeError, ValueError: a bad id, `prev_len` outside the prompt, generated ids and
            log-probabilities of different length, or nothing left.
    """
    encode_u64(prev_len)
    if prev_len > len(prompt):
        raise ValueError(f"prev_len {prev_len} is beyond the prompt of {len(prompt)} ids")
    if len(generated) != len(logprobs):
        raise ValueError("generated ids and log-probabilities differ in length")
    carry = token_array(prompt[prev_len:])
    made = token_array(generated)
    if not len(carry) + len(made):
        raise ValueError("the delta is empty")
    token_ids = np.concatenate([carry, made])
    mask = np.zeros(len(token_ids))
    mask[len(carry) :] = 1.0
    floats = np.concatenate([np.zeros(len(carry)), np.asarray(logprobs, np.float64)])
    return Delta(token_ids, mask, floats)


def token_array(tokens: Tokens) -> NDArray[np.uint64]:
    """`tokens` as an array of unsigned 64-bit ids; one that is one already is given back.

    Raises:
        TypeError: an id that is not a true integer.
        ValueError: an id outside 0 .. 2**64 - 1, or not one dimension.
    """
    if isinstance(tokens, np.ndarray):
        check_ids(tokens)
        return tokens.astype(np.uint64, copy=False)
    if not set(map(type, tokens)) <= {int}:
        raise TypeError("a token id is not an integer")
    try:
        return np.array(tokens, np.uint64)
    except OverflowError:
        raise ValueError("a token id does not fit an unsigned 64-bit integer") from None
