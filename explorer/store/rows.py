"""Records to rows and back: every small table; the call table is in `callrows`.

Owns: the checked row type and the encoding of rollouts, events, certificates,
vocabularies, judgements and quarantine. Must not know: how rows reach the database.

An encoder raises `TypeError`, `ValueError`, `AttributeError` or `OverflowError` for a
record that cannot be stored exactly; the writer sets such a record aside alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from explorer import columns
from explorer.columns import Kind, Table
from explorer.records import (
    CallId,
    CaptureLevel,
    Certificate,
    EventKind,
    KeyHash,
    LogprobKind,
    Override,
    Purpose,
    Role,
    Rollout,
    RolloutEvent,
    RolloutId,
    Streaming,
    TokenizerId,
    VocabularyEntry,
)
from explorer.store import jsontext
from explorer.store.interface import JudgementRow, QuarantinedRow

Row = tuple[Any, ...]
T = TypeVar("T")

_PYTHON: dict[Kind, type] = {
    Kind.TEXT: str,
    Kind.JSON: str,
    Kind.BLOB: bytes,
    Kind.INT: int,
    Kind.BIGINT: int,
    Kind.DOUBLE: float,
    Kind.BOOL: bool,
    Kind.TIME: int,
}
_BITS = {Kind.INT: 31, Kind.BIGINT: 63, Kind.TIME: 63}


def _checker(table: Table) -> Callable[[Row], Row]:
    """Build the check of a table's rows: exact types, or a lossless conversion.

    Without it the database would cast silently: 5 becomes '5' in a text column.
    """
    wanted = tuple(_PYTHON[column.kind] for column in table.columns)

    def check(row: Row) -> Row:
        fixed: list[Any] | None = None
        for index, (value, kind) in enumerate(zip(row, wanted, strict=True)):
            column = table.columns[index]
            if value is None:
                if not column.nullable:
                    raise ValueError(f"{table.name}.{column.name} must not be null")
            elif type(value) is not kind:
                fixed = list(row) if fixed is None else fixed
                fixed[index] = value = _convert(value, kind, f"{table.name}.{column.name}")
            if kind is str and value is not None and not value.isascii():
                value.encode()  # UnicodeEncodeError (a ValueError) for a lone surrogate
            elif kind is int and value is not None:
                bits = _BITS[column.kind]
                if not -(1 << bits) <= value < 1 << bits:
                    raise OverflowError(f"{table.name}.{column.name} is out of range")
        return row if fixed is None else tuple(fixed)

    return check


def _convert(value: object, kind: type, where: str) -> object:
    if kind is int and isinstance(value, np.integer):
        return int(value)
    if kind is float and isinstance(value, (int, float, np.floating, np.integer)):
        return float(value)
    if kind is bool and isinstance(value, np.bool_):
        return bool(value)
    if kind is bytes and isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if kind is str and isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"{where} must be {kind.__name__}, not {type(value).__name__}")


CHECK: dict[str, Callable[[Row], Row]] = {t.name: _checker(t) for t in columns.TABLES}


def encode_rollout(rollout: Rollout) -> Row:
    """Encode a rollout as a `rollout` row."""
    r = rollout
    row = (
        r.rollout_id, r.created_us, r.key_hash, r.run, r.task, r.group, r.attempt,
        r.purpose.value, r.harness, r.harness_version, jsontext.dump(r.metadata),
        jsontext.dump(r.sampling), jsontext.dump(r.budgets), r.engine_kind, r.engine_name,
        r.engine_version, r.model, r.tokenizer_id, r.chat_template_sha256, r.certificate_id,
        r.app_version, r.streaming.value, r.harness_config_sha256, r.token_in,
    )  # fmt: skip
    return CHECK["rollout"](row)


def decode_rollout(row: Row) -> Rollout:
    """Decode a `rollout` row."""
    return Rollout(
        rollout_id=RolloutId(row[0]),
        created_us=row[1],
        key_hash=KeyHash(row[2]),
        run=row[3],
        task=row[4],
        group=row[5],
        attempt=row[6],
        purpose=Purpose(row[7]),
        harness=row[8],
        harness_version=row[9],
        metadata=jsontext.load(row[10]),
        sampling=jsontext.load(row[11]),
        budgets=jsontext.load(row[12]),
        engine_kind=row[13],
        engine_name=row[14],
        engine_version=row[15],
        model=row[16],
        tokenizer_id=None if row[17] is None else TokenizerId(row[17]),
        chat_template_sha256=row[18],
        certificate_id=row[19],
        app_version=row[20],
        streaming=Streaming(row[21] or Streaming.SYNTHESISED),
        harness_config_sha256=row[22],
        token_in=bool(row[23]),
    )


def encode_event(event: RolloutEvent) -> Row:
    """Encode an event whose sequence is known as a `rollout_event` row."""
    e = event
    payload = jsontext.dump(e.payload)
    row = (e.rollout_id, e.sequence, e.time_us, e.kind.value, e.reward, e.ok, e.reason, payload)
    return CHECK["rollout_event"](row)


def decode_event(row: Row) -> RolloutEvent:
    """Decode a `rollout_event` row."""
    return RolloutEvent(
        RolloutId(row[0]), row[1], row[2], EventKind(row[3]), row[4], row[5], row[6],
        jsontext.load(row[7]),
    )  # fmt: skip


def override_payload(override: Override) -> dict[str, Any]:
    """Render an override as the payload of its event; `override_of` reads it back."""
    return {key: value for key, value in asdict(override).items() if value is not None}


def override_of(event: RolloutEvent) -> Override:
    """Read the override an `EventKind.OVERRIDE` event carries.

    Raises `KeyError`, `TypeError` or `ValueError` when the payload is not one.
    """
    values = dict(event.payload)
    role = values.pop("role", None)
    call_id = values.pop("call_id", None)
    return Override(
        **values,
        role=None if role is None else Role(role),
        call_id=None if call_id is None else CallId(call_id),
    )


def encode_certificate(certificate: Certificate) -> Row:
    """Encode a certificate as a `certificate` row."""
    c = certificate
    row = (
        c.certificate_id, c.time_us, c.engine_kind, c.engine_name, c.engine_version, c.model,
        c.fingerprint, c.capture_level.value, c.logprob_kind.value, c.certifiable,
        jsontext.dump(c.numbers), jsontext.dump(c.failures),
    )  # fmt: skip
    return CHECK["certificate"](row)


def decode_certificate(row: Row) -> Certificate:
    """Decode a `certificate` row."""
    return Certificate(
        certificate_id=row[0],
        time_us=row[1],
        engine_kind=row[2],
        engine_name=row[3],
        engine_version=row[4],
        model=row[5],
        fingerprint=row[6],
        capture_level=CaptureLevel(row[7]),
        logprob_kind=LogprobKind(row[8]),
        certifiable=row[9],
        numbers=jsontext.load(row[10]),
        failures=tuple(jsontext.load(row[11])),
    )


def encode_vocabulary(entry: VocabularyEntry) -> Row:
    """Encode one token as a `vocabulary` row."""
    row = (entry.tokenizer_id, entry.token_id, entry.raw, entry.special)
    return CHECK["vocabulary"](row)


def decode_vocabulary(row: Row) -> VocabularyEntry:
    """Decode a `vocabulary` row."""
    return VocabularyEntry(TokenizerId(row[0]), row[1], row[2], row[3])


def encode_judgement(judgement: JudgementRow) -> Row:
    """Encode the summary of a verdict as a `judgement` row."""
    j = judgement
    row = (
        j.rollout_id, j.inputs_sha256, j.policy, j.time_us, j.trainable, j.supervised_tokens,
        j.generated_tokens, j.n_calls, j.n_fatal, j.n_warn, jsontext.dump(j.reasons),
    )  # fmt: skip
    return CHECK["judgement"](row)


def decode_judgement(row: Row) -> JudgementRow:
    """Decode a `judgement` row."""
    return JudgementRow(
        rollout_id=RolloutId(row[0]),
        inputs_sha256=row[1],
        policy=row[2],
        time_us=row[3],
        trainable=row[4],
        supervised_tokens=row[5],
        generated_tokens=row[6],
        n_calls=row[7],
        n_fatal=row[8],
        n_warn=row[9],
        reasons=tuple(jsontext.load(row[10])),
    )


def encode_quarantined(row: QuarantinedRow) -> Row:
    """Encode a record that was set aside as a `quarantine` row."""
    q = row
    values = (q.quarantine_id, q.time_us, q.kind, q.row_id, q.rollout_id, q.error, q.dump)
    return CHECK["quarantine"](values)


def decode_quarantined(row: Row) -> QuarantinedRow:
    """Decode a `quarantine` row."""
    return QuarantinedRow(
        quarantine_id=row[0],
        time_us=row[1],
        kind=row[2],
        row_id=row[3],
        rollout_id=row[4],
        error=row[5],
        dump=row[6],
    )
