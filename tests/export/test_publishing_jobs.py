"""The books of jobs and schedules, and a worker that nothing ends."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from explorer.access.audit import AuditLog
from explorer.access.database import AccessDatabase
from explorer.access.people import Caller, How, Role
from explorer.access.tables import DATASET_JOB
from explorer.errors import InvalidValue, NotFound, StoreFailed
from explorer.export.card.choice import CardChoice
from explorer.export.hub.folder import LocalFolder
from explorer.export.hub.target import Target
from explorer.export.publishing import jobs as jobs_module
from explorer.export.publishing import worker as worker_module
from explorer.export.publishing.desk import Found, PublishingDesk
from explorer.export.publishing.jobs import Choices, Job, JobBook, State, Wants
from explorer.export.publishing.leaves import Leaves
from explorer.export.publishing.schedules import MINUTE_US, Schedule, ScheduleBook
from explorer.export.publishing.where import Place, needs_token, read_where, repo_of
from explorer.export.publishing.worker import Means, Worker
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import ALL, OPTIONS, fill, source_of

CARD = asdict(CardChoice("A set", "mit"))
CHOICES = Choices("file:/nowhere", CARD)
JOB = Job("", 0, 0, "p:u", "U", "run=r", "", 0, CHOICES, Wants.FILES)
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[AccessDatabase]:
    made = AccessDatabase(tmp_path / "a.duckdb")
    yield made
    made.close()


# -- books


def test_a_job_reads_back_as_it_was_kept(database: AccessDatabase) -> None:
    book = JobBook(database)
    made = book.add(replace(JOB, view="a view"), ["x", "y"])
    book.change(made.job_id, state=State.FAILED, code="c", message="m", result={"a": [1]})
    again = JobBook(database)
    assert again.get(made.job_id) == book.get(made.job_id)
    assert again.rollouts(made.job_id) == ("x", "y")
    assert again.get(made.job_id).n_rollouts == 2
    with pytest.raises(NotFound):
        again.get("d0")


def test_progress_is_told_at_once_and_written_once_a_second(
    database: AccessDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr(jobs_module, "monotonic", lambda: seconds)
    book = JobBook(database)
    job_id = book.add(replace(JOB, state=State.WORKING), ["x"]).job_id
    book.progress(job_id, "writing", 1, 10, "rollouts")

    def written() -> int:
        rows = database.read(lambda rows: rows.select(DATASET_JOB, {"job_id": job_id}))
        return int(rows[0]["done"])

    for done in range(2, 9):
        book.progress(job_id, "writing", done, 10, "rollouts")
    assert (book.get(job_id).done, written()) == (8, 1)
    seconds += 1
    book.progress(job_id, "writing", 9, 10, "rollouts")
    assert (book.get(job_id).done, written()) == (9, 9)
    book.change(job_id, state=State.STOPPED)
    book.progress(job_id, "writing", 10, 10, "rollouts")
    assert book.get(job_id).done == 9


def test_a_job_changes_only_from_where_it_may(database: AccessDatabase) -> None:
    book = JobBook(database)
    job_id = book.add(JOB, ["x"]).job_id
    with pytest.raises(InvalidValue, match="the job is `queued`"):
        book.change(job_id, frozenset((State.WRITTEN,)), state=State.DONE)
    assert book.get(job_id).state is State.QUEUED


def test_a_schedule_reads_back_and_waits_longer_each_time(database: AccessDatabase) -> None:
    book = ScheduleBook(database)
    made = book.add(Schedule("", 0, "v", "run=r", CHOICES, "p:u", "U"))
    failed = replace(JOB, state=State.FAILED, code="hub_unavailable", message="later")
    waits = []
    for _ in range(6):
        made = made.after(failed, None, 0)
        waits.append((made.next_us or 0) // MINUTE_US)
    assert waits == [2, 4, 8, 16, 32, 60]
    assert made.paused == "its newest job failed: later"
    book.keep(made)
    assert ScheduleBook(database).get(made.schedule_id) == made
    done = replace(JOB, state=State.DONE)
    better = replace(made, paused="").after(done, ["x"], 0)
    assert (better.failures, better.next_us, better.published) == (0, None, frozenset("x"))
    refused = replace(JOB, state=State.FAILED, code="hub_unauthorised", message="no token")
    assert better.after(refused, None, 0).paused
    book.drop(made.schedule_id)
    book.keep(made)
    assert book.all == ()


def test_where_is_read_in_one_way() -> None:
    assert read_where("hf://datasets/a/b").text == read_where(" a/b ").text == "a/b"
    assert read_where("hf://buckets/a/b/c").place is Place.BUCKET
    for path in ("/a", "./a", "../a", "~/a", "file:a", "file:///a", ".", ".."):
        assert read_where(path).place is Place.FOLDER, path
        assert not needs_token(path)
        assert repo_of(path) is None
    assert read_where(read_where("~/a").text) == read_where("~/a")
    assert needs_token("")
    with pytest.raises(InvalidValue):
        read_where(" ")


def test_a_token_is_in_no_text_of_a_leave() -> None:
    leaves = Leaves(lambda session: "hf_session" if session == "s" else None)
    leaves.give("j", OPERATOR, "hf_typed")
    assert "hf_typed" not in repr(leaves.__dict__)
    assert leaves.token("j") == "hf_typed"
    leaves.pass_on("j", "k")
    leaves.drop("j")
    assert (leaves.token("j"), leaves.token("k")) == (None, "hf_typed")
    leaves.give("s", replace(OPERATOR, session_hash="s"))
    assert leaves.token("s") == "hf_session"
    assert not leaves.usable(OPERATOR, "")


# -- the worker


class Faulty(LocalFolder):
    """A folder whose disk fails, or which has a fault of ours."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(path, True)
        self._error = error

    def prepare(self) -> None:
        raise self._error


class Office:
    """A desk and a worker over a store, without a server."""

    def __init__(self, store: DuckDBStore, database: AccessDatabase, root: Path) -> None:
        self.target: Target = LocalFolder(root / "out", True)
        audit = AuditLog(database)
        self.desk = PublishingDesk(
            JobBook(database),
            ScheduleBook(database),
            Leaves(lambda session: None),
            audit,
            lambda job, token: self.target,
            root / "jobs",
        )

        async def look() -> None:
            raise KeyError("a fault in the look at schedules")

        self.worker = Worker(
            Means(
                book=self.desk.book,
                source=source_of(store),
                leaves=self.desk.leaves,
                audit=audit,
                folder=root / "jobs",
                target_of=lambda job, token: self.target,
                still=lambda job: "",
                look=look,
                ended=self.desk.ended,
                keep_days=1,
            )
        )
        self.desk.worker = self.worker

    async def job(self, wants: Wants, **choices: object) -> Job:
        chosen = replace(CHOICES, **choices)  # type: ignore[arg-type]
        made = await self.desk.begin(
            OPERATOR, Found("run=r", "", [str(each) for each in ALL]), chosen,
            grant_id="", wants=wants,
        )  # fmt: skip
        if wants is Wants.PUBLISH:
            await self.desk.publish(OPERATOR, made.job_id, chosen, grant_id="", typed="")
        return await self.over(made.job_id)

    async def over(self, job_id: str) -> Job:
        for _ in range(400):
            job = self.desk.book.get(job_id)
            if not job.active:
                return job
            await asyncio.sleep(0.02)
        raise AssertionError(job)


def test_whatever_happens_to_a_job_the_worker_goes_on(
    database: AccessDatabase, tmp_path: Path
) -> None:
    async def work() -> list[Job]:
        store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
        await fill(store)
        office = Office(store, database, tmp_path)
        office.worker.start()
        found = []
        for error in (
            OSError(errno.ENOSPC, "No space left on device"),
            KeyError("a fault of ours, with hf_secretInIt"),
        ):
            office.target = Faulty(tmp_path / "out", error)
            found.append(await office.job(Wants.PUBLISH))
        found.append(await office.job(Wants.FILES, card={"title": "no licence"}))
        office.target = LocalFolder(tmp_path / "out", True)
        found.append(await office.job(Wants.PUBLISH))
        await office.worker.stop()
        await store.close()
        return found

    full, fault, wrong, good = asyncio.run(work())
    assert (full.state, full.code) == (State.FAILED, "disk")
    assert "the disk is full" in full.message
    assert (fault.state, fault.code) == (State.FAILED, "internal_error")
    assert "hf_secretInIt" not in fault.message
    assert (wrong.state, wrong.code) == (State.FAILED, "invalid_value")
    assert good.state is State.DONE, good
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["counts"]["rollouts"]


def test_a_fault_after_a_job_does_not_end_the_work(
    database: AccessDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "RETRY_S", 0.01)
    faults: list[Exception] = [
        StoreFailed("the disk is full"),
        StoreFailed("the disk is full"),
        KeyError("a fault of ours"),
    ]

    async def work() -> list[Job]:
        store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
        await fill(store)
        office = Office(store, database, tmp_path)

        def ended(job: Job, prepared: object) -> None:
            if faults:
                raise faults.pop(0)

        office.worker._means = replace(office.worker._means, ended=ended)
        office.worker.start()
        found = [await office.job(Wants.FILES) for _ in range(3)]
        await office.worker.stop()
        await store.close()
        return found

    assert [job.state for job in asyncio.run(work())] == [State.WRITTEN] * 3
    assert faults == []


def test_a_new_worker_on_the_same_files_finishes_what_was_begun(
    database: AccessDatabase, tmp_path: Path
) -> None:
    async def work() -> tuple[Job, Job]:
        store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
        await fill(store)
        first = Office(store, database, tmp_path)
        begun = first.desk.book.add(
            replace(JOB, state=State.WORKING), [str(each) for each in ALL]
        )
        uploading = first.desk.book.add(
            replace(
                JOB,
                state=State.PUBLISHING,
                wants=Wants.PUBLISH,
                choices=replace(CHOICES, target="ada/set"),
            ),
            [str(each) for each in ALL],
        )
        office = Office(store, database, tmp_path)
        office.worker.start()
        found = (await office.over(begun.job_id), await office.over(uploading.job_id))
        await office.worker.stop()
        await store.close()
        return found

    begun, uploading = asyncio.run(work())
    assert begun.state is State.WRITTEN
    # Its files are made; only the upload needs somebody.
    assert uploading.state is State.WAITING
    assert uploading.files
    assert uploading.result["rollouts"] == begun.result["rollouts"]
    assert uploading.result["manifest_sha256"] == begun.result["manifest_sha256"]
