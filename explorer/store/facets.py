"""Facets: how many rollouts of a filter have each value of a field.

Owns: which fields are counted, and reward buckets. Must not know: links, words for people.

Each facet leaves the terms of its own field out, so that it shows what choosing another
value would give.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from collections.abc import Sequence
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
    Field.CROSSED,
)


def read_facets(cursor: Any, query: RolloutQuery, most: int) -> tuple[Facet, ...]:
    """The facets of a filter, each with its `most` commonest values."""
    own = {term.field for term in query.terms} | {Field.STATE}
    shared = [field for field in FACETS if field not in own]
    found: dict[Field, list[FacetCount]] = {field: [] for field in FACETS}
    # Rows that match are found once for all facets that leave no term out.
    for fields, without in ((shared, None), *(((field,), field) for field in FACETS)):
        if without is not None and without not in own:
            continue
        sql, values = _counting(query, fields, without, most)
        for name, value, count in cursor.execute(sql, values).fetchall():
            found[Field(name)].append(FacetCount(value, count))
    return tuple(_facet(field, found[field], most) for field in FACETS)


def _counting(
    query: RolloutQuery, fields: Sequence[Field], without: Field | None, most: int
) -> tuple[str, list[Any]]:
    """One statement that counts the values of some fields: name, value, count."""
    where, values = conditions(query, without=without)
    columns = ", ".join(
        f"{_BUCKETS if field is Field.REWARD else EXPRESSIONS[field]} AS facet_{field.value}"
        for field in fields
    )
    counts = " UNION ALL ".join(
        f"(SELECT '{field.value}', facet_{field.value}, count(*) FROM matched "
        f"GROUP BY 2 ORDER BY 3 DESC, 2 LIMIT {int(most) + 1})"
        for field in fields
    )
    sql = f"WITH matched AS MATERIALIZED (SELECT {columns} FROM {SUMMARY} b WHERE {where}) "
    return sql + counts, values


def _facet(field: Field, counts: list[FacetCount], most: int) -> Facet:
    shown = sorted(counts, key=lambda item: (-item.count, item.value is None, item.value or ""))
    shown = shown[:most]
    if field is Field.REWARD:
        order = {value: place for place, value in enumerate(BUCKETS)}
        shown.sort(key=lambda item: order.get(item.value or "", len(order)))
    return Facet(field.value, tuple(shown), more=len(counts) > most)
