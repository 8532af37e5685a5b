"""The audit log: append-only rows, chained by hash so that a removed one shows.

Owns: events, their rows, the chain and its check. Must not know: who reads the log, HTTP.

The hash of a row is the SHA-256 of its other columns as canonical JSON (keys sorted, no
blanks), `previous` among them. Whoever writes down the newest hash elsewhere can prove later
that nothing before it was changed; the rows after it can only be checked among themselves.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.people import SERVER_SUBJECT, Caller
from explorer.access.tables import AUDIT

ZEROS = "0" * 64
_LONGEST = 2000


class Event(StrEnum):
    """Everything that gets a row. Closed."""

    SIGNED_IN = "signed_in"
    SIGN_IN_FAILED = "sign_in_failed"
    SIGNED_OUT = "signed_out"
    TOKEN_MADE = "token_made"  # noqa: S105 - a word, no secret
    TOKEN_REVOKED = "token_revoked"  # noqa: S105 - a word, no secret
    GRANT_REQUESTED = "grant_requested"
    GRANT_GIVEN = "grant_given"
    GRANT_APPROVED = "grant_approved"
    GRANT_REJECTED = "grant_rejected"
    GRANT_REVOKED = "grant_revoked"
    ROLE_GIVEN = "role_given"
    ROLE_TAKEN = "role_taken"
    VISIBILITY_SET = "visibility_set"
    DOWNLOAD_BEGUN = "download_begun"
    DOWNLOAD = "download"
    REFUSED = "refused"
    OVERRIDE = "override"
    SECRET_DECIDED = "secret_decided"  # noqa: S105 - a word, no secret
    ROLLOUT_DELETED = "rollout_deleted"
    ROLLOUT_EXPIRED = "rollout_expired"
    DATASET_PLANNED = "dataset_planned"
    DATASET_DRY_RUN = "dataset_dry_run"
    DATASET_BEGUN = "dataset_begun"
    DATASET_PUBLISHED = "dataset_published"
    DATASET_FAILED = "dataset_failed"
    DATASET_REMOVED = "dataset_removed"
    DATASET_SCHEDULE = "dataset_schedule"
    WEIGHTS_TOLD = "weights_told"
    DEMO_RESET = "demo_reset"
    SERVER_STARTED = "server_started"


@dataclass(frozen=True, slots=True)
class Entry:
    """What happened, before it has a place in the chain."""

    event: Event
    who: str
    object: str = ""
    name: str = ""
    address: str = ""
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    bytes: int | None = None
    sha256: str | None = None
    complete: bool | None = None

    @classmethod
    def by(cls, caller: Caller, event: Event, object_: str = "", **more: Any) -> Entry:
        """What a caller did."""
        return cls(
            event=event,
            who=caller.subject,
            object=object_,
            name=caller.name,
            address=caller.address,
            **more,
        )

    @classmethod
    def by_server(cls, event: Event, object_: str = "", **more: Any) -> Entry:
        """What the server did by itself."""
        return cls(event=event, who=SERVER_SUBJECT, object=object_, **more)


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What a check of the chain found; `broken_at` is the first row that does not fit."""

    rows: int
    head: str
    broken_at: int | None = None
    why: str = ""

    @property
    def whole(self) -> bool:
        """Whether every row fits."""
        return self.broken_at is None


def row_hash(row: Mapping[str, Any]) -> str:
    """The hash that a row must carry."""
    told = {name: value for name, value in row.items() if name != "hash"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_chain(
    rows: Iterable[Mapping[str, Any]], after: ChainReport | None = None
) -> ChainReport:
    """Whether rows follow from each other: from the first one on, or after what was checked."""
    previous, count = (ZEROS, 0) if after is None else (after.head, after.rows)
    for row in rows:
        why = ""
        if row["sequence"] != count:
            why = f"row {count} is missing; the next one there is {row['sequence']}"
        elif row["previous"] != previous:
            why = "it does not follow from the row before it"
        elif row_hash(row) != row["hash"]:
            why = "its values are not those that its hash was made of"
        if why:
            return ChainReport(count, previous, count, why)
        previous, count = row["hash"], count + 1
    return ChainReport(count, previous)


class AuditLog:
    """The log in an access database; safe from any thread.

    Args:
        database: open.
        clock: microseconds since the epoch.
    """

    def __init__(self, database: AccessDatabase, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self.clock = clock
        self._checking = threading.Lock()
        self._checked: ChainReport | None = None

    def append(self, entry: Entry, rows: Rows | None = None) -> dict[str, Any]:
        """Adds one row; inside the transaction of `rows`, where one is given.

        Raises:
            StoreFailed: it cannot be written; then what it tells must not happen either.
        """
        if rows is not None:
            return self._append(entry, rows)
        return self._database.write(lambda rows: self._append(entry, rows))

    def _append(self, entry: Entry, rows: Rows) -> dict[str, Any]:
        last = rows.select(AUDIT, None, "ORDER BY sequence DESC LIMIT 1")
        row: dict[str, Any] = {
            "sequence": last[0]["sequence"] + 1 if last else 0,
            "event_time": self.clock(),
            "event": entry.event.value,
            "who": _text(entry.who),
            "name": _text(entry.name),
            "address": _text(entry.address),
            "object": _text(entry.object),
            "reason": _text(entry.reason),
            "detail": json.dumps(dict(entry.detail), sort_keys=True),
            "bytes": entry.bytes,
            "sha256": entry.sha256,
            "complete": entry.complete,
            "previous": last[0]["hash"] if last else ZEROS,
        }
        row["hash"] = row_hash(row)
        rows.insert(AUDIT, row)
        return row

    def page(
        self, key: Mapping[str, Any], before: int | None, limit: int
    ) -> list[dict[str, Any]]:
        """Rows that have these values, the newest first, below the sequence `before`."""
        more = "AND sequence < ? ORDER BY sequence DESC LIMIT ?"
        top = 2**62 if before is None else before
        return self._database.read(lambda rows: rows.select(AUDIT, key, more, top, limit))

    def of_grant(self, grant_id: str, who: str | None, limit: int) -> list[dict[str, Any]]:
        """The newest downloads under a grant, with the `file` and the hash of the whole
        `document` that was sent."""
        key: dict[str, Any] = {"event": Event.DOWNLOAD.value}
        if who is not None:
            key["who"] = who
        more = "AND json_extract_string(detail, '$.grant') = ? ORDER BY sequence DESC LIMIT ?"
        found = self._database.read(lambda rows: rows.select(AUDIT, key, more, grant_id, limit))
        return [row | _document(row) for row in found]

    def every(self, step: int = 1000, start: int = 0) -> Iterator[dict[str, Any]]:
        """All rows from `start` on in their order, read a stretch at a time."""
        while True:
            found = self._database.read(partial(_stretch, start, step))
            yield from found
            if len(found) < step:
                return
            start = found[-1]["sequence"] + 1

    def check(self) -> ChainReport:
        """Whether the chain is whole.

        Read from the first row the first time, later from where it was whole: while a
        process has the file open nobody else can change it.
        """
        with self._checking:
            done = self._checked
            start = 0 if done is None else done.rows
            report = check_chain(self.every(start=start), done)
            if report.whole:
                self._checked = report
            return report


def _document(row: Mapping[str, Any]) -> dict[str, str]:
    detail = json.loads(row["detail"])
    return {"file": detail.get("file", ""), "document": detail.get("etag", "")}


def _stretch(start: int, step: int, rows: Rows) -> list[dict[str, Any]]:
    return rows.select(AUDIT, None, "AND sequence >= ? ORDER BY sequence LIMIT ?", start, step)


def _text(text: str) -> str:
    """As stored: no lone surrogate (no encoding has them), not endless."""
    return text.encode("utf-8", "replace").decode()[:_LONGEST]
