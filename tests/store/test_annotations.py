"""Labels, notes and saved views: rows are only added, the latest word counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from explorer.records import EventKind, RolloutId
from explorer.store.duckdb_store import DuckDBStore
from explorer.store.maintenance import compact
from explorer.store.remarks import Annotation, LabelCount, SavedView
from tests.store.making import make_event, make_rollout, rollout_id, with_store


def annotation(number: int, **given: object) -> Annotation:
    made = Annotation(
        annotation_id=f"an_{number:032x}",
        rollout_id=rollout_id(0),
        time_us=1_000_000 + number,
        who="Ada",
    )
    return replace(made, **given)  # type: ignore[arg-type]


def test_an_annotation_is_kept_until_it_is_withdrawn(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(0))
        label = annotation(1, label="reward-hack", call_id="ca_1", start=3, end=9)
        note = annotation(2, note="why \u202e does it stop?\x00")
        await store.add_annotation(label)
        await store.add_annotation(note)
        assert store.annotations(rollout_id(0)) == (label, note)
        assert store.annotation(note.annotation_id) == note
        assert store.labels() == (LabelCount("reward-hack", 1),)
        await store.add_annotation(annotation(3, withdraws=label.annotation_id))
        assert store.annotations(rollout_id(0)) == (note,)
        assert store.annotation(label.annotation_id) is None
        assert store.labels() == ()

    with_store(tmp_path / "s.duckdb", work)


def test_annotations_of_a_deleted_rollout_go_with_it(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        for number in (0, 1):
            await store.add_rollout(make_rollout(number))
        await store.add_annotation(annotation(1, label="good"))
        await store.add_annotation(annotation(2, label="good", rollout_id=rollout_id(1)))
        assert store.labels() == (LabelCount("good", 2),)
        await store.add_event(make_event(0, EventKind.DELETED))
        assert store.annotations(rollout_id(0)) == ()
        assert store.labels() == (LabelCount("good", 1),)

    path = tmp_path / "s.duckdb"
    with_store(path, work)
    report = compact(path)
    assert (report.kept_rows["annotation"], report.dropped_rows["annotation"]) == (1, 1)


def test_the_latest_row_of_a_view_counts(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        view = SavedView("bad ones", "reward=0", "Ada", 10)
        await store.add_view(view)
        await store.add_view(SavedView("all", "", "Ada", 11))
        assert [each.name for each in store.views()] == ["all", "bad ones"]
        again = replace(view, query="reward=0&ok=no", time_us=20)
        await store.add_view(again)
        assert store.views()[1] == again
        await store.add_view(replace(again, dropped=True, time_us=30))
        assert [each.name for each in store.views()] == ["all"]
        assert store.annotations(RolloutId("ro_unknown")) == ()

    with_store(tmp_path / "s.duckdb", work)
