"""Listings: pages of rollouts, runs and groups, from summary columns only.

Owns: filters, orders and cursors of listings. Must not know: tokens, bodies, verdicts.

No counters are kept: DuckDB sums 500,000 calls by rollout in about 30 ms, so state,
counts and the latest judgement are aggregated from the rows at each request.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

import base64
import json
import math
from typing import Any

from explorer import columns
from explorer.errors import InvalidValue
from explorer.records import Purpose, RolloutId
from explorer.store import rows
from explorer.store.database import Database, select_list
from explorer.store.interface import (
    JudgementRow,
    RolloutPage,
    RolloutQuery,
    RolloutStatus,
    RolloutSummary,
    RunSummary,
    SortKey,
)

MAX_PAGE = 1000

_STATE = """
state AS (
  SELECT rollout_id,
    CASE WHEN bool_or(kind = 'deleted') THEN 'deleted'
         WHEN bool_or(kind = 'closed') THEN 'closed' ELSE 'open' END AS status,
    epoch_us(max(event_time) FILTER (kind = 'closed')) AS closed_us,
    arg_max(reward, sequence) FILTER (reward IS NOT NULL) AS reward,
    arg_max(ok, sequence) FILTER (ok IS NOT NULL) AS ok
  FROM rollout_event {only} GROUP BY rollout_id)"""
_COUNTS = """
counts AS (
  SELECT rollout_id, count(*) AS n_calls,
    count(*) FILTER (status <> 'committed') AS n_failed,
    coalesce(sum(completion_len), 0)::BIGINT AS generated_tokens
  FROM call WHERE ended {only} GROUP BY rollout_id)"""
_VERDICT = """
verdict AS (
  SELECT rollout_id, arg_max(trainable, judged_time) AS trainable
  FROM judgement GROUP BY rollout_id)"""
_BASE = """
base AS (
  SELECT r.rollout_id, r.run, r.task, r.group_name, r.attempt, r.purpose, r.harness, r.model,
    epoch_us(r.created_time) AS created_us, coalesce(s.status, 'open') AS status,
    s.closed_us, s.reward, s.ok
  FROM rollout r LEFT JOIN state s USING (rollout_id))"""

# Sort expression by key. A missing reward sorts last in both directions.
_KEYS = {
    SortKey.CREATED: "b.created_us",
    SortKey.REWARD: "coalesce(b.reward, {missing}::DOUBLE)",
    SortKey.CALLS: "coalesce(c.n_calls, 0)",
    SortKey.TOKENS: "coalesce(c.generated_tokens, 0)",
}
_SEARCHED = ("rollout_id", "run", "task", "group_name", "harness", "model")
_SUMMARY = (
    "b.rollout_id, b.run, b.task, b.group_name, b.attempt, b.purpose, b.harness, b.model, "
    "b.created_us, b.status, b.closed_us, b.reward, b.ok, coalesce(c.n_calls, 0), "
    "coalesce(c.n_failed, 0), coalesce(c.generated_tokens, 0)"
)


class Lister:
    """Answers listings from an open database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_rollouts(self, query: RolloutQuery) -> RolloutPage:
        """Return one page of summaries.

        Raises `InvalidValue` for a cursor of another order or a page size out of range.
        """
        if not 1 <= query.limit <= MAX_PAGE:
            raise InvalidValue(f"limit must be from 1 to {MAX_PAGE}")
        where, values = _filters(query)
        missing = "'-infinity'" if query.descending else "'infinity'"
        key = _KEYS[query.sort].format(missing=missing)
        tables = [_STATE.format(only=""), _BASE]
        joins = ""
        if query.sort in (SortKey.CALLS, SortKey.TOKENS):
            tables.append(_COUNTS.format(only=""))
            joins += " LEFT JOIN counts c USING (rollout_id)"
        if query.trainable is not None:
            tables.append(_VERDICT)
            joins += " LEFT JOIN verdict v USING (rollout_id)"
        after, after_values = _after(query)
        direction = "DESC" if query.descending else "ASC"
        sql = (
            f"WITH {','.join(tables)}, found AS (SELECT b.rollout_id, {key} AS sort_key "
            f"FROM base b{joins} WHERE {where}) "
            "SELECT rollout_id, sort_key, (SELECT count(*) FROM found) FROM found "
            f"WHERE {after} ORDER BY sort_key {direction}, rollout_id {direction} LIMIT ?"
        )
        with self._database.snapshot() as cursor:
            parameters = [*values, *after_values, query.limit + 1]
            found = cursor.execute(sql, parameters).fetchall()
            page = found[: query.limit]
            summaries = _summaries(cursor, [row[0] for row in page])
            total = found[0][2] if found else _total(cursor, query, tables, joins)
        more = len(found) > query.limit
        return RolloutPage(
            rows=tuple(summaries[row[0]] for row in page),
            total=int(total),
            next_cursor=_cursor(query, page[-1][1], page[-1][0]) if more else None,
        )

    def group_members(
        self, run: str, *, task: str | None = None, group: str | None = None
    ) -> tuple[RolloutSummary, ...]:
        """Return the rollouts of a run with this group (else task), by attempt."""
        column, value = ("group_name", group) if group is not None else ("task", task)
        sql = (
            f"WITH {_STATE.format(only='')} SELECT r.rollout_id FROM rollout r "
            "LEFT JOIN state s USING (rollout_id) "
            f"WHERE r.run = ? AND r.{column} IS NOT DISTINCT FROM ? AND "
            "coalesce(s.status, 'open') <> 'deleted' "
            "ORDER BY r.attempt NULLS LAST, r.created_time, r.rollout_id"
        )
        with self._database.snapshot() as cursor:
            ids = [row[0] for row in cursor.execute(sql, [run, value]).fetchall()]
            summaries = _summaries(cursor, ids)
        return tuple(summaries[each] for each in ids)

    def judged_otherwise(self, policy: str, limit: int) -> tuple[RolloutId, ...]:
        """Return closed rollouts, the newest first, whose latest summary was not made under
        `policy` (or that have none)."""
        sql = (
            f"WITH {_STATE.format(only='')}, latest AS (SELECT rollout_id, "
            "arg_max(policy, judged_time) AS policy FROM judgement GROUP BY rollout_id) "
            "SELECT r.rollout_id FROM rollout r JOIN state s USING (rollout_id) "
            "LEFT JOIN latest j USING (rollout_id) WHERE s.status = 'closed' "
            "AND j.policy IS DISTINCT FROM ? ORDER BY r.created_time DESC, r.rollout_id LIMIT ?"
        )
        with self._database.reading() as cursor:
            found = cursor.execute(sql, [policy, limit]).fetchall()
        return tuple(RolloutId(row[0]) for row in found)

    def list_runs(self) -> tuple[RunSummary, ...]:
        """Return every run, the newest first."""
        sql = (
            f"WITH {_STATE.format(only='')}, {_BASE}, {_COUNTS.format(only='')}, {_VERDICT} "
            "SELECT b.run, count(*), count(*) FILTER (b.status = 'open'), "
            "count(*) FILTER (coalesce(v.trainable, false)), "
            "coalesce(sum(c.n_calls), 0)::BIGINT, "
            "coalesce(sum(c.generated_tokens), 0)::BIGINT, avg(b.reward), count(b.reward), "
            "min(b.created_us), max(b.created_us) FROM base b "
            "LEFT JOIN counts c USING (rollout_id) LEFT JOIN verdict v USING (rollout_id) "
            "WHERE b.status <> 'deleted' GROUP BY b.run ORDER BY 10 DESC, 1"
        )
        with self._database.reading() as cursor:
            return tuple(RunSummary(*row) for row in cursor.execute(sql).fetchall())


def _filters(query: RolloutQuery) -> tuple[str, list[Any]]:
    """Return the condition over `base b` (and `verdict v`) with its values."""
    parts: list[str] = []
    values: list[Any] = []
    if query.state is None:
        parts.append("b.status <> 'deleted'")
    equal = {
        "b.status": None if query.state is None else query.state.value,
        "b.run": query.run,
        "b.task": query.task,
        "b.group_name": query.group,
        "v.trainable": query.trainable,
    }
    for column, value in equal.items():
        if value is not None:
            parts.append(f"{column} = ?")
            values.append(value)
    for operator, bound in ((">=", query.reward_min), ("<=", query.reward_max)):
        if bound is not None:
            parts.append(f"b.reward {operator} ?")
            values.append(float(bound))
    if query.text:
        either = (f"contains(lower(b.{name}), lower(?))" for name in _SEARCHED)
        parts.append(f"({' OR '.join(either)})")
        values += [query.text] * len(_SEARCHED)
    return " AND ".join(parts), values


def _total(cursor: Any, query: RolloutQuery, tables: list[str], joins: str) -> int:
    """Count the matches when a cursor points behind the last row."""
    if query.cursor is None:
        return 0
    where, values = _filters(query)
    sql = f"WITH {','.join(tables)} SELECT count(*) FROM base b{joins} WHERE {where}"
    return int(cursor.execute(sql, values).fetchone()[0])


def _cursor(query: RolloutQuery, key: float, rollout_id: str) -> str:
    value = [query.sort.value, query.descending, key, rollout_id]
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _after(query: RolloutQuery) -> tuple[str, list[Any]]:
    """Return the condition that continues behind the cursor, with its values."""
    if query.cursor is None:
        return "true", []
    try:
        padded = query.cursor + "=" * (-len(query.cursor) % 4)
        sort, descending, key, rollout_id = json.loads(base64.urlsafe_b64decode(padded))
        valid = sort == query.sort.value and descending is query.descending
        valid = valid and isinstance(rollout_id, str) and isinstance(key, (int, float))
    except (ValueError, TypeError) as error:
        raise InvalidValue("the cursor is not one of ours") from error
    if not valid:
        raise InvalidValue("the cursor belongs to another order")
    sign = "<" if query.descending else ">"
    mark = "?"
    if isinstance(key, float) and not math.isfinite(key):
        mark, key = "?::DOUBLE", str(key)
    return (
        f"(sort_key {sign} {mark} OR (sort_key = {mark} AND rollout_id {sign} ?))",
        [key, key, rollout_id],
    )


def _summaries(cursor: Any, ids: list[str]) -> dict[str, RolloutSummary]:
    """Read the summaries of some rollouts: one scan per table, whatever the page."""
    if not ids:
        return {}
    marks = ", ".join("?" * len(ids))
    state = _STATE.format(only=f"WHERE rollout_id IN ({marks})")
    counts = _COUNTS.format(only=f"AND rollout_id IN ({marks})")
    judged = select_list(columns.JUDGEMENT)
    latest = cursor.execute(
        f"SELECT {judged} FROM judgement WHERE rollout_id IN ({marks}) "
        "QUALIFY row_number() OVER (PARTITION BY rollout_id "
        "ORDER BY judged_time DESC, inputs_sha256) = 1",
        ids,
    ).fetchall()
    verdicts = {row[0]: rows.decode_judgement(row) for row in latest}
    sql = (
        f"WITH {state}, {_BASE}, {counts} SELECT {_SUMMARY} FROM base b "
        f"LEFT JOIN counts c USING (rollout_id) WHERE b.rollout_id IN ({marks})"
    )
    found = cursor.execute(sql, [*ids, *ids, *ids]).fetchall()
    return {row[0]: _summary(row, verdicts.get(row[0])) for row in found}


def _summary(row: tuple[Any, ...], judgement: JudgementRow | None) -> RolloutSummary:
    return RolloutSummary(
        rollout_id=RolloutId(row[0]),
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
    )
