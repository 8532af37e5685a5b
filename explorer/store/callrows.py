"""Calls and admissions to rows of the `call` table and back.

Owns: the split of a call into typed columns and the ``detail`` object.
Must not know: how bodies are compressed (`bodies`) or how rows are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer import columns
from explorer.records import (
    Admission,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    FailureKind,
    IdArray,
    LogprobArray,
    Note,
    RolloutId,
    TokenIn,
    WeightSpan,
)
from explorer.store import digests, jsontext
from explorer.store.bodies import Packed
from explorer.store.rows import CHECK, Row

# Columns of a call's own row, without the four that hold bodies.
CALL_COLUMNS = columns.CALL.names[:-4]
BODY_COLUMNS = columns.CALL.names[-4:]

_TUPLES = {"constraints"}


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = {column.name for column in columns.CALL.detail}
    for each in fields(Call):
        if each.name in names:
            made = each.default_factory
            found[each.name] = each.default if made is MISSING else made()
    return found


_DETAIL_DEFAULTS = _defaults()


def _ids(array: IdArray | None) -> bytes | None:
    if array is None:
        return None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError("token ids must be a one-dimensional integer array")
    narrow = array.astype("<i4")
    if array.dtype != narrow.dtype and not np.array_equal(narrow, array):
        raise OverflowError("a token id does not fit int32")
    return narrow.tobytes()


def _logprobs(array: LogprobArray | None) -> bytes | None:
    if array is None:
        return None
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.float32:
        raise TypeError("logprobs must be a one-dimensional float32 array")
    return array.astype("<f4").tobytes()


def encode_admission(admission: Admission) -> Row:
    """Encode an admission as a `call` row with ``ended`` false."""
    a = admission
    detail = {"stream": a.stream, "n_tools": a.n_tools, "request_sha256": a.request_sha256}
    row = (
        a.call_id, False, a.rollout_id, a.sequence, a.dialect.value, CallStatus.OPEN.value,
        None, a.started_us, *(None,) * 17, "", jsontext.dump(detail), None, None, None, None,
    )  # fmt: skip
    return CHECK["call"](row)


def encode_call(call: Call, packed: Packed, message_digests: Any = None) -> Row:
    """Encode an ended call and its packed bodies as a `call` row.

    `message_digests` is what `digests.DigestMemory` made of the call's own.
    """
    c = call
    detail: dict[str, Any] = {}
    for name, default in _DETAIL_DEFAULTS.items():
        value = getattr(c, name)
        if value != default:
            detail[name] = value
    if message_digests:
        detail["message_digests"] = message_digests
    if c.token_in is not None:
        detail["token_in"] = asdict(c.token_in)
    if c.notes:
        detail["notes"] = [(note.code, note.detail) for note in c.notes]
    if c.weight_spans:
        detail["weight_spans"] = [
            (span.version_label, span.weight_version, span.start, span.end)
            for span in c.weight_spans
        ]
    failure = None if c.failure_kind is None else c.failure_kind.value
    row = (
        c.call_id, True, c.rollout_id, c.sequence, c.dialect.value, c.status.value, failure,
        c.started_us, c.ended_us, c.engine_ms, c.finish_reason, c.capture_level.value,
        c.response_id, c.model_served, c.weight_version_start, c.weight_version_end,
        c.stored_parent_id, c.prefix_len, c.prompt_len, c.completion_len,
        _ids(c.prompt_delta), _ids(c.completion), _logprobs(c.logprobs), c.top_logprobs,
        c.chain_hash, c.preview, jsontext.dump(detail),
        packed.index, packed.request, packed.submitted, packed.reply,
    )  # fmt: skip
    return CHECK["call"](row)


def _array(blob: bytes | None, dtype: str) -> NDArray[Any] | None:
    return None if blob is None else np.frombuffer(blob, dtype=dtype)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a number is missing in a call's row")
    return value


def builds_on_another(row: Row) -> bool:
    """Whether a row's message digests are told as a delta to another call's."""
    return isinstance(jsontext.load(row[26]).get("message_digests"), dict)


def decode_calls(found: Iterable[Row]) -> Iterator[Call]:
    """Decode the ended calls of a rollout, in sequence order."""
    known: dict[CallId, digests.Digests] = {}
    for row in found:
        call = decode_call(row, known)
        known[call.call_id] = call.message_digests
        yield call


def decode_call(row: Row, known: Mapping[CallId, digests.Digests] | None = None) -> Call:
    """Decode the `CALL_COLUMNS` of an ended call; `known` are the digests before it."""
    detail = jsontext.load(row[26])
    if "message_digests" in detail:
        detail["message_digests"] = digests.whole(detail["message_digests"], known or {})
    detail.pop("request_sha256", None)
    detail["notes"] = tuple(Note(code, text) for code, text in detail.get("notes", ()))
    if "weight_spans" in detail:
        detail["weight_spans"] = tuple(WeightSpan(*each) for each in detail["weight_spans"])
    if "token_in" in detail:
        detail["token_in"] = TokenIn(**detail["token_in"])
    for name in _TUPLES & detail.keys():
        detail[name] = tuple(detail[name])
    return Call(
        call_id=CallId(row[0]),
        rollout_id=RolloutId(row[2]),
        sequence=row[3],
        dialect=Dialect(row[4]),
        status=CallStatus(row[5]),
        failure_kind=None if row[6] is None else FailureKind(row[6]),
        started_us=_number(row[7]),
        ended_us=_number(row[8]),
        engine_ms=row[9],
        finish_reason=row[10],
        capture_level=CaptureLevel(row[11]),
        response_id=row[12],
        model_served=row[13],
        weight_version_start=row[14],
        weight_version_end=row[15],
        stored_parent_id=None if row[16] is None else CallId(row[16]),
        prefix_len=_number(row[17]),
        prompt_len=row[18],
        completion_len=row[19],
        prompt_delta=_array(row[20], "<i4"),
        completion=_array(row[21], "<i4"),
        logprobs=_array(row[22], "<f4"),
        top_logprobs=row[23],
        chain_hash=row[24],
        preview=row[25],
        **detail,
    )


def decode_admission(row: Row) -> Admission:
    """Decode the `CALL_COLUMNS` of a row whose ``ended`` is false."""
    detail = jsontext.load(row[26])
    return Admission(
        call_id=CallId(row[0]),
        rollout_id=RolloutId(row[2]),
        sequence=row[3],
        started_us=row[7],
        dialect=Dialect(row[4]),
        stream=detail["stream"],
        n_tools=detail["n_tools"],
        request_sha256=detail["request_sha256"],
    )


def lost_call(admission: Admission, ended_us: int, detail: str) -> Call:
    """Make the call that stands for an admission whose process died."""
    return Call(
        call_id=admission.call_id,
        rollout_id=admission.rollout_id,
        sequence=admission.sequence,
        dialect=admission.dialect,
        status=CallStatus.ABORTED,
        failure_kind=FailureKind.LOST_ON_RESTART,
        failure_detail=detail,
        started_us=admission.started_us,
        ended_us=ended_us,
        stream=admission.stream,
        n_tools=admission.n_tools,
    )
