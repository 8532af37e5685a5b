"""The ledger of external custody in a DuckDB file of its own, beside the store.

Owns: its table, its transactions, which rollouts' rows are kept in memory; the choice between
this ledger and files of JSON lines.
Must not know: what rows mean.

Rows are only ever added, one transaction each, durable when the method returns. One process
has the file open, so what is in memory is what is in the file. The keys of a call's ancestors
are not stored with it where they follow from its parent's row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from explorer.custody.errors import LedgerError, RecordError
from explorer.custody.fields import dump, loads
from explorer.custody.jsonl import CACHED_ROLLOUTS, JsonlLedger
from explorer.custody.ledger import (
    CaptureLedger,
    IndexedLedger,
    LedgerIndex,
    checked_rollout_id,
)

VERSION = 1
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "storage_compatibility_version": "v1.5.0",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "threads": 1,
}
_DDL = (
    "CREATE TABLE IF NOT EXISTS custody_version (version INTEGER NOT NULL PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS custody_row (rollout_id VARCHAR NOT NULL, "
    "place UINTEGER NOT NULL, content VARCHAR NOT NULL, PRIMARY KEY (rollout_id, place))",
)
_CHAIN, _KEY, _PARENT = "staging_chain", "staging_key", "parent_call_id"


@dataclass(eq=False)
class _Rollout:
    """The rows of one rollout in memory; `users` of it keep it there."""

    index: LedgerIndex
    rows: int = 0
    is_read: bool = False
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class DuckDBLedger(IndexedLedger):
    """A `CaptureLedger` over one DuckDB file.

    Args:
        path: made when it is not there.
        cached_rollouts: how many rollouts are kept in memory.

    Raises:
        LedgerError: the file cannot be used.
    """

    def __init__(self, path: Path, cached_rollouts: int = CACHED_ROLLOUTS) -> None:
        self.path, self._limit = path, cached_rollouts
        self._kept: OrderedDict[str, _Rollout] = OrderedDict()
        self._kept_lock = threading.Lock()
        try:
            self._connection = duckdb.connect(str(path), config=_CONFIG)
            self._prepare()
        except duckdb.Error as error:
            raise self._failed("ledger_unreadable", error) from error

    def close(self) -> None:
        """Writes the log into the file and lets go of it."""
        self._connection.close()

    def _append(self, rollout_id: str, row: Mapping[str, Any]) -> None:
        with self._current(rollout_id) as rollout:
            if not rollout.index.accepts(row):
                return
            stored = _shortened(row, rollout.index)
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute(
                        "INSERT INTO custody_row VALUES (?, ?, ?)",
                        [rollout_id, rollout.rows, dump(stored)],
                    )
            except duckdb.Error as error:
                # What lies in the file is not known: the next use reads it again.
                rollout.is_read = False
                raise self._failed("ledger_unwritable", error) from error
            rollout.index.add(row)
            rollout.rows += 1

    @contextmanager
    def _current(self, rollout_id: str) -> Iterator[_Rollout]:
        """The rollout's rows, for one user at a time."""
        checked_rollout_id(rollout_id)
        with self._kept_lock:
            rollout = self._kept.setdefault(rollout_id, _Rollout(LedgerIndex(rollout_id)))
            self._kept.move_to_end(rollout_id)
            rollout.users += 1
        try:
            with rollout.lock:
                if not rollout.is_read:
                    self._read(rollout_id, rollout)
                yield rollout
        finally:
            with self._kept_lock:
                rollout.users -= 1
                self._forget_some()

    def _forget_some(self) -> None:
        """Lets go of those used longest ago. Two of one rollout would not know each other."""
        surplus = len(self._kept) - self._limit
        if surplus > 0:
            idle = [name for name, each in self._kept.items() if not each.users]
            for name in idle[:surplus]:
                del self._kept[name]

    def _read(self, rollout_id: str, rollout: _Rollout) -> None:
        try:
            with self._connection.cursor() as cursor:
                rows = cursor.execute(
                    "SELECT place, content FROM custody_row WHERE rollout_id = ? "
                    "ORDER BY place",
                    [rollout_id],
                ).fetchall()
        except duckdb.Error as error:
            raise self._failed("ledger_unreadable", error) from error
        index = LedgerIndex(rollout_id)
        for number, (place, content) in enumerate(rows):
            try:
                if place != number:
                    raise RecordError(f"row {number} is missing")
                index.add(_lengthened(loads(content), index))
            except (RecordError, LedgerError) as error:
                where = f"{rollout_id}, row {number}"
                raise LedgerError("damaged_ledger", f"{where}: {error.detail}") from error
        rollout.index, rollout.rows, rollout.is_read = index, len(rows), True

    def _prepare(self) -> None:
        for statement in _DDL:
            self._connection.execute(statement)
        found = self._connection.execute("SELECT max(version) FROM custody_version").fetchone()
        version = found[0] if found is not None else None
        if version is None:
            self._connection.execute("INSERT INTO custody_version VALUES (?)", [VERSION])
        elif version != VERSION:
            self._connection.close()
            raise LedgerError(
                "ledger_unreadable",
                f"{self.path} has custody schema {version} and this program knows {VERSION}",
            )

    def _failed(self, code: str, error: duckdb.Error) -> LedgerError:
        return LedgerError(code, f"{self.path.name}: {str(error)[:300]}")


def _shortened(row: Mapping[str, Any], index: LedgerIndex) -> Mapping[str, Any]:
    """A row as it is stored: without a chain of keys that follows from its parent's."""
    if _CHAIN not in row or list(row[_CHAIN]) != _following(row, index):
        return row
    return {name: value for name, value in row.items() if name != _CHAIN}


def _lengthened(row: Any, index: LedgerIndex) -> Any:
    """A row as it was given."""
    if not isinstance(row, dict) or row.get(_KEY) is None or _CHAIN in row:
        return row
    chain = _following(row, index)
    if chain is None:
        raise RecordError("its parent does not stand before it")
    return row | {_CHAIN: chain}


def _following(row: Mapping[str, Any], index: LedgerIndex) -> list[str] | None:
    """The keys of a row's ancestors and its own; None where its parent is not known."""
    parent = row.get(_PARENT)
    try:
        return [*(index.staging_chain(parent) if parent is not None else ()), row[_KEY]]
    except LedgerError:
        return None


def ledger_path(store: Path) -> Path:
    """Where the ledger of a store lies, unless the settings say otherwise."""
    return store.with_name(store.stem + ".custody.duckdb")


def open_ledger(path: Path) -> CaptureLedger:
    """The ledger at a path: a DuckDB file if it ends in `.duckdb`, else a folder with one file
    of JSON lines a rollout, which NeMo Gym reads as well.

    Raises:
        LedgerError: it cannot be used.
    """
    if path.suffix == ".duckdb":
        return DuckDBLedger(path)
    try:
        return JsonlLedger(path)
    except OSError as error:
        raise LedgerError("ledger_unreadable", f"{path}: {error}") from error
