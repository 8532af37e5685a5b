"""Looks which schedules are due, and makes their jobs.

Owns: the look itself: new closed rollouts of a view that may leave, no more than one job of a
schedule at once, and every reason to pause. Must not know: what a filter means, HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from explorer.access.audit import AuditLog, Entry, Event
from explorer.export.dataset.planning import Source
from explorer.export.publishing.jobs import Job, JobBook, State, Wants
from explorer.export.publishing.leaves import Leaves
from explorer.export.publishing.schedules import (
    GONE,
    MINUTE_US,
    Schedule,
    ScheduleBook,
)
from explorer.export.publishing.where import needs_token
from explorer.records import RolloutId

# Reads for secrets in one look; what is left waits for the next.
MOST_READ = 200


@dataclass(frozen=True, slots=True)
class ViewNow:
    """A saved view as it is now, and the rollouts that it shows."""

    query: str
    rollouts: Sequence[RolloutId]


@dataclass(frozen=True, slots=True)
class Watching:
    """What a look needs.

    Attributes:
        view: finds a saved view; None where it was dropped.
        ended: why the caller who gave the token is no longer who they were, or nothing.
    """

    book: JobBook
    schedules: ScheduleBook
    leaves: Leaves
    source: Source
    audit: AuditLog
    view: Callable[[str], ViewNow | None]
    ended: Callable[[str], str]


class Looks:
    """Looks at most once a minute, and only when something was written."""

    def __init__(self, watching: Watching) -> None:
        self._with = watching
        self._commits = -1
        self._at = 0
        self._refused: dict[RolloutId, tuple[int, int, int]] = {}
        self._left = False

    async def look(self) -> None:
        """Makes the jobs that are due."""
        now = self._with.schedules.clock()
        running = [each for each in self._with.schedules.all if each.runs]
        if not running or now - self._at < MINUTE_US:
            return
        commits = self._with.source.store.health().commits
        tried_again = any(each.next_us is not None for each in running)
        if commits == self._commits and not tried_again and not self._left:
            return
        self._at, self._commits, self._left = now, commits, False
        for schedule in running:
            if schedule.next_us is None or now >= schedule.next_us:
                await asyncio.to_thread(self._one, schedule)

    def look_again(self) -> None:
        """The next look is due at once: a schedule was made or let go on."""
        self._at, self._commits = 0, -1

    def left_out(self, rollout_ids: Iterable[str]) -> None:
        """Rollouts that a job left out: not tried again before anything of them changed."""
        for each in rollout_ids:
            self._refused[RolloutId(each)] = self._stamp(RolloutId(each))

    def _stamp(self, rollout_id: RolloutId) -> tuple[int, int, int]:
        store = self._with.source.store
        return (*store.record_stamp(rollout_id), len(store.secret_decisions(rollout_id)))

    def _one(self, schedule: Schedule) -> None:
        watching = self._with
        if any(
            job.schedule_id == schedule.schedule_id
            and (job.active or job.state is State.WAITING)
            for job in watching.book.all
        ):
            return
        view = watching.view(schedule.view)
        why = self._why_not(schedule, view)
        if why or view is None:
            self.pause(schedule, why)
            return
        fresh = self._fresh(schedule, view.rollouts)
        if not fresh:
            return
        job = watching.book.add(_job(schedule), fresh)
        watching.leaves.pass_on(schedule.schedule_id, job.job_id)
        watching.schedules.keep(replace(schedule, last_job=job.job_id))
        detail = {"target": schedule.choices.target, "schedule": schedule.schedule_id,
                  "rollouts": len(fresh)}  # fmt: skip
        watching.audit.append(
            Entry(
                Event.DATASET_BEGUN,
                schedule.who,
                object=f"dataset {job.job_id}",
                name=schedule.who_name,
                reason="by schedule",
                detail=detail,
            )
        )

    def _why_not(self, schedule: Schedule, view: ViewNow | None) -> str:
        if view is None:
            return (
                f"the view “{schedule.view}” was dropped: save it again, or drop the schedule"
            )
        if view.query != schedule.query:
            return (
                f"the view “{schedule.view}” was changed: look at what it shows now, then let "
                "the schedule go on, or drop it"
            )
        ended = self._with.ended(schedule.schedule_id)
        if ended:
            return f"{ended}: somebody who may publish lets it go on"
        token = self._with.leaves.token(schedule.schedule_id)
        if token is None and needs_token(schedule.choices.target):
            return GONE
        return ""

    def pause(self, schedule: Schedule, why: str) -> None:
        """Lets a schedule publish nothing until somebody lets it go on."""
        self._with.schedules.keep(replace(schedule, paused=why))
        entry = Entry.by_server(
            Event.DATASET_SCHEDULE,
            f"schedule {schedule.schedule_id}",
            reason=why,
            detail={"change": "paused", "target": schedule.choices.target},
        )
        self._with.audit.append(entry)

    def _fresh(self, schedule: Schedule, rollouts: Sequence[RolloutId]) -> list[str]:
        """Closed rollouts that are not in its dataset yet and may leave."""
        store, found, read = self._with.source.store, [], 0
        undecided = store.secrets_undecided()
        for rollout_id in rollouts:
            if rollout_id in schedule.published or rollout_id in undecided:
                continue
            state = store.rollout_state(rollout_id)
            if state is None or state.closed_us is None:
                continue
            stamp = self._stamp(rollout_id)
            if self._refused.get(rollout_id) == stamp:
                continue
            if read == MOST_READ:
                self._left = True
                break
            read += 1
            if self._with.source.secrets.export_refusal(rollout_id) is None:
                found.append(str(rollout_id))
            else:
                self._refused[rollout_id] = stamp
        return found


def _job(schedule: Schedule) -> Job:
    return Job(
        job_id="",
        created_us=0,
        updated_us=0,
        who=schedule.who,
        who_name=schedule.who_name,
        query=schedule.query,
        view=schedule.view,
        n_rollouts=0,
        choices=schedule.choices,
        wants=Wants.PUBLISH,
        schedule_id=schedule.schedule_id,
    )
