"""Facets: how many rollouts of a filter have each value of a field.

Owns: which fields are counted, and reward buckets. Must not know: links, words for people.

Each facet leaves the terms of its own field out, so that it shows what choosing another
value would give.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from typing import Any

from explorer.store.filtering import EXPRESSIONS, conditions
from explorer.store.queries import Facet, FacetCount, Field, RolloutQuery
from explorer.store.summaries import SUMMARY

# Buckets are written as the filter that shows them.
_BUCKETS = (
    "CASE WHEN b.reward IS NULL THEN NULL WHEN b.reward < 0 THEN '<0' "
    "WHEN b.reward = 0 THEN '0' WHEN b.reward < 0.5 THEN '>0..<0.5' "
    "WHEN b.reward < 1 THEN '0.5..<1' WHEN b.reward = 1 THEN '1' ELSE '>1' END"
)
BUCKETS = ("<0", "0", ">0..<0.5", "0.5..<1", "1", ">1")
FACETS = (
    Field.STATE,
    Field.TRAINABLE,
    Field.REASON,
    Field.FINDINGS,
    Field.REWARD,
    Field.RUN,
    Field.TASK,
    Field.HARNESS,
    Field.MODEL,
    Field.PURPOSE,
)


def read_facets(cursor: Any, query: RolloutQuery, most: int) -> tuple[Facet, ...]:
    """The facets of a filter, each with its `most` commonest values."""
    found = []
    for field in FACETS:
        where, values = conditions(query, without=field)
        expression = _BUCKETS if field is Field.REWARD else EXPRESSIONS[field]
        rows = cursor.execute(
            f"SELECT {expression}, count(*) FROM {SUMMARY} b WHERE {where} "
            "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?",
            [*values, most + 1],
        ).fetchall()
        counts = [FacetCount(value, count) for value, count in rows[:most]]
        if field is Field.REWARD:
            order = {value: place for place, value in enumerate(BUCKETS)}
            counts.sort(key=lambda item: order.get(item.value or "", len(order)))
        found.append(Facet(field.value, tuple(counts), more=len(rows) > most))
    return tuple(found)
