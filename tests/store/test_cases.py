"""The reported cases of area storage; db-03 is in `test_crash`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from explorer.errors import StoreFailed, StoreLocked
from explorer.records import Call, CallId, CallStatus
from explorer.store import DuckDBStore
from explorer.store.maintenance import backup, compact, migrate
from tests.store.making import (
    OPTIONS,
    call_id,
    make_admission,
    make_call,
    make_rollout,
    rollout_id,
    with_store,
)


def test_db_01_a_second_process_gets_one_clear_sentence(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.child", "hold", str(path), "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    for attempt in (
        lambda: DuckDBStore(path, OPTIONS),
        lambda: backup(path, tmp_path / "copy.duckdb"),
        lambda: migrate(path),
        lambda: compact(path),
    ):
        with pytest.raises(StoreLocked) as caught:
            cast(Any, attempt)()
        message = caught.value.message
        assert message.startswith(f"{path} is in use by process {child.pid}; ")
        assert "\n" not in message
    child.communicate("")
    assert child.returncode == 0
    store = DuckDBStore(path, OPTIONS)  # a reload opens it again
    with pytest.raises(StoreLocked, match="is in use by this process"):
        DuckDBStore(path, OPTIONS)
    store.close_now()
    DuckDBStore(path, OPTIONS).close_now()


def bad_calls() -> list[Call]:
    """Make calls that cannot be stored exactly."""
    good = make_call(0, 0)
    return [
        replace(good, call_id=CallId("bad-surrogate"), preview="\ud800"),
        replace(good, call_id=CallId("bad-type"), model_served=cast(str, 5)),
        replace(good, call_id=CallId("bad-range"), prefix_len=2**70),
        replace(good, call_id=CallId("bad-null"), preview=cast(str, None)),
        replace(good, call_id=CallId("bad-dict"), claims={"x": cast(str, object())}),
        replace(good, call_id=CallId("bad-array"), logprobs=cast(Any, [1.0])),
        replace(good, call_id=cast(CallId, b"bad-id")),
    ]


def test_db_02_a_bad_record_is_quarantined_alone(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(0))
        bad = bad_calls()
        calls = [make_call(0, 0), *bad, *(make_call(0, i) for i in range(1, 1001))]
        results = await asyncio.gather(
            *(store.commit_call(call, ()) for call in calls), return_exceptions=True
        )
        failed = [result for result in results if result is not None]
        assert len(failed) == len(bad)
        assert all(isinstance(each, StoreFailed) for each in failed)
        record = store.record(rollout_id(0))
        assert record is not None
        assert [call.sequence for call in record.calls] == list(range(1001))
        rows = store.quarantined()
        assert {row.row_id for row in rows} == {
            *(str(call.call_id) for call in bad[:-1]),
            "b'bad-id'",
        }
        assert all(row.error and row.dump.startswith("{") for row in rows)
        assert {row.rollout_id for row in rows} == {rollout_id(0)}
        health = store.health()
        assert health.quarantined == len(bad)
        assert any("set aside" in message for message in health.messages)

    path = tmp_path / "store.duckdb"
    with_store(path, work)

    async def again(store: DuckDBStore) -> int:
        return store.health().quarantined

    assert with_store(path, again) == len(bad_calls())


def test_a_bad_call_leaves_its_admission_visible(tmp_path: Path) -> None:
    bad = replace(make_call(0, 3), preview="\udfff")

    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(0))
        admitted = store.admit(make_admission(bad))
        with pytest.raises(StoreFailed, match="set aside"):
            await store.commit_call(bad, ())
        await admitted
        record = store.record(rollout_id(0))
        assert record is not None
        assert record.open_calls == (make_admission(bad),)

    path = tmp_path / "store.duckdb"
    with_store(path, work)

    async def again(store: DuckDBStore) -> None:
        call = store.call(call_id(0, 3))
        assert call is not None
        assert call.status is CallStatus.ABORTED

    with_store(path, again)
