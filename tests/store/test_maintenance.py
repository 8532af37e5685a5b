"""Backup, migrate, compact, the damaged log, and the free-space guard."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from explorer import columns
from explorer.errors import StoreDamaged, StoreFailed
from explorer.records import EventKind
from explorer.store import DuckDBStore, StoreOptions, migrations
from explorer.store.copy import prepare
from explorer.store.database import Database
from explorer.store.maintenance import backup, compact, migrate
from explorer.store.migrations import MIGRATIONS, Migration
from tests.store.making import (
    OPTIONS,
    facts,
    make_admission,
    make_bodies,
    make_call,
    make_event,
    make_rollout,
    rollout_id,
    with_store,
)


async def fill(store: DuckDBStore, rollouts: int = 4, calls: int = 40) -> None:
    """Store some rollouts with chains of bodies."""
    rng = random.Random(4)
    for number in range(rollouts):
        await store.add_rollout(make_rollout(number))
        for sequence in range(calls):
            call = make_call(number, sequence, parent=sequence - 1 if sequence else None)
            await store.commit_call(call, make_bodies(call, rng, 2000))
        await store.add_event(make_event(number, EventKind.CLOSED))


def everything(store: DuckDBStore, number: int) -> tuple[object, ...]:
    """Return a rollout's record and bodies in a form that compares by value."""
    record = store.record(rollout_id(number))
    assert record is not None
    bodies = [
        (body.kind, hashlib.sha256(body.data).hexdigest(), body.headers)
        for call in record.calls
        for body in store.bodies(call.call_id)
    ]
    return record.rollout, record.events, [facts(call) for call in record.calls], bodies


def test_compact_drops_the_deleted_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    async def write(store: DuckDBStore) -> list[tuple[object, ...]]:
        await fill(store)
        bad = make_call(1, 999)
        object.__setattr__(bad, "preview", "\ud800")
        with pytest.raises(StoreFailed):
            await store.commit_call(bad, ())
        await store.add_event(make_event(1, EventKind.DELETED))
        return [everything(store, number) for number in (0, 2, 3)]

    before = with_store(path, write)
    copy = compact(path, tmp_path / "compacted.duckdb")
    report = compact(path)
    assert (copy.kept_rollouts, copy.dropped_rollouts) == (3, 1)
    assert (report.kept_rollouts, report.dropped_rollouts) == (3, 1)
    assert report.kept_rows["call"] == 120
    assert report.dropped_rows["call"] == 40
    assert report.dropped_rows["quarantine"] == 1
    assert report.size_after <= report.size_before
    assert not list(tmp_path.glob("*partial*"))

    async def read(store: DuckDBStore) -> None:
        assert [everything(store, number) for number in (0, 2, 3)] == before
        assert store.rollout_state(rollout_id(1)) is None

    with_store(path, read)
    with_store(copy.path, read)
    with pytest.raises(StoreFailed, match="exists already"):
        compact(path, copy.path)
    with pytest.raises(StoreFailed, match="does not exist"):
        compact(tmp_path / "none.duckdb")


def test_backup_is_consistent_while_a_writer_runs(tmp_path: Path) -> None:
    target = tmp_path / "copy.duckdb"

    async def work(store: DuckDBStore) -> None:
        await fill(store, rollouts=1)
        done = asyncio.Event()

        async def write() -> int:
            rng = random.Random(9)
            count = 0
            while not done.is_set():
                await store.add_rollout(make_rollout(100 + count))
                await store.add_event(make_event(100 + count, EventKind.STARTED))
                call = make_call(100 + count, 0)
                await store.commit_call(call, make_bodies(call, rng, 3000))
                count += 1
            return count

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.1)
        report = await asyncio.to_thread(backup, store, target)
        done.set()
        assert await writing > 0
        assert report.size_bytes > 0
        assert 0 <= report.rows["rollout"] - 1 - (report.rows["call"] - 40) <= 1
        with pytest.raises(StoreFailed, match="exists already"):
            store.backup(target)

    with_store(tmp_path / "store.duckdb", work)

    async def read(store: DuckDBStore) -> None:
        assert len(everything(store, 0)[3]) == 120  # type: ignore[arg-type]
        everything(store, 100)

    with_store(target, read)
    offline = backup(target, tmp_path / "copy2.duckdb")
    assert offline.rows["schema_version"] == len(MIGRATIONS)
    target.with_name("copy.duckdb.spill").write_bytes(b"")
    with pytest.raises(StoreFailed, match="rows outside the file"):
        backup(target, tmp_path / "copy3.duckdb")


def test_the_migrations_make_the_declared_columns(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    DuckDBStore(path, OPTIONS).close_now()
    connection = duckdb.connect(str(path), read_only=True)
    names = {columns.Kind.TIME: "TIMESTAMP WITH TIME ZONE", columns.Kind.JSON: "VARCHAR"}
    for table in columns.TABLES:
        stored = connection.execute(
            "SELECT column_name, data_type, is_nullable FROM duckdb_columns() "
            "WHERE table_name = ? ORDER BY column_index",
            [table.name],
        ).fetchall()
        declared = [
            (c.name, names.get(c.kind, c.kind.value), c.nullable) for c in table.columns
        ]
        assert stored == declared
        key = connection.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() "
            "WHERE table_name = ? AND constraint_type = 'PRIMARY KEY'",
            [table.name],
        ).fetchone()
        assert key == (list(table.key),)
        text = connection.execute(
            "SELECT sql FROM duckdb_tables() WHERE table_name = ?", [table.name]
        ).fetchone()
        assert text is not None
        if duckdb.__version__.startswith("1."):
            continue  # its catalogue does not tell the compression
        for column in (c for c in table.columns if c.kind is columns.Kind.BLOB):
            plain = f"{column.name} BLOB USING COMPRESSION Uncompressed" in text[0]
            assert plain is not column.compressed
    found = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    connection.close()
    assert {name for (name,) in found} == {table.name for table in columns.TABLES}
    # Later migrations add columns at a table's end, and tables; none is ever edited.
    made = [
        statement
        for number in (0, 3, 4, 5, 6)
        for statement in MIGRATIONS[number].statements
        if statement.startswith("CREATE TABLE")
    ]
    for statement, table in zip(made, columns.TABLES, strict=True):
        assert statement == replace(table, columns=_first_columns(table)).ddl()


def _first_columns(table: columns.Table) -> tuple[columns.Column, ...]:
    added = {"rollout": {"streaming", "harness_config_sha256", "token_in"}}.get(
        table.name, set()
    )
    return tuple(column for column in table.columns if column.name not in added)


def test_every_column_is_documented() -> None:
    page = columns.render_markdown()
    for table in columns.TABLES:
        assert f"## {table.name}" in page
        for column in (*table.columns, *table.detail):
            assert column.doc.endswith(".")
            assert column.doc in page
        assert table.arrow_schema().names == list(table.names)


def test_a_changed_migration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    DuckDBStore(path, OPTIONS).close_now()
    connection = duckdb.connect(str(path))
    connection.execute("UPDATE schema_version SET sha256 = 'other'")
    connection.close()
    with pytest.raises(StoreDamaged, match=r"migration 1 \(initial\) was applied with other"):
        DuckDBStore(path, OPTIONS)
    with pytest.raises(StoreDamaged):
        migrate(path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    DuckDBStore(path, OPTIONS).close_now()
    connection = duckdb.connect(str(path))
    connection.execute("INSERT INTO schema_version VALUES (99, 'later', now(), '9', 'x')")
    connection.close()
    with pytest.raises(StoreFailed, match="schema version 99 and this program knows 7"):
        DuckDBStore(path, OPTIONS)


def test_a_migration_keeps_a_copy_from_before(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with_store(path, lambda store: fill(store, rollouts=1, calls=2))
    later = (
        *MIGRATIONS,
        Migration(99, "more", ("ALTER TABLE rollout ADD COLUMN more INTEGER",)),
    )
    database = Database(path)
    database.open()
    report = prepare(database, "test", later)
    assert (report.version_before, report.version_after) == (MIGRATIONS[-1].version, 99)
    assert report.applied == ("more",)
    assert prepare(database, "test", later).applied == ()
    assert migrations.pending(database.writer, later) == ()
    database.close(checkpoint=True)
    assert report.copy is not None

    async def read(store: DuckDBStore) -> int:
        return len(everything(store, 0))

    assert with_store(report.copy, read) == 4
    assert migrate(report.copy).applied == ()


def test_an_unreadable_log_is_kept_and_the_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    wal = path.with_name("store.duckdb.wal")
    with_store(path, lambda store: fill(store, rollouts=1, calls=3))
    copy = tmp_path / "copy.duckdb"

    async def more(store: DuckDBStore) -> None:
        await fill(store, rollouts=3, calls=3)
        copy.write_bytes(path.read_bytes())
        data = bytearray(wal.read_bytes())
        data[len(data) - 100] ^= 0xFF  # inside an entry; its length must stay right
        copy.with_name("copy.duckdb.wal").write_bytes(data)

    with_store(path, more)

    async def read(store: DuckDBStore) -> None:
        everything(store, 0)
        assert any("could not be replayed" in m for m in store.health().messages)

    with_store(copy, read)
    assert len(list(tmp_path.glob("copy.duckdb.wal.damaged-*"))) == 1


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreDamaged, match="cannot be opened as it is"):
        DuckDBStore(path, OPTIONS)
    assert path.read_bytes() == b"not a database" * 1000
    with pytest.raises(StoreFailed):
        DuckDBStore(tmp_path / "no" / "such" / "store.duckdb", OPTIONS)


def test_short_of_space_new_work_is_refused_and_calls_in_flight_end(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        for refused in (
            lambda: store.add_rollout(make_rollout(0)),
            lambda: store.admit(make_admission(make_call(0, 0))),
        ):
            with pytest.raises(StoreFailed, match="ROLLOUT_EXPLORER_MIN_FREE_BYTES"):
                await refused()
        call = make_call(0, 0)
        await store.commit_call(call, make_bodies(call, random.Random(1)))
        health = store.health()
        assert health.refused_for_space is True
        assert health.free_bytes > 0

    with_store(tmp_path / "store.duckdb", work, StoreOptions(min_free_bytes=2**62))
