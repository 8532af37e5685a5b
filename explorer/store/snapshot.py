"""What the SQL console may see, as Parquet: a copy that holds nothing else.

Owns: which tables and columns are copied, how token bytes become lists, and the choice of
the newest rollouts when not all fit.
Must not know: who asks, what runs over the copy.

The copy leaves out deleted rollouts, hashes of capture keys and raw bodies: what is not in
it cannot be read, whatever the query does.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from explorer import columns
from explorer.columns import Column, Kind, Table
from explorer.records import NULL_LOGPROB_BITS
from explorer.store.database import Database
from explorer.store.interface import Snapshot

# Bytes of rows, before compression, that one copy holds at most.
MOST_BYTES = 96 * 1024 * 1024

_LEFT_OUT: dict[str, frozenset[str]] = {
    "rollout": frozenset(("key_hash",)),
    "call": frozenset(("ended", "body_index", "request_body", "submitted_body", "reply_body")),
    "annotation": frozenset(("withdraws",)),
}
_LISTS = {"prompt_delta": "INTEGER[]", "completion": "INTEGER[]", "logprobs": "FLOAT[]"}
_ALIVE = (
    "NOT EXISTS (SELECT 1 FROM rollout_event gone "
    "WHERE gone.rollout_id = {name}.rollout_id AND gone.kind = 'deleted')"
)
# Beyond that the rollout is alive and among the chosen ones.
_WHERE = {
    "call": "call.ended",
    "annotation": "annotation.withdraws IS NULL AND NOT EXISTS (SELECT 1 FROM annotation back "
    "WHERE back.withdraws = annotation.annotation_id)",
}
_QUALIFY = {
    "judgement": "QUALIFY row_number() OVER (PARTITION BY rollout_id "
    "ORDER BY judged_time DESC, policy) = 1",
}
_COPIED = (
    columns.ROLLOUT,
    columns.ROLLOUT_EVENT,
    columns.CALL,
    columns.JUDGEMENT,
    columns.ANNOTATION,
    columns.CERTIFICATE,
    columns.VOCABULARY,
)
_SIZES = (
    "SELECT rollout.rollout_id, coalesce(sized.size, 0) + 1024, coalesce(sized.calls, 0) "
    "FROM rollout LEFT JOIN (SELECT rollout_id, count(*) AS calls, sum(256 + strlen(detail) "
    "+ strlen(preview) + 4 * (coalesce(prompt_len, 0) - coalesce(prefix_len, 0)) "
    "+ 8 * coalesce(completion_len, 0) + coalesce(octet_length(top_logprobs), 0)) AS size "
    "FROM call WHERE ended GROUP BY rollout_id) sized USING (rollout_id) "
    f"WHERE {_ALIVE.format(name='rollout')} ORDER BY created_time DESC, rollout_id DESC"
)
SUMMARY = Table(
    "summary",
    "One row per rollout, as the list of rollouts shows it. A view over the other tables.",
    (
        Column("rollout_id", Kind.TEXT, "Public id of the rollout."),
        Column("run", Kind.TEXT, "Named collection it belongs to."),
        Column("task", Kind.TEXT, "What the agent attempted."),
        Column("group_name", Kind.TEXT, "Rollouts compared with each other."),
        Column("attempt", Kind.BIGINT, "Number of the attempt within its group or task."),
        Column("model", Kind.TEXT, "Model it was admitted for."),
        Column("harness", Kind.TEXT, "Harness, as it was claimed."),
        Column("created_time", Kind.TIME, "When it was created.", unit="UTC"),
        Column("status", Kind.TEXT, "`open` or `closed`."),
        Column("reward", Kind.DOUBLE, "Latest reward; null when none was given."),
        Column("ok", Kind.BOOL, "Latest word on success; null when nobody said."),
        Column("n_calls", Kind.BIGINT, "Calls that ended."),
        Column("n_failed", Kind.BIGINT, "Of these, failed, aborted or refused."),
        Column("generated_tokens", Kind.BIGINT, "Sampled tokens of all its calls."),
        Column("trainable", Kind.BOOL, "Verdict; null until it has been judged."),
        Column("supervised_tokens", Kind.BIGINT, "Tokens that train; null until judged."),
    ),
    ("rollout_id",),
)
_SUMMARY_SQL = """CREATE VIEW summary AS
SELECT r.rollout_id, r.run, r.task, r.group_name, r.attempt, r.model, r.harness, r.created_time,
  CASE WHEN e.closed THEN 'closed' ELSE 'open' END AS status, e.reward, e.ok,
  coalesce(c.n_calls, 0) AS n_calls, coalesce(c.n_failed, 0) AS n_failed,
  coalesce(c.generated_tokens, 0)::BIGINT AS generated_tokens,
  j.trainable, j.supervised_tokens
FROM rollout r
LEFT JOIN (SELECT rollout_id, bool_or(kind = 'closed') AS closed,
    arg_max(reward, sequence) FILTER (reward IS NOT NULL) AS reward,
    arg_max(ok, sequence) FILTER (ok IS NOT NULL) AS ok
  FROM rollout_event GROUP BY rollout_id) e USING (rollout_id)
LEFT JOIN (SELECT rollout_id, count(*) AS n_calls,
    count(*) FILTER (status IN ('failed', 'aborted', 'refused')) AS n_failed,
    sum(completion_len) AS generated_tokens
  FROM call GROUP BY rollout_id) c USING (rollout_id)
LEFT JOIN judgement j USING (rollout_id)"""
VIEWS = (_SUMMARY_SQL,)


def sql_type(column: Column) -> str:
    """The type of a column in the copy."""
    if column.name in _LISTS:
        return _LISTS[column.name]
    if column.kind is Kind.TIME:
        return "TIMESTAMP"
    return "VARCHAR" if column.kind is Kind.JSON else column.kind.value


def shown_tables() -> tuple[Table, ...]:
    """The tables of the copy, with only the columns that it has."""
    made = [SUMMARY]
    for table in _COPIED:
        gone = _LEFT_OUT.get(table.name, frozenset())
        kept = tuple(column for column in table.columns if column.name not in gone)
        made.append(replace(table, columns=kept))
    return tuple(made)


class SnapshotTaker:
    """The part of a store that makes copies; mixed into it."""

    _database: Database

    def snapshot(self, most_bytes: int = MOST_BYTES) -> Snapshot:
        """Copy what the operator may see; the newest rollouts when not all fit."""
        began = time.monotonic()
        with self._database.snapshot() as cursor:
            found = cursor.execute(_SIZES).fetchall()
            chosen: list[str] = []
            calls = used = 0
            for rollout_id, size, n_calls in found:
                used += size
                if used > most_bytes:
                    break
                chosen.append(rollout_id)
                calls += n_calls
            everything = len(chosen) == len(found)
            files = {
                table.name: _file(cursor, table, None if everything else chosen)
                for table in shown_tables()[1:]
            }
        return Snapshot(
            files=files,
            taken_us=time.time_ns() // 1000,
            build_s=time.monotonic() - began,
            n_rollouts=len(chosen),
            total_rollouts=len(found),
            n_calls=calls,
            views=VIEWS,
        )


def _file(cursor: duckdb.DuckDBPyConnection, table: Table, chosen: list[str] | None) -> bytes:
    named = ", ".join(
        f"make_timestamp(epoch_us({column.name})) AS {column.name}"
        if column.kind is Kind.TIME
        else f"{table.name}.{column.name}"
        for column in table.columns
    )
    conditions = [_WHERE[table.name]] if table.name in _WHERE else []
    parameters: list[Any] = []
    if "rollout_id" in table.names:
        conditions.append(_ALIVE.format(name=table.name))
        if chosen is not None:
            conditions.append(f"{table.name}.rollout_id IN (SELECT unnest(?::VARCHAR[]))")
            parameters.append(chosen)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    sql = f"SELECT {named} FROM {table.name} {where}{_QUALIFY.get(table.name, '')}"
    found = cursor.sql(sql, params=parameters).to_arrow_table()
    for index, column in enumerate(table.columns):
        if column.name in _LISTS:
            made = _as_lists(found.column(index), floats=column.name == "logprobs")
            found = found.set_column(index, column.name, made)
    held = io.BytesIO()
    pq.write_table(found, held, compression="lz4", use_dictionary=False)
    return held.getvalue()


def _as_lists(blobs: pa.ChunkedArray, *, floats: bool) -> pa.ChunkedArray:
    """Arrays as they are stored, as lists of numbers; a missing logprob is null."""
    chunks = [_list_chunk(chunk, floats=floats) for chunk in blobs.chunks]
    inner = pa.float32() if floats else pa.int32()
    return pa.chunked_array(chunks, type=pa.list_(inner))


def _list_chunk(chunk: Any, *, floats: bool) -> Any:
    blobs = chunk.cast(pa.binary())
    size = len(blobs)
    offsets = np.frombuffer(blobs.buffers()[1], np.int32, size + 1, blobs.offset * 4)
    data = blobs.buffers()[2] or pa.py_buffer(b"")
    first = int(offsets[0]) if size else 0
    words = np.frombuffer(data, "<i4", (int(offsets[-1]) - first) // 4, first)
    if floats:
        values = pa.array(words.view("<f4"), mask=words == np.int32(NULL_LOGPROB_BITS))
    else:
        values = pa.array(words)
    starts = pa.array((offsets - first) // 4, pa.int32())
    made = pa.ListArray.from_arrays(starts, values)
    return pa.ListArray.from_arrays(starts, values, mask=blobs.is_null()) if size else made
