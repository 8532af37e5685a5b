"""Listings: filters, orders, cursors, and their time on a big store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from explorer.errors import InvalidValue
from explorer.records import CallStatus, EventKind, RolloutId
from explorer.store import DuckDBStore
from explorer.store.queries import (
    Field,
    JudgementRow,
    Range,
    RolloutQuery,
    SortKey,
    Term,
)
from tests.store.making import (
    OPTIONS,
    make_call,
    make_event,
    make_rollout,
    rollout_id,
    with_store,
)

ROLLOUTS, CALLS = 10_000, 50


def judgement(number: int, *, trainable: bool, time_us: int) -> JudgementRow:
    """Make the summary of a verdict."""
    return JudgementRow(
        rollout_id(number), f"{time_us}", "default", time_us, trainable, 5, 8, 2, 0, 1, ("why",)
    )


def where(**given: str | Range | None) -> RolloutQuery:
    """A query by terms of one value each."""
    return RolloutQuery(
        terms=tuple(Term(Field(name), (value,)) for name, value in given.items())
    )


def numbers(store: DuckDBStore, *terms: Term, **more: object) -> list[int]:
    """The rollouts that some terms show."""
    page = store.list_rollouts(replace(RolloutQuery(terms=terms), **more))  # type: ignore[arg-type]
    assert page.total >= len(page.rows)
    return [int(row.rollout_id[3:]) for row in page.rows]


async def fill(store: DuckDBStore) -> None:
    """Store twelve rollouts with everything a listing reads."""
    for number in range(12):
        run = "run-a" if number < 8 else "run-b"
        await store.add_rollout(make_rollout(number, run=run, task=f"Task-{number % 2}"))
        await store.add_event(make_event(number, EventKind.STARTED))
        for sequence in range(number % 5):
            status = CallStatus.FAILED if sequence == 3 else CallStatus.COMMITTED
            call = replace(make_call(number, sequence), status=status, completion_len=number)
            await store.commit_call(call, ())
        if number % 3 == 0:
            await store.add_event(make_event(number, EventKind.REWARD, reward=number / 4))
        if number % 4 == 0:
            await store.add_event(make_event(number, EventKind.CLOSED))
    await store.add_judgement(judgement(1, trainable=True, time_us=5))
    await store.add_judgement(judgement(1, trainable=False, time_us=9))
    await store.add_judgement(judgement(2, trainable=True, time_us=5))
    await store.add_event(make_event(11, EventKind.DELETED))


def test_filters_orders_and_pages(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await fill(store)

        def found(query: RolloutQuery) -> list[int]:
            page = store.list_rollouts(query)
            assert page.total >= len(page.rows)
            return [int(row.rollout_id[3:]) for row in page.rows]

        assert found(RolloutQuery()) == list(range(10, -1, -1))
        assert found(RolloutQuery(descending=False, limit=3)) == [0, 1, 2]
        assert found(where(run="run-b")) == [10, 9, 8]
        assert found(where(task="Task-1", group="group-0")) == [9, 3]
        assert found(where(state="closed")) == [8, 4, 0]
        assert found(where(state="deleted")) == [11]
        assert found(where(reward=Range(0.5, 2))) == [6, 3]
        assert found(where(trainable="yes")) == [2]
        assert found(where(trainable="no")) == [1]
        assert found(replace(where(run="run-b"), text="TASK-0")) == [10, 8]
        assert found(RolloutQuery(text="%")) == []
        assert found(RolloutQuery(sort=SortKey.REWARD, limit=4)) == [9, 6, 3, 0]
        assert found(RolloutQuery(sort=SortKey.REWARD, descending=False, limit=4)) == [
            0,
            3,
            6,
            9,
        ]
        assert found(RolloutQuery(sort=SortKey.CALLS, limit=2)) == [9, 4]
        assert found(RolloutQuery(sort=SortKey.TOKENS, limit=2)) == [9, 8]
        for sort in SortKey:
            for descending in (True, False):
                query = RolloutQuery(sort=sort, descending=descending, limit=4)
                seen: list[RolloutId] = []
                cursor: str | None = None
                for _ in range(3):
                    page = store.list_rollouts(replace(query, cursor=cursor))
                    assert page.total == 11
                    seen += [row.rollout_id for row in page.rows]
                    cursor = page.next_cursor
                assert cursor is None
                assert seen == [
                    row.rollout_id for row in store.list_rollouts(replace(query, limit=50)).rows
                ]
        row = store.list_rollouts(RolloutQuery(text="ro_000004")).rows[0]
        assert (row.n_calls, row.n_failed, row.generated_tokens) == (4, 1, 16)
        assert row.status == "closed"
        verdict = store.list_rollouts(RolloutQuery(text="ro_000001")).rows[0].judgement
        assert verdict == judgement(1, trainable=False, time_us=9)
        members = store.group_members("run-a", group="group-1")
        assert [member.rollout_id for member in members] == [rollout_id(n) for n in (1, 4, 7)]
        assert len(store.group_members("run-b", task="Task-1")) == 1
        runs = {run.run: run for run in store.list_runs()}
        assert runs["run-b"].n_rollouts == 3
        assert runs["run-a"].n_trainable == 1
        assert runs["run-a"].reward_mean == pytest.approx(0.75)
        assert runs["run-a"].n_calls == sum(n % 5 for n in range(8))
        for cursor in ("nonsense", "W10", "é"):
            with pytest.raises(InvalidValue):
                store.list_rollouts(RolloutQuery(cursor=cursor))
        other = store.list_rollouts(RolloutQuery(limit=2)).next_cursor
        with pytest.raises(InvalidValue, match="another order"):
            store.list_rollouts(RolloutQuery(sort=SortKey.CALLS, cursor=other))
        with pytest.raises(InvalidValue):
            store.list_rollouts(RolloutQuery(limit=0))

    with_store(tmp_path / "store.duckdb", work)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBStore]:
    """A store of 10,000 rollouts with 50 calls each, made by SQL."""
    path = tmp_path_factory.mktemp("big") / "store.duckdb"
    DuckDBStore(path, OPTIONS).close_now()
    connection = duckdb.connect(str(path))
    connection.execute(
        "INSERT INTO rollout SELECT 'ro_' || lpad(i::VARCHAR, 32, '0'), "
        "make_timestamptz(1790000000000000 + i), 'k' || i, 'run-' || (i % 20), "
        "'task-' || (i % 100), 'group', i, 'train', 'h', '1', '{}', '{}', '{}', 'tiny', "
        "'tiny', '0', 'tiny', NULL, NULL, NULL, '', NULL, NULL, false FROM range(?) t(i)",
        [ROLLOUTS],
    )
    for kind, reward, number in (("started", "NULL", 0), ("reward", "i % 7", 1)):
        connection.execute(
            "INSERT INTO rollout_event SELECT 'ro_' || lpad(i::VARCHAR, 32, '0'), ?, "
            f"make_timestamptz(1790000001000000 + i), ?, {reward}, true, NULL, '{{}}' "
            "FROM range(?) t(i)",
            [number, kind, ROLLOUTS],
        )
    connection.execute(
        "INSERT INTO judgement SELECT 'ro_' || lpad(i::VARCHAR, 32, '0'), 'x', 'default', "
        "make_timestamptz(1790000001000000), i % 3 = 0, 5, 8, 50, 0, 0, '[]' "
        "FROM range(?) t(i)",
        [ROLLOUTS],
    )
    for ended in ("false", "true"):  # calls of a hundred rollouts at a time, interleaved
        connection.execute(
            "INSERT INTO call SELECT 'ca_' || lpad(i::VARCHAR, 32, '0'), "
            f"{ended}, 'ro_' || lpad((i // 5000 * 100 + i % 100)::VARCHAR, 32, '0'), "
            "i // 100 % 50, 'chat', CASE WHEN i % 10 = 0 THEN 'failed' ELSE 'committed' END, "
            "NULL, make_timestamptz(1790000000000000 + i), "
            "make_timestamptz(1790000000000000 + i + 1), 1.0, 'stop', 'tokens', 'r', "
            "'m', 1, 1, NULL, 0, 100, i % 500, 'abcd'::BLOB, 'abcd'::BLOB, 'abcd'::BLOB, "
            "NULL, NULL, 'hello', '{}', NULL, NULL, NULL, NULL FROM range(?) t(i)",
            [ROLLOUTS * CALLS],
        )
    connection.close()
    store = DuckDBStore(path, OPTIONS)
    yield store
    store.close_now()


def test_ui_01_listing_ten_thousand_rollouts_of_fifty_calls(big: DuckDBStore) -> None:
    middle = big.list_rollouts(RolloutQuery(limit=50)).next_cursor
    queries = {
        "created": RolloutQuery(cursor=middle),
        "calls": RolloutQuery(sort=SortKey.CALLS),
        "tokens": replace(where(run="run-3"), sort=SortKey.TOKENS),
        "reward": replace(where(trainable="yes", reward=Range(2)), sort=SortKey.REWARD),
        "text": replace(where(state="open"), text="task-77"),
    }
    for name, query in queries.items():
        times = []
        for _ in range(7):
            began = time.thread_time()
            page = big.list_rollouts(query)
            times.append(time.thread_time() - began)
        assert len(page.rows) == 50, name
        assert {row.n_calls for row in page.rows} == {50}
        # DuckDB has one thread here, this one: its CPU time is what a quiet machine would
        # take, and other work on this one must not fail the test.
        print(
            f"listing by {name}: best {min(times) * 1e3:.1f} ms, {sorted(times)[3] * 1e3:.1f}"
        )
        assert min(times) < 0.1, name
    began = time.perf_counter()
    assert len(big.list_runs()) == 20
    record = big.record(RolloutId(f"ro_{5000:032d}"))
    assert record is not None
    assert len(record.calls) == 50
    assert time.perf_counter() - began < 1.0
