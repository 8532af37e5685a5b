"""Numbered, checksummed changes of the stored tables, applied before the writer starts.

Owns: the list of migrations and applying what is missing. Must not know: rows.

Each statement is its own transaction (one DDL per transaction, constant defaults only:
DuckDB 1.5 cannot replay others) and must be harmless when it runs twice, because a
crash may fall between a statement and the row in ``schema_version``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from explorer.errors import StoreDamaged, StoreFailed
from explorer.store.migrations import (
    m0001_initial,
    m0002_streaming,
    m0003_harness_config,
    m0004_annotations,
    m0005_secrets,
    m0006_receipts,
    m0007_trainer_loop,
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered change; never edited once released."""

    version: int
    name: str
    statements: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Digest of the statements, kept with the applied migration."""
        return hashlib.sha256(";\n".join(self.statements).encode()).hexdigest()


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "initial", m0001_initial.STATEMENTS),
    Migration(2, "streaming", m0002_streaming.STATEMENTS),
    Migration(3, "harness_config", m0003_harness_config.STATEMENTS),
    Migration(4, "annotations", m0004_annotations.STATEMENTS),
    Migration(5, "secrets", m0005_secrets.STATEMENTS),
    Migration(6, "receipts", m0006_receipts.STATEMENTS),
    Migration(7, "trainer_loop", m0007_trainer_loop.STATEMENTS),
)


def applied(connection: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """Return the digests of the applied migrations by version."""
    known = connection.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE database_name = current_database() "
        "AND table_name = 'schema_version'"
    ).fetchone()
    if known is None or known[0] == 0:
        return {}
    rows = connection.execute("SELECT version, sha256 FROM schema_version").fetchall()
    return {int(version): str(digest) for version, digest in rows}


def pending(
    connection: duckdb.DuckDBPyConnection, migrations: Sequence[Migration] = MIGRATIONS
) -> tuple[Migration, ...]:
    """Return what is missing.

    Raises `StoreFailed` for a newer file and `StoreDamaged` for a changed migration.
    """
    done = applied(connection)
    newest = max((each.version for each in migrations), default=0)
    if done and max(done) > newest:
        raise StoreFailed(
            f"the file has schema version {max(done)} and this program knows {newest}; "
            "use a newer Rollout Explorer, or restore the copy made before the migration"
        )
    for each in migrations:
        if each.version in done and done[each.version] != each.sha256:
            raise StoreDamaged(
                f"migration {each.version} ({each.name}) was applied with other statements "
                "than this program has; use the program that made the file"
            )
    return tuple(each for each in migrations if each.version not in done)


def apply(
    connection: duckdb.DuckDBPyConnection, missing: Sequence[Migration], app_version: str
) -> None:
    """Apply migrations in order, checkpointing after each."""
    for each in missing:
        for statement in each.statements:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_version SELECT ?, ?, make_timestamptz(?::BIGINT), ?, ?",
            [each.version, each.name, time.time_ns() // 1000, app_version, each.sha256],
        )
        connection.execute("CHECKPOINT")
