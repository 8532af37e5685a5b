"""Records to rows in the writer thread: event numbers, body bases, known vocabularies.

Owns: the writer's memory (recent bodies, next event numbers). Must not know: commits.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from explorer import columns
from explorer.columns import Table
from explorer.records import Admission, Certificate, Rollout, RolloutEvent, WeightUpdate
from explorer.store import rows
from explorer.store.annotations import encode_annotation, encode_view
from explorer.store.bodies import BodyMemory
from explorer.store.callrows import encode_admission, encode_call
from explorer.store.database import Database
from explorer.store.delta_rows import encode_delta_summary, encode_post
from explorer.store.deltas import DeltaSummary, TrainerPost
from explorer.store.digests import DigestMemory
from explorer.store.interface import JudgementRow
from explorer.store.remarks import Annotation, SavedView
from explorer.store.rows import Row
from explorer.store.seal_rows import encode_seal
from explorer.store.seals import Seal
from explorer.store.secret_marks import SecretDecision, SecretMark, SecretRow
from explorer.store.secret_rows import encode_secret
from explorer.store.weight_rows import encode_weight_update
from explorer.store.work import EndedCall, Record, Vocabulary, Work

# What an encoder may raise for a record that cannot be stored exactly.
ENCODE_ERRORS = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_DUMP_LIMIT = 20_000
_VALUE_LIMIT = 400

TableRow = tuple[Table, Row]
_KINDS = {
    "EndedCall": "call",
    "RolloutEvent": "event",
    "JudgementRow": "judgement",
    "SavedView": "saved_view",
    "WeightUpdate": "weight_update",
    "TrainerPost": "trainer_logps",
    "DeltaSummary": "delta_summary",
}


class Encoder:
    """Turns work into rows; used by the writer thread only."""

    def __init__(self, database: Database, body_memory_bytes: int) -> None:
        self._database = database
        self._bodies = BodyMemory(body_memory_bytes)
        self._digests = DigestMemory()
        self._next_event: dict[str, int] = {}
        self._vocabularies: dict[str, set[int]] = {}

    def encode(self, work: Work) -> list[TableRow]:
        """Encode one record; none for a vocabulary entry that is stored already.

        Raises `ENCODE_ERRORS` for an unstorable record, `StoreFailed` when an event's
        number cannot be read because the database is not open.
        """
        record = work.record
        if isinstance(record, EndedCall):
            packed = self._bodies.pack(record.call, record.bodies)
            digests = self._digests.delta(record.call)
            return [(columns.CALL, encode_call(record.call, packed, digests))]
        if isinstance(record, Admission):
            return [(columns.CALL, encode_admission(record))]
        if isinstance(record, RolloutEvent):
            numbered = self._numbered(record)
            work.result = numbered
            return [(columns.ROLLOUT_EVENT, rows.encode_event(numbered))]
        if isinstance(record, Rollout):
            self._next_event.setdefault(record.rollout_id, 0)
            return [(columns.ROLLOUT, rows.encode_rollout(record))]
        if isinstance(record, Certificate):
            return [(columns.CERTIFICATE, rows.encode_certificate(record))]
        if isinstance(record, JudgementRow):
            return [(columns.JUDGEMENT, rows.encode_judgement(record))]
        if isinstance(record, Vocabulary):
            return self._encode_vocabulary(record)
        return _encode_told(record)

    def forget(self, work: Work) -> None:
        """Undo the memory of a record that was not stored, or was stored before.

        Nothing then builds on such a call's bodies, and the next event of such a
        rollout gets its number from the stored ones.
        """
        if isinstance(work.record, EndedCall):
            self._bodies.forget(work.record.call.call_id)
            self._digests.forget(work.record.call.call_id)
        elif isinstance(work.record, Rollout):
            self._next_event.pop(work.record.rollout_id, None)
        elif isinstance(work.record, Vocabulary):
            self._vocabularies.clear()

    def _numbered(self, event: RolloutEvent) -> RolloutEvent:
        if event.sequence >= 0:
            known = self._next_event.get(event.rollout_id)
            if known is not None:
                self._next_event[event.rollout_id] = max(known, event.sequence + 1)
            return event
        number = self._next_event.get(event.rollout_id)
        if number is None:
            found = self._database.writer.execute(
                "SELECT max(sequence) FROM rollout_event WHERE rollout_id = ?",
                [event.rollout_id],
            ).fetchone()
            number = 0 if found is None or found[0] is None else int(found[0]) + 1
        self._next_event[event.rollout_id] = number + 1
        return replace(event, sequence=number)

    def _encode_vocabulary(self, vocabulary: Vocabulary) -> list[TableRow]:
        """Rows of the ids that are not stored yet; what is stored never changes."""
        found: list[TableRow] = []
        for entry in vocabulary.entries:
            ids = self._ids_of(entry.tokenizer_id)
            if entry.token_id not in ids:
                row = rows.encode_vocabulary(entry)
                ids.add(entry.token_id)
                found.append((columns.VOCABULARY, row))
        return found

    def _ids_of(self, tokenizer_id: str) -> set[int]:
        ids = self._vocabularies.get(tokenizer_id)
        if ids is None:
            known = self._database.writer.execute(
                "SELECT token_id FROM vocabulary WHERE tokenizer_id = ?", [tokenizer_id]
            ).fetchall()
            ids = self._vocabularies[tokenizer_id] = {row[0] for row in known}
        return ids


def _encode_told(record: Record) -> list[TableRow]:
    """Encode what people and trainers told, which no memory builds on."""
    if isinstance(record, Annotation):
        return [(columns.ANNOTATION, encode_annotation(record))]
    if isinstance(record, SavedView):
        return [(columns.SAVED_VIEW, encode_view(record))]
    if isinstance(record, SecretMark | SecretRow | SecretDecision):
        return [encode_secret(record)]
    if isinstance(record, Seal):
        return [encode_seal(record)]
    if isinstance(record, WeightUpdate):
        return [encode_weight_update(record)]
    if isinstance(record, TrainerPost):
        return encode_post(record)
    if isinstance(record, DeltaSummary):
        return [encode_delta_summary(record)]
    raise TypeError(f"no table takes a {type(record).__name__}")


def describe(record: Record) -> tuple[str, str, str | None]:
    """Return kind, id and rollout id of a record, printable whatever they hold."""
    inner = record.call if isinstance(record, EndedCall) else record
    kind = _KINDS.get(type(record).__name__, type(record).__name__.lower())
    names = (
        *("annotation_id", "call_id", "certificate_id", "name"),
        *("decision_id", "finding_id"),
    )
    own = next((found for name in names if (found := getattr(inner, name, None))), None)
    rollout = getattr(inner, "rollout_id", None)
    return kind, _printable(own or rollout), None if rollout is None else _printable(rollout)


def _printable(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text.encode("ascii", "backslashreplace").decode()[:_VALUE_LIMIT]


def dump(record: Record) -> str:
    """Render a record as JSON-like text for quarantine; long values are cut."""
    return json.dumps(_plain(record, 0), ensure_ascii=True)[:_DUMP_LIMIT]


def _plain(value: Any, depth: int) -> Any:
    if is_dataclass(value) and depth < 6:
        return {f.name: _plain(getattr(value, f.name), depth + 1) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "size": int(value.size), "first": repr(value[:8])}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": len(value), "first_hex": bytes(value[:64]).hex()}
    if isinstance(value, dict) and depth < 6:
        return {_printable(k): _plain(v, depth + 1) for k, v in list(value.items())[:50]}
    if isinstance(value, (list, tuple)) and depth < 6:
        return [_plain(each, depth + 1) for each in value[:50]]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else repr(value)[:_VALUE_LIMIT]
    return value[:_VALUE_LIMIT] if isinstance(value, str) else _printable(value)
