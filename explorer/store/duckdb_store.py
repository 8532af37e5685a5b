"""The store on one DuckDB file: wires the writer, the readers and the guards.

Owns: opening (migrations, replay, lost calls), the public methods, health and closing.
Must not know: SQL (its parts do), settings, dialects, pages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from explorer import columns
from explorer.errors import StoreDamaged, StoreFailed, StoreReadOnly
from explorer.records import (
    Admission,
    Body,
    Call,
    Certificate,
    Rollout,
    RolloutEvent,
    VocabularyEntry,
    WeightUpdate,
)
from explorer.store import migrations
from explorer.store.annotations import AnnotationReader
from explorer.store.bodies import Packed
from explorer.store.callrows import encode_call, lost_call
from explorer.store.copy import copy_database, prepare
from explorer.store.database import READ_ONLY, Database
from explorer.store.delta_rows import DeltaReader
from explorer.store.deltas import DeltaSummary, TrainerPost
from explorer.store.encoder import Encoder
from explorer.store.interface import BackupReport, JudgementRow, StoreHealth
from explorer.store.listing import Lister
from explorer.store.reads import Reader
from explorer.store.remarks import Annotation, SavedView
from explorer.store.seal_rows import SealReader
from explorer.store.seals import Seal
from explorer.store.secret_marks import SecretRecord
from explorer.store.secret_rows import SecretReader
from explorer.store.sizes import SizeReader
from explorer.store.snapshot import SnapshotTaker
from explorer.store.space import SpaceGuard
from explorer.store.spill import SpillJournal, spill_path
from explorer.store.weight_rows import WeightReader
from explorer.store.work import EndedCall, Record, Vocabulary, Work, WorkQueue, size_of
from explorer.store.writer import Writer


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What may differ between stores.

    ``min_free_bytes``: free space below which nothing new is admitted.
    ``body_memory_bytes``: recent bodies kept to compress the next ones against.
    ``admission_linger_s``: longest wait of an admission for other work to commit with.
    ``group_interval_s``: shortest time between two group commits while several calls
    end at once.
    ``read_only``: show what is there; no writer, no migrations, every write is refused.
    ``threads``: threads of DuckDB. One: small commits then use a quarter less CPU, and
    listings are as fast; each reading thread still runs its own query.
    """

    min_free_bytes: int = 256 * 1024 * 1024
    body_memory_bytes: int = 32 * 1024 * 1024
    admission_linger_s: float = 0.02
    group_interval_s: float = 0.004
    threads: int = 1
    app_version: str = ""
    read_only: bool = False


class DuckDBStore(
    SizeReader,
    Reader,
    Lister,
    AnnotationReader,
    SecretReader,
    SealReader,
    DeltaReader,
    WeightReader,
    SnapshotTaker,
):
    """A `Store` that owns one DuckDB file from construction until `close`."""

    def __init__(self, path: Path, options: StoreOptions | None = None) -> None:
        """Open or create the file; blocking, so call it before the loop runs.

        Raises `StoreLocked` when another process has it, `StoreDamaged` when it cannot
        be read as it is, `StoreFailed` for a newer schema or a disk that refuses.
        """
        self._options = options or StoreOptions()
        self.path = path
        database = Database(
            path, threads=self._options.threads, read_only=self._options.read_only
        )
        Reader.__init__(self, database)
        Lister.__init__(self, database)
        self._space = SpaceGuard(path, database.wal_path, self._options.min_free_bytes)
        self._queue = WorkQueue(
            self._options.admission_linger_s, self._options.group_interval_s
        )
        journal = SpillJournal(spill_path(path))
        encoder = Encoder(database, self._options.body_memory_bytes)
        self._writer = Writer(database, self._queue, encoder, journal, self._wal_bytes)
        self._quarantined_before = 0
        database.open()
        try:
            if database.read_only:
                self._check_read_only(journal)
            else:
                self._prepare()
        except BaseException:
            database.close()
            raise
        if not database.read_only:
            self._writer.start()

    def _check_read_only(self, journal: SpillJournal) -> None:
        """Nothing can be brought up to date here: what would have to be is refused."""
        try:
            with self._database.reading() as cursor:
                missing = migrations.pending(cursor)
        except duckdb.Error as error:
            raise StoreFailed(f"{self.path} cannot be read: {error}") from error
        if missing:
            raise StoreFailed(
                f"{self.path} was made by an older version and cannot be shown read-only: run "
                f"`rollout-explorer migrate --store {self.path}` first"
            )
        if journal.exists():
            raise StoreFailed(
                f"{journal.path} holds rows outside the file; open the store once for writing, "
                "so that they are taken in"
            )
        self._quarantined_before = len(self.quarantined())

    def _prepare(self) -> None:
        """Bring the file up to date before the first write."""
        try:
            prepare(self._database, self._options.app_version)
            self._writer.replay_journal()
            self._end_lost_calls()
        except duckdb.Error as error:
            raise StoreFailed(f"{self.path} cannot be made ready: {error}") from error
        except OSError as error:
            raise StoreFailed(f"the spill journal of {self.path} failed: {error}") from error
        except (KeyError, ValueError) as error:
            raise StoreDamaged(
                f"{self.path} holds rows that cannot be read: {error!r}"
            ) from error
        self._quarantined_before = len(self.quarantined()) - self._writer.gauges.quarantined

    def _end_lost_calls(self) -> None:
        """Give every admission of a process that died its call row."""
        now = time.time_ns() // 1000
        reason = "the process ended before the reply was stored"
        found = [
            encode_call(lost_call(each, max(now, each.started_us), reason), Packed())
            for each in self.lost_admissions()
        ]
        if found:
            self._database.insert([(columns.CALL, found)])

    def _wal_bytes(self) -> int:
        try:
            return self._database.wal_path.stat().st_size
        except FileNotFoundError:
            return 0

    def _require_writable(self) -> None:
        if self._database.read_only:
            raise StoreReadOnly(READ_ONLY)

    def _submit(self, record: Record) -> asyncio.Future[Any]:
        self._require_writable()
        future = asyncio.get_running_loop().create_future()
        if not self._queue.put(Work(record, future, size_of(record))):
            raise StoreFailed("the store is closed")
        return future

    async def add_rollout(self, rollout: Rollout) -> None:
        """Store a rollout; refused while spilling or short of space."""
        self._require_writable()
        self._space.require()
        await self._submit(rollout)

    async def add_event(self, event: RolloutEvent) -> RolloutEvent:
        """Store an event and return it; sequence -1 asks for the next of its rollout."""
        stored: RolloutEvent = await self._submit(event)
        return stored

    def admit(self, admission: Admission) -> asyncio.Future[None]:
        """Queue an admission at once; needs a running loop.

        Raises `StoreFailed` immediately when the store is short of space.
        """
        self._require_writable()
        self._space.require()
        return self._submit(admission)

    async def commit_call(self, call: Call, bodies: Sequence[Body]) -> None:
        """Store an ended call and its bodies (at most one per kind), all or none."""
        await self._submit(EndedCall(call, bodies))

    async def add_certificate(self, certificate: Certificate) -> None:
        """Store what a probe measured."""
        await self._submit(certificate)

    async def add_vocabulary(self, entries: Sequence[VocabularyEntry]) -> None:
        """Store a tokenizer's tokens; ids already stored are left as they are."""
        await self._submit(Vocabulary(entries))

    async def add_judgement(self, row: JudgementRow) -> None:
        """Store the summary of a verdict for listings."""
        await self._submit(row)

    async def add_annotation(self, annotation: Annotation) -> None:
        """Store what a person wrote."""
        await self._submit(annotation)

    async def add_view(self, view: SavedView) -> None:
        """Store a saved view, or that it is dropped."""
        await self._submit(view)

    async def add_secret(self, record: SecretRecord) -> None:
        """Store a mark of a scan, a finding, or what a person decided about one."""
        await self._submit(record)

    async def add_seal(self, seal: Seal) -> None:
        """Store an issued receipt; a number is given once."""
        await self._submit(seal)

    async def add_weight_update(self, update: WeightUpdate) -> None:
        """Store what was told about the engine's weights; a number is given once."""
        await self._submit(update)

    async def add_trainer_logps(self, post: TrainerPost) -> None:
        """Store what a trainer told about a rollout's calls, all of it or nothing."""
        await self._submit(post)

    async def add_delta_summary(self, summary: DeltaSummary) -> None:
        """Store how far a trainer's logprobs are off, for listings."""
        await self._submit(summary)

    def health(self) -> StoreHealth:
        """Return the gauges; works while the database does not."""
        gauges = self._writer.gauges
        # Nothing is admitted anyway.
        read_only = self._database.read_only
        short = self._space.short and not read_only
        messages = list(self._database.messages)
        if gauges.spilling_since_us is not None:
            messages.append(f"rows go to the spill journal: {gauges.spill_reason}")
        quarantined = self._quarantined_before + gauges.quarantined
        if quarantined:
            messages.append(f"{quarantined} records could not be stored and were set aside")
        if short:
            messages.append("too little free space: nothing new is admitted")
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            size = 0
        return StoreHealth(
            path=str(self.path),
            size_bytes=size,
            wal_bytes=self._wal_bytes(),
            free_bytes=self._space.free_bytes,
            queue_depth=self._queue.depth(),
            commits=gauges.commits,
            last_commit_ms=gauges.last_commit_ms,
            quarantined=quarantined,
            spilling=self._writer.spilling,
            spilling_since_us=gauges.spilling_since_us,
            refused_for_space=short,
            schema_version=migrations.MIGRATIONS[-1].version,
            messages=tuple(messages),
            read_only=read_only,
        )

    def backup(self, target: Path) -> BackupReport:
        """Copy the store into a new file while it is in use; blocking.

        Raises `StoreFailed` when the target exists or cannot be written.
        """
        if self._database.read_only:
            raise StoreReadOnly("a store that is open for reading only is copied as a file")
        with self._database.reading() as cursor:
            rows = copy_database(cursor, target)
        return BackupReport(target=target, rows=rows, size_bytes=target.stat().st_size)

    async def close(self) -> None:
        """Drain the queue, checkpoint, and release the file."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Do what `close` does, blocking."""
        self._queue.close()
        read_only = self._database.read_only
        if not read_only:
            self._writer.join()
        try:
            self._database.close(checkpoint=not (read_only or self._writer.spilling))
        except duckdb.Error as error:
            raise StoreFailed(f"{self.path} could not be checkpointed: {error}") from error
