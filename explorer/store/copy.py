"""Consistent copies of an open database, and migrations that start with one.

Owns: COPY FROM DATABASE, row counts, the copy kept from before a migration.
Must not know: the writer, rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import duckdb

from explorer.columns import TABLES
from explorer.errors import StoreFailed
from explorer.store import migrations
from explorer.store.database import STORAGE_VERSION, Database
from explorer.store.interface import MigrateReport
from explorer.store.migrations import MIGRATIONS, Migration
from explorer.store.spill import fsync_directory


def quoted(path: Path) -> str:
    """Render a path as an SQL string."""
    return "'" + str(path).replace("'", "''") + "'"


def count_rows(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[str, int]:
    """Count the rows of every declared table that a database has."""
    present = {
        str(row[0])
        for row in connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [catalog]
        ).fetchall()
    }
    counts: dict[str, int] = {}
    for table in TABLES:
        if table.name in present:
            sql = f'SELECT count(*) FROM "{catalog}".{table.name}'  # noqa: S608
            found = connection.execute(sql).fetchone()
            counts[table.name] = 0 if found is None else int(found[0])
    return counts


def copy_database(connection: duckdb.DuckDBPyConnection, target: Path) -> dict[str, int]:
    """Copy the open database into a new file and return its rows by table.

    The copy is one consistent snapshot, also while the writer commits, and appears
    under its name only when it is complete. Raises `StoreFailed` when the target exists.
    """
    if target.exists():
        raise StoreFailed(f"{target} exists already; a copy never overwrites a file")
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    found = connection.execute("SELECT current_database()").fetchone()
    assert found is not None
    source = str(found[0]).replace('"', '""')
    attach = f"ATTACH {quoted(partial)} AS store_copy (STORAGE_VERSION '{STORAGE_VERSION}')"
    connection.execute(attach)
    try:
        connection.execute(f'COPY FROM DATABASE "{source}" TO store_copy')
        connection.execute("CHECKPOINT store_copy")
        counts = count_rows(connection, "store_copy")
    finally:
        connection.execute("DETACH store_copy")
    publish(partial, target)
    return counts


def publish(partial: Path, target: Path) -> None:
    """Give a complete file its name, durably; it holds prompts, so only its owner reads it,
    whatever the habits of the shell that a command was run in."""
    partial.chmod(0o600)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(partial, target)
    fsync_directory(target.parent)


def prepare(
    database: Database, app_version: str, known: Sequence[Migration] = MIGRATIONS
) -> MigrateReport:
    """Apply missing migrations, keeping a copy from before when the file had rows."""
    connection = database.writer
    before = max(migrations.applied(connection), default=0)
    missing = migrations.pending(connection, known)
    copy: Path | None = None
    if missing and before > 0:
        copy = database.path.with_name(f"{database.path.name}.before-v{missing[0].version}")
        if not copy.exists():
            with database.reading() as cursor:
                copy_database(cursor, copy)
    migrations.apply(connection, missing, app_version)
    return MigrateReport(
        path=database.path,
        version_before=before,
        version_after=max(migrations.applied(connection), default=0),
        applied=tuple(each.name for each in missing),
        copy=copy,
    )
