"""A list as CSV and as Parquet: every matching row, streamed.

Owns: columns of these files.
Must not know: routes, SQL.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.cells import safe_cell
from explorer.store.interface import Store
from explorer.store.queries import RolloutQuery, RolloutSummary
from explorer.web import words
from explorer.web.lists import trained_tokens

ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class FileColumn:
    """One column of the files."""

    name: str
    kind: Any
    help: str
    value: Callable[[RolloutSummary], Any]


def _judged(name: str) -> Callable[[RolloutSummary], Any]:
    return lambda row: None if row.judgement is None else getattr(row.judgement, name)


def _share(row: RolloutSummary) -> float | None:
    trained = trained_tokens(row.judgement)
    if row.judgement is None or trained is None:
        return None
    return words.share(trained, row.judgement.generated_tokens)


def _reason(row: RolloutSummary) -> str | None:
    return row.judgement.reasons[0] if row.judgement and row.judgement.reasons else None


_TIME = pa.timestamp("us", tz="UTC")
COLUMNS = (
    FileColumn("rollout_id", pa.string(), "Public id.", lambda row: row.rollout_id),
    FileColumn("run", pa.string(), "Run it belongs to.", lambda row: row.run),
    FileColumn("task", pa.string(), "Task it attempted.", lambda row: row.task),
    FileColumn("group", pa.string(), "Group it is compared in.", lambda row: row.group),
    FileColumn("attempt", pa.int64(), "Number within its group.", lambda row: row.attempt),
    FileColumn("purpose", pa.string(), "`train` or `eval`.", lambda row: row.purpose.value),
    FileColumn("harness", pa.string(), "Harness that drove it.", lambda row: row.harness),
    FileColumn("model", pa.string(), "Model that sampled it.", lambda row: row.model),
    FileColumn("state", pa.string(), "`open` or `closed`.", lambda row: row.status.value),
    FileColumn("ok", pa.bool_(), "Whether it ended as it should.", lambda row: row.ok),
    FileColumn("reward", pa.float64(), "Latest reward.", lambda row: row.reward),
    FileColumn("trainable", pa.bool_(), "Verdict.", _judged("trainable")),
    FileColumn(
        "supervised_tokens",
        pa.int64(),
        "Tokens that train.",
        lambda row: trained_tokens(row.judgement),
    ),
    FileColumn(
        "generated_tokens", pa.int64(), "Sampled tokens.", lambda row: row.generated_tokens
    ),
    FileColumn("share", pa.float64(), "Trainable share of the judged tokens.", _share),
    FileColumn("calls", pa.int64(), "Calls that ended.", lambda row: row.n_calls),
    FileColumn(
        "failed_calls", pa.int64(), "Of these, not committed.", lambda row: row.n_failed
    ),
    FileColumn("fatal_findings", pa.int64(), "Findings of grade FATAL.", _judged("n_fatal")),
    FileColumn("warn_findings", pa.int64(), "Findings of grade WARN.", _judged("n_warn")),
    FileColumn("reason", pa.string(), "First reason against training.", _reason),
    FileColumn(
        "version_low",
        pa.int64(),
        "Lowest weight version of its calls.",
        lambda row: row.version_low,
    ),
    FileColumn(
        "version_high",
        pa.int64(),
        "Highest weight version of its calls.",
        lambda row: row.version_high,
    ),
    FileColumn(
        "versions_behind",
        pa.int64(),
        "Versions behind the one announced last.",
        lambda row: row.behind,
    ),
    FileColumn(
        "delta_p99",
        pa.float64(),
        "Quantile 99 % of the size of δ, trainer − rollout logprob, in nats.",
        lambda row: row.delta_p99,
    ),
    FileColumn(
        "delta_outside",
        pa.float64(),
        "Share of training tokens whose ratio lies outside the band.",
        lambda row: row.delta_outside,
    ),
    FileColumn(
        "crossed_calls",
        pa.int64(),
        "Calls that saw two weight versions.",
        lambda row: row.n_crossed,
    ),
    FileColumn("created", _TIME, "When it was created, UTC.", lambda row: row.created_us),
    FileColumn("closed", _TIME, "When it was closed, UTC.", lambda row: row.closed_us),
)


def batches(store: Store, query: RolloutQuery) -> Iterator[list[RolloutSummary]]:
    """Every matching rollout, some at a time; new ones do not shift what is still to come."""
    cursor: str | None = None
    while True:
        page = store.list_rollouts(replace(query, cursor=cursor, limit=ROWS_AT_ONCE))
        if page.rows:
            yield list(page.rows)
        cursor = page.next_cursor
        if cursor is None:
            return


def csv_lines(store: Store, query: RolloutQuery) -> Iterator[bytes]:
    """The list as CSV in UTF-8, with a line of names."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([column.name for column in COLUMNS])
    for rows in batches(store, query):
        for row in rows:
            writer.writerow([safe_cell(_csv_value(column, row)) for column in COLUMNS])
        yield _drained(buffer)
    yield _drained(buffer)


def _csv_value(column: FileColumn, row: RolloutSummary) -> Any:
    value = column.value(row)
    return words.iso(value) if column.kind == _TIME else value


def _drained(buffer: io.StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode("utf-8", "replace")


def parquet_parts(store: Store, query: RolloutQuery) -> Iterator[bytes]:
    """The list as Parquet, a row group for each batch."""
    schema = pa.schema(
        [
            pa.field(column.name, column.kind, metadata={"help": column.help})
            for column in COLUMNS
        ]
    )
    sink = _Sink()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for rows in batches(store, query):
            arrays = [
                pa.array([column.value(row) for row in rows], type=column.kind)
                for column in COLUMNS
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """Takes what is written and hands it on; knows how far it has come."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    def taken(self) -> bytes:
        """What was written since the last time."""
        part = b"".join(self._parts)
        self._parts.clear()
        return part
