"""Jobs that write and publish datasets: what is kept of each, and where it stands.

Owns: the records of jobs, their states, and the rows of the access database.
Must not know: how a dataset is made or uploaded, HTTP. No token is ever kept in here.

One process owns the database, so what is in memory is the truth as soon as it is written. How
far a job is changes many times a second: that is told from memory and written once a second.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from time import monotonic
from typing import Any

from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.tables import DATASET_JOB
from explorer.errors import InvalidValue, NotFound

PROGRESS_EVERY_S = 1.0


class State(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"  # others are worked on first
    WORKING = "working"  # planned, written and checked
    WRITTEN = "written"  # a dry run is done: the files are there
    PUBLISHING = "publishing"  # uploaded
    WAITING = "waiting"  # for a token, which was in memory and is gone
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


ACTIVE = frozenset((State.QUEUED, State.WORKING, State.PUBLISHING))
ENDED = frozenset((State.WRITTEN, State.DONE, State.FAILED, State.STOPPED))
# From where a person may let it go on.
GOES_ON = frozenset((State.WAITING, State.FAILED, State.STOPPED))


class Wants(StrEnum):
    """What a job is for."""

    FILES = "files"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person chose about a dataset.

    Attributes:
        target: where it goes; empty for a dry run that names no place.
        card: title, licence and words of the card, as its own module writes them.
    """

    target: str
    card: Mapping[str, Any]
    private: bool = True
    gated: str = ""
    formats: tuple[str, ...] = ()
    bodies: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        n_rollouts: how many ids were pinned; the ids are in the database only.
        result: counts, files and address; what pages show once there is something.
    """

    job_id: str
    created_us: int
    updated_us: int
    who: str
    who_name: str
    query: str
    view: str
    n_rollouts: int
    choices: Choices
    wants: Wants
    state: State = State.QUEUED
    phase: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    code: str = ""
    message: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    grant_id: str = ""
    schedule_id: str = ""
    files: bool = False
    removed: str = ""

    @property
    def active(self) -> bool:
        """Whether it is worked on, or will be by itself."""
        return self.state in ACTIVE

    @property
    def published(self) -> bool:
        """Whether something of it is out, as far as we know."""
        return self.state is State.DONE and not self.removed and "url" in self.result


class JobBook:
    """Every job of one server; safe from any thread.

    Args:
        database: where jobs are kept.
        clock: microseconds since the epoch.
    """

    def __init__(self, database: AccessDatabase, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self.clock = clock
        self._lock = threading.RLock()
        self._written: dict[str, float] = {}
        self._jobs: dict[str, Job] = database.read(_read_all)

    @property
    def all(self) -> tuple[Job, ...]:
        """Every job, the newest first."""
        return tuple(reversed(list(self._jobs.values())))

    def get(self, job_id: str) -> Job:
        """Raises:
        NotFound: there is no such job.
        """
        found = self._jobs.get(job_id)
        if found is None:
            raise NotFound(f"there is no dataset job {job_id[:60]}")
        return found

    def add(self, job: Job, rollouts: Sequence[str]) -> Job:
        """Keeps a new job, with the ids that it is pinned to.

        Raises:
            StoreFailed: it cannot be written.
        """
        made = replace(
            job,
            job_id="d" + secrets.token_hex(8),
            created_us=self.clock(),
            updated_us=self.clock(),
            n_rollouts=len(rollouts),
        )
        row = _row(made) | {"rollouts": json.dumps(list(rollouts))}
        with self._lock:
            self._database.write(lambda rows: rows.insert(DATASET_JOB, row))
            self._keep(made)
        return made

    def rollouts(self, job_id: str) -> tuple[str, ...]:
        """The ids that a job is pinned to, in the order in which they were found."""
        key = {"job_id": job_id}
        found = self._database.read(lambda rows: rows.select(DATASET_JOB, key))
        return tuple(json.loads(found[0]["rollouts"])) if found else ()

    def change(
        self, job_id: str, only_from: frozenset[State] | None = None, **changes: Any
    ) -> Job:
        """Changes some of a job, in memory and on disk.

        Raises:
            NotFound: there is no such job.
            InvalidValue: it stands where this cannot be done to it.
            StoreFailed: it cannot be written; nothing changed.
        """
        with self._lock:
            job = self.get(job_id)
            if only_from is not None and job.state not in only_from:
                raise InvalidValue(
                    f"the job is `{job.state.value}`; this can be done while it is "
                    f"{' or '.join(f'`{each.value}`' for each in sorted(only_from))}"
                )
            made = replace(job, **changes, updated_us=self.clock())
            self._database.write(
                lambda rows: rows.update(DATASET_JOB, {"job_id": job_id}, _row(made, job))
            )
            self._written[job_id] = monotonic()
            self._keep(made)
            return made

    def progress(self, job_id: str, phase: str, done: int, total: int, unit: str) -> None:
        """How far a job is: told at once, written at most once a second."""
        told: dict[str, Any] = {"phase": phase, "done": done, "total": total, "unit": unit}
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None or not job.active:
                return
            due = monotonic() - self._written.get(job_id, 0.0) >= PROGRESS_EVERY_S
            if due or phase != job.phase:
                self.change(job_id, **told)
            else:
                self._keep(replace(job, **told))

    def forget(self, job_id: str) -> None:
        """Takes a job away; what it published stays where it is."""
        with self._lock:
            self._database.write(lambda rows: rows.delete(DATASET_JOB, {"job_id": job_id}))
            self._jobs = {key: job for key, job in self._jobs.items() if key != job_id}

    def _keep(self, job: Job) -> None:
        # A new dict each time: readers go through the old one without a lock.
        self._jobs = {**self._jobs, job.job_id: job}


_SAME = ("query", "view", "phase", "done", "total", "unit", "code", "message", "grant_id",
         "schedule_id", "files", "removed", "who", "who_name")  # fmt: skip


def _row(job: Job, before: Job | None = None) -> dict[str, Any]:
    """The row of a job without its ids; after `before`, only what can change."""
    row: dict[str, Any] = {name: getattr(job, name) for name in _SAME}
    row |= choices_row(job.choices)
    row |= {
        "wants": job.wants.value,
        "state": job.state.value,
        "result": json.dumps(dict(job.result), sort_keys=True),
    }
    if before is None:
        row |= {"job_id": job.job_id, "created_time": job.created_us}
        return row | {"updated_time": job.updated_us}
    was = _row(before)
    changed = {name: value for name, value in row.items() if value != was[name]}
    return changed | {"updated_time": job.updated_us}


def choices_row(choices: Choices) -> dict[str, Any]:
    """Choices as columns."""
    plain = asdict(choices)
    return {
        **{name: plain[name] for name in ("target", "private", "gated", "bodies")},
        "choice": json.dumps(dict(choices.card), sort_keys=True),
        "formats": json.dumps(list(choices.formats)),
    }


def choices_of(row: Mapping[str, Any]) -> Choices:
    """Choices from columns."""
    return Choices(
        target=row["target"],
        card=json.loads(row["choice"]),
        private=row["private"],
        gated=row["gated"],
        formats=tuple(json.loads(row["formats"])),
        bodies=row["bodies"],
    )


def _read_all(rows: Rows) -> dict[str, Job]:
    found = rows.select(DATASET_JOB, None, "ORDER BY created_time, rowid")
    return {row["job_id"]: _read(row) for row in found}


def _read(row: Mapping[str, Any]) -> Job:
    return Job(
        job_id=row["job_id"],
        created_us=row["created_time"],
        updated_us=row["updated_time"],
        n_rollouts=len(json.loads(row["rollouts"])),
        choices=choices_of(row),
        wants=Wants(row["wants"]),
        state=State(row["state"]),
        result=json.loads(row["result"]),
        **{name: row[name] for name in _SAME},
    )
