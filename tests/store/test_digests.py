"""Message digests are stored as deltas and come back whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from explorer.records import Call, CallId, CallStatus, Dialect, KeyHash, Rollout, RolloutId
from explorer.store import DuckDBStore, StoreOptions

ROLLOUT = RolloutId("r")
TURNS = 200


def call(number: int, digests: tuple[str, ...], parent: CallId | None = None) -> Call:
    return Call(
        CallId(f"c{number:04d}"),
        ROLLOUT,
        number,
        Dialect.CHAT,
        CallStatus.COMMITTED,
        1,
        2,
        message_digests=digests,
        stored_parent_id=parent,
    )


def conversation() -> list[Call]:
    """A growing conversation, then one that was rewritten in the middle, then a new one."""
    calls: list[Call] = []
    for number in range(TURNS):
        parent = calls[-1].call_id if calls else None
        calls.append(call(number, tuple(f"{n:020d}" for n in range(2 * number)), parent))
    rewritten = tuple(f"{n:020d}" if n < 50 else f"x{n:019d}" for n in range(80))
    calls.append(call(TURNS, rewritten))
    calls.append(call(TURNS + 1, ("a", "b")))
    return calls


def test_deltas_come_back_whole_also_singly_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    calls = conversation()
    half = len(calls) // 2

    async def write(part: list[Call], first: bool) -> None:
        store = DuckDBStore(path, StoreOptions(min_free_bytes=0))
        if first:
            await store.add_rollout(Rollout(ROLLOUT, 1, KeyHash("k"), "run"))
        for each in part:
            await store.commit_call(each, ())
        await store.close()

    asyncio.run(write(calls[:half], True))
    asyncio.run(write(calls[half:], False))
    store = DuckDBStore(path, StoreOptions(min_free_bytes=0))
    try:
        record = store.record(ROLLOUT)
        assert record is not None
        assert [c.message_digests for c in record.calls] == [c.message_digests for c in calls]
        for each in (calls[0], calls[half], calls[-2], calls[-1]):
            found = store.call(each.call_id)
            assert found is not None
            assert found.message_digests == each.message_digests
        with store._database.reading() as cursor:
            found_row = cursor.execute("SELECT sum(length(detail)) FROM call").fetchone()
        assert found_row is not None
        # All of them written out would be 20 times as much.
        assert found_row[0] < 0.1 * sum(23 * len(c.message_digests) for c in calls)
    finally:
        store.close_now()


def test_a_call_written_twice_counts_as_stored_once(tmp_path: Path) -> None:
    async def work() -> None:
        store = DuckDBStore(tmp_path / "s.duckdb", StoreOptions(min_free_bytes=0))
        await store.add_rollout(Rollout(ROLLOUT, 1, KeyHash("k"), "run"))
        calls = conversation()[:20]
        for each in calls:
            await store.commit_call(each, ())
        await store.commit_call(calls[-1], ())
        assert store.health().quarantined == 0
        record = store.record(ROLLOUT)
        assert record is not None
        assert len(record.calls) == 20
        await store.close()

    asyncio.run(work())


def test_a_base_that_was_set_aside_leaves_the_digests_unknown(tmp_path: Path) -> None:
    async def work() -> None:
        store = DuckDBStore(tmp_path / "s.duckdb", StoreOptions(min_free_bytes=0))
        await store.add_rollout(Rollout(ROLLOUT, 1, KeyHash("k"), "run"))
        calls = conversation()[:12]
        bad = replace(calls[10], preview="\ud800")
        results = await asyncio.gather(
            *(store.commit_call(each, ()) for each in [*calls[:10], bad, calls[11]]),
            return_exceptions=True,
        )
        assert [result is None for result in results].count(False) == 1
        record = store.record(ROLLOUT)
        assert record is not None
        assert record.calls[-1].message_digests in (calls[11].message_digests, ())
        await store.close()

    asyncio.run(work())
