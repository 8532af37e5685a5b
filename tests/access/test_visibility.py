"""Levels: which one holds, and that it is the same after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.access.policy import CLOSEDNESS, Level
from explorer.access.visibility import Target, Visibility
from tests.access.granting import OPERATOR, Book, book


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Book]:
    with book(tmp_path / "access.duckdb") as made:
        yield made


def put(opened: Book, target: Target, name: str, level: Level | None) -> None:
    opened.visibility.set(OPERATOR, target, name, level, "of the test")


def held(opened: Book, *views: str) -> tuple[Level, str]:
    found = opened.visibility.holds("r1", "run-1", views)
    return found.level, found.because


def test_the_default_holds_where_nothing_is_set(opened: Book) -> None:
    assert held(opened, "view-1") == (Level.GRANTED, "the server's default")
    put(opened, Target.RUN, "run-2", Level.PUBLIC)
    assert held(opened)[0] is Level.GRANTED


def test_the_rollouts_own_level_wins_in_both_directions(opened: Book) -> None:
    put(opened, Target.RUN, "run-1", Level.PRIVATE)
    put(opened, Target.ROLLOUT, "r1", Level.PUBLIC)
    assert held(opened) == (Level.PUBLIC, "set on the rollout")
    put(opened, Target.RUN, "run-1", Level.PUBLIC)
    put(opened, Target.ROLLOUT, "r1", Level.PRIVATE)
    assert held(opened) == (Level.PRIVATE, "set on the rollout")
    put(opened, Target.ROLLOUT, "r1", None)
    assert held(opened) == (Level.PUBLIC, "set on the run run-1")


def test_else_the_most_closed_of_run_and_views(opened: Book) -> None:
    put(opened, Target.RUN, "run-1", Level.SIGNED_IN)
    put(opened, Target.VIEW, "view-1", Level.PUBLIC)
    put(opened, Target.VIEW, "view-2", Level.PRIVATE)
    assert held(opened) == (Level.SIGNED_IN, "set on the run run-1")
    assert held(opened, "view-1") == (Level.SIGNED_IN, "set on the run run-1")
    assert held(opened, "view-1", "view-2") == (Level.PRIVATE, "set on the view view-2")
    assert held(opened, "view-without-a-level")[0] is Level.SIGNED_IN


@given(
    own=st.none() | st.sampled_from(Level),
    run=st.none() | st.sampled_from(Level),
    views=st.lists(st.none() | st.sampled_from(Level), max_size=4),
)
def test_levels_of_all_agree_with_the_level_of_one(
    tmp_path_factory: pytest.TempPathFactory,
    own: Level | None,
    run: Level | None,
    views: list[Level | None],
) -> None:
    with book(tmp_path_factory.mktemp("levels") / "access.duckdb") as opened:
        put(opened, Target.ROLLOUT, "r1", own)
        put(opened, Target.RUN, "run-1", run)
        for n, level in enumerate(views):
            put(opened, Target.VIEW, f"view-{n}", level)
        names = [f"view-{n}" for n in range(len(views))]
        one = opened.visibility.holds("r1", "run-1", names).level
        members = {name: frozenset({"r1"}) for name in names}
        every = opened.visibility.levels({"r1": "run-1", "r2": "run-2"}, members)
        assert every == {"r1": one, "r2": Level.GRANTED}
        given_ = [level for level in (run, *views) if level is not None]
        expected = own or max(given_, key=CLOSEDNESS.__getitem__, default=Level.GRANTED)
        assert one is expected


def test_levels_and_their_record_outlive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    with book(path) as first:
        put(first, Target.RUN, "run-1", Level.PUBLIC)
        put(first, Target.RUN, "run-1", Level.PRIVATE)
        put(first, Target.VIEW, "view-1", Level.PUBLIC)
        put(first, Target.VIEW, "view-1", None)
        before = first.visibility.rows
        assert first.events() == ["visibility_set"] * 4
    with book(path) as second:
        assert second.visibility.rows == before
        assert held(second, "view-1") == (Level.PRIVATE, "set on the run run-1")
        assert second.visibility.views == ()


def test_every_change_is_told_to_who_keeps_answers(opened: Book) -> None:
    before = opened.visibility.version
    put(opened, Target.RUN, "run-1", Level.PUBLIC)
    put(opened, Target.RUN, "run-1", None)
    assert opened.visibility.version == before + 2
    again = Visibility(opened.database, opened.audit, Level.PRIVATE)
    assert again.holds("r1", "run-1", ()).level is Level.PRIVATE
