"""Commands on a store file: backup, migrate, compact.

Owns: what each command does and reports. Must not know: the command line.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from explorer.columns import TABLES, Table
from explorer.errors import StoreDamaged, StoreFailed
from explorer.store import migrations
from explorer.store.copy import copy_database, prepare, publish, quoted
from explorer.store.database import STORAGE_VERSION, Database
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.store.interface import BackupReport, CompactReport, MigrateReport
from explorer.store.spill import spill_path


@dataclass(frozen=True, slots=True)
class _Counts:
    kept: dict[str, int]
    dropped: dict[str, int]


def backup(source: DuckDBStore | Path, target: Path) -> BackupReport:
    """Copy a store into a new file, consistent also while it is being written.

    Pass the open store inside the serving process, else the path. Raises `StoreLocked`
    when another process has the file, `StoreFailed` when the target exists.
    """
    if isinstance(source, DuckDBStore):
        return source.backup(target)
    spill = spill_path(source)
    if spill.exists():
        raise StoreFailed(
            f"{spill} holds rows outside the file; open the store once, so that they are "
            "replayed, and back it up then"
        )
    with _opened(source) as database, database.reading() as cursor:
        rows = copy_database(cursor, target)
    return BackupReport(target=target, rows=rows, size_bytes=target.stat().st_size)


def migrate(path: Path, *, app_version: str = "") -> MigrateReport:
    """Bring a file to this program's schema, keeping a copy from before.

    Raises `StoreFailed` for a newer schema, `StoreDamaged` for a changed migration,
    `StoreLocked` when the file is in use.
    """
    with _opened(path) as database:
        return prepare(database, app_version)


def compact(path: Path, target: Path | None = None, *, app_version: str = "") -> CompactReport:
    """Copy what is not deleted into a new file, and put it in place of the old one.

    With a target the old file stays as it is. Bodies need no new bases: a chain never
    leaves its rollout, and a rollout goes or stays whole. Rows are counted and their
    hashes compared before the swap. Raises `StoreLocked` when the file is in use.
    """
    if target is not None and target.exists():
        raise StoreFailed(f"{target} exists already; a copy never overwrites a file")
    if not path.exists():
        raise StoreFailed(f"{path} does not exist")
    # Opening the store once replays a spill journal and ends lost calls.
    DuckDBStore(path, StoreOptions(app_version=app_version, min_free_bytes=0)).close_now()
    size_before = path.stat().st_size
    partial = path.with_name(f"{path.name}.compact-partial")
    partial.unlink(missing_ok=True)
    with _opened(path) as database, database.reading() as cursor:
        counts = _compact_into(cursor, partial)
    final = path if target is None else target
    publish(partial, final)
    return CompactReport(
        path=final,
        kept_rollouts=counts.kept["rollout"],
        dropped_rollouts=counts.dropped["rollout"],
        kept_rows=counts.kept,
        dropped_rows=counts.dropped,
        size_before=size_before,
        size_after=final.stat().st_size,
        copies=tuple(sorted(path.parent.glob(f"{path.name}.before-v*"))),
    )


@contextmanager
def _opened(path: Path) -> Iterator[Database]:
    if not path.exists():
        raise StoreFailed(f"{path} does not exist")
    database = Database(path)
    database.open()
    try:
        yield database
    except duckdb.Error as error:
        raise StoreFailed(f"{path}: {error}") from error
    finally:
        database.close(checkpoint=True)


def _compact_into(cursor: duckdb.DuckDBPyConnection, partial: Path) -> _Counts:
    """Fill a new file with the survivors and verify it; nothing is swapped here."""
    found = cursor.execute("SELECT current_database()").fetchone()
    assert found is not None
    old = '"' + str(found[0]).replace('"', '""') + '"'
    attach = f"ATTACH {quoted(partial)} AS compacted (STORAGE_VERSION '{STORAGE_VERSION}')"
    cursor.execute(attach)
    kept: dict[str, int] = {}
    dropped: dict[str, int] = {}
    try:
        cursor.execute("USE compacted")
        for migration in migrations.MIGRATIONS:
            for statement in migration.statements:
                cursor.execute(statement)
        for table in TABLES:
            survivors = f"{old}.{table.name} t{_condition(table, old)}"
            cursor.execute(f"INSERT INTO {table.name} SELECT * FROM {survivors}")
            wanted = _digest(cursor, survivors)
            if _digest(cursor, f"{table.name} t") != wanted:
                raise StoreDamaged(
                    f"the copy of {table.name} differs; the file was not changed"
                )
            kept[table.name] = wanted[0]
            dropped[table.name] = _digest(cursor, f"{old}.{table.name} t")[0] - wanted[0]
        cursor.execute("CHECKPOINT compacted")
    finally:
        cursor.execute(f"USE {old}")
        cursor.execute("DETACH compacted")
    return _Counts(kept, dropped)


def _condition(table: Table, old: str) -> str:
    """Select the rows of rollouts that are not deleted; other tables stay whole."""
    if "rollout_id" not in table.names:
        return ""
    deleted = f"SELECT rollout_id FROM {old}.rollout_event WHERE kind = 'deleted'"
    return f" WHERE t.rollout_id IS NULL OR t.rollout_id NOT IN ({deleted})"


def _digest(cursor: duckdb.DuckDBPyConnection, source: str) -> tuple[int, int | None]:
    """Count rows and combine their hashes, whatever their order."""
    found = cursor.execute(f"SELECT count(*), bit_xor(hash(t)) FROM {source}").fetchone()
    assert found is not None
    return int(found[0]), found[1]
