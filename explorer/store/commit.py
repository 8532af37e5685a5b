"""Committing rows: a group at once, or one by one when the group cannot.

Owns: idempotency (an equal row is already stored), quarantine rows, and the replay of
spilled rows. Must not know: the queue, futures, when to reopen.
"""

from __future__ import annotations

import logging
import secrets
import struct
import time
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa

from explorer import columns
from explorer.columns import Table
from explorer.store import bodies, jsontext
from explorer.store.callrows import BODY_COLUMNS
from explorer.store.database import Database, is_about_space, is_unusable, select_list
from explorer.store.encoder import TableRow
from explorer.store.interface import QuarantinedRow
from explorer.store.rows import Row, encode_quarantined

log = logging.getLogger(__name__)

# What an insert may raise because of a row, and not because of the database.
ROW_ERRORS = (duckdb.Error, pa.ArrowException, TypeError, ValueError, OverflowError)
_REPLAY_BATCH = 256
_REPLAY_ATTEMPTS = 3


class Conflict(Exception):
    """A row with this key is stored already, with other content."""


def by_table(found: Sequence[TableRow]) -> list[tuple[Table, list[Row]]]:
    """Group rows by table, keeping their order within each."""
    groups: dict[str, tuple[Table, list[Row]]] = {}
    for table, row in found:
        groups.setdefault(table.name, (table, []))[1].append(row)
    return list(groups.values())


def insert_or_match(database: Database, found: Sequence[TableRow]) -> None:
    """Insert the rows of one record, or find that exactly they are stored.

    Raises `Conflict` for a key stored with other content, else what DuckDB raises.
    """
    if not found:
        return
    try:
        database.insert(by_table(found))
    except duckdb.ConstraintException as error:
        for table, row in found:
            if not _stored_equal(database, table, row):
                raise Conflict(f"{table.name}: {str(error).splitlines()[0]}") from error


def _stored_equal(database: Database, table: Table, row: Row) -> bool:
    values = dict(zip(table.names, row, strict=True))
    where = " AND ".join(f"{name} = ?" for name in table.key if not name.endswith("_time"))
    keys = [values[name] for name in table.key if not name.endswith("_time")]
    query = f"SELECT {select_list(table)} FROM {table.name} WHERE {where}"  # noqa: S608
    wanted = _comparable(table, row)
    return any(
        _comparable(table, stored) == wanted
        for stored in database.writer.execute(query, keys).fetchall()
    )


def _comparable(table: Table, row: Row) -> list[object]:
    """A row with floats by bits, and bodies by digest instead of by compressed bytes."""
    values = dict(zip(table.names, row, strict=True))
    if table.name == columns.CALL.name and values["body_index"] is not None:
        index = bodies.read_index([(values["call_id"], values["body_index"])])
        for name in BODY_COLUMNS:
            values[name] = None
        values["body_index"] = jsontext.dump(
            [[kind, e["sha256"], e["headers"]] for (_, kind), e in sorted(index.items())]
        )
    return [struct.pack("<d", v) if isinstance(v, float) else v for v in values.values()]


def make_quarantined(
    what: tuple[str, str, str | None], error: BaseException | str, text: str
) -> QuarantinedRow:
    """Make the row that says why a record could not be written."""
    kind, row_id, rollout_id = what
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return QuarantinedRow(
        quarantine_id=f"qu_{secrets.token_hex(8)}",
        time_us=time.time_ns() // 1000,
        kind=kind,
        row_id=row_id,
        rollout_id=rollout_id,
        error=reason.encode("utf-8", "backslashreplace").decode()[:2000],
        dump=text,
    )


class Replay:
    """Inserts spilled rows again; a row that keeps breaking the database is set aside."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[object, ...], int] = {}
        self._careful = False
        self.set_aside = 0

    def run(self, database: Database, found: Sequence[TableRow]) -> None:
        """Insert rows idempotently.

        Raises `duckdb.Error` when the database fails again; run it once more after
        reopening. Rows that cannot be written go to quarantine, each alone.
        """
        for batch in _batches(found, 1 if self._careful else _REPLAY_BATCH):
            try:
                if len(batch) > 1:
                    database.insert(by_table(batch))
                    continue
            except ROW_ERRORS as error:
                if isinstance(error, duckdb.Error) and is_unusable(error):
                    self._careful = not is_about_space(error)
                    raise
            for each in batch:
                self._one(database, each)

    def _one(self, database: Database, each: TableRow) -> None:
        key = _key(*each)
        if self._attempts.get(key, 0) >= _REPLAY_ATTEMPTS:
            self._set_aside(database, each, "it makes the database fail each time")
            return
        try:
            insert_or_match(database, [each])
        except (*ROW_ERRORS, Conflict) as error:
            if not (isinstance(error, duckdb.Error) and is_unusable(error)):
                self._set_aside(database, each, error)
                return
            if not is_about_space(error):
                self._attempts[key] = self._attempts.get(key, 0) + 1
            raise

    def _set_aside(
        self, database: Database, each: TableRow, error: BaseException | str
    ) -> None:
        database.insert([(columns.QUARANTINE, [quarantined_row(*each, error)])])
        self.set_aside += 1


def quarantined_row(table: Table, row: Row, error: BaseException | str) -> Row:
    """Make the quarantine row of an encoded row."""
    values = dict(zip(table.names, row, strict=True))
    what = (table.name, str(values[table.key[0]]), values.get("rollout_id"))
    text = jsontext.dump({k: repr(v)[:400] for k, v in values.items() if v is not None})
    return encode_quarantined(make_quarantined(what, error, text))


def _key(table: Table, row: Row) -> tuple[object, ...]:
    values = dict(zip(table.names, row, strict=True))
    return (table.name, *(values[name] for name in table.key))


def _batches(found: Sequence[TableRow], size: int) -> Iterator[Sequence[TableRow]]:
    for start in range(0, len(found), size):
        yield found[start : start + size]
