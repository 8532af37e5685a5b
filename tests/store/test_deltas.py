"""Trainer logprobs and δ summaries in the store: what replaces what, and what goes with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from explorer.errors import StoreFailed
from explorer.records import NULL_LOGPROB_BITS, CallId, EventKind, LogprobArray
from explorer.store import DuckDBStore
from explorer.store.deltas import DeltaSummary, LogpsKind, TrainerLogps, TrainerPost
from explorer.store.maintenance import compact
from explorer.store.queries import Field, Range, RolloutQuery, SortKey, Term
from tests.store.making import make_call, make_event, make_rollout, rollout_id, with_store


def _told(number: int, post: str, values: list[float], **changes: object) -> TrainerPost:
    logps: LogprobArray = np.array(values, dtype=np.float32)
    row = TrainerLogps(
        rollout_id(number),
        CallId(f"ca_{number}"),
        post,
        1_790_000_000_000_000,
        LogpsKind.TRAINER,
        "trl",
        8,
        logps,
    )
    return TrainerPost(rollout_id(number), (replace(row, **changes),))  # type: ignore[arg-type]


def _summary(number: int, time_us: int, outside: int) -> DeltaSummary:
    return DeltaSummary(
        rollout_id(number),
        time_us,
        f"digest-{time_us}",
        "trl",
        8,
        *(5, 4, outside, 0.9, 1.1),
        delta_p50=0.0,
        abs_p99=0.5,
        bins={-3: 1, 0: 2, 7: 1},
        noise_kind="rescored",
    )


def test_of_equal_call_kind_source_and_version_the_latest_posting_counts(
    tmp_path: Path,
) -> None:
    null: LogprobArray = np.array([-0.5, 0, -np.inf, -9999.0], dtype=np.float32)
    null.view(np.uint32)[1] = NULL_LOGPROB_BITS

    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(1))
        assert not store.has_trainer_logps(rollout_id(1))
        await store.add_trainer_logps(_told(1, "a", [-1.0]))
        await store.add_trainer_logps(_told(1, "b", [0.0], time_us=2 * 10**15, logps=null))
        await store.add_trainer_logps(_told(1, "c", [-3.0], weight_version=None))
        await store.add_trainer_logps(_told(1, "d", [-4.0], kind=LogpsKind.RESCORED))
        found = store.trainer_logps(rollout_id(1))
        assert [row.post_id for row in found] == ["b", "c", "d"]
        assert found[0].logps.tobytes() == null.tobytes()
        assert (found[1].weight_version, found[2].kind) == (None, LogpsKind.RESCORED)
        # A posting is stored whole or not at all.
        other = _told(2, "e", [-1.0]).rows[0]
        good = _told(1, "e", [-1.0]).rows[0]
        with pytest.raises(StoreFailed, match="set aside"):
            await store.add_trainer_logps(TrainerPost(rollout_id(1), (good, other)))
        assert len(store.trainer_logps(rollout_id(1))) == 3
        assert [row.kind for row in store.quarantined()] == ["trainer_logps"]

    with_store(tmp_path / "s.duckdb", work)


def test_summaries_answer_the_latest_row_and_go_with_their_rollout(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    ids = [rollout_id(number) for number in (1, 2, 3)]

    async def work(store: DuckDBStore) -> None:
        for number in (1, 2):
            await store.add_rollout(make_rollout(number))
            await store.commit_call(make_call(number, 0), ())
            await store.add_trainer_logps(_told(number, "a", [-1.0]))
            await store.add_delta_summary(_summary(number, 1_790_000_000_000_000, 4))
            await store.add_delta_summary(_summary(number, 1_790_000_000_000_001, number))
        found = store.delta_summaries(ids)
        assert {each: row.share_outside for each, row in found.items()} == {
            ids[0]: 0.25,
            ids[1]: 0.5,
        }
        assert found[ids[0]] == _summary(1, 1_790_000_000_000_001, 1)
        assert [row.rollout_id for row in store.run_deltas("run-a")] == ids[:2]
        assert store.run_deltas("run-a", frozenset(ids[1:])) == (found[ids[1]],)
        copy = store.backup(tmp_path / "copy.duckdb")
        assert (copy.rows["trainer_logps"], copy.rows["delta_summary"]) == (2, 4)
        await store.add_event(make_event(1, EventKind.DELETED))
        assert store.trainer_logps(ids[0]) == ()
        assert list(store.delta_summaries(ids)) == ids[1:2]
        assert [row.rollout_id for row in store.run_deltas("run-a")] == ids[1:2]
        assert store.delta_summaries([]) == {}
        # Lists read the same row, and again after another one came.
        query = RolloutQuery(terms=(Term(Field.DELTA_OUTSIDE, (Range(0.4),)),))
        assert [row.rollout_id for row in store.list_rollouts(query).rows] == ids[1:2]
        await store.add_delta_summary(_summary(2, 1_790_000_000_000_002, 0))
        assert store.list_rollouts(query).total == 0
        [row] = store.list_rollouts(RolloutQuery(sort=SortKey.DELTA_P99)).rows
        assert (row.delta_p99, row.delta_outside) == (0.5, 0.0)

    with_store(path, work)
    report = compact(path)
    assert (report.dropped_rows["trainer_logps"], report.kept_rows["delta_summary"]) == (1, 3)
