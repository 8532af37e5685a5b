"""Listings: pages of rollouts by keyset, facets, and runs, from summaries only.

Owns: orders and cursors of listings, and reading summary rows back.
Must not know: tokens, bodies, verdicts; addresses.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, replace
from typing import Any

from explorer.errors import InvalidValue
from explorer.records import Purpose, RolloutId
from explorer.store import jsontext
from explorer.store.database import Database
from explorer.store.facets import read_facets
from explorer.store.filtering import conditions, within_sql
from explorer.store.groups import read_groups, read_points, read_spread
from explorer.store.queries import (
    Facet,
    GroupPage,
    GroupPart,
    JudgementRow,
    RolloutPage,
    RolloutQuery,
    RolloutStatus,
    RolloutSummary,
    RunPoint,
    RunSpread,
    RunSummary,
    SortKey,
    Within,
)
from explorer.store.summaries import SUMMARY, Summaries

MAX_PAGE = 1000

# Sort expression by key. FATAL counts before any number of warnings.
_KEYS = {
    SortKey.CREATED: "b.created_us",
    SortKey.REWARD: "b.reward",
    SortKey.CALLS: "b.n_calls",
    SortKey.FAILED: "b.n_failed",
    SortKey.TOKENS: "b.generated_tokens",
    SortKey.SUPERVISED: "b.trained",
    SortKey.SHARE: "b.share",
    SortKey.FINDINGS: "b.n_fatal * 1000000 + b.n_warn",
    SortKey.VERSION: "b.version_high",
    SortKey.STALE: "b.behind",
    SortKey.DELTA_P99: "b.delta_p99",
    SortKey.DELTA_OUTSIDE: "b.delta_outside",
    SortKey.RUN: "b.run",
    SortKey.TASK: "b.task",
    SortKey.GROUP: "b.group_name",
    SortKey.HARNESS: "b.harness",
    SortKey.MODEL: "b.model",
}
_COLUMNS = (
    "b.rollout_id, b.run, b.task, b.group_name, b.attempt, b.purpose, b.harness, b.model, "
    "b.created_us, b.status, b.closed_us, b.reward, b.ok, b.n_calls, b.n_failed, "
    "b.generated_tokens, b.inputs_sha256, b.policy, b.judged_us, b.trainable, "
    "b.supervised_tokens, b.judged_tokens, b.judged_calls, b.n_fatal, b.n_warn, b.reasons, "
    "b.version_low, b.version_high, b.n_crossed, b.behind, "
    "b.delta_p99, b.delta_outside"
)
_RUNS = (
    "SELECT b.run, count(*), count(*) FILTER (b.status = 'open'), "
    "count(*) FILTER (coalesce(b.trainable, false)), sum(b.n_calls)::BIGINT, "
    "sum(b.generated_tokens)::BIGINT, avg(b.reward), count(b.reward), "
    "min(b.created_us), max(b.created_us), "
    "coalesce(sum(b.trained), 0)::BIGINT, "
    "coalesce(sum(b.n_fatal), 0)::BIGINT, coalesce(sum(b.n_warn), 0)::BIGINT, "
    "count(b.trainable), coalesce(sum(b.judged_tokens), 0)::BIGINT "
    f"FROM {SUMMARY} b WHERE b.status <> 'deleted'{{only}} GROUP BY b.run ORDER BY 10 DESC, 1"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A row's place in an order; a key of None is behind all others."""

    key: float | str | None
    rollout_id: str
    backwards: bool = False


class Lister:
    """Answers listings from an open database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._summaries = Summaries(database)

    def list_rollouts(self, query: RolloutQuery) -> RolloutPage:
        """Return one page of summaries.

        Raises `InvalidValue` for a cursor of another order or a page size out of range.
        """
        if not 1 <= query.limit <= MAX_PAGE:
            raise InvalidValue(f"limit must be from 1 to {MAX_PAGE}")
        place = _read_cursor(query)
        sql, values = page_sql(query, place)
        with self._summaries.reading() as cursor:
            found = cursor.execute(sql, values).fetchall()
            if place is not None and place.backwards:
                found.reverse()
            first = _Place(found[0][0], found[0][1]) if found else None
            where, where_values = conditions(query)
            before, before_values = _precedes(query, first)
            total, ahead = cursor.execute(
                f"SELECT count(*), count(*) FILTER ({before}) FROM (SELECT "
                f"{_KEYS[query.sort]} AS sort_key, b.rollout_id FROM {SUMMARY} b "
                f"WHERE {where})",
                [*before_values, *where_values],
            ).fetchone()
        if first is None:
            ahead = total if place is not None and not place.backwards else 0
        last = ahead + len(found) >= total
        return RolloutPage(
            rows=tuple(read_summary(row[1:]) for row in found),
            total=total,
            before=ahead,
            next_cursor=None if last or not found else _cursor(query, found[-1], "next"),
            previous_cursor=_cursor(query, found[0], "previous") if ahead and found else None,
        )

    def facets(self, query: RolloutQuery, most: int = 12) -> tuple[Facet, ...]:
        """Count the values of the fields worth choosing by, each within the other terms."""
        with self._summaries.reading() as cursor:
            return read_facets(cursor, query, most)

    def group_members(
        self,
        run: str,
        *,
        task: str | None = None,
        group: str | None = None,
        within: Within = None,
    ) -> tuple[RolloutSummary, ...]:
        """Return the rollouts of a run with this group (else task), by attempt."""
        column, value = ("group_name", group) if group is not None else ("task", task)
        only, ids = within_sql(within)
        sql = (
            f"SELECT {_COLUMNS} FROM {SUMMARY} b WHERE b.run = ? AND "
            f"b.{column} IS NOT DISTINCT FROM ? AND b.status <> 'deleted' AND {only} "
            "ORDER BY b.attempt NULLS LAST, b.created_us, b.rollout_id"
        )
        with self._summaries.reading() as cursor:
            found = cursor.execute(sql, [run, value, *ids]).fetchall()
        return tuple(read_summary(row) for row in found)

    def judged_otherwise(self, policy: str, limit: int) -> tuple[RolloutId, ...]:
        """Return closed rollouts, the newest first, whose latest summary was not made under
        `policy` (or that have none)."""
        sql = (
            f"SELECT b.rollout_id FROM {SUMMARY} b WHERE b.status = 'closed' "
            "AND b.policy IS DISTINCT FROM ? ORDER BY b.created_us DESC, b.rollout_id LIMIT ?"
        )
        with self._summaries.reading() as cursor:
            found = cursor.execute(sql, [policy, limit]).fetchall()
        return tuple(RolloutId(row[0]) for row in found)

    def rollout_runs(self) -> dict[RolloutId, str]:
        """Return the run of every rollout that is not deleted."""
        sql = f"SELECT b.rollout_id, b.run FROM {SUMMARY} b WHERE b.status <> 'deleted'"
        with self._summaries.reading() as cursor:
            found = cursor.execute(sql).fetchall()
        return {RolloutId(rollout_id): run for rollout_id, run in found}

    def list_runs(self, within: Within = None) -> tuple[RunSummary, ...]:
        """Return every run, the newest first."""
        only, ids = within_sql(within)
        with self._summaries.reading() as cursor:
            found = cursor.execute(_RUNS.format(only=f" AND {only}"), ids).fetchall()
        return tuple(RunSummary(*row) for row in found)

    def run_summary(self, run: str, within: Within = None) -> RunSummary | None:
        """Return one run; None when no rollout of it is left."""
        only, ids = within_sql(within)
        sql = _RUNS.format(only=f" AND b.run = ? AND {only}")
        with self._summaries.reading() as cursor:
            found = cursor.execute(sql, [run, *ids]).fetchone()
        return None if found is None else RunSummary(*found)

    def run_groups(self, run: str, part: GroupPart, within: Within = None) -> GroupPage:
        """Return some groups of a run with their first rollouts."""
        with self._summaries.reading() as cursor:
            page, rows = read_groups(cursor, run, part, within)
            members: dict[str | None, list[RolloutSummary]] = {}
            found = cursor.execute(rows.format(columns=_COLUMNS), rows.values).fetchall()
            for cohort, *row in found:
                members.setdefault(cohort, []).append(read_summary(tuple(row)))
        groups = (
            replace(group, members=tuple(members.get(group.name, ()))) for group in page.groups
        )
        return replace(page, groups=tuple(groups))

    def run_spread(self, run: str, within: Within = None) -> RunSpread:
        """Return the rewards and lengths of a run's rollouts."""
        with self._summaries.reading() as cursor:
            return read_spread(cursor, run, within)

    def run_points(self, run: str, within: Within = None) -> tuple[RunPoint, ...]:
        """Return what charts read of each rollout of a run, in the order of creation."""
        with self._summaries.reading() as cursor:
            return read_points(cursor, run, within)


def page_sql(query: RolloutQuery, place: _Place | None) -> tuple[str, list[Any]]:
    """The statement of a page: the sort key, then the columns of a summary."""
    where, values = conditions(query)
    key = _KEYS[query.sort]
    backwards = place is not None and place.backwards
    condition, place_values = _beyond(query, place)
    up, down = ("DESC", "ASC") if backwards else ("ASC", "DESC")
    order = down if query.descending else up
    sql = (
        f"SELECT {key}, {_COLUMNS} FROM {SUMMARY} b WHERE {where} AND {condition} "
        f"ORDER BY ({key} IS NULL) {up}, {key} {order}, b.rollout_id {order} LIMIT ?"
    )
    return sql, [*values, *place_values, query.limit]


def _beyond(query: RolloutQuery, place: _Place | None) -> tuple[str, list[Any]]:
    """The condition over `b` of what follows a place, or precedes it, backwards."""
    if place is None:
        return "true", []
    sql, values = _after(query, place, not place.backwards)
    return sql.format(key=_KEYS[query.sort], rollout_id="b.rollout_id"), values


def _precedes(query: RolloutQuery, place: _Place | None) -> tuple[str, list[Any]]:
    """The same over named columns, of what stands in front of a row."""
    if place is None:
        return "false", []
    sql, values = _after(query, place, False)
    return sql.format(key="sort_key", rollout_id="rollout_id"), values


def _after(query: RolloutQuery, place: _Place, forwards: bool) -> tuple[str, list[Any]]:
    sign = "<" if query.descending is forwards else ">"
    if place.key is None:
        tie = f"({{key}} IS NULL AND {{rollout_id}} {sign} ?)"
        return (tie if forwards else f"({{key}} IS NOT NULL OR {tie})"), [place.rollout_id]
    mark, key = "?", place.key
    if isinstance(key, float) and not math.isfinite(key):
        mark, key = "?::DOUBLE", str(key)
    both = f"({{key}} {sign} {mark} OR ({{key}} = {mark} AND {{rollout_id}} {sign} ?)"
    behind = " OR {key} IS NULL)" if forwards else ")"
    return both + behind, [key, key, place.rollout_id]


def _cursor(query: RolloutQuery, row: tuple[Any, ...], way: str) -> str:
    value = [query.sort.value, query.descending, way, row[0], row[1]]
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _read_cursor(query: RolloutQuery) -> _Place | None:
    if query.cursor is None:
        return None
    try:
        padded = query.cursor + "=" * (-len(query.cursor) % 4)
        sort, descending, way, key, rollout_id = json.loads(base64.urlsafe_b64decode(padded))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidValue("the cursor is not one of ours") from error
    textual = query.sort in (
        SortKey.RUN,
        SortKey.TASK,
        SortKey.GROUP,
        SortKey.HARNESS,
        SortKey.MODEL,
    )
    kinds = (str,) if textual else (int, float)
    fits = key is None or (isinstance(key, kinds) and not isinstance(key, bool))
    valid = sort == query.sort.value and descending is query.descending
    if not (valid and fits and isinstance(rollout_id, str) and way in ("next", "previous")):
        raise InvalidValue("the cursor belongs to another order")
    if isinstance(key, int) and not -(2**63) <= key < 2**63:
        raise InvalidValue("the cursor is not one of ours")
    return _Place(key, rollout_id, way == "previous")


def read_summary(row: tuple[Any, ...]) -> RolloutSummary:
    """A summary from the columns of a page."""
    rollout_id = RolloutId(row[0])
    judgement = None
    if row[16] is not None:
        judgement = JudgementRow(
            rollout_id=rollout_id,
            inputs_sha256=row[16],
            policy=row[17],
            time_us=row[18],
            trainable=row[19],
            supervised_tokens=row[20],
            generated_tokens=row[21],
            n_calls=row[22],
            n_fatal=row[23],
            n_warn=row[24],
            reasons=tuple(jsontext.load(row[25])),
        )
    return RolloutSummary(
        rollout_id=rollout_id,
        run=row[1],
        task=row[2],
        group=row[3],
        attempt=row[4],
        purpose=Purpose(row[5]),
        harness=row[6],
        model=row[7],
        created_us=row[8],
        status=RolloutStatus(row[9]),
        closed_us=row[10],
        reward=row[11],
        ok=row[12],
        n_calls=row[13],
        n_failed=row[14],
        generated_tokens=row[15],
        judgement=judgement,
        version_low=row[26],
        version_high=row[27],
        n_crossed=row[28],
        behind=row[29],
        delta_p99=row[30],
        delta_outside=row[31],
    )
