"""Everything that people do with dataset jobs and schedules, each with its audit row.

Owns: how a job begins, is published, stopped, let go on and taken away; how a schedule is
made, let go on and dropped. Must not know: HTTP, who may do so (whoever calls has asked).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.people import Caller
from explorer.errors import InvalidValue
from explorer.export.hub.target import Target
from explorer.export.publishing.jobs import (
    ENDED,
    GOES_ON,
    Choices,
    Job,
    JobBook,
    State,
    Wants,
)
from explorer.export.publishing.leaves import Leaves
from explorer.export.publishing.procedure import Prepared
from explorer.export.publishing.schedules import Schedule, ScheduleBook
from explorer.export.publishing.scheduling import Looks
from explorer.export.publishing.worker import Worker

MOST_WAITING = 20
# The target of a job, with the token to use.
TargetOf = Callable[[Job, str | None], Target]


@dataclass(frozen=True, slots=True)
class Found:
    """What a filter shows to whoever asked.

    Attributes:
        view: name of the saved view; empty where it is none.
    """

    query: str
    view: str
    rollouts: Sequence[str]


class PublishingDesk:
    """The one place where datasets are asked for."""

    def __init__(
        self,
        book: JobBook,
        schedules: ScheduleBook,
        leaves: Leaves,
        audit: AuditLog,
        target_of: TargetOf,
        root: Path,
    ) -> None:
        self.book = book
        self.schedules = schedules
        self.leaves = leaves
        self.target_of = target_of
        self.root = root
        self._audit = audit
        self.worker: Worker | None = None
        self.looks: Looks | None = None

    def staffed(self, worker: Worker, looks: Looks) -> None:
        """Gives it who does the work."""
        self.worker, self.looks = worker, looks

    def folder(self, job_id: str) -> Path:
        """Where a job's files lie."""
        return self.root / job_id

    # -- jobs

    async def begin(
        self, caller: Caller, found: Found, choices: Choices, *, grant_id: str, wants: Wants
    ) -> Job:
        """A new job.

        Raises:
            InvalidValue: somebody has too many that wait already.
            StoreFailed: it cannot be written.
        """
        mine = [job for job in self.book.all if job.active and job.who == caller.subject]
        if len(mine) >= MOST_WAITING:
            raise InvalidValue(f"{len(mine)} of your jobs are not done yet; wait for those")
        job = Job(
            job_id="",
            created_us=0,
            updated_us=0,
            who=caller.subject,
            who_name=caller.name,
            query=found.query,
            view=found.view,
            n_rollouts=0,
            choices=choices,
            wants=wants,
            grant_id=grant_id,
            # A job that is to publish waits for its leave, which is given right after.
            state=State.QUEUED if wants is Wants.FILES else State.WAITING,
        )
        made = await asyncio.to_thread(self.book.add, job, found.rollouts)
        if wants is Wants.FILES:
            await self.note(caller, Event.DATASET_DRY_RUN, made, rollouts=made.n_rollouts)
            self._wake()
        return made

    async def publish(
        self, caller: Caller, job_id: str, choices: Choices, *, grant_id: str, typed: str
    ) -> Job:
        """Lets a job publish, with a token that was typed or that of the session.

        Raises:
            InvalidValue: the job stands where this cannot be done.
        """
        only = GOES_ON | {State.WRITTEN, State.DONE}
        job = self.book.get(job_id)
        self._require(job, only)
        if job.published:
            raise InvalidValue("it is published already; new rollouts take a new dry run")
        # Before the worker can begin it.
        self.leaves.give(job_id, caller, typed)
        made = await asyncio.to_thread(
            self.book.change, job_id, only, state=State.QUEUED, wants=Wants.PUBLISH,
            choices=choices, grant_id=grant_id, code="", message="", removed="",
            result={**job.result, "approved": _seen(job)},
        )  # fmt: skip
        await self.note(caller, Event.DATASET_BEGUN, made, rollouts=made.n_rollouts)
        self._wake()
        return made

    async def write_again(self, caller: Caller, job_id: str) -> Job:
        """Lets a dry run that was cut short begin anew."""
        made = await asyncio.to_thread(
            self.book.change, job_id, GOES_ON | {State.WRITTEN}, state=State.QUEUED,
            wants=Wants.FILES, code="", message="",
        )  # fmt: skip
        await self.note(caller, Event.DATASET_DRY_RUN, made, rollouts=made.n_rollouts)
        self._wake()
        return made

    def stop(self, job_id: str) -> Job:
        """Stops a job; what is under way ends at its next step.

        Raises:
            InvalidValue: it is not worked on.
        """
        job = self.book.get(job_id)
        if not job.active and job.state is not State.WAITING:
            raise InvalidValue(f"the job is `{job.state.value}`: there is nothing to stop")
        if self.worker is not None:
            self.worker.cancel(job_id)
        return self.book.get(job_id)

    async def remove_files(self, job_id: str) -> Job:
        """Removes a job's files from this machine; what was published stays.

        Raises:
            InvalidValue: it is worked on.
        """
        self._require(self.book.get(job_id), ENDED | {State.WAITING})
        if self.worker is not None:
            await asyncio.to_thread(self.worker.remove_files, job_id)
        return self.book.get(job_id)

    async def forget(self, job_id: str) -> None:
        """Takes a job and its files away; what was published stays.

        Raises:
            InvalidValue: it is worked on.
        """
        await self.remove_files(job_id)
        self.leaves.drop(job_id)
        await asyncio.to_thread(self.book.forget, job_id)

    async def hold(self, caller: Caller, target: str) -> None:
        """Before what is in a place is taken back: nothing publishes there by itself, or the
        next look of a schedule would bring all of it back.

        Raises:
            InvalidValue: a job is at it.
        """
        for job in self.book.all:
            if job.choices.target == target and job.active:
                raise InvalidValue(f"job {job.job_id} works for {target} now; stop it first")
        why = (
            f"what is in {target} was to be taken back: drop it, or let it go on if all that "
            "the view shows may be published again"
        )
        for schedule in self.schedules.all:
            if schedule.choices.target == target and schedule.runs:
                await self.pause(caller, schedule, why)

    async def removed(self, caller: Caller, job_id: str, how: str, reason: str) -> Job:
        """Notes that what a job published was taken back, and with it that of every other
        job to the same place."""
        target = next(each for each in self.book.all if each.job_id == job_id).choices.target
        for other in self.book.all:
            if other.job_id != job_id and other.published and other.choices.target == target:
                await asyncio.to_thread(self.book.change, other.job_id, removed=how)
        made = await asyncio.to_thread(self.book.change, job_id, removed=how)
        await self.note(caller, Event.DATASET_REMOVED, made, reason, how=how)
        return made

    @staticmethod
    def _require(job: Job, states: frozenset[State]) -> None:
        if job.state not in states:
            raise InvalidValue(
                f"the job is `{job.state.value}`; this can be done once it is "
                f"{' or '.join(f'`{each.value}`' for each in sorted(states))}"
            )

    async def note(
        self, caller: Caller, event: Event, job: Job, reason: str = "", **more: Any
    ) -> None:
        """A row about a job in the audit log."""
        detail = {
            "target": job.choices.target,
            "private": job.choices.private,
            "view": job.view,
            "grant": job.grant_id,
            "how": caller.how.value,
        }
        entry = Entry.by(
            caller, event, f"dataset {job.job_id}", reason=reason, detail=detail | more
        )
        await asyncio.to_thread(self._audit.append, entry)

    def _wake(self) -> None:
        if self.worker is not None:
            self.worker.wake()

    def ended(self, job: Job, prepared: Prepared | None) -> None:
        """What a job's end means for the schedule that made it."""
        if not job.schedule_id:
            return
        schedule = next(
            (each for each in self.schedules.all if each.schedule_id == job.schedule_id), None
        )
        if schedule is None:
            return
        ids = None
        if prepared is not None:
            ids = [str(entry.rollout_id) for entry in prepared.manifest.rollouts]
            if self.looks is not None:
                self.looks.left_out(each.rollout_id for each in prepared.manifest.excluded)
        self.schedules.keep(schedule.after(job, ids, self.schedules.clock()))

    # -- schedules

    async def schedule(
        self, caller: Caller, view: str, query: str, choices: Choices, typed: str
    ) -> Schedule:
        """A new schedule.

        Raises:
            InvalidValue: one of this view to this target is there already.
        """
        for each in self.schedules.all:
            if (each.view, each.choices.target) == (view, choices.target):
                raise InvalidValue(
                    f"the view “{view}” publishes itself to {choices.target} already "
                    f"(schedule {each.schedule_id})"
                )
        wanted = Schedule("", 0, view, query, choices, caller.subject, caller.name)
        made = await asyncio.to_thread(self.schedules.add, wanted)
        self.leaves.give(made.schedule_id, caller, typed)
        await self._changed(caller, made, "made")
        return made

    async def resume(self, caller: Caller, schedule: Schedule, query: str, typed: str) -> None:
        """Lets a paused schedule go on, with the view as it is now."""
        self.leaves.give(schedule.schedule_id, caller, typed)
        made = replace(
            schedule, enabled=True, paused="", failures=0, next_us=None, query=query,
            who=caller.subject, who_name=caller.name,
        )  # fmt: skip
        await asyncio.to_thread(self.schedules.keep, made)
        await self._changed(caller, made, "resumed")

    async def pause(
        self,
        caller: Caller,
        schedule: Schedule,
        why: str = "somebody paused it: let it go on when it should",
    ) -> None:
        """Lets a schedule publish nothing until somebody lets it go on."""
        self.leaves.drop(schedule.schedule_id)
        made = replace(schedule, paused=why)
        await asyncio.to_thread(self.schedules.keep, made)
        await self._changed(caller, made, "paused")

    async def drop(self, caller: Caller, schedule: Schedule) -> None:
        """Takes a schedule away; what it published stays."""
        self.leaves.drop(schedule.schedule_id)
        await asyncio.to_thread(self.schedules.drop, schedule.schedule_id)
        await self._changed(caller, schedule, "dropped")

    async def _changed(self, caller: Caller, schedule: Schedule, change: str) -> None:
        entry = Entry.by(
            caller,
            Event.DATASET_SCHEDULE,
            f"schedule {schedule.schedule_id}",
            detail={
                "change": change,
                "view": schedule.view,
                "target": schedule.choices.target,
                "private": schedule.choices.private,
            },
        )
        await asyncio.to_thread(self._audit.append, entry)
        if self.looks is not None:
            self.looks.look_again()
        self._wake()


def _seen(job: Job) -> str:
    """The manifest that a person looked at; of a job that goes on, the one from before."""
    if job.state is State.WRITTEN:
        return str(job.result.get("manifest_sha256", ""))
    return str(job.result.get("approved", ""))
