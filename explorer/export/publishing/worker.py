"""The background task that works on dataset jobs, one at a time.

Owns: which job is next, what becomes of one after a restart, and how it ends.
Must not know: HTTP, pages, who may publish what.

Whatever goes wrong with a job becomes that job's error, in words; the task goes on with the
next. Each job runs in a task of its own, so that also a fault of ours ends only it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from explorer.access.audit import AuditLog, Entry, Event
from explorer.errors import ExplorerError, StoreFailed
from explorer.export.card.choice import choice_from_json
from explorer.export.dataset.planning import Source
from explorer.export.hub.target import Target
from explorer.export.publishing.approved import Approved, ChangedSince
from explorer.export.publishing.endings import (
    DELETED,
    NO_ROOM,
    STARTED_ANEW,
    WAITS,
    disk_words,
    make_ready,
    room_for,
)
from explorer.export.publishing.jobs import ENDED, Job, JobBook, State, Wants
from explorer.export.publishing.leaves import Leaves
from explorer.export.publishing.procedure import Order, Prepared, Progress, prepare, publish
from explorer.export.publishing.results import published_told, short, told_of
from explorer.export.publishing.where import needs_token, repo_of
from explorer.records import RolloutId

log = logging.getLogger(__name__)

POLL_S = 1.0
TIDY_EVERY_S = 3600.0
RETRY_S = 5.0
_STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Means:
    """What the worker works with.

    Attributes:
        folder: of all jobs' folders.
        target_of: the target of a job, with the token to use.
        still: why a job must not go on publishing, or nothing; asked while it does.
        look: makes the jobs that schedules are due for.
        ended: told of each job that ended.
        keep_days: after so many days the files of a job that ended are removed.
        min_free: bytes of disk below which nothing is written: recording comes first.
    """

    book: JobBook
    source: Source
    leaves: Leaves
    audit: AuditLog
    folder: Path
    target_of: Callable[[Job, str | None], Target]
    still: Callable[[Job], str]
    look: Callable[[], Awaitable[None]]
    ended: Callable[[Job, Prepared | None], None]
    keep_days: float
    min_free: int = 0


@dataclass(slots=True)
class _Now:
    """The job that is worked on.

    Attributes:
        code, why: why it was stopped, where no person did.
        purge: its files must go.
    """

    job_id: str
    stop: threading.Event = field(default_factory=threading.Event)
    code: str = ""
    why: str = ""
    purge: bool = False
    prepared: Prepared | None = None

    def end(self, code: str, why: str) -> None:
        """Stops it for a reason."""
        self.code, self.why = code, why
        self.stop.set()


class Worker:
    """The background task of one server."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._now: _Now | None = None
        self._closing = False
        self._tidied = 0.0

    def folder(self, job_id: str) -> Path:
        """Where a job's files lie."""
        return self._means.folder / job_id

    def start(self) -> None:
        """Begins, with what was left undone the last time; needs a running loop."""
        for job in reversed(self._means.book.all):
            if not job.active:
                continue
            if job.schedule_id:
                # Its token is gone; its schedule says so, and makes another job.
                self._over(job, State.STOPPED, message=STARTED_ANEW)
            elif job.state is not State.QUEUED:
                self._means.book.change(job.job_id, state=State.QUEUED)
        # What a writing that was cut short left beside.
        for left in self._means.folder.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)
        self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A fault of ours ends one round, not the work."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._closing:
            log.error("the work on datasets begins anew after a fault", exc_info=error)
            self._begin()

    async def stop(self) -> None:
        """Ends it wherever it is; what it was doing goes on after the next start."""
        self._closing = True
        if self._now is not None:
            self._now.stop.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def wake(self) -> None:
        """There is something to do; call it on the loop."""
        self._wake.set()

    def cancel(self, job_id: str) -> None:
        """Stops a job: what is being done ends at its next step."""
        job = self._means.book.get(job_id)
        if self._now is not None and self._now.job_id == job_id:
            self._now.stop.set()
        elif job.state in (State.QUEUED, State.WAITING):
            self._over(job, State.STOPPED)

    # -- the loop

    async def _run(self) -> None:
        while True:
            job = self._next()
            if job is not None:
                await self._do(job)
                continue
            await self._guarded(self._means.look())
            await self._guarded(self._tidy())
            self._wake.clear()
            if self._next() is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), POLL_S)

    def _next(self) -> Job | None:
        waiting = [job for job in self._means.book.all if job.state is State.QUEUED]
        return waiting[-1] if waiting else None

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Work whose fault does not end the task."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ExplorerError):
            log.warning("datasets: %s", error)
        elif error is not None:
            log.error("a fault in the work on datasets", exc_info=error)

    async def _do(self, job: Job) -> None:
        now = self._now = _Now(job.job_id)
        work = asyncio.create_task(self._work(job, now))
        watch = asyncio.create_task(self._watch(job, now))
        try:
            await asyncio.wait({work})
        finally:
            watch.cancel()
            if not work.done():
                # The server stops: threads end at their next step.
                now.stop.set()
                await asyncio.wait({work}, timeout=_STOP_S)
                work.cancel()
            self._now = None
        if work.cancelled() or self._closing:
            return
        await self._settled(job.job_id, now, work.exception())

    async def _settled(self, job_id: str, now: _Now, error: BaseException | None) -> None:
        """How it ended, written down; while that cannot be done, nothing else can."""
        while True:
            try:
                self._settle(job_id, now, error)
                return
            except StoreFailed as failed:
                log.error("the end of job %s cannot be written yet: %s", job_id, failed)
                await asyncio.sleep(RETRY_S)

    async def _watch(self, job: Job, now: _Now) -> None:
        """Stops a job whose leave has ended, or for which there is no room."""
        while not now.stop.is_set():
            if await asyncio.to_thread(self._no_room):
                now.end("disk", NO_ROOM)
            elif job.wants is Wants.PUBLISH and (why := self._means.still(job)):
                now.end("leave_ended", why)
            await asyncio.sleep(POLL_S)

    def _no_room(self) -> bool:
        return not room_for(self._means.folder, self._means.min_free)

    # -- one job

    async def _work(self, job: Job, now: _Now) -> None:
        means, folder = self._means, self.folder(job.job_id)
        if await asyncio.to_thread(self._no_room):
            now.end("disk", NO_ROOM)
            return
        means.book.change(job.job_id, state=State.WORKING, code="", message="")
        token = means.leaves.token(job.job_id)
        order = await asyncio.to_thread(self._order, job)
        told = self._told(job.job_id)
        await asyncio.to_thread(make_ready, folder)
        waits = job.wants is Wants.PUBLISH and token is None and needs_token(job.choices.target)
        if job.wants is Wants.FILES or (waits and not job.files):
            await self._prepare(job, order, now)
        if job.wants is Wants.FILES or waits:
            state = State.WAITING if waits else State.WRITTEN
            message = WAITS if waits else ""
            means.book.change(job.job_id, state=state, message=message)
            return
        target = await asyncio.to_thread(means.target_of, job, token)
        if job.result.get("approved"):
            target = Approved(target, str(job.result["approved"]))
        try:
            outcome = await publish(means.source, order, folder, target, told, now.stop)
        except ChangedSince as error:
            await self._prepare(job, order, now)
            means.book.change(
                job.job_id, state=State.WRITTEN, code=error.code, message=error.message
            )
            return
        now.prepared = outcome.prepared
        await self._written(job.job_id, outcome.prepared, folder)
        result = dict(means.book.get(job.job_id).result) | published_told(outcome.published)
        means.book.change(job.job_id, state=State.DONE, result=result, code="", message="")
        await self._note(Event.DATASET_PUBLISHED, job.job_id, url=result.get("url"))

    def _order(self, job: Job) -> Order:
        ids = self._means.book.rollouts(job.job_id)
        return Order(
            rollout_ids=tuple(RolloutId(each) for each in ids),
            choice=choice_from_json(dict(job.choices.card)),
            formats=job.choices.formats or None,
            bodies=job.choices.bodies,
        )

    async def _prepare(self, job: Job, order: Order, now: _Now) -> None:
        folder, told = self.folder(job.job_id), self._told(job.job_id)
        now.prepared = await prepare(
            self._means.source,
            order,
            folder,
            repo_id=repo_of(job.choices.target),
            told=told,
            stop=now.stop,
        )
        await self._written(job.job_id, now.prepared, folder)

    def _told(self, job_id: str) -> Callable[[Progress], None]:
        book = self._means.book

        def told(progress: Progress) -> None:
            if progress.phase == "uploading" and book.get(job_id).state is State.WORKING:
                book.change(job_id, state=State.PUBLISHING)
            book.progress(job_id, progress.phase, progress.done, progress.of, progress.unit)

        return told

    async def _written(self, job_id: str, prepared: Prepared, folder: Path) -> None:
        told = await asyncio.to_thread(told_of, prepared, folder)
        self._means.book.change(job_id, result=told, files=True)
        await self._note(Event.DATASET_PLANNED, job_id)

    # -- how it ends

    def _settle(self, job_id: str, now: _Now, error: BaseException | None) -> None:
        means = self._means
        job = means.book.get(job_id)
        if now.stop.is_set() and job.state is not State.DONE:
            if now.why:
                self._over(job, State.FAILED, now.code, now.why)
            else:
                self._over(job, State.STOPPED)
        elif isinstance(error, ExplorerError):
            self._over(job, State.FAILED, error.code, error.message)
        elif isinstance(error, OSError):
            self._over(job, State.FAILED, "disk", disk_words(error))
        elif error is not None:
            log.error("job %s ended by a fault of ours", job_id, exc_info=error)
            words = "something went wrong in this program; the server's log says what"
            self._over(job, State.FAILED, "internal_error", words)
        if now.purge:
            self.remove_files(job_id)
        job = means.book.get(job_id)
        if not job.active:
            # Whoever lets it go on gives a token for that.
            means.leaves.drop(job_id)
        if job.state in ENDED:
            means.ended(job, now.prepared)

    def _over(self, job: Job, state: State, code: str = "", message: str = "") -> None:
        there = job.files or self.folder(job.job_id).is_dir()
        self._means.book.change(
            job.job_id, state=state, code=code, message=message, files=there
        )
        entry = self._entry(Event.DATASET_FAILED, job, code or state.value)
        with contextlib.suppress(StoreFailed):
            self._means.audit.append(entry)

    async def _note(self, event: Event, job_id: str, **more: object) -> None:
        job = self._means.book.get(job_id)
        entry = self._entry(event, job, "", **short(job.result), **more)
        await asyncio.to_thread(self._means.audit.append, entry)

    @staticmethod
    def _entry(event: Event, job: Job, reason: str, **more: object) -> Entry:
        detail = {"target": job.choices.target, "wants": job.wants.value, **more}
        if job.schedule_id:
            detail["schedule"] = job.schedule_id
        return Entry(
            event, job.who, object=f"dataset {job.job_id}", name=job.who_name, reason=reason,
            detail=detail,
        )  # fmt: skip

    # -- files

    def forget(self, rollout_id: RolloutId) -> None:
        """Removes what was written of a rollout that is deleted; blocks. What was published
        stays published: the pages of those jobs say how it is taken back."""
        for job in self._means.book.all:
            now = self._now
            working = now is not None and now.job_id == job.job_id
            if not (job.files or working):
                continue
            if str(rollout_id) not in self._means.book.rollouts(job.job_id):
                continue
            if working and now is not None:
                now.purge = True
                now.end("rollout_deleted", DELETED)
            else:
                self.remove_files(job.job_id)

    def remove_files(self, job_id: str) -> None:
        """Removes the files of a job that is not worked on; blocks."""
        shutil.rmtree(self.folder(job_id), ignore_errors=True)
        self._means.book.change(job_id, ENDED | {State.WAITING}, files=False)

    async def _tidy(self) -> None:
        """Removes files that were kept long enough."""
        now = asyncio.get_running_loop().time()
        if now - self._tidied < TIDY_EVERY_S and self._tidied:
            return
        self._tidied = now
        before = self._means.book.clock() - int(self._means.keep_days * 86_400_000_000)
        for job in self._means.book.all:
            old = job.files and job.updated_us < before
            if old and (job.state in ENDED or job.state is State.WAITING):
                await asyncio.to_thread(self.remove_files, job.job_id)
