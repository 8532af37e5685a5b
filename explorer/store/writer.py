"""The one writer thread: group commit, acknowledgement after COMMIT, spilling.

Owns: the thread, what is acknowledged when, quarantine of bad records, and reopening a
database that invalidated itself. Must not know: queries, event loops' business.

Life of a group: encode each record (a bad one is set aside alone), one transaction,
answer the futures. When the database itself fails, the rows go to the spill journal,
are acknowledged after its fsync, and are replayed after reopening.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb

from explorer import columns
from explorer.errors import StoreFailed
from explorer.records import Admission, CallId, Rollout, WeightUpdate
from explorer.store.commit import (
    ROW_ERRORS,
    Conflict,
    Replay,
    by_table,
    insert_or_match,
    make_quarantined,
)
from explorer.store.database import Database, is_unusable
from explorer.store.deltas import DeltaSummary, TrainerPost
from explorer.store.encoder import ENCODE_ERRORS, Encoder, TableRow, describe, dump
from explorer.store.interface import JudgementRow
from explorer.store.remarks import Annotation, SavedView
from explorer.store.rows import encode_quarantined
from explorer.store.seals import Seal
from explorer.store.secret_marks import SecretDecision, SecretMark, SecretRow
from explorer.store.spill import SpillJournal
from explorer.store.work import EndedCall, Vocabulary, Work, WorkQueue, answer

log = logging.getLogger(__name__)

_IDLE_WAIT_S = 0.5
_CHECKPOINT_WAL_BYTES = 4 * 1024 * 1024  # worth a checkpoint while nobody waits
_REOPEN_FIRST_S, _REOPEN_LAST_S = 0.1, 5.0
# These can wait for the database; only calls and events of known rollouts are spilled.
_NOT_SPILLED = (
    *(Rollout, Vocabulary, JudgementRow, Annotation, SavedView),
    *(SecretMark, SecretRow, SecretDecision, Seal, TrainerPost, DeltaSummary, WeightUpdate),
)


@dataclass(slots=True)
class Gauges:
    """Numbers that `health` reports; written by the writer thread only."""

    commits: int = 0
    last_commit_ms: float = 0.0
    quarantined: int = 0
    spilling_since_us: int | None = None
    spill_reason: str = ""


class Writer:
    """Drains the queue in its own thread until the queue is closed."""

    def __init__(
        self,
        database: Database,
        work: WorkQueue,
        encoder: Encoder,
        journal: SpillJournal,
        wal_bytes: Callable[[], int],
    ) -> None:
        self.gauges = Gauges()
        self._database = database
        self._queue = work
        self._encoder = encoder
        self._journal = journal
        self._wal_bytes = wal_bytes
        self._replay = Replay()
        self._reopen_due = 0.0
        self._reopen_wait = _REOPEN_FIRST_S
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the closed queue is drained."""
        self._thread.join()

    @property
    def spilling(self) -> bool:
        """Whether the database is out of use and the journal takes the rows."""
        return self.gauges.spilling_since_us is not None

    def _run(self) -> None:
        while True:
            wait = min(_IDLE_WAIT_S, self._reopen_wait) if self.spilling else _IDLE_WAIT_S
            group = self._queue.collect(wait)
            if group is None:
                break
            try:
                if self.spilling:
                    self._try_reopen()
                if group:
                    self._commit(group)
                elif not self.spilling:
                    self._checkpoint_when_idle()
            except Exception as error:
                log.exception("the store's writer failed on a group")
                for work in group:
                    work.error = StoreFailed(f"the store failed: {error!r}")
            finally:
                answer(group)
        if self.spilling:
            self._reopen_due = 0.0
            self._try_reopen()
        self._journal.close()

    def _checkpoint_when_idle(self) -> None:
        if self._wal_bytes() < _CHECKPOINT_WAL_BYTES:
            return
        try:
            self._database.writer.execute("CHECKPOINT")
        except duckdb.Error as error:
            if is_unusable(error):
                self._start_spilling(error)
            else:
                log.warning("checkpoint: %s", error)

    def _commit(self, group: Sequence[Work]) -> None:
        encoded = self._encode_group(group)
        if not encoded:
            return
        if self.spilling:
            self._spill(encoded)
            return
        began = time.perf_counter()
        try:
            self._database.insert(by_table([row for _, rows in encoded for row in rows]))
        except ROW_ERRORS as error:
            if isinstance(error, duckdb.Error) and is_unusable(error):
                self._start_spilling(error)
                self._spill(encoded)
            else:
                self._commit_singly([work for work, _ in encoded])
            return
        self.gauges.commits += 1
        self.gauges.last_commit_ms = (time.perf_counter() - began) * 1000

    def _encode_group(self, group: Sequence[Work]) -> list[tuple[Work, list[TableRow]]]:
        """Encode what can be; an admission whose call ends in this group is left out."""
        encoded: list[tuple[Work, list[TableRow]]] = []
        stored: set[CallId] = set()
        admissions: list[Work] = []
        for work in group:
            if isinstance(work.record, Admission):
                admissions.append(work)
                continue
            rows = self._encode(work)
            if rows:
                encoded.append((work, rows))
                if isinstance(work.record, EndedCall):
                    stored.add(work.record.call.call_id)
        for work in admissions:
            assert isinstance(work.record, Admission)
            if work.record.call_id not in stored:
                rows = self._encode(work)
                if rows:
                    encoded.append((work, rows))
        return encoded

    def _encode(self, work: Work) -> list[TableRow]:
        if self.spilling and isinstance(work.record, _NOT_SPILLED):
            work.error = StoreFailed(
                "the store is being reopened after a failure of the disk; try again later"
            )
            return []
        try:
            return self._encoder.encode(work)
        except StoreFailed as error:
            work.error = error
        except ENCODE_ERRORS as error:
            self._quarantine(work, error)
        except duckdb.Error as error:
            if not is_unusable(error):
                raise
            self._start_spilling(error)
            work.error = StoreFailed(f"the store failed: {error}")
        return []

    def _commit_singly(self, works: Sequence[Work]) -> None:
        """Commit each record alone, in order, so that only a bad one fails."""
        for work in works:
            self._encoder.forget(work)
        for work in works:
            rows = self._encode(work)
            if not rows:
                continue
            if self.spilling:
                self._spill([(work, rows)])
                continue
            try:
                insert_or_match(self._database, rows)
                self.gauges.commits += 1
                if isinstance(work.record, Rollout):
                    self._encoder.forget(work)
            except Conflict as error:
                self._quarantine(work, error)
            except ROW_ERRORS as error:
                if isinstance(error, duckdb.Error) and is_unusable(error):
                    self._start_spilling(error)
                    self._spill([(work, rows)])
                else:
                    self._quarantine(work, error)

    def _quarantine(self, work: Work, error: BaseException) -> None:
        self._encoder.forget(work)
        row = make_quarantined(describe(work.record), error, dump(work.record))
        self.gauges.quarantined += 1
        log.error("%s %s was set aside: %s", row.kind, row.row_id, row.error)
        work.error = StoreFailed(
            f"the {row.kind} could not be stored and was set aside as {row.quarantine_id}: "
            f"{row.error}",
            quarantine_id=row.quarantine_id,
        )
        found = [(columns.QUARANTINE, encode_quarantined(row))]
        if not self.spilling:
            try:
                self._database.insert(by_table(found))
                return
            except ROW_ERRORS as failure:
                if not (isinstance(failure, duckdb.Error) and is_unusable(failure)):
                    log.error("a quarantine row could not be stored: %s", failure)
                    return
                self._start_spilling(failure)
        self._append(found)

    def _start_spilling(self, error: BaseException) -> None:
        if self.spilling:
            return
        self.gauges.spilling_since_us = time.time_ns() // 1000
        self.gauges.spill_reason = str(error).splitlines()[0]
        self._reopen_due = 0.0
        self._reopen_wait = _REOPEN_FIRST_S
        log.error("the database is out of use, rows go to %s: %s", self._journal.path, error)

    def _spill(self, encoded: Sequence[tuple[Work, list[TableRow]]]) -> None:
        kept: list[TableRow] = []
        works: list[Work] = []
        for work, rows in encoded:
            if isinstance(work.record, _NOT_SPILLED):
                self._encoder.forget(work)
                work.error = StoreFailed(
                    "the store is being reopened after a failure of the disk; try again later"
                )
            else:
                kept += rows
                works.append(work)
        if kept and not self._append(kept):
            for work in works:
                self._encoder.forget(work)
                work.error = StoreFailed("neither the database nor the spill journal can write")

    def _append(self, rows: Sequence[TableRow]) -> bool:
        try:
            self._journal.append(rows)
        except OSError as error:
            log.error("the spill journal failed: %s", error)
            return False
        return True

    def _try_reopen(self) -> None:
        """Close, open and replay; on success the database takes the rows again."""
        if time.monotonic() < self._reopen_due:
            return
        try:
            self._close_broken()
            self._database.open()
            self.replay_journal()
        except (StoreFailed, duckdb.Error, OSError) as error:
            self.gauges.spill_reason = str(error).splitlines()[0]
            self._reopen_due = time.monotonic() + self._reopen_wait
            self._reopen_wait = min(_REOPEN_LAST_S, 2 * self._reopen_wait)
            return
        log.warning("the database is open again; every spilled row is stored")
        self.gauges.spilling_since_us = None
        self.gauges.spill_reason = ""

    def _close_broken(self) -> None:
        try:
            self._database.close()
        except duckdb.Error as error:  # an invalidated database may refuse to close cleanly
            log.debug("closing the invalidated database: %s", error)

    def replay_journal(self) -> None:
        """Insert what a journal holds, then remove it.

        Raises `duckdb.Error` when the database fails, `OSError` for the journal itself.
        """
        if not self._journal.exists():
            return
        rows, whole = self._journal.read()
        before = self._replay.set_aside
        self._replay.run(self._database, rows)
        self.gauges.quarantined += self._replay.set_aside - before
        kept = self._journal.retire(whole=whole)
        if kept is not None:
            self._database.messages.append(
                f"the spill journal ended in a torn line and was kept as {kept.name}"
            )
