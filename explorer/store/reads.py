"""Everything read back by id: rollouts, records, calls, bodies, certificates.

Owns: these queries and the meaning of "deleted" in them. Must not know: writing.

Every method is synchronous and safe from any thread. Errors: `StoreFailed` while the
database is being reopened, `StoreDamaged` for bytes that are not what was written.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import duckdb

from explorer import columns
from explorer.errors import StoreDamaged
from explorer.records import (
    Admission,
    Body,
    Call,
    CallId,
    Certificate,
    EventKind,
    KeyHash,
    Rollout,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
    TokenizerId,
    VocabularyEntry,
)
from explorer.store import bodies, rows
from explorer.store.callrows import (
    CALL_COLUMNS,
    builds_on_another,
    decode_admission,
    decode_call,
    decode_calls,
)
from explorer.store.database import Database, select_list
from explorer.store.interface import (
    QuarantinedRow,
    RecordStamp,
    RolloutState,
    RolloutStatus,
)

T = TypeVar("T")

_CALL = select_list(columns.CALL, CALL_COLUMNS)
_ROLLOUT = select_list(columns.ROLLOUT)
_EVENT = select_list(columns.ROLLOUT_EVENT)
_CERTIFICATE = select_list(columns.CERTIFICATE)
_VOCABULARY = select_list(columns.VOCABULARY)
_QUARANTINE = select_list(columns.QUARANTINE)
_ALIVE = (
    "NOT EXISTS (SELECT 1 FROM rollout_event e "
    "WHERE e.rollout_id = {table}.rollout_id AND e.kind = 'deleted')"
)

# Every query of this module, built once from the declared columns.
_SQL = {
    "rollout": f"SELECT {_ROLLOUT} FROM rollout WHERE rollout_id = ? AND "
    + _ALIVE.format(table="rollout"),
    "by_key": f"SELECT {_ROLLOUT} FROM rollout WHERE key_hash = ? AND "
    + _ALIVE.format(table="rollout"),
    "open": f"SELECT {_ROLLOUT} FROM rollout WHERE NOT EXISTS (SELECT 1 FROM rollout_event e "
    "WHERE e.rollout_id = rollout.rollout_id AND e.kind IN ('closed', 'deleted')) "
    "ORDER BY created_time, rollout_id",
    "events": f"SELECT {_EVENT} FROM rollout_event WHERE rollout_id = ? ORDER BY sequence",
    "calls": f"SELECT {_CALL} FROM call WHERE rollout_id = ? "
    "ORDER BY sequence, started_time, call_id, ended",
    "call": f"SELECT {_CALL} FROM call WHERE call_id = ? AND ended AND "
    + _ALIVE.format(table="call"),
    "lost": f"SELECT {_CALL} FROM call a WHERE NOT ended AND NOT EXISTS "
    "(SELECT 1 FROM call b WHERE b.call_id = a.call_id AND b.ended)",
    "owner": "SELECT rollout_id FROM call WHERE call_id = ? AND ended AND "
    + _ALIVE.format(table="call"),
    "index": "SELECT call_id, body_index FROM call WHERE rollout_id = ? AND ended",
    "replies": "SELECT call_id, body_index, reply_body FROM call "
    "WHERE rollout_id = ? AND ended ORDER BY sequence",
    "every_body": "SELECT call_id, body_index, request_body, submitted_body, reply_body "
    "FROM call WHERE rollout_id = ? AND ended AND "
    + _ALIVE.format(table="call")
    + " ORDER BY sequence",
    "stored": "SELECT call_id, request_body, submitted_body, reply_body FROM call "
    "WHERE rollout_id = ? AND ended AND call_id IN ({marks})",
    "certificate": f"SELECT {_CERTIFICATE} FROM certificate WHERE certificate_id = ?",
    "latest": f"SELECT {_CERTIFICATE} FROM certificate WHERE (? IS NULL OR engine_name = ?) "
    "AND (? IS NULL OR model = ?) ORDER BY probe_time DESC, certificate_id DESC LIMIT 1",
    "vocabulary": f"SELECT {_VOCABULARY} FROM vocabulary WHERE tokenizer_id = ? "
    "ORDER BY token_id",
    "quarantine": f"SELECT {_QUARANTINE} FROM quarantine "
    "ORDER BY quarantined_time DESC, quarantine_id",
    "stamp": (
        "SELECT (SELECT count(*) FROM call WHERE rollout_id = ?), "
        "(SELECT count(*) FROM rollout_event WHERE rollout_id = ?)"
    ),
    "stamps": (
        "SELECT r.rollout_id, r.tokenizer_id, coalesce(c.n, 0), coalesce(e.n, 0), "
        "coalesce(e.closed, false) FROM rollout r "
        "LEFT JOIN (SELECT rollout_id, count(*) AS n FROM call GROUP BY 1) c "
        "USING (rollout_id) LEFT JOIN (SELECT rollout_id, count(*) AS n, "
        "bool_or(kind = 'closed') AS closed, "
        "bool_or(kind = 'deleted') AS deleted FROM rollout_event GROUP BY 1) e "
        "USING (rollout_id) WHERE NOT coalesce(e.deleted, false) "
        "ORDER BY r.created_time DESC, r.rollout_id"
    ),
    "next": "SELECT coalesce(max(sequence) + 1, 0) FROM call WHERE rollout_id = ?",
}


def state_of(rollout: Rollout, events: tuple[RolloutEvent, ...]) -> RolloutState:
    """Read a rollout's state from its events in order."""
    status, closed_us, updated_us = RolloutStatus.OPEN, None, rollout.created_us
    reward: float | None = None
    ok: bool | None = None
    reason: str | None = None
    for event in events:
        updated_us = max(updated_us, event.time_us)
        reward = event.reward if event.reward is not None else reward
        ok = event.ok if event.ok is not None else ok
        if event.kind in (EventKind.OVERRIDE, EventKind.JOINED):
            continue
        reason = event.reason if event.reason is not None else reason
        if event.kind is EventKind.DELETED:
            status = RolloutStatus.DELETED
        elif event.kind is EventKind.CLOSED:
            closed_us = event.time_us
            if status is RolloutStatus.OPEN:
                status = RolloutStatus.CLOSED
    return RolloutState(
        rollout_id=rollout.rollout_id,
        status=status,
        created_us=rollout.created_us,
        updated_us=updated_us,
        closed_us=closed_us,
        reward=reward,
        ok=ok,
        reason=reason,
    )


def _decode(decoder: Callable[[Any], T], found: Any) -> T:
    """Decode one row; `StoreDamaged` when it holds what no encoder writes."""
    try:
        return decoder(found)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreDamaged(f"a stored row cannot be read: {error!r}") from error


def _decode_all(decoder: Callable[[Any], T], found: Iterable[Any]) -> tuple[T, ...]:
    return tuple(_decode(decoder, each) for each in found)


def _with_joined(calls: tuple[Call, ...], events: Iterable[RolloutEvent]) -> tuple[Call, ...]:
    """The calls with the retries that were answered from them: rows are only ever added, so
    a retry that joined an ended call is an event of its own."""
    joined = Counter(
        str(event.payload.get("call_id")) for event in events if event.kind is EventKind.JOINED
    )
    if not joined:
        return calls
    return tuple(
        replace(call, retry_count=call.retry_count + joined[call.call_id])
        if call.call_id in joined
        else call
        for call in calls
    )


class Reader:
    """Reads by id from an open database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._database.reading() as cursor:
            return cursor.execute(_SQL[query], list(values)).fetchall()

    def rollout(self, rollout_id: RolloutId) -> Rollout | None:
        """Return the rollout, or None when it is unknown or deleted."""
        found = self._all("rollout", rollout_id)
        return _decode(rows.decode_rollout, found[0]) if found else None

    def rollout_by_key(self, key_hash: KeyHash) -> Rollout | None:
        """Return the rollout that has this capture key, unless deleted."""
        found = self._all("by_key", key_hash)
        return _decode(rows.decode_rollout, found[0]) if found else None

    def open_rollouts(self) -> tuple[Rollout, ...]:
        """Return every rollout that is neither closed nor deleted, oldest first."""
        return _decode_all(rows.decode_rollout, self._all("open"))

    def rollout_state(self, rollout_id: RolloutId) -> RolloutState | None:
        """Return the state, also of a deleted rollout; None when unknown."""
        query = f"SELECT {_ROLLOUT} FROM rollout WHERE rollout_id = ?"
        with self._database.snapshot() as cursor:
            found = cursor.execute(query, [rollout_id]).fetchall()
            events = cursor.execute(_SQL["events"], [rollout_id]).fetchall()
        if not found:
            return None
        return state_of(
            _decode(rows.decode_rollout, found[0]), _decode_all(rows.decode_event, events)
        )

    def record(self, rollout_id: RolloutId) -> RolloutRecord | None:
        """Return everything the judge reads, calls in sequence order."""
        with self._database.snapshot() as cursor:
            found = cursor.execute(_SQL["rollout"], [rollout_id]).fetchall()
            if not found:
                return None
            rollout = _decode(rows.decode_rollout, found[0])
            event_rows = cursor.execute(_SQL["events"], [rollout_id]).fetchall()
            call_rows = cursor.execute(_SQL["calls"], [rollout_id]).fetchall()
            certificate = _certificate(cursor, rollout.certificate_id)
            calls = _decode(
                lambda ended: tuple(decode_calls(ended)), [row for row in call_rows if row[1]]
            )
            named = sorted({call.certificate_id for call in calls if call.certificate_id})
            certificates = [_certificate(cursor, each) for each in named]
        events = _decode_all(rows.decode_event, event_rows)
        calls = _with_joined(calls, events)
        ended = {call.call_id for call in calls}
        return RolloutRecord(
            rollout=rollout,
            events=events,
            calls=calls,
            certificate=certificate,
            overrides=_decode_all(
                rows.override_of, (e for e in events if e.kind is EventKind.OVERRIDE)
            ),
            open_calls=_decode_all(
                decode_admission,
                (row for row in call_rows if not row[1] and row[0] not in ended),
            ),
            certificates=tuple(found for found in certificates if found is not None),
        )

    def record_stamp(self, rollout_id: RolloutId) -> tuple[int, int]:
        """Return (call rows, event rows) of a rollout."""
        calls, events = self._all("stamp", rollout_id, rollout_id)[0]
        return int(calls), int(events)

    def record_stamps(self) -> tuple[RecordStamp, ...]:
        """Return the stamp of every rollout that is not deleted, the newest first."""
        return tuple(
            RecordStamp(RolloutId(row[0]), row[1], int(row[2]), int(row[3]), bool(row[4]))
            for row in self._all("stamps")
        )

    def call(self, call_id: CallId) -> Call | None:
        """Return one ended call; None when unknown, still open, or deleted."""
        found = self._all("call", call_id)
        if not found:
            return None
        if builds_on_another(found[0]):
            record = self.record(RolloutId(found[0][2]))
            calls = record.calls if record is not None else ()
            return next((call for call in calls if call.call_id == call_id), None)
        return _decode(decode_call, found[0])

    def lost_admissions(self) -> tuple[Admission, ...]:
        """Return the admissions that have no ended row."""
        return _decode_all(decode_admission, self._all("lost"))

    def bodies(self, call_id: CallId) -> tuple[Body, ...]:
        """Return a call's exact bodies; `StoreDamaged` when a digest differs."""
        with self._database.snapshot() as cursor:
            owner = cursor.execute(_SQL["owner"], [call_id]).fetchone()
            if owner is None:
                return ()
            index = bodies.read_index(cursor.execute(_SQL["index"], [owner[0]]).fetchall())
            needed = sorted(bodies.chain_calls(index, call_id))
            query = _SQL["stored"].format(marks=", ".join("?" * len(needed)))
            found = cursor.execute(query, [owner[0], *needed]).fetchall()
        kinds = ("request", "submitted", "reply")
        stored = {(row[0], kind): row[i] for row in found for i, kind in enumerate(kinds, 1)}
        return bodies.decode_bodies(
            index, lambda call, kind: stored.get((call, kind)), call_id, RolloutId(owner[0])
        )

    def replies(self, rollout_id: RolloutId) -> Iterator[tuple[CallId, bytes | str]]:
        """Yield every raw reply of a rollout, or the words that say why it cannot be read."""
        rows = self._all("replies", rollout_id)
        index = bodies.read_index([(row[0], row[1]) for row in rows])
        # A reply is compressed against replies only.
        stored = {row[0]: row[2] for row in rows}
        yield from bodies.decode_replies(index, lambda call, _kind: stored.get(call))

    def every_body(
        self, rollout_id: RolloutId
    ) -> Iterator[tuple[CallId, tuple[Body, ...] | str]]:
        """Yield the bodies of every call, or the words that say why they cannot be read."""
        rows = self._all("every_body", rollout_id)
        index = bodies.read_index([(row[0], row[1]) for row in rows])
        kinds = ("request", "submitted", "reply")
        stored = {(row[0], kind): row[i] for row in rows for i, kind in enumerate(kinds, 2)}
        yield from bodies.decode_every(
            index, lambda call, kind: stored.get((call, kind)), rollout_id
        )

    def certificate(self, certificate_id: str) -> Certificate | None:
        """Return one certificate."""
        with self._database.reading() as cursor:
            return _certificate(cursor, certificate_id)

    def latest_certificate(
        self, *, engine_name: str | None = None, model: str | None = None
    ) -> Certificate | None:
        """Return the newest certificate that matches what is given."""
        found = self._all("latest", engine_name, engine_name, model, model)
        return _decode(rows.decode_certificate, found[0]) if found else None

    def vocabulary(self, tokenizer_id: TokenizerId) -> tuple[VocabularyEntry, ...]:
        """Return a tokenizer's tokens by id; empty when it was never stored."""
        return _decode_all(rows.decode_vocabulary, self._all("vocabulary", tokenizer_id))

    def next_sequence(self, rollout_id: RolloutId) -> int:
        """Return 1 + the largest call sequence of the rollout (0 when it has none)."""
        return int(self._all("next", rollout_id)[0][0])

    def quarantined(self) -> tuple[QuarantinedRow, ...]:
        """Return the rows that could not be written, newest first."""
        return _decode_all(rows.decode_quarantined, self._all("quarantine"))


def _certificate(
    cursor: duckdb.DuckDBPyConnection, certificate_id: str | None
) -> Certificate | None:
    if certificate_id is None:
        return None
    found = cursor.execute(_SQL["certificate"], [certificate_id]).fetchone()
    return None if found is None else _decode(rows.decode_certificate, found)
