"""What was told about weights, and the engine's spans of a call, as they are stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from explorer.records import WeightSpan, WeightUpdate
from explorer.store import DuckDBStore
from explorer.store.maintenance import compact
from tests.store.making import make_call, make_rollout, with_store

TOLD = (
    WeightUpdate(1, 10, "ready", 7, "step-7", {"weights_path": "/w/7"}),
    WeightUpdate(2, 20, "syncing", 8, None, {"lease_expires_us": 320, "drain": "wait"}),
    WeightUpdate(3, 30, "unknown", 7, None, {"reason": "the lease ran out"}),
)
SPANS = (WeightSpan("step-7", 7, 0, 3), WeightSpan("?", None, 3, 4))


def test_updates_and_spans_come_back_and_survive_a_compaction(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    call = replace(make_call(0, 0), weight_spans=SPANS)

    async def write(store: DuckDBStore) -> None:
        assert store.weight_updates() == ()
        await store.add_rollout(make_rollout(0))
        await store.commit_call(call, ())
        for update in TOLD:
            await store.add_weight_update(update)

    async def read(store: DuckDBStore) -> None:
        assert store.weight_updates() == TOLD[::-1]
        assert store.weight_updates(limit=1) == TOLD[2:]
        found = store.call(call.call_id)
        assert found is not None
        assert found.weight_spans == SPANS

    with_store(path, write)
    with_store(path, read)
    assert compact(path).kept_rows["weight_update"] == 3
    with_store(path, read)
