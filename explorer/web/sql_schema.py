"""The tables that the SQL console offers, and queries to start from.

Owns: how the schema reads on the page, the examples. Must not know: running a query.
"""

from __future__ import annotations

import re

from explorer.store.snapshot import shown_tables, sql_type
from explorer.web.contexts_sql import SqlColumn, SqlExample, SqlTable
from explorer.web.frames import with_query

NUMBER = re.compile(r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|DOUBLE|FLOAT|DECIMAL\(.*\)")
_LIST_UNITS = {"int32 LE": "ids", "float32 LE": "nats"}
_LIST_DOCS = {"logprobs": "One per sampled id; null: the engine gave none."}

EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "Reward and length of each group; zero spread teaches nothing",
        "SELECT run, task, group_name, count(*) AS n, avg(reward) AS mean,\n"
        "  stddev_pop(reward) AS spread, avg(generated_tokens) AS tokens\n"
        "FROM summary\nGROUP BY ALL\nORDER BY spread NULLS FIRST, run, task",
    ),
    (
        "The least likely sampled tokens, with their text",
        "SELECT c.rollout_id, c.call_id, t.position, t.id,\n"
        "  v.raw::VARCHAR AS token, t.logprob\n"
        "FROM call c\n"
        "JOIN rollout r USING (rollout_id),\n"
        "  LATERAL (SELECT unnest(range(len(c.completion))) AS position,\n"
        "    unnest(c.completion) AS id, unnest(c.logprobs) AS logprob) t\n"
        "LEFT JOIN vocabulary v ON v.tokenizer_id = r.tokenizer_id AND v.token_id = t.id\n"
        "WHERE t.logprob IS NOT NULL\nORDER BY t.logprob\nLIMIT 50",
    ),
    (
        "Why calls failed",
        "SELECT failure_kind, detail->>'$.failure_detail' AS said, count(*) AS n\n"
        "FROM call\nWHERE status <> 'committed'\nGROUP BY ALL\nORDER BY n DESC",
    ),
    (
        "Calls that cross two weight versions",
        "SELECT rollout_id, call_id, weight_version_start, weight_version_end\n"
        "FROM call\nWHERE weight_version_start <> weight_version_end",
    ),
    (
        "Tokens per second of the engine, by model",
        "SELECT model_served, count(*) AS calls,\n"
        "  sum(completion_len) / nullif(sum(engine_ms), 0) * 1000 AS tokens_per_s\n"
        "FROM call\nWHERE status = 'committed'\nGROUP BY ALL",
    ),
    (
        "Why rollouts do not train",
        "SELECT reason, count(*) AS n\n"
        "FROM (SELECT unnest(from_json(reasons, '[\"VARCHAR\"]')) AS reason\n"
        "  FROM judgement WHERE NOT trainable)\nGROUP BY ALL\nORDER BY n DESC",
    ),
)


def examples() -> tuple[SqlExample, ...]:
    """Queries that work on every store."""
    return tuple(
        SqlExample(title=title, sql=sql, href=with_query("/sql", sql=sql))
        for title, sql in EXAMPLES
    )


def tables() -> tuple[SqlTable, ...]:
    """Every table of the copy with the meaning of each column."""
    return tuple(
        SqlTable(
            name=table.name,
            doc=table.doc,
            columns=tuple(
                SqlColumn(
                    name=column.name,
                    type=sql_type(column),
                    unit=_LIST_UNITS.get(column.unit, column.unit),
                    doc=_LIST_DOCS.get(column.name, column.doc),
                    numeric=NUMBER.fullmatch(sql_type(column)) is not None,
                )
                for column in table.columns
            ),
        )
        for table in shown_tables()
    )
