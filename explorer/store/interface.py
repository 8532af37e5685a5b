"""What every store offers: one protocol and the small records it answers with.

Owns: the `Store` protocol and the frozen records of listings, health and reports.
Must not know: DuckDB, dialects, pages.

Writes are coroutines (or a future) that finish only after COMMIT, or, while the
database is invalidated, after the spill journal's fsync. Reads are synchronous and
safe from any thread; call them inside `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from explorer.records import (
    Admission,
    Body,
    Call,
    CallId,
    Certificate,
    KeyHash,
    Rollout,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
    TokenizerId,
    VocabularyEntry,
    WeightUpdate,
)
from explorer.store.deltas import DeltaSummary, TrainerLogps, TrainerPost
from explorer.store.queries import (
    Facet,
    GroupPage,
    GroupPart,
    RunPoint,
    RunSpread,
    Within,
)
from explorer.store.queries import (
    JudgementRow as JudgementRow,
)
from explorer.store.queries import (
    RolloutPage as RolloutPage,
)
from explorer.store.queries import (
    RolloutQuery as RolloutQuery,
)
from explorer.store.queries import (
    RolloutStatus as RolloutStatus,
)
from explorer.store.queries import (
    RolloutSummary as RolloutSummary,
)
from explorer.store.queries import (
    RunSummary as RunSummary,
)
from explorer.store.queries import (
    SortKey as SortKey,
)
from explorer.store.remarks import Annotation, LabelCount, SavedView
from explorer.store.seals import Seal
from explorer.store.secret_marks import SecretDecision, SecretMark, SecretRecord, SecretRow


@dataclass(frozen=True, slots=True)
class RolloutState:
    """State read from a rollout's events: the latest reward, ``ok`` and reason win."""

    rollout_id: RolloutId
    status: RolloutStatus
    created_us: int
    updated_us: int
    closed_us: int | None = None
    reward: float | None = None
    ok: bool | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RecordStamp:
    """What of a rollout's rows there is: equal numbers mean that nothing was added."""

    rollout_id: RolloutId
    tokenizer_id: TokenizerId | None
    calls: int
    events: int
    closed: bool

    @property
    def text(self) -> str:
        """The numbers as one text."""
        return f"{self.calls}.{self.events}"


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A record that could not be written, with the reason; ``dump`` is JSON-like."""

    quarantine_id: str
    time_us: int
    kind: str
    row_id: str
    error: str
    dump: str
    rollout_id: str | None = None


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Gauges of the store. Sizes are bytes; ``messages`` are sentences for people."""

    path: str
    size_bytes: int
    wal_bytes: int
    free_bytes: int
    queue_depth: int
    commits: int
    last_commit_ms: float
    quarantined: int
    spilling: bool
    spilling_since_us: int | None
    refused_for_space: bool
    schema_version: int
    messages: tuple[str, ...] = ()
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup copied: rows by table, and the size of the copy in bytes."""

    target: Path
    rows: dict[str, int]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MigrateReport:
    """What a migration did; ``copy`` is the file kept from before it, if any ran."""

    path: Path
    version_before: int
    version_after: int
    applied: tuple[str, ...]
    copy: Path | None


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction kept and dropped; sizes in bytes. ``copies`` are files from before
    migrations, which may hold what was dropped; they are left to whoever wants them."""

    path: Path
    kept_rollouts: int
    dropped_rollouts: int
    kept_rows: dict[str, int]
    dropped_rows: dict[str, int]
    size_before: int
    size_after: int
    copies: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the SQL console may see: Parquet files by table name, and ``views`` over them.

    ``n_rollouts`` of ``total_rollouts`` are in it, the newest ones.
    """

    files: Mapping[str, bytes]
    views: tuple[str, ...]
    taken_us: int
    build_s: float
    n_rollouts: int
    total_rollouts: int
    n_calls: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(data) for data in self.files.values())


class Store(Protocol):
    """The one interface of a store. Errors: `StoreFailed` and its subclasses."""

    async def add_rollout(self, rollout: Rollout) -> None:
        """Store a rollout; refused while spilling or short of space."""

    async def add_event(self, event: RolloutEvent) -> RolloutEvent:
        """Store an event and return it; sequence -1 asks for the next of its rollout."""

    def admit(self, admission: Admission) -> asyncio.Future[None]:
        """Queue an admission at once; needs a running loop.

        Raises `StoreFailed` immediately when the store is short of space.
        """

    async def commit_call(self, call: Call, bodies: Sequence[Body]) -> None:
        """Store an ended call and its bodies (at most one per kind), all or none."""

    async def add_certificate(self, certificate: Certificate) -> None:
        """Store what a probe measured."""

    async def add_vocabulary(self, entries: Sequence[VocabularyEntry]) -> None:
        """Store a tokenizer's tokens; ids already stored are left as they are."""

    async def add_judgement(self, row: JudgementRow) -> None:
        """Store the summary of a verdict for listings."""

    async def add_annotation(self, annotation: Annotation) -> None:
        """Store what a person wrote about a rollout, or that it is withdrawn."""

    async def add_view(self, view: SavedView) -> None:
        """Store a saved view; a later row of its name replaces or drops it."""

    async def add_secret(self, record: SecretRecord) -> None:
        """Store a mark of a scan, a finding, or a decision; none holds a secret."""

    async def add_seal(self, seal: Seal) -> None:
        """Store an issued receipt; a number is given once."""

    async def add_trainer_logps(self, post: TrainerPost) -> None:
        """Store what a trainer told about a rollout's calls, all of it or nothing."""

    async def add_delta_summary(self, summary: DeltaSummary) -> None:
        """Store how far a trainer's logprobs are off, for listings."""

    def trainer_logps(self, rollout_id: RolloutId) -> tuple[TrainerLogps, ...]:
        """Return what was told and not replaced since, the newest posting first."""

    def has_trainer_logps(self, rollout_id: RolloutId) -> bool:
        """Return whether anything was ever told about a rollout."""

    def delta_summaries(
        self, rollout_ids: Collection[RolloutId]
    ) -> Mapping[RolloutId, DeltaSummary]:
        """Return the latest δ summary of each of these rollouts that has one."""

    def run_deltas(self, run: str, within: Within = None) -> tuple[DeltaSummary, ...]:
        """Return the latest δ summary of every rollout of a run that has one."""

    async def add_weight_update(self, update: WeightUpdate) -> None:
        """Store what was told about the engine's weights; a number is given once."""

    def weight_updates(self, limit: int = 100) -> tuple[WeightUpdate, ...]:
        """Return what was told about the engine's weights, the newest first."""

    def seals(self, rollout_id: RolloutId) -> tuple[Seal, ...]:
        """Return the receipts that were issued for a rollout, by number."""

    def seals_due(self) -> tuple[RolloutId, ...]:
        """Return the closed rollouts that wait for a receipt."""

    def secret_marks(self) -> Mapping[RolloutId, SecretMark]:
        """Return the latest mark of every rollout that was scanned."""

    def secret_mark(self, rollout_id: RolloutId) -> SecretMark | None:
        """Return the latest mark of one rollout."""

    def secret_rows(self, rollout_id: RolloutId) -> tuple[SecretRow, ...]:
        """Return every finding that was ever marked in a rollout."""

    def secret_decisions(self, rollout_id: RolloutId) -> tuple[SecretDecision, ...]:
        """Return every decision about a rollout's findings, in the order made."""

    def secrets_undecided(self) -> frozenset[RolloutId]:
        """Return the rollouts in which something waits for a person."""

    def secrets_in_lists(self) -> frozenset[RolloutId]:
        """Return the rollouts of which a list would tell a secret that nobody let go."""

    def annotations(self, rollout_id: RolloutId) -> tuple[Annotation, ...]:
        """Return what stands about a rollout, in the order it was written."""

    def annotation(self, annotation_id: str) -> Annotation | None:
        """Return one annotation that was not withdrawn."""

    def labels(self, within: Within = None) -> tuple[LabelCount, ...]:
        """Return every label in use with the number of its rollouts, the commonest first."""

    def views(self) -> tuple[SavedView, ...]:
        """Return the saved views by name."""

    def rollout(self, rollout_id: RolloutId) -> Rollout | None:
        """Return the rollout, or None when it is unknown or deleted."""

    def rollout_state(self, rollout_id: RolloutId) -> RolloutState | None:
        """Return the state, also of a deleted rollout; None when unknown."""

    def rollout_by_key(self, key_hash: KeyHash) -> Rollout | None:
        """Return the rollout that has this capture key, unless deleted."""

    def open_rollouts(self) -> tuple[Rollout, ...]:
        """Return every rollout that is neither closed nor deleted, oldest first."""

    def record(self, rollout_id: RolloutId) -> RolloutRecord | None:
        """Return everything the judge reads, calls in sequence order."""

    def record_stamp(self, rollout_id: RolloutId) -> tuple[int, int]:
        """Return (call rows, event rows); rows are only ever added, so an equal stamp
        means that `record` would answer the same."""

    def record_stamps(self) -> tuple[RecordStamp, ...]:
        """Return the stamp of every rollout that is not deleted, the newest first."""

    def call(self, call_id: CallId) -> Call | None:
        """Return one ended call; None when unknown, still open, or deleted."""

    def bodies(self, call_id: CallId) -> tuple[Body, ...]:
        """Return a call's exact bodies; `StoreDamaged` when a digest differs."""

    def every_body(
        self, rollout_id: RolloutId
    ) -> Iterator[tuple[CallId, tuple[Body, ...] | str]]:
        """Yield every call's bodies; words instead of those that are damaged."""

    def replies(self, rollout_id: RolloutId) -> Iterator[tuple[CallId, bytes | str]]:
        """Yield every raw reply of a rollout; words instead of bytes that are damaged."""

    def list_rollouts(self, query: RolloutQuery) -> RolloutPage:
        """Return one page of summaries; `InvalidValue` for a cursor of another order."""

    def facets(self, query: RolloutQuery, most: int = 12) -> tuple[Facet, ...]:
        """Count the values of the fields worth choosing by, each within the other terms."""

    def rollout_runs(self) -> dict[RolloutId, str]:
        """Return the run of every rollout that is not deleted."""

    def run_summary(self, run: str, within: Within = None) -> RunSummary | None:
        """Return one run; None when no rollout of it is left. Here and below, `within`
        leaves out all other rollouts than those it holds."""

    def run_groups(self, run: str, part: GroupPart, within: Within = None) -> GroupPage:
        """Return some groups of a run with their first rollouts."""

    def run_spread(self, run: str, within: Within = None) -> RunSpread:
        """Return the rewards and lengths of a run's rollouts."""

    def run_points(self, run: str, within: Within = None) -> tuple[RunPoint, ...]:
        """Return what charts read of each rollout of a run, in the order of creation."""

    def judged_otherwise(self, policy: str, limit: int) -> tuple[RolloutId, ...]:
        """Return closed rollouts, the newest first, whose latest summary was not made under
        `policy` (or that have none)."""

    def list_runs(self, within: Within = None) -> tuple[RunSummary, ...]:
        """Return every run, the newest first."""

    def group_members(
        self,
        run: str,
        *,
        task: str | None = None,
        group: str | None = None,
        within: Within = None,
    ) -> tuple[RolloutSummary, ...]:
        """Return the rollouts of a run with this group (else task), by attempt."""

    def certificate(self, certificate_id: str) -> Certificate | None:
        """Return one certificate."""

    def latest_certificate(
        self, *, engine_name: str | None = None, model: str | None = None
    ) -> Certificate | None:
        """Return the newest certificate that matches what is given."""

    def vocabulary(self, tokenizer_id: TokenizerId) -> tuple[VocabularyEntry, ...]:
        """Return a tokenizer's tokens by id; empty when it was never stored."""

    def next_sequence(self, rollout_id: RolloutId) -> int:
        """Return 1 + the largest call sequence of the rollout (0 when it has none)."""

    def health(self) -> StoreHealth:
        """Return the gauges; works while the database does not."""

    def backup(self, target: Path) -> BackupReport:
        """Copy the open store into a new file, consistent while it is being written.

        Raises `StoreFailed` when the target exists.
        """

    def snapshot(self) -> Snapshot:
        """Return a copy of what the SQL console may see."""

    def quarantined(self) -> tuple[QuarantinedRow, ...]:
        """Return the rows that could not be written, newest first."""

    async def close(self) -> None:
        """Drain the queue, checkpoint, and release the file."""
