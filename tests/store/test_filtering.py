"""Terms of a filter, facets, pages both ways and groups, against what was stored."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer.records import EventKind, Purpose, WeightUpdate
from explorer.store import DuckDBStore
from explorer.store.queries import (
    Field,
    GroupPart,
    GroupSort,
    JudgementRow,
    Range,
    RolloutQuery,
    SortKey,
    Term,
)
from explorer.store.remarks import Annotation
from explorer.store.summaries import _MAKE, STAMP, SUMMARY
from tests.store.making import make_call, make_event, make_rollout, rollout_id, with_store


def ids(store: DuckDBStore, *terms: Term, **more: Any) -> list[int]:
    """The numbers of the rollouts that all terms let through, the newest first."""
    page = store.list_rollouts(replace(RolloutQuery(terms=terms), **more))
    return [int(row.rollout_id[3:]) for row in page.rows]


def verdict(number: int, supervised: int, fatal: int, warn: int) -> JudgementRow:
    """A summary of 100 sampled tokens."""
    reasons = () if supervised else ("no_reward", "prefix_break")
    return JudgementRow(
        rollout_id(number),
        "x",
        "p",
        5,
        supervised > 0,
        supervised,
        100,
        1,
        fatal,
        warn,
        reasons,
    )


async def fill(store: DuckDBStore) -> None:
    """Eight rollouts; 6 is open and not judged, 7 is deleted."""
    for number in range(8):
        made = make_rollout(
            number, run=f"run {number % 2}", task=None if number == 3 else "t,1"
        )
        metadata: dict[str, Any] = {"seed": number, "a.b": "flat", "deep": {"er": "x"}}
        if number == 2:
            metadata = {"nan": float("nan"), "seed": 2}
        await store.add_rollout(
            replace(
                made,
                metadata=metadata,
                harness=None if number == 1 else f"h{number % 3}",
                purpose=Purpose.EVAL if number == 5 else Purpose.TRAIN,
            )
        )
        call = replace(
            make_call(number, 0),
            completion_len=number * 10,
            # 2 began before an update and ended after it; of 3 nobody told.
            weight_version_start=None if number == 3 else number,
            weight_version_end={2: 4, 3: None}.get(number, number),
        )
        await store.commit_call(call, ())
        if number < 6:
            reward = (-1.0, 0.0, 0.25, 0.5, 1.0, 2.0)[number]
            await store.add_event(make_event(number, EventKind.REWARD, reward=reward))
            await store.add_event(replace(make_event(number, EventKind.CLOSED), ok=number > 2))
            await store.add_judgement(
                verdict(number, number * 20, int(number == 1), int(number == 2))
            )
    for told in (WeightUpdate(1, 10, "ready", 4), WeightUpdate(2, 20, "ready", 6)):
        await store.add_weight_update(told)
    await store.add_weight_update(WeightUpdate(3, 30, "syncing", 9))
    await store.add_event(make_event(7, EventKind.DELETED))
    await store.add_annotation(Annotation("an_1", rollout_id(4), 9, "me", label="odd"))
    await store.add_annotation(Annotation("an_2", rollout_id(5), 9, "me", label="odd"))
    await store.add_annotation(Annotation("an_3", rollout_id(5), 10, "me", withdraws="an_2"))


def test_every_field_filters(tmp_path: Path) -> None:
    cases: list[tuple[Term, list[int]]] = [
        (Term(Field.ID, ("ro_000003",)), [3]),
        (Term(Field.RUN, ("run 1",)), [5, 3, 1]),
        (Term(Field.RUN, ("run 1", "run 0")), [6, 5, 4, 3, 2, 1, 0]),
        (Term(Field.RUN, ("run 1",), negated=True), [6, 4, 2, 0]),
        (Term(Field.TASK, (None,)), [3]),
        (Term(Field.TASK, ("t,1",), negated=True), [3]),
        (Term(Field.HARNESS, ("h0", None)), [6, 3, 1, 0]),
        (Term(Field.ATTEMPT, (Range(2, 3),)), [3, 2]),
        (Term(Field.PURPOSE, ("eval",)), [5]),
        (Term(Field.STATE, ("deleted",)), [7]),
        (Term(Field.STATE, ("open", "deleted")), [7, 6]),
        (Term(Field.STATE, ("closed",), negated=True), [6]),
        (Term(Field.OK, ("yes",)), [5, 4, 3]),
        (Term(Field.OK, (None,)), [6]),
        (Term(Field.TRAINABLE, ("no", None)), [6, 0]),
        (Term(Field.REASON, ("no_reward",)), [0]),
        (Term(Field.FINDINGS, ("fatal",)), [1]),
        (Term(Field.FINDINGS, ("warn", None)), [6, 2]),
        (Term(Field.REWARD, (Range(0, 1, low_open=True, high_open=True),)), [3, 2]),
        (Term(Field.REWARD, (Range(high=0),)), [1, 0]),
        (Term(Field.REWARD, (None,)), [6]),
        (Term(Field.REWARD, (Range(0, 0.5),), negated=True), [6, 5, 4, 0]),
        (Term(Field.SHARE, (Range(0.8),)), [5, 4]),
        (Term(Field.TOKENS, (Range(20, 30),)), [3, 2]),
        (Term(Field.CALLS, (Range(2),)), []),
        (Term(Field.FAILED, (Range(0, 0),)), [6, 5, 4, 3, 2, 1, 0]),
        (Term(Field.SUPERVISED, (Range(100),)), [5]),
        (Term(Field.VERSION, (Range(4, 4),)), [4, 2]),
        (Term(Field.VERSION, (Range(3, 3),)), [2]),
        (Term(Field.VERSION, (Range(5),)), [6, 5]),
        (Term(Field.VERSION, (Range(high=2),)), [2, 1]),
        (Term(Field.VERSION, (None,)), [3, 0]),
        (Term(Field.VERSION, (Range(3, 3),), negated=True), [6, 5, 4, 3, 1, 0]),
        (Term(Field.STALE, (Range(3),)), [2, 1]),
        (Term(Field.STALE, (None,)), [3, 0]),
        # None was ever compared with a trainer; `test_deltas` has those that were.
        (Term(Field.DELTA_P99, (Range(0),)), []),
        (Term(Field.DELTA_OUTSIDE, (None,)), [6, 5, 4, 3, 2, 1, 0]),
        (Term(Field.CROSSED, ("yes",)), [2]),
        (Term(Field.CROSSED, ("no",)), [6, 5, 4, 3, 1, 0]),
        (Term(Field.CREATED, (Range(1_790_000_000_000_005),)), [6, 5]),
        (Term(Field.LABEL, ("odd",)), [4]),
        (Term(Field.LABEL, ("odd",), negated=True), [6, 5, 3, 2, 1, 0]),
        (Term(Field.META, ("4",), key="seed"), [4]),
        (Term(Field.META, ("flat",), key="a.b"), [6, 5, 4, 3, 1, 0]),
        (Term(Field.META, ("x",), key="deep.er"), [6, 5, 4, 3, 1, 0]),
        (Term(Field.META, (None,), key="a.b"), [2]),
        (Term(Field.META, ("4",), negated=True, key="seed"), [6, 5, 3, 2, 1, 0]),
    ]
    assert {term.field for term, _ in cases} >= set(Field) - {Field.GROUP, Field.MODEL}

    async def work(store: DuckDBStore) -> None:
        await fill(store)
        for term, wanted in cases:
            assert ids(store, term) == wanted, term

    with_store(tmp_path / "store.duckdb", work)


def test_facets_leave_their_own_field_out(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await fill(store)
        query = RolloutQuery(
            terms=(Term(Field.RUN, ("run 1",)), Term(Field.STATE, ("closed",)))
        )
        facets = {facet.name: facet for facet in store.facets(query)}

        def counted(name: str) -> dict[str | None, int]:
            return {item.value: item.count for item in facets[name].counts}

        assert counted("run") == {"run 0": 3, "run 1": 3}
        assert counted("state") == {"closed": 3, "deleted": 1}
        assert counted("reward") == {"0": 1, "0.5..<1": 1, ">1": 1}
        assert counted("findings") == {"none": 2, "fatal": 1}
        assert counted("task") == {"t,1": 2, None: 1}
        assert counted("purpose") == {"train": 2, "eval": 1}
        # Each count is what the list shows when that value alone is chosen.
        for facet in facets.values():
            if facet.name == "reward":
                continue
            others = tuple(term for term in query.terms if term.field != facet.name)
            for item in facet.counts:
                term = Term(Field(facet.name), (item.value,))
                assert len(ids(store, *others, term)) == item.count, (facet.name, item)
        cut = store.facets(RolloutQuery(), most=1)
        assert {facet.name for facet in cut if facet.more} >= {"run", "harness", "reward"}
        assert all(len(facet.counts) == 1 for facet in cut)

    with_store(tmp_path / "store.duckdb", work)


@pytest.mark.parametrize("sort", list(SortKey))
@pytest.mark.parametrize("descending", [True, False])
def test_pages_lead_there_and_back(tmp_path: Path, sort: SortKey, descending: bool) -> None:
    async def work(store: DuckDBStore) -> None:
        await fill(store)
        query = RolloutQuery(sort=sort, descending=descending, limit=3)
        whole = [row.rollout_id for row in store.list_rollouts(replace(query, limit=50)).rows]
        pages = [store.list_rollouts(query)]
        while pages[-1].next_cursor:
            pages.append(store.list_rollouts(replace(query, cursor=pages[-1].next_cursor)))
        assert [row.rollout_id for page in pages for row in page.rows] == whole
        assert [page.before for page in pages] == [0, 3, 6]
        assert pages[0].previous_cursor is None
        back = store.list_rollouts(replace(query, cursor=pages[2].previous_cursor))
        assert back.rows == pages[1].rows
        assert (back.before, back.next_cursor is not None) == (3, True)
        assert store.list_rollouts(replace(query, cursor=back.previous_cursor)) == pages[0]

    with_store(tmp_path / "store.duckdb", work)


def test_pages_stay_when_rollouts_are_added(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await fill(store)
        first = store.list_rollouts(RolloutQuery(limit=3))
        await store.add_rollout(make_rollout(50))
        second = store.list_rollouts(RolloutQuery(limit=3, cursor=first.next_cursor))
        assert [int(row.rollout_id[3:]) for row in second.rows] == [3, 2, 1]
        assert (second.before, second.total) == (4, 8)

    with_store(tmp_path / "store.duckdb", work)


def test_summaries_follow_every_write(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(1))

        def row() -> Any:
            return store.list_rollouts(RolloutQuery()).rows[0]

        assert (row().n_calls, row().reward, row().judgement) == (0, None, None)
        await store.commit_call(make_call(1, 0), ())
        assert row().n_calls == 1
        await store.add_event(make_event(1, EventKind.REWARD, reward=0.5))
        assert row().reward == 0.5
        await store.add_judgement(verdict(1, 20, 0, 1))
        assert row().judgement == verdict(1, 20, 0, 1)
        assert store.run_summary("run-a") == store.list_runs()[0]
        await store.add_event(make_event(1, EventKind.DELETED))
        assert store.list_rollouts(RolloutQuery()).total == 0
        assert store.run_summary("run-a") is None

    with_store(tmp_path / "store.duckdb", work)


def test_ui_01_a_page_reads_summary_rows_only(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await fill(store)
        seen: list[str] = []
        cursor_class = store._database.reading

        class Watching:
            """Hands statements on, and remembers them."""

            def __init__(self, cursor: Any) -> None:
                self.cursor = cursor

            def execute(self, sql: str, values: Any = None) -> Any:
                seen.append(sql)
                return self.cursor.execute(sql, values)

        @contextmanager
        def watched() -> Any:
            with cursor_class() as cursor:
                yield Watching(cursor)

        store.list_rollouts(RolloutQuery())
        store._database.reading = watched  # type: ignore[method-assign]
        page = store.list_rollouts(RolloutQuery(sort=SortKey.SHARE, limit=3))
        store.list_rollouts(
            RolloutQuery(sort=SortKey.SHARE, limit=3, cursor=page.next_cursor, text="run")
        )
        store.facets(RolloutQuery(terms=(Term(Field.FINDINGS, ("warn",)),)))
        store._database.reading = cursor_class  # type: ignore[method-assign]
        tables = {
            name
            for sql in seen
            for name in re.findall(r'(?:FROM|JOIN) ("[^"]+"\.\w+|\w+)', sql)
            if "count(*) FROM call)" not in sql  # the stamp: row counts, no rows
        }
        # `matched` is a part of the facets' statement, made of summaries.
        assert tables <= {SUMMARY, STAMP, "duckdb_tables", "matched"}, tables
        assert not [sql for sql in seen if "OFFSET" in sql]

    with_store(tmp_path / "store.duckdb", work)
    # And the summaries themselves never read a column of tokens or bodies.
    assert not re.search(r"prompt_delta|completion\b|logprobs|_body|detail|preview", _MAKE)


def test_groups_of_a_run(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        for number in range(12):
            made = replace(make_rollout(number), group=None, task=f"t{number % 3}")
            await store.add_rollout(replace(made, task=None) if number == 11 else made)
            reward = 1.0 if number % 3 == 0 else float(number)
            await store.add_event(make_event(number, EventKind.REWARD, reward=reward))
            await store.add_judgement(verdict(number, number * 5, int(number == 4), 0))

        def names(sort: GroupSort, descending: bool) -> list[str | None]:
            page = store.run_groups("run-a", GroupPart(sort, descending, 0, 9))
            assert page.total == 4
            return [group.name for group in page.groups]

        assert names(GroupSort.NAME, False) == ["t0", "t1", "t2", None]
        assert names(GroupSort.VARIANCE, True)[0] == "t0"
        assert names(GroupSort.FINDINGS, True)[0] == "t1"
        assert names(GroupSort.REWARD, True)[0] is None
        page = store.run_groups("run-a", GroupPart(GroupSort.NAME, False, 3, 9))
        assert [group.name for group in page.groups] == [None]
        assert [int(row.rollout_id[3:]) for row in page.groups[0].members] == [11]
        assert page.n_zero_variance == 1
        (first,) = store.run_groups(
            "run-a", GroupPart(GroupSort.NAME, False, offset=0, limit=1)
        ).groups
        assert first.zero_variance
        assert [int(row.rollout_id[3:]) for row in first.members] == [0, 3, 6, 9]
        assert first.supervised_tokens == 5 * (0 + 3 + 6 + 9)
        assert sorted(store.run_spread("run-a").rewards)[-1] == 11.0

    with_store(tmp_path / "store.duckdb", work)


def test_points_of_a_run_are_one_line_a_rollout_and_steps_are_whole_numbers(
    tmp_path: Path,
) -> None:
    steps: list[Any] = [3, 3, "4", 4.0, True, None, 10**30]

    async def work(store: DuckDBStore) -> None:
        for number, step in enumerate(steps):
            made = make_rollout(number, run="r")
            await store.add_rollout(replace(made, metadata={"global_step": step}))
        for sequence, (start, end) in enumerate(((7, 7), (7, 8), (8, 8), (7, 7))):
            call = replace(
                make_call(0, sequence), weight_version_start=start, weight_version_end=end
            )
            await store.commit_call(call, ())
        await store.add_event(make_event(0, EventKind.REWARD, reward=0.5))
        await store.add_event(make_event(0, EventKind.CLOSED))
        await store.add_event(make_event(6, EventKind.DELETED))
        found = store.run_points("r")
        assert [point.step for point in found] == [3, 3, None, None, None, None]
        assert (found[0].reward, found[0].length, found[0].open) == (0.5, 16, False)
        assert found[0].versions == ((7, 8), (8, 4), (None, 4))
        assert (found[1].open, found[1].cohort, found[1].versions) == (True, "group-1", ())
        assert store.run_points("r", frozenset({rollout_id(1)})) == (found[1],)
        assert store.run_points("other") == ()

    with_store(tmp_path / "store.duckdb", work)


def test_where_the_weights_went_back_older_rollouts_have_no_age(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        for number, started in ((0, 5), (1, 25)):
            await store.add_rollout(make_rollout(number))
            call = make_call(number, 0)
            await store.commit_call(
                replace(
                    call,
                    started_us=started,
                    ended_us=started,
                    weight_version_start=7,
                    weight_version_end=7,
                ),
                (),
            )
        await store.add_weight_update(WeightUpdate(1, 1, "ready", 9))
        assert [row.behind for row in store.list_rollouts(RolloutQuery()).rows] == [2, 2]
        await store.add_weight_update(WeightUpdate(2, 20, "ready", 8))
        assert [row.behind for row in store.list_rollouts(RolloutQuery()).rows] == [1, None]

    with_store(tmp_path / "store.duckdb", work)


def test_a_verdict_against_a_rollout_leaves_nothing_trainable(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(1))
        against = replace(verdict(1, 60, 1, 0), trainable=False)
        await store.add_judgement(against)
        assert ids(store, Term(Field.SHARE, (Range(0, 0),))) == [1]
        assert ids(store, Term(Field.SUPERVISED, (Range(1),))) == []
        (run,) = store.list_runs()
        assert (run.supervised_tokens, run.judged_tokens, run.n_judged) == (0, 100, 1)
        page = store.run_groups("run-a", GroupPart(GroupSort.SHARE, True, 0, 9))
        assert page.groups[0].supervised_tokens == 0

    with_store(tmp_path / "store.duckdb", work)


def test_a_list_takes_as_many_values_as_the_language_has(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await fill(store)
        for field, key in ((Field.LABEL, ""), (Field.META, "k"), (Field.RUN, "")):
            terms = tuple(
                Term(field, (*(f"x{number} {each}" for each in range(99)), None), True, key)
                for number in range(40)
            )
            store.facets(RolloutQuery(terms=terms))
            only = Term(Field.ID, (rollout_id(1), "x", rollout_id(2)))
            free = tuple(replace(term, values=term.values[:-1]) for term in terms)
            assert sorted(ids(store, only, *free)) == [1, 2]

    with_store(tmp_path / "store.duckdb", work)
