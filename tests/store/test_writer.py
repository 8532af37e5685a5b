"""The writer's order of things: groups, admissions, who is told what and when."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import duckdb
import pytest

from explorer.errors import StoreFailed
from explorer.records import EventKind
from explorer.store import DuckDBStore, Store, StoreOptions
from explorer.store.work import GROUP_BYTES, EndedCall, Work, WorkQueue, size_of
from tests.store.making import (
    OPTIONS,
    make_admission,
    make_bodies,
    make_call,
    make_event,
    make_rollout,
    rollout_id,
    with_store,
)


def rows_on_disk(path: Path) -> list[tuple[int, bool]]:
    """Return (sequence, ended) of every row of the call table of a closed store."""
    connection = duckdb.connect(str(path), read_only=True)
    query = "SELECT sequence, ended FROM call ORDER BY sequence, ended"
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_an_admission_waits_for_company_but_not_long(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(0))
        began = time.monotonic()
        await store.admit(make_admission(make_call(0, 0)))
        assert time.monotonic() - began >= 0.04
        record = store.record(rollout_id(0))
        assert record is not None
        assert len(record.open_calls) == 1
        # A call that ends within the wait needs no admission row: its own says more.
        admitted = store.admit(make_admission(make_call(0, 1)))
        await store.commit_call(make_call(0, 1), ())
        await admitted
        await store.commit_call(make_call(0, 0), ())

    with_store(path, work, StoreOptions(min_free_bytes=0, admission_linger_s=0.05))
    assert rows_on_disk(path) == [(0, False), (0, True), (1, True)]


def test_events_are_numbered_per_rollout_across_restarts(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    async def add(store: DuckDBStore) -> list[int]:
        events = [make_event(number, EventKind.REWARD, reward=1.0) for number in (0, 1, 0)]
        added = await asyncio.gather(*(store.add_event(event) for event in events))
        return [event.sequence for event in added]

    assert with_store(path, add) == [0, 0, 1]
    assert with_store(path, add) == [2, 1, 3]


def test_a_rollout_added_again_keeps_its_event_numbers(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    async def add(store: DuckDBStore) -> list[int]:
        both = await asyncio.gather(
            store.add_rollout(make_rollout(0)),
            store.add_event(make_event(0, EventKind.STARTED)),
        )
        assert store.quarantined() == ()
        event = await store.add_event(make_event(0, EventKind.REWARD, reward=1.0))
        assert both[1] is not None
        return [both[1].sequence, event.sequence]

    assert with_store(path, add) == [0, 1]
    assert with_store(path, add) == [2, 3]


def test_large_bodies_commit_alone_and_close_drains(tmp_path: Path) -> None:
    async def collect() -> list[int]:
        queue = WorkQueue(0.0, 0.0)
        loop = asyncio.get_running_loop()
        rng = random.Random(1)
        for number, size in enumerate((100, GROUP_BYTES, 100, 100)):
            call = make_call(0, number)
            record = EndedCall(call, make_bodies(call, rng, size))
            queue.put(Work(record, loop.create_future(), size_of(record)))
        queue.close()
        assert queue.put(Work(record, loop.create_future(), 1)) is False
        sizes = []
        while (group := queue.collect(0.1)) is not None:
            sizes.append(len(group))
        return sizes

    assert asyncio.run(collect()) == [1, 1, 2]

    async def leave(store: DuckDBStore) -> list[asyncio.Task[None]]:
        call = make_call(0, 0)
        await store.commit_call(call, make_bodies(call, random.Random(2), GROUP_BYTES))
        tasks = [
            asyncio.create_task(store.commit_call(make_call(0, number), ()))
            for number in range(1, 50)
        ]
        await asyncio.sleep(0)
        return tasks

    async def run() -> None:
        store = DuckDBStore(tmp_path / "store.duckdb", OPTIONS)
        same: Store = store  # the protocol is met, says the type checker
        tasks = await leave(store)
        await same.close()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert rows_on_disk(tmp_path / "store.duckdb") == [(n, True) for n in range(50)]


def test_a_cancelled_caller_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    async def work(store: DuckDBStore) -> None:
        task = asyncio.create_task(store.commit_call(make_call(0, 0), ()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.commit_call(make_call(0, 1), ())

    with_store(path, work)
    assert rows_on_disk(path) == [(0, True), (1, True)]


def test_the_event_loop_is_not_blocked_by_commits(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> float:
        rng = random.Random(3)
        calls = [make_call(0, number) for number in range(300)]
        made = [(call, make_bodies(call, rng, 20_000)) for call in calls]
        worst = 0.0

        async def beat() -> None:
            nonlocal worst
            while True:
                before = time.thread_time()
                await asyncio.sleep(0.001)
                worst = max(worst, time.thread_time() - before)

        beating = asyncio.create_task(beat())
        await asyncio.gather(*(store.commit_call(call, bodies) for call, bodies in made))
        beating.cancel()
        return worst

    # CPU time of the loop's own thread between two beats, whatever else runs here.
    assert with_store(tmp_path / "store.duckdb", work) < 0.1


def test_refusals_name_the_quarantined_row(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        call = make_call(0, 0)
        other = make_bodies(make_call(0, 1), random.Random(1))
        doubled = make_bodies(call, random.Random(1))[:1] * 2
        for bodies in (other, doubled):
            with pytest.raises(StoreFailed) as caught:
                await store.commit_call(call, bodies)
            quarantine_id = caught.value.details["quarantine_id"]
            assert quarantine_id in {row.quarantine_id for row in store.quarantined()}
        await store.commit_call(call, doubled[:1])

    with_store(tmp_path / "store.duckdb", work)
