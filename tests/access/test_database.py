"""The access database: all of a change or nothing of it, and what is said when it fails."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase, Rows, access_path
from explorer.access.tables import AUDIT, GRANT_USE, TABLES
from explorer.errors import StoreFailed, StoreLocked
from tests.access.granting import ANA, OPERATOR, Book, book, wanted

USE = {
    "use_id": "u1",
    "grant_id": "g1",
    "subject": "s",
    "rollout_id": "r1",
    "kind": "raw",
    "used_time": 1_800_000_000_123_456,
}


def test_it_lies_beside_the_store() -> None:
    assert access_path(Path("/x/demo.duckdb")) == Path("/x/demo.access.duckdb")


def test_times_come_back_to_the_microsecond(tmp_path: Path) -> None:
    database = AccessDatabase(tmp_path / "a.duckdb")
    database.write(lambda rows: rows.insert(GRANT_USE, USE))
    assert database.read(lambda rows: rows.select(GRANT_USE)) == [USE]
    database.close()


def test_a_change_that_fails_half_way_is_not_there(tmp_path: Path) -> None:
    database = AccessDatabase(tmp_path / "a.duckdb")
    log = AuditLog(database)

    def work(rows: Rows) -> None:
        rows.insert(GRANT_USE, USE)
        log.append(Entry.by(ANA, Event.DOWNLOAD), rows)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        database.write(work)
    assert database.read(lambda rows: rows.count(GRANT_USE, {})) == 0
    assert database.read(lambda rows: rows.count(AUDIT, {})) == 0
    # And the next one works.
    log.append(Entry.by(ANA, Event.DOWNLOAD))
    assert log.check().rows == 1
    database.close()


def test_the_same_key_twice_is_refused_and_undone(tmp_path: Path) -> None:
    database = AccessDatabase(tmp_path / "a.duckdb")
    database.write(lambda rows: rows.insert(GRANT_USE, USE))

    def twice(rows: Rows) -> None:
        rows.insert(GRANT_USE, USE | {"use_id": "u2"})
        rows.insert(GRANT_USE, USE)

    with pytest.raises(StoreFailed):
        database.write(twice)
    assert database.read(lambda rows: rows.count(GRANT_USE, {})) == 1
    database.close()


def test_rows_written_at_once_are_one_chain(tmp_path: Path) -> None:
    with book(tmp_path / "a.duckdb") as opened:

        def many(opened: Book = opened) -> None:
            for _ in range(25):
                opened.audit.append(Entry.by(ANA, Event.REFUSED, "x"))

        threads = [threading.Thread(target=many) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = opened.audit.check()
        assert (report.rows, report.whole) == (200, True)


def test_another_process_is_told_to_wait(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    database = AccessDatabase(path)
    code = (
        "import sys; from pathlib import Path\n"
        "from explorer.access.database import AccessDatabase\n"
        "from explorer.errors import StoreLocked\n"
        "try:\n    AccessDatabase(Path(sys.argv[1]))\n"
        "except StoreLocked as error:\n    print(error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "in use by another process" in done.stdout
    assert "ROLLOUT_EXPLORER_ACCESS_STORE" in done.stdout
    database.close()
    assert issubclass(StoreLocked, StoreFailed)


@pytest.mark.parametrize("content", [b"not a database at all", b"\x00" * 5000])
def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.duckdb"
    path.write_bytes(content)
    with pytest.raises(StoreFailed, match=str(path)):
        AccessDatabase(path)
    assert path.read_bytes() == content


def test_a_newer_schema_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    AccessDatabase(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE access_version SET version = 99")
    with pytest.raises(StoreFailed, match="use a newer Rollout Explorer"):
        AccessDatabase(path)
    # It let go of the file.
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT version FROM access_version").fetchall() == [(99,)]


def test_a_closed_one_says_so(tmp_path: Path) -> None:
    database = AccessDatabase(tmp_path / "a.duckdb")
    database.close()
    database.close()
    with pytest.raises(StoreFailed, match="the server is stopping"):
        database.read(lambda rows: rows.count(AUDIT, {}))


def test_what_a_server_that_was_killed_had_committed_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    code = (
        "import os, sys; from pathlib import Path\n"
        "from tests.access.granting import ANA, OPERATOR, book, wanted\n"
        "from explorer.access.grants import Terms\n"
        "with book(Path(sys.argv[1])) as opened:\n"
        "    opened.grants.ask(ANA, wanted())\n"
        "    opened.grants.give(OPERATOR, wanted('test:u-ben'), Terms())\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == -9
    with book(path) as opened:
        assert len(opened.grants.all) == 2
        assert opened.events() == ["grant_requested", "grant_given"]
        assert opened.audit.check().whole
        opened.grants.give(OPERATOR, wanted("test:u-cleo"), opened.grants.all[0].terms)
        assert opened.audit.check().rows == 3


def test_every_table_says_what_its_columns_are() -> None:
    for table in TABLES:
        assert set(table.key) <= set(table.names)
        assert all(column.doc.endswith(".") for column in table.columns), table.name
