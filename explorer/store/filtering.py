"""Terms of a filter as conditions over the summaries.

Owns: which column each field reads, and how values compare.
Must not know: addresses, pages, cursors.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from explorer.store.annotations import ALIVE
from explorer.store.queries import Field, Range, RolloutQuery, RolloutStatus, Term, Within

SEARCHED = ("rollout_id", "run", "task", "group_name", "harness", "model")
# Expressions over `b`, the summaries, by field. Those of yes and no are texts.
_YES_NO = "CASE WHEN {0} THEN 'yes' WHEN NOT {0} THEN 'no' END"
EXPRESSIONS: dict[Field, str] = {
    Field.ID: "b.rollout_id",
    Field.RUN: "b.run",
    Field.TASK: "b.task",
    Field.GROUP: "b.group_name",
    Field.ATTEMPT: "b.attempt",
    Field.HARNESS: "b.harness",
    Field.MODEL: "b.model",
    Field.PURPOSE: "b.purpose",
    Field.STATE: "b.status",
    Field.OK: _YES_NO.format("b.ok"),
    Field.TRAINABLE: _YES_NO.format("b.trainable"),
    Field.REASON: "b.reason",
    Field.FINDINGS: "b.grade",
    Field.REWARD: "b.reward",
    Field.SHARE: "b.share",
    Field.CALLS: "b.n_calls",
    Field.FAILED: "b.n_failed",
    Field.TOKENS: "b.generated_tokens",
    Field.SUPERVISED: "b.trained",
    Field.VERSION: "b.version_high",
    Field.STALE: "b.behind",
    Field.DELTA_P99: "b.delta_p99",
    Field.DELTA_OUTSIDE: "b.delta_outside",
    Field.CROSSED: _YES_NO.format("(b.n_crossed > 0)"),
    Field.CREATED: "b.created_us",
}
# The key whole, else as steps inwards. What is not JSON (a NaN was kept) has no value.
_META = (
    "(SELECT TRY(coalesce(json_extract_string(r.metadata, ?), "
    "json_extract_string(r.metadata, ?))) FROM rollout r WHERE r.rollout_id = b.rollout_id)"
)
_LABELS = f"SELECT a.rollout_id FROM annotation a WHERE a.label IS NOT NULL AND {ALIVE}"


def conditions(query: RolloutQuery, without: Field | None = None) -> tuple[str, list[Any]]:
    """The condition over `b` with its values; terms of the field `without` are left out.

    Deleted rollouts are left out unless a term asks for them, or states are what is counted.
    """
    parts: list[str] = []
    values: list[Any] = []
    if query.within is not None:
        sql, given = within_sql(query.within)
        parts.append(sql)
        values += given
    terms = [term for term in query.terms if term.field is not without]
    if without is not Field.STATE and not asks_for_deleted(terms):
        parts.append("b.status <> 'deleted'")
    for term in terms:
        sql, given = _term(term)
        parts.append(sql)
        values += given
    if query.text:
        either = (f"contains(lower(b.{name}), lower(?))" for name in SEARCHED)
        parts.append(f"({' OR '.join(either)})")
        values += [query.text] * len(SEARCHED)
    return " AND ".join(parts) or "true", values


def within_sql(within: Within) -> tuple[str, list[Any]]:
    """The condition over `b` that a rollout is one of those that may be seen."""
    if within is None:
        return "true", []
    return "b.rollout_id IN (SELECT unnest(?::VARCHAR[]))", [sorted(within)]


def asks_for_deleted(terms: Iterable[Term]) -> bool:
    """Whether some term names the state `deleted` as wanted."""
    return any(
        term.field is Field.STATE and not term.negated and RolloutStatus.DELETED in term.values
        for term in terms
    )


def _term(term: Term) -> tuple[str, list[Any]]:
    parts: list[str] = []
    values: list[Any] = []
    # Texts together are one comparison: a hundred of them, each on its own, in forty terms
    # are deeper than a statement may be.
    texts = [value for value in term.values if isinstance(value, str)]
    others = [value for value in term.values if not isinstance(value, str)]
    compare = _label if term.field is Field.LABEL else partial(_compare, term)
    for value in (*([texts] if texts else []), *others):
        sql, given = compare(value)
        parts.append(sql)
        values += given
    either = f"({' OR '.join(parts)})"
    # A comparison with nothing is unknown, and not unknown is unknown, too.
    return (f"NOT coalesce({either}, false)" if term.negated else either), values


def _marks(texts: list[str]) -> str:
    return ", ".join("?" * len(texts))


def _label(value: list[str] | Range | None) -> tuple[str, list[Any]]:
    if not isinstance(value, list):
        return f"b.rollout_id NOT IN ({_LABELS})", []
    return f"b.rollout_id IN ({_LABELS} AND a.label IN ({_marks(value)}))", [*value]


def _compare(term: Term, value: list[str] | Range | None) -> tuple[str, list[Any]]:
    expression, given = EXPRESSIONS.get(term.field, ""), []
    if term.field is Field.META:
        step = _pointer(term.key)
        expression, given = _META, [step, "/" + step[1:].replace(".", "/")]
    if value is None:
        return f"({expression} IS NULL)", given
    if isinstance(value, list):
        return f"({expression} IN ({_marks(value)}))", [*given, *value]
    parts: list[str] = []
    values: list[Any] = []
    # Versions are a span: it meets the range that is asked for.
    lowest = "b.version_low" if term.field is Field.VERSION else expression
    for bound, sign in (
        (value.low, ">" if value.low_open else ">="),
        (value.high, "<" if value.high_open else "<="),
    ):
        if bound is not None:
            parts.append(f"{lowest if sign[0] == '<' else expression} {sign} ?")
            values += [*given, bound]
    return f"({' AND '.join(parts) or f'{expression} IS NOT NULL'})", values


def _pointer(key: str) -> str:
    """A key as a JSON pointer."""
    return "/" + key.replace("~", "~0").replace("/", "~1")
