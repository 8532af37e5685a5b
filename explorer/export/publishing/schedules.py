"""Saved views that publish themselves when their rollouts close.

Owns: the records of schedules, when one is due, and why one pauses.
Must not know: how a dataset is made or uploaded, HTTP, what a filter means (it is told which
rollouts a view shows). No token is ever kept in here.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.tables import DATASET_SCHEDULE
from explorer.errors import NotFound
from explorer.export.publishing.jobs import Choices, Job, choices_of, choices_row

MINUTE_US = 60_000_000
MOST_FAILURES = 6
LONGEST_WAIT_MIN = 60
# With these, trying again without a person helps nobody.
_HOPELESS = frozenset(("hub_unauthorised", "hub_forbidden", "hub_name_invalid", "leave_ended"))
GONE = (
    "the token was only in memory and is gone, with a restart or with the session it came "
    "from: let it go on with a token, or after signing in again"
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule.

    Attributes:
        query: what the view was when the schedule was made; it publishes nothing else.
        paused: why it publishes nothing now and what to do.
        next_us: not before this time, after a failure.
        published: ids that its dataset holds.
    """

    schedule_id: str
    created_us: int
    view: str
    query: str
    choices: Choices
    who: str
    who_name: str
    enabled: bool = True
    paused: str = ""
    last_job: str = ""
    failures: int = 0
    next_us: int | None = None
    published: frozenset[str] = frozenset()

    @property
    def runs(self) -> bool:
        """Whether it publishes by itself now."""
        return self.enabled and not self.paused

    def after(self, job: Job, ids: Sequence[str] | None, now_us: int) -> Schedule:
        """The schedule after one of its jobs ended; `ids` are in its dataset now."""
        held = self.published if ids is None else frozenset(ids)
        if job.state.value == "done":
            return replace(self, failures=0, next_us=None, published=held)
        failures = self.failures + 1
        wait = min(2**failures, LONGEST_WAIT_MIN) * MINUTE_US
        paused = ""
        if job.state.value == "stopped":
            paused = "its newest job was stopped: let it go on when it should"
        elif job.code in _HOPELESS or failures >= MOST_FAILURES:
            paused = f"its newest job failed: {job.message}"
        return replace(self, failures=failures, next_us=now_us + wait, paused=paused)


class ScheduleBook:
    """Every schedule of one server; safe from any thread.

    Args:
        database: where schedules are kept.
        clock: microseconds since the epoch.
    """

    def __init__(self, database: AccessDatabase, clock: Callable[[], int] = now_us) -> None:
        self._database = database
        self.clock = clock
        self._lock = threading.RLock()
        self._schedules: dict[str, Schedule] = database.read(_read_all)

    @property
    def all(self) -> tuple[Schedule, ...]:
        """Every schedule, the newest first."""
        return tuple(reversed(list(self._schedules.values())))

    def get(self, schedule_id: str) -> Schedule:
        """Raises:
        NotFound: there is no such schedule.
        """
        found = self._schedules.get(schedule_id)
        if found is None:
            raise NotFound(f"there is no schedule {schedule_id[:60]}")
        return found

    def add(self, schedule: Schedule) -> Schedule:
        """Keeps a new schedule."""
        schedule_id = "s" + secrets.token_hex(8)
        made = replace(schedule, schedule_id=schedule_id, created_us=self.clock())
        self._write(made, lambda rows: rows.insert(DATASET_SCHEDULE, _row(made)))
        return made

    def keep(self, schedule: Schedule) -> Schedule:
        """Keeps a changed schedule; one that was dropped meanwhile stays dropped."""
        if schedule.schedule_id in self._schedules:
            self._write(schedule, lambda rows: rows.replace(DATASET_SCHEDULE, _row(schedule)))
        return schedule

    def drop(self, schedule_id: str) -> None:
        """Takes a schedule away; what it published stays."""
        with self._lock:
            key = {"schedule_id": schedule_id}
            self._database.write(lambda rows: rows.delete(DATASET_SCHEDULE, key))
            self._schedules = {
                name: each for name, each in self._schedules.items() if name != schedule_id
            }

    def _write(self, schedule: Schedule, work: Callable[[Rows], None]) -> None:
        with self._lock:
            self._database.write(work)
            self._schedules = {**self._schedules, schedule.schedule_id: schedule}


def _row(schedule: Schedule) -> dict[str, Any]:
    row = {name: getattr(schedule, name) for name in _SAME}
    return {
        **row,
        **choices_row(schedule.choices),
        "created_time": schedule.created_us,
        "next_time": schedule.next_us,
        "published": json.dumps(sorted(schedule.published)),
    }


_SAME = ("schedule_id", "view", "query", "who", "who_name", "enabled", "paused", "last_job",
         "failures")  # fmt: skip


def _read_all(rows: Rows) -> dict[str, Schedule]:
    found = rows.select(DATASET_SCHEDULE, None, "ORDER BY created_time, rowid")
    return {row["schedule_id"]: _read(row) for row in found}


def _read(row: Mapping[str, Any]) -> Schedule:
    return Schedule(
        created_us=row["created_time"],
        choices=choices_of(row),
        next_us=row["next_time"],
        published=frozenset(json.loads(row["published"])),
        **{name: row[name] for name in _SAME},
    )
