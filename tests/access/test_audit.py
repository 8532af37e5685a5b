"""The audit log: whatever is done to its rows shows, at the row it was done to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.access.audit import (
    ZEROS,
    AuditLog,
    Entry,
    Event,
    check_chain,
    row_hash,
)
from explorer.access.database import AccessDatabase
from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.errors import StoreFailed
from tests.access.granting import ANA, OPERATOR, book, wanted

ROWS = 12
Rows = list[dict[str, Any]]


def made(path: Path, count: int = ROWS) -> Rows:
    """A log of some rows, and the rows."""
    with book(path) as opened:
        for n in range(count):
            opened.audit.append(
                Entry.by(
                    ANA,
                    Event.DOWNLOAD,
                    f"rollout r{n}",
                    reason="" if n % 2 else "漢字 🦊 \x00 \u202e",
                    detail={"n": n, "kinds": ["raw"]},
                    bytes=n * 1000,
                    sha256="ab" * 32,
                    complete=n % 3 != 0,
                )
            )
        return list(opened.audit.every())


def check(path: Path) -> tuple[bool, int | None, str]:
    with book(path) as opened:
        report = opened.audit.check()
        return report.whole, report.broken_at, report.why


def test_a_log_is_whole_also_after_a_restart_and_more_rows(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    rows = made(path)
    assert rows[0]["previous"] == ZEROS
    assert [row["sequence"] for row in rows] == list(range(ROWS))
    assert check(path) == (True, None, "")
    more = made(path, 3)
    assert more[ROWS]["previous"] == rows[-1]["hash"]
    assert check(path) == (True, None, "")
    assert rows == more[:ROWS]


@pytest.mark.parametrize(
    ("sql", "broken_at", "why"),
    [
        ("DELETE FROM audit WHERE sequence = 5", 5, "row 5 is missing"),
        ("DELETE FROM audit WHERE sequence = 0", 0, "row 0 is missing"),
        ("DELETE FROM audit WHERE sequence BETWEEN 3 AND 7", 3, "row 3 is missing"),
        ("UPDATE audit SET who = 'test:u-ben' WHERE sequence = 4", 4, "its values"),
        ("UPDATE audit SET bytes = 1 WHERE sequence = 4", 4, "its values"),
        ("UPDATE audit SET complete = NULL WHERE sequence = 4", 4, "its values"),
        ("UPDATE audit SET reason = '' WHERE sequence = 2", 2, "its values"),
        ("UPDATE audit SET detail = '{}' WHERE sequence = 6", 6, "its values"),
        (
            "UPDATE audit SET event_time = event_time + INTERVAL 1 MICROSECOND "
            "WHERE sequence = 9",
            9,
            "its values",
        ),
        ("UPDATE audit SET hash = previous WHERE sequence = 3", 3, "its values"),
        ("UPDATE audit SET previous = hash WHERE sequence = 3", 3, "does not follow"),
        (
            "UPDATE audit SET sequence = CASE sequence WHEN 4 THEN 104 WHEN 5 THEN 105 "
            "ELSE sequence END; "
            "UPDATE audit SET sequence = 209 - sequence - 100 WHERE sequence > 100",
            4,
            "does not follow",
        ),
    ],
)
def test_what_was_done_shows_at_its_row(
    tmp_path: Path, sql: str, broken_at: int, why: str
) -> None:
    path = tmp_path / "access.duckdb"
    made(path)
    with duckdb.connect(str(path)) as connection:
        for each in sql.split("; "):
            connection.execute(each)
    whole, at, said = check(path)
    assert (whole, at) == (False, broken_at)
    assert why in said


def test_a_row_that_was_put_in_shows(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    rows = made(path)
    forged = rows[4] | {"sequence": 5, "who": "test:u-ben", "previous": rows[4]["hash"]}
    forged["hash"] = row_hash(forged)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE audit SET sequence = sequence + 100 WHERE sequence > 4")
        connection.execute("UPDATE audit SET sequence = sequence - 99 WHERE sequence > 99")
        connection.execute(
            "INSERT INTO audit SELECT * REPLACE (5 AS sequence, ? AS who, ? AS previous, "
            "? AS hash) FROM audit WHERE sequence = 4",
            [forged["who"], forged["previous"], forged["hash"]],
        )
    # The forged row fits what it follows; the one after it does not fit it.
    assert check(path) == (False, 6, "it does not follow from the row before it")


def test_rows_cut_off_at_the_end_show_to_who_kept_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    rows = made(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM audit WHERE sequence > 8")
    with book(path) as opened:
        report = opened.audit.check()
    assert report.whole
    assert report.rows == 9
    assert report.head == rows[8]["hash"] != rows[-1]["hash"]


def change(rows: Rows, index: int) -> None:
    rows[index] = rows[index] | {"reason": rows[index]["reason"] + "x"}


def swap(rows: Rows, index: int) -> None:
    rows[index], rows[index + 1] = rows[index + 1], rows[index]


def drop(rows: Rows, index: int) -> None:
    del rows[index]


def double(rows: Rows, index: int) -> None:
    rows.insert(index + 1, rows[index])


@given(
    count=st.integers(2, 30),
    where=st.integers(0, 28),
    done=st.sampled_from([change, swap, drop, double]),
    seed=st.integers(0, 5),
)
def test_any_change_is_found_no_later_than_after_its_row(
    count: int, where: int, done: Callable[[Rows, int], None], seed: int
) -> None:
    rows: Rows = []
    chosen = random.Random(seed)
    for n in range(count):
        row = {
            "sequence": n,
            "reason": "r" * chosen.randrange(4),
            "bytes": chosen.choice([None, n]),
            "previous": rows[-1]["hash"] if rows else ZEROS,
        }
        rows.append(row | {"hash": row_hash(row)})
    assert check_chain(rows).whole
    index = min(where, count - 2)
    done(rows, index)
    report = check_chain(rows)
    assert not report.whole
    assert report.broken_at == (index + 1 if done is double else index)


def test_what_cannot_be_written_down_does_not_happen(tmp_path: Path) -> None:
    with book(tmp_path / "access.duckdb") as opened:
        asked = opened.grants.ask(ANA, wanted())
        before = opened.grants.all
        opened.database.close()
        with pytest.raises(StoreFailed):
            opened.grants.ask(ANA, wanted("test:u-ana", "r2"))
        with pytest.raises(StoreFailed):
            opened.visibility.set(OPERATOR, Target.RUN, "run-1", Level.PUBLIC, "why")
        assert opened.grants.all == before == (asked,)
        assert opened.visibility.rows == ()


def test_pages_go_backwards_and_narrow(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    with book(path) as opened:
        for n in range(10):
            event = Event.DOWNLOAD if n % 2 else Event.REFUSED
            opened.audit.append(Entry.by(ANA, event, f"rollout r{n}"))
        first = opened.audit.page({"event": "download"}, None, 3)
        assert [row["sequence"] for row in first] == [9, 7, 5]
        then = opened.audit.page({"event": "download"}, 5, 3)
        assert [row["sequence"] for row in then] == [3, 1]
        assert opened.audit.page({"who": "test:u-ben"}, None, 3) == []
        assert json.loads(first[0]["detail"]) == {}


def test_long_and_odd_text_is_kept_as_it_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    database = AccessDatabase(path)
    log = AuditLog(database)
    odd = "\ud800 lone \x00 nul " + "x" * 5000
    log.append(Entry(Event.REFUSED, odd, odd, odd, odd, odd, {"odd": odd}))
    row = next(log.every())
    assert len(row["who"]) == 2000
    assert "\ud800" not in row["who"]
    assert log.check().whole
    database.close()
    assert check(path) == (True, None, "")
