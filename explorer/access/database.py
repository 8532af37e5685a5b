"""The access database: a DuckDB file of its own beside the store.

Owns: opening it, its schema's version, one writer at a time, rows by table.
Must not know: what a row means.

It is small and every process has one of it, so reads and writes share one lock: a read
can never see half of a decision. Calls are synchronous and take well under a millisecond
(a write: one commit); from the event loop call them in a thread, except where memory
answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from explorer.access.tables import TABLES
from explorer.columns import Kind, Table
from explorer.errors import StoreDamaged, StoreFailed, StoreLocked

log = logging.getLogger(__name__)

VERSION = 1
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "storage_compatibility_version": "v1.5.0",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "threads": 1,
}
_VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS access_version (version INTEGER NOT NULL PRIMARY KEY)"
)
Values = Mapping[str, Any]
Result = TypeVar("Result")


def access_path(store: Path) -> Path:
    """Where the access database of a store lies, unless the settings say otherwise."""
    return store.with_name(store.stem + ".access.duckdb")


def now_us() -> int:
    """Microseconds since the Unix epoch (UTC)."""
    return time.time_ns() // 1000


class Rows:
    """Reads and writes of one transaction; belongs to whoever was handed it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def insert(self, table: Table, values: Values) -> None:
        """Adds a row; columns that `values` leaves out are null."""
        marks = ", ".join(_mark(table, name) for name in table.names)
        self._connection.execute(
            f"INSERT INTO {table.name} SELECT {marks}",
            [values.get(name) for name in table.names],
        )

    def replace(self, table: Table, values: Values) -> None:
        """Puts a row in the place of the one that has its key."""
        self.delete(table, {name: values[name] for name in table.key})
        self.insert(table, values)

    def update(self, table: Table, key: Values, changes: Values) -> None:
        """Changes columns of the rows that have these values."""
        sets = ", ".join(f"{name} = {_mark(table, name)}" for name in changes)
        where, given = _where(key)
        self._connection.execute(
            f"UPDATE {table.name} SET {sets} WHERE {where}",  # noqa: S608 - our own names
            [*changes.values(), *given],
        )

    def delete(self, table: Table, key: Values) -> None:
        """Takes the rows away that have these values."""
        where, given = _where(key)
        self._connection.execute(
            f"DELETE FROM {table.name} WHERE {where}",  # noqa: S608 - our own names
            given,
        )

    def select(
        self, table: Table, key: Values | None = None, more: str = "", *given: Any
    ) -> list[dict[str, Any]]:
        """Rows that have these values; `more` is what follows in SQL, such as an order.

        Times are microseconds since the epoch.
        """
        columns = ", ".join(
            f"epoch_us({c.name})" if c.kind is Kind.TIME else c.name for c in table.columns
        )
        where, values = _where(key or {})
        found = self._connection.execute(
            f"SELECT {columns} FROM {table.name} WHERE {where} {more}",  # noqa: S608
            [*values, *given],
        ).fetchall()
        return [dict(zip(table.names, row, strict=True)) for row in found]

    def count(self, table: Table, key: Values) -> int:
        """How many rows have these values."""
        where, given = _where(key)
        row = self._connection.execute(
            f"SELECT count(*) FROM {table.name} WHERE {where}",  # noqa: S608
            given,
        ).fetchone()
        assert row is not None
        return int(row[0])


class AccessDatabase:
    """One open access database; safe from any thread.

    Args:
        path: the file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        try:
            self._connection = duckdb.connect(str(path), config=_CONFIG)
            self._prepare(self._connection)
        except duckdb.Error as error:
            self.close()
            raise _failed(path, error) from error
        except StoreFailed:
            self.close()
            raise

    def write(self, work: Callable[[Rows], Result]) -> Result:
        """What `work` gives; all that it wrote is committed, or nothing of it.

        Raises:
            StoreFailed: the file cannot be written; nothing was done.
        """
        with self._lock:
            connection = self._open()
            try:
                connection.execute("BEGIN TRANSACTION")
                result = work(Rows(connection))
                connection.execute("COMMIT")
            except duckdb.Error as error:
                self._roll_back(connection)
                raise _failed(self.path, error) from error
            except BaseException:
                self._roll_back(connection)
                raise
            return result

    def read(self, work: Callable[[Rows], Result]) -> Result:
        """What `work` gives from the rows as they are now.

        Raises:
            StoreFailed: the file cannot be read.
        """
        with self._lock:
            try:
                return work(Rows(self._open()))
            except duckdb.Error as error:
                raise _failed(self.path, error) from error

    def close(self) -> None:
        """Writes the log into the file and lets go of it."""
        with self._lock:
            if self._connection is not None:
                with suppress(duckdb.Error):
                    self._connection.execute("CHECKPOINT")
                self._connection.close()
                self._connection = None

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise StoreFailed("the access database is closed; the server is stopping")
        return self._connection

    @staticmethod
    def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
        with suppress(duckdb.Error):
            connection.execute("ROLLBACK")

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute(_VERSION_TABLE)
        found = connection.execute("SELECT max(version) FROM access_version").fetchone()
        version = found[0] if found is not None else None
        if version is not None and version > VERSION:
            raise StoreFailed(
                f"{self.path} has access schema {version} and this program knows {VERSION}; "
                "use a newer Rollout Explorer"
            )
        for table in TABLES:
            connection.execute(table.ddl())
        if version is None:
            connection.execute("INSERT INTO access_version VALUES (?)", [VERSION])


def _mark(table: Table, name: str) -> str:
    kind = next(column.kind for column in table.columns if column.name == name)
    return "make_timestamptz(?::BIGINT)" if kind is Kind.TIME else "?"


def _where(key: Values) -> tuple[str, list[Any]]:
    if not key:
        return "true", []
    return " AND ".join(f"{name} = ?" for name in key), list(key.values())


def _failed(path: Path, error: duckdb.Error) -> StoreFailed:
    text = str(error)
    if "lock" in text.lower() and isinstance(error, duckdb.IOException):
        return StoreLocked(
            f"the access database {path} is in use by another process; stop that one first, "
            "or name another file with ROLLOUT_EXPLORER_ACCESS_STORE"
        )
    if isinstance(error, (duckdb.SerializationException, duckdb.FatalException)):
        return StoreDamaged(f"the access database {path} cannot be read: {text[:300]}")
    return StoreFailed(f"the access database {path} does not work: {text[:300]}")
