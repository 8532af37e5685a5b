"""The DuckDB file: opened exclusively, written by one cursor, read by a pool of them.

Owns: opening (lock, damaged write-ahead log), the insert statements, read cursors and
closing while readers are at work. Must not know: records, queues, the event loop.
"""

from __future__ import annotations

import datetime
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from explorer.columns import Kind, Table
from explorer.errors import StoreDamaged, StoreFailed, StoreLocked, StoreReadOnly
from explorer.store.rows import Row

log = logging.getLogger(__name__)

STORAGE_VERSION = "v1.5.0"  # every DuckDB from 1.5.5 on reads, writes and replays it
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "storage_compatibility_version": STORAGE_VERSION,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
# The operating system's lock does not hold within one process; this set does.
_open_here: set[str] = set()
_open_guard = threading.Lock()
READ_ONLY = (
    "this server shows a store that is open for reading only: nothing is recorded or changed; "
    "to record, run your own with `rollout-explorer serve`"
)
_SHOWN = "shown_store"
_NO_SPACE = ("no space", "file too large", "disk quota", "permission denied", "read-only")


def insert_few(table: Table, count: int) -> str:
    """Render the statement for one or two rows.

    `INSERT ... SELECT ?` costs a quarter less than `VALUES (?)` for 30 columns, but for
    two rows VALUES beats UNION ALL and Arrow by a fifth; from three on Arrow wins.
    """
    marks = ", ".join(
        "make_timestamptz(?::BIGINT)" if c.kind is Kind.TIME else "?" for c in table.columns
    )
    if count == 1:
        return f"INSERT INTO {table.name} SELECT {marks}"
    return f"INSERT INTO {table.name} VALUES {', '.join([f'({marks})'] * count)}"  # noqa: S608


def select_list(table: Table, names: Sequence[str] | None = None, prefix: str = "") -> str:
    """Render columns for reading; times come back as integer microseconds."""
    wanted = table.names if names is None else names
    kinds = {column.name: column.kind for column in table.columns}
    return ", ".join(
        f"epoch_us({prefix}{n})" if kinds[n] is Kind.TIME else f"{prefix}{n}" for n in wanted
    )


def is_about_space(error: BaseException) -> bool:
    """Whether an error came from the disk and not from the rows."""
    text = str(error).lower()
    return isinstance(error, duckdb.IOException) or any(
        word in text
        for word in (*_NO_SPACE, "io error", "could not write", "fsync", "truncate")
    )


def is_unusable(error: duckdb.Error) -> bool:
    """Whether an error means the database must be closed and opened again.

    A failed write of the log at COMMIT is only a `TransactionException`, and the
    database seems to go on; after a torn write nothing but a replay can be trusted.
    """
    if isinstance(error, (duckdb.FatalException, duckdb.IOException, duckdb.InternalException)):
        return True
    if "invalidated" in str(error):
        return True
    return isinstance(error, duckdb.TransactionException) and is_about_space(error)


class Database:
    """One open file. `write` belongs to one thread; `reading` to any number.

    With `read_only` there is no writer, and file and folder need not be writable.
    """

    def __init__(self, path: Path, *, threads: int = 1, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.messages: list[str] = []
        self._config = {**_CONFIG, "threads": threads}
        self._name = str(path.resolve())
        self._root: duckdb.DuckDBPyConnection | None = None
        self._writer: duckdb.DuckDBPyConnection | None = None
        self._inserts: dict[tuple[str, int], duckdb.Statement] = {}
        self._gate = threading.Condition()
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._busy: set[duckdb.DuckDBPyConnection] = set()

    @property
    def wal_path(self) -> Path:
        """Where DuckDB keeps the write-ahead log of this file."""
        return self.path.with_name(self.path.name + ".wal")

    @property
    def is_open(self) -> bool:
        """Whether reads and writes are possible now."""
        return self._root is not None

    def open(self) -> None:
        """Open the file and take its lock.

        Raises `StoreLocked` when it is in use, `StoreDamaged` when it is unreadable,
        `StoreFailed` for a missing directory, missing rights or a full disk.
        """
        with _open_guard:
            if self._name in _open_here:
                raise StoreLocked(_locked(self.path, "this process"))
            _open_here.add(self._name)
        try:
            if self.read_only:
                root, writer = self._attach(), None
            else:
                root = self._connect()
                writer = root.cursor()
                # Nothing here is worth optimising; it saves a quarter of each commit.
                writer.execute("PRAGMA disable_optimizer")
        except BaseException:
            _open_here.discard(self._name)
            raise
        with self._gate:
            self._root, self._writer = root, writer

    def _connect(self) -> duckdb.DuckDBPyConnection:
        if self.read_only and not self.path.exists():
            raise StoreFailed(f"there is no store at {self.path} to show")
        try:
            return duckdb.connect(str(self.path), read_only=self.read_only, config=self._config)
        except duckdb.Error as error:
            text = str(error)
            if "lock" in text.lower() and isinstance(error, duckdb.IOException):
                owner = re.search(r"PID (\d+)", text)
                who = f"process {owner[1]}" if owner else "another process"
                raise StoreLocked(_locked(self.path, who)) from error
            if self.read_only and self.wal_path.exists():
                raise StoreFailed(
                    f"{self.path} was not closed in order, and its write-ahead log cannot be "
                    f"taken in while reading only: open it once for writing ({text})"
                ) from error
            if any(word in text.lower() for word in _NO_SPACE):
                raise StoreFailed(f"{self.path} cannot be opened: {text}") from error
            if "wal" in text.lower() and self.wal_path.exists():
                return self._connect_without_wal(text)
            if isinstance(error, duckdb.IOException) and not self.path.exists():
                raise StoreFailed(f"{self.path} cannot be created: {text}") from error
            raise StoreDamaged(
                f"{self.path} cannot be opened as it is: {text}; restore a backup, or move "
                "the file away to start an empty one"
            ) from error

    def _attach(self) -> duckdb.DuckDBPyConnection:
        """Open the file for reading only, beside a database in memory: that one holds the
        tables of listings, which a database that is read-only itself would not take."""
        if not os.access(self.path, os.R_OK):
            raise StoreFailed(f"there is no store at {self.path} that can be read")
        root = duckdb.connect(":memory:", config=self._config | {"temp_directory": ""})
        name = str(self.path).replace("'", "''")
        try:
            root.execute(f"ATTACH '{name}' AS {_SHOWN} (READ_ONLY)")
        except duckdb.Error as error:
            root.close()
            self._raise_if_locked(error)
            if self.wal_path.exists():
                raise StoreFailed(
                    f"{self.path} was not closed in order, and its write-ahead log cannot be "
                    f"taken in while reading only: open it once for writing ({error})"
                ) from error
            raise StoreDamaged(f"{self.path} cannot be read: {error}") from error
        return root

    def _cursor(self, root: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        cursor = root.cursor()
        if self.read_only:
            cursor.execute(f"USE {_SHOWN}")
        return cursor

    def _raise_if_locked(self, error: duckdb.Error) -> None:
        text = str(error)
        if "lock" in text.lower() and isinstance(error, duckdb.IOException):
            owner = re.search(r"PID (\d+)", text)
            who = f"process {owner[1]}" if owner else "another process"
            raise StoreLocked(_locked(self.path, who)) from error

    def _connect_without_wal(self, reason: str) -> duckdb.DuckDBPyConnection:
        """Set an unreadable log aside (never delete it) and open the main file."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%f")
        kept = self.wal_path.with_name(f"{self.wal_path.name}.damaged-{stamp}")
        os.rename(self.wal_path, kept)
        try:
            root = duckdb.connect(str(self.path), config=self._config)
        except duckdb.Error as error:
            os.rename(kept, self.wal_path)
            raise StoreDamaged(f"{self.path} cannot be opened: {error}") from error
        message = (
            f"the write-ahead log could not be replayed and was kept as {kept.name}; "
            f"rows since the last checkpoint may be missing ({reason.splitlines()[0]})"
        )
        log.error("%s: %s", self.path, message)
        self.messages.append(message)
        return root

    def close(self, *, checkpoint: bool = False) -> None:
        """Close every cursor, waiting for readers and interrupting slow ones."""
        with self._gate:
            root, self._root = self._root, None
            while self._busy:
                if not self._gate.wait(timeout=5.0):
                    for cursor in self._busy:
                        cursor.interrupt()
            cursors = [*self._idle, *([self._writer] if self._writer else [])]
            self._idle, self._writer, self._inserts = [], None, {}
        try:
            if checkpoint and root is not None:
                root.execute("CHECKPOINT")
        finally:
            for each in (*cursors, *([root] if root is not None else [])):
                try:
                    each.close()
                except duckdb.Error as error:  # an invalidated database may refuse
                    log.debug("closing %s: %s", self.path, error)
            if root is not None:
                _open_here.discard(self._name)

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a cursor to the calling thread; `StoreFailed` while it is not open."""
        with self._gate:
            if self._root is None:
                raise StoreFailed("the store is not readable now: it is being reopened")
            cursor = self._idle.pop() if self._idle else self._cursor(self._root)
            self._busy.add(cursor)
        healthy = False
        try:
            yield cursor
            healthy = True
        except duckdb.Error as error:
            raise StoreFailed(f"the store could not be read: {error}") from error
        finally:
            with self._gate:
                self._busy.discard(cursor)
                if healthy and self._root is not None:
                    self._idle.append(cursor)
                else:
                    cursor.close()
                self._gate.notify_all()

    @contextmanager
    def snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a cursor on which every query sees the same state."""
        with self.reading() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
            cursor.execute("COMMIT")

    @property
    def writer(self) -> duckdb.DuckDBPyConnection:
        """The writer's cursor; `StoreFailed` while the file is not open."""
        if self.read_only:
            raise StoreReadOnly(READ_ONLY)
        if self._writer is None:
            raise StoreFailed("the store is not writable now: it is being reopened")
        return self._writer

    def insert(self, groups: Sequence[tuple[Table, Sequence[Row]]]) -> None:
        """Insert and commit rows of one or several tables, all or none.

        One table needs one statement and no explicit transaction. Raises what DuckDB
        or Arrow raise; nothing is left open.
        """
        writer = self.writer
        if len(groups) == 1:
            self._insert_rows(writer, *groups[0])
            return
        writer.execute("BEGIN")
        try:
            for table, rows in groups:
                self._insert_rows(writer, table, rows)
            writer.execute("COMMIT")
        except BaseException:
            try:
                writer.execute("ROLLBACK")
            except duckdb.Error as error:  # the failure itself ended the transaction
                log.debug("rollback: %s", error)
            raise

    def _insert_rows(
        self, writer: duckdb.DuckDBPyConnection, table: Table, rows: Sequence[Row]
    ) -> None:
        if len(rows) <= 2:
            key = (table.name, len(rows))
            statement = self._inserts.get(key)
            if statement is None:
                statement = writer.extract_statements(insert_few(table, len(rows)))[0]
                self._inserts[key] = statement
            writer.execute(statement, [value for row in rows for value in row])
            return
        batch = to_arrow(table, rows)
        assert batch.num_rows == len(rows)
        # DuckDB finds `batch` by its name; registering it would cost two more statements.
        writer.execute(f"INSERT INTO {table.name} SELECT * FROM batch")  # noqa: S608


def to_arrow(table: Table, rows: Sequence[Row]) -> Any:
    """Build the Arrow table of some rows."""
    schema = table.arrow_schema()
    arrays = [
        pa.array(values, type=field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _locked(path: Path, who: str) -> str:
    return (
        f"{path} is in use by {who}; stop it, or run the command against the running "
        "server, because one process owns the file at a time"
    )
