"""The groups of a run, counted, the spread of its rewards and lengths, and its charts' points.

Owns: what a group is, its numbers and orders. Must not know: pages, charts.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer.store.filtering import within_sql
from explorer.store.queries import (
    GroupPage,
    GroupPart,
    GroupSort,
    GroupSummary,
    RunPoint,
    RunSpread,
    Within,
)
from explorer.store.summaries import SAMPLED, SUMMARY

# Rollouts of one group that are read; a page says how many more there are.
MOST_MEMBERS = 64

_ZERO = "(n_rewarded > 1 AND low = high)"
_ORDERS = {
    GroupSort.NAME: "cohort",
    GroupSort.REWARD: "mean",
    GroupSort.VARIANCE: f"CASE WHEN {_ZERO} THEN 1 ELSE 0 END",
    GroupSort.FINDINGS: "n_fatal * 1000000 + n_warn",
    GroupSort.LENGTH: "length",
    GroupSort.SHARE: "CASE WHEN judged_tokens > 0 THEN supervised / judged_tokens END",
}
_GROUPS = f"""
WITH grouped AS (
  SELECT b.cohort, count(*) AS n, count(b.reward) AS n_rewarded, avg(b.reward) AS mean,
    min(b.reward) AS low, max(b.reward) AS high,
    count(*) FILTER (coalesce(b.trainable, false)) AS n_trainable,
    count(b.trainable) AS n_judged,
    coalesce(sum(b.trained), 0)::BIGINT AS supervised,
    coalesce(sum(b.judged_tokens), 0)::BIGINT AS judged_tokens,
    coalesce(sum(b.n_fatal), 0)::BIGINT AS n_fatal,
    coalesce(sum(b.n_warn), 0)::BIGINT AS n_warn, avg(b.generated_tokens) AS length
  FROM {SUMMARY} b WHERE b.run = ? AND b.status <> 'deleted' AND {{only}} GROUP BY b.cohort)
"""
_NUMBERS = (
    "cohort, n, n_rewarded, mean, low, high, n_trainable, n_judged, supervised, "
    "judged_tokens, n_fatal, n_warn, length"
)


@dataclass(frozen=True, slots=True)
class Members:
    """The statement that reads the rollouts of some groups."""

    sql: str
    values: list[Any]

    def format(self, columns: str) -> str:
        """The statement, reading `columns` behind the group's name."""
        return self.sql.format(columns=columns)


def read_groups(
    cursor: Any, run: str, part: GroupPart, within: Within
) -> tuple[GroupPage, Members]:
    """Some groups, and the statement for their rollouts."""
    way = "DESC" if part.descending else "ASC"
    only, ids = within_sql(within)
    grouped = _GROUPS.format(only=only)
    counted = cursor.execute(
        f"{grouped} SELECT count(*), count(*) FILTER ({_ZERO}) FROM grouped", [run, *ids]
    ).fetchone()
    found = cursor.execute(
        f"{grouped} SELECT {_NUMBERS} FROM grouped ORDER BY {_ORDERS[part.sort]} {way} "
        "NULLS LAST, "
        "cohort LIMIT ? OFFSET ?",
        [run, *ids, part.limit, part.offset],
    ).fetchall()
    groups = tuple(GroupSummary(*row) for row in found)
    names = [group.name for group in groups if group.name is not None]
    marks = ", ".join("?" * len(names))
    chosen = f"b.cohort IN ({marks})" if names else "false"
    if any(group.name is None for group in groups):
        chosen = f"({chosen} OR b.cohort IS NULL)"
    members = Members(
        f"SELECT b.cohort, {{columns}} FROM {SUMMARY} b WHERE b.run = ? "
        f"AND b.status <> 'deleted' AND {only} AND {chosen} QUALIFY row_number() OVER ("
        f"PARTITION BY b.cohort ORDER BY b.attempt NULLS LAST, b.created_us, b.rollout_id) "
        f"<= {MOST_MEMBERS} ORDER BY b.attempt NULLS LAST, b.created_us, b.rollout_id",
        [run, *ids, *names],
    )
    return GroupPage(groups=groups, total=counted[0], n_zero_variance=counted[1]), members


def read_spread(cursor: Any, run: str, within: Within) -> RunSpread:
    """The rewards and lengths of a run."""
    only, ids = within_sql(within)
    found = cursor.execute(
        f"SELECT b.reward, b.generated_tokens FROM {SUMMARY} b WHERE b.run = ? "
        f"AND b.status <> 'deleted' AND {only}",
        [run, *ids],
    ).fetchall()
    return RunSpread(
        rewards=tuple(reward for reward, _ in found if reward is not None),
        lengths=tuple(length for _, length in found),
    )


def read_points(cursor: Any, run: str, within: Within) -> tuple[RunPoint, ...]:
    """The rollouts of a run, each in one line; only narrow columns of calls are read."""
    only, ids = within_sql(within)
    mixed = cursor.execute(
        "SELECT c.rollout_id, CASE WHEN c.weight_version_start = c.weight_version_end "
        "THEN c.weight_version_start END AS version, sum(c.completion_len)::BIGINT "
        f"FROM call c JOIN {SUMMARY} b USING (rollout_id) WHERE c.ended AND c.{SAMPLED} "
        f"AND b.run = ? AND b.status <> 'deleted' AND {only} GROUP BY 1, 2 ORDER BY 1, 2",
        [run, *ids],
    ).fetchall()
    versions: dict[str, list[tuple[int | None, int]]] = {}
    for rollout_id, version, tokens in mixed:
        versions.setdefault(rollout_id, []).append((version, tokens))
    found = cursor.execute(
        "SELECT b.rollout_id, b.created_us, b.step, b.status = 'open', b.reward, "
        f"b.generated_tokens, b.cohort FROM {SUMMARY} b WHERE b.run = ? "
        f"AND b.status <> 'deleted' AND {only} ORDER BY b.created_us, b.rollout_id",
        [run, *ids],
    ).fetchall()
    return tuple(RunPoint(*(*row, tuple(versions.get(row[0], ())))) for row in found)
