"""The SQL console's processes: every way out that is known, tried on real ones."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from explorer.errors import CapacityReached, QueryFailed
from explorer.export.console import Answer, Console, Limits, Typed
from explorer.export.console_files import csv, parquet
from explorer.records import EventKind, RolloutEvent, RolloutId
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from tests.web import seeds

FAST = Limits(execution_s=1.0, wall_s=3.0, cpu_s=3)


@dataclass
class Place:
    """A filled store and a console over it."""

    folder: Path
    store: DuckDBStore
    console: Console
    rollouts: dict[str, RolloutId]

    def run(self, sql: str) -> Answer:
        """One query."""
        return self.console.run(sql)

    def one(self, sql: str) -> object:
        """The single value of a query."""
        ((value,),) = self.run(sql).rows
        return value

    def refusal(self, sql: str) -> str:
        """Why a query has no answer."""
        with pytest.raises(QueryFailed) as caught:
            self.run(sql)
        return caught.value.message


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("console")
    store = DuckDBStore(folder / "store.duckdb", StoreOptions(min_free_bytes=0))
    made = asyncio.run(seeds.fill(store))
    console = Console(store.snapshot, lambda: store.health().commits, FAST)
    rollouts = {name: maker.rollout.rollout_id for name, maker in made.items()}
    yield Place(folder, store, console, rollouts)
    console.close()
    store.close_now()


def test_it_answers_over_what_the_store_holds(place: Place) -> None:
    assert place.one("SELECT count(*) FROM rollout") == len(place.rollouts)
    record = place.store.record(place.rollouts["small"])
    assert record is not None
    call = record.calls[0]
    assert call.completion is not None
    assert call.logprobs is not None
    found = place.run(
        f"SELECT completion, list_sum(logprobs) FROM call WHERE call_id = '{call.call_id}'"
    ).rows[0]
    assert found[0] == Typed(str(call.completion.tolist()))
    assert found[1] == pytest.approx(float(call.logprobs.sum()), rel=1e-5)


def test_the_process_is_shut_off(place: Place) -> None:
    told = place.run("SELECT 1").isolation
    if os.geteuid() == 0:
        assert told["user"] == "nobody"
    assert told["network"].startswith(("own", "shared ("))


def test_keys_bodies_and_deleted_rollouts_are_not_in_the_copy(place: Place) -> None:
    columns = place.run("SELECT table_name, column_name FROM duckdb_columns()").rows
    names = {str(row[1]) for row in columns}
    assert "prompt_delta" in names
    assert not names & {"key_hash", "request_body", "reply_body", "body_index"}
    gone = place.rollouts["refused"]
    event = RolloutEvent(gone, -1, seeds.START_US + 1, EventKind.DELETED)
    asyncio.run(place.store.add_event(event))
    for table in ("rollout", "call", "rollout_event", "judgement", "annotation", "summary"):
        sql = f"SELECT count(*) FROM {table} WHERE rollout_id = '{gone}'"
        assert place.one(sql) == 0


# What of the list in the docs reaches outside; all must be refused in words.
OUTSIDE = {
    "read_csv": "SELECT * FROM read_csv('/etc/passwd')",
    "read_text": "SELECT * FROM read_text('/etc/passwd')",
    "read_blob": "SELECT * FROM read_blob('/etc/passwd')",
    "glob": "SELECT * FROM glob('/etc/*')",
    "sniff": "SELECT * FROM sniff_csv('/etc/passwd')",
    "bare file": "SELECT * FROM '/etc/passwd.csv'",
    "descriptor": "SELECT * FROM read_parquet('/proc/self/fd/3')",
    "memory": "SELECT * FROM read_blob('/proc/self/environ')",
    "copy to": "COPY (SELECT 1) TO '{folder}/out.csv'",
    "copy to wal": "COPY (SELECT 1) TO '{store}.wal' (FORMAT csv)",
    "copy from": "COPY rollout FROM '/etc/passwd'",
    "export": "EXPORT DATABASE '{folder}/export'",
    "import": "IMPORT DATABASE '{folder}'",
    "attach": "ATTACH '{folder}/other.duckdb' AS other",
    "attach store": "ATTACH '{store}' AS own (READ_ONLY)",
    "store blob": "SELECT * FROM read_blob('{store}')",
    "store scan": "SELECT * FROM '{store}'",
    "http": "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
    "s3": "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "install": "INSTALL httpfs",
    "install from": "INSTALL spatial FROM 'http://127.0.0.1:9'",
    "load": "LOAD '{folder}/x.duckdb_extension'",
    "load known": "LOAD httpfs",
    "log path": "SET log_query_path = '{folder}/log'",
    "external": "SET enable_external_access = true",
    "external again": "RESET enable_external_access",
    "memory limit": "SET memory_limit = '8GB'",
    "threads": "SET threads = 8",
    "temp": "SET temp_directory = '{folder}'",
    "unlock": "SET lock_configuration = false",
    "logging": "CALL enable_logging(storage = 'file', storage_config = {{'path': '{folder}'}})",
    "profiling": "PRAGMA profiling_output = '{folder}/p.json'",
    "secret": "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "python": "SELECT * FROM request",
    "python frame": "SELECT * FROM connection",
    "environment": "SELECT getenv('PATH')",
    "connect": "CONNECT 'http://127.0.0.1:9'",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_can_be_reached(place: Place, name: str) -> None:
    store = place.store.path
    before = {path.name for path in place.folder.iterdir()}
    said = place.refusal(OUTSIDE[name].format(folder=place.folder, store=store))
    assert said
    assert "root:" not in said
    assert sys.prefix not in said
    assert {path.name for path in place.folder.iterdir()} == before


INSIDE = {
    "insert": "INSERT INTO rollout SELECT * FROM rollout",
    "drop": "DROP TABLE vocabulary",
    "cte delete": "WITH gone AS (DELETE FROM call RETURNING *) SELECT count(*) FROM gone",
    "cte copy": "WITH x AS (COPY (SELECT 1) TO '/tmp/never.csv') SELECT 1",
    "update": "UPDATE rollout SET run = 'x'",
    "temp table": "CREATE TEMP TABLE t AS SELECT 1",
    "temp macro": "CREATE TEMP MACRO read_text(x) AS x",
    "temporary secret": "CREATE TEMPORARY SECRET s (TYPE http, BEARER_TOKEN 'x')",
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_changes_the_copy_is_gone_with_its_process(place: Place, name: str) -> None:
    stamp = place.store.health().commits
    with contextlib.suppress(QueryFailed):
        place.run(INSIDE[name])
    assert place.store.health().commits == stamp
    assert place.one("SELECT count(*) FROM rollout WHERE run <> 'x'") >= 5  # type: ignore[operator]
    assert place.one("SELECT count(*) FROM vocabulary") > 0  # type: ignore[operator]
    assert not Path("/tmp/never.csv").exists()


def test_what_one_query_makes_is_not_there_for_the_next(place: Place) -> None:
    place.run("CREATE TEMP TABLE kept AS SELECT 1 AS one")
    assert "does not exist" in place.refusal("SELECT * FROM kept")


HEAVY = {
    "long text": ("SELECT length(repeat('x', 4000000000))", "memory"),
    "long answer": ("SELECT repeat('x', 1000000000)", "memory"),
    "list": ("SELECT len(list(range)) FROM range(500000000)", "memory"),
    "recursive": (
        "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT max(i) FROM t",
        "time",
    ),
    "join": ("SELECT count(*) FROM range(10000000) a, range(10000000) b", "time"),
    "lambda": (
        "SELECT list_sum(list_transform(range(3000000), lambda x: "
        "list_sum(list_transform(range(1000), lambda y: x * y % 7))))",
        "",
    ),
    "sort": ("SELECT a.range FROM range(200000000) a ORDER BY hash(a.range)", ""),
}


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_too_heavy_ends_in_words_and_in_time(place: Place, name: str) -> None:
    sql, word = HEAVY[name]
    began = time.monotonic()
    said = place.refusal(sql)
    assert time.monotonic() - began < FAST.wall_s + 5
    assert word in said.lower()
    assert place.one("SELECT 42") == 42


def test_exactly_one_statement(place: Place) -> None:
    assert place.refusal("SELECT 1; SELECT 2") == "give exactly one statement; there are 2"
    assert place.refusal("-- nothing") == "give exactly one statement; there is none"
    assert "there are 2" in place.refusal("SET threads = 2; SELECT 1")
    assert place.one("SELECT 1;") == 1


def test_a_wall_clock_ends_what_sleeps(place: Place) -> None:
    slow = replace(FAST, execution_s=60.0, cpu_s=60, wall_s=0.8)
    console = Console(place.store.snapshot, lambda: place.store.health().commits, slow)
    with pytest.raises(QueryFailed, match=r"longer than 0\.8 s"):
        console.run(HEAVY["join"][0])
    console.close()


def test_the_processor_limit_ends_what_the_database_does_not(place: Place) -> None:
    slow = replace(FAST, execution_s=60.0, cpu_s=1, wall_s=30.0)
    console = Console(place.store.snapshot, lambda: place.store.health().commits, slow)
    with pytest.raises(QueryFailed, match="of CPU"):
        console.run(HEAVY["join"][0])
    console.close()


def test_a_process_that_is_killed_gives_a_clean_error(place: Place) -> None:
    failures: list[str] = []

    def ask() -> None:
        try:
            place.run(HEAVY["join"][0])
        except QueryFailed as error:
            failures.append(error.message)

    asking = threading.Thread(target=ask)
    asking.start()
    killed = False
    for _ in range(200):
        found = subprocess.run(
            ["pgrep", "-P", str(os.getpid()), "-f", "explorer.export.console_child"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.split()
        if found:
            time.sleep(0.3)
            os.kill(int(found[0]), signal.SIGABRT)
            killed = True
            break
        time.sleep(0.01)
    asking.join(20)
    assert killed
    assert "SIGABRT" in failures[0]
    assert "the server is not affected" in failures[0]


def test_two_at_once_and_not_three(place: Place) -> None:
    outcomes: list[str] = []

    def ask() -> None:
        try:
            place.run(HEAVY["join"][0])
        except QueryFailed:
            outcomes.append("ended")
        except CapacityReached:
            outcomes.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["ended", "ended", "refused"]


def test_rows_and_bytes_are_capped(place: Place) -> None:
    many = place.run("SELECT range FROM range(5000)")
    assert (len(many.rows), many.truncated) == (FAST.rows, "rows")
    exact = place.run(f"SELECT range FROM range({FAST.rows})")
    assert (len(exact.rows), exact.truncated) == (FAST.rows, "")
    wide = place.console.run("SELECT repeat('x', 100000) FROM range(500)", 500, 1_000_000)
    assert wide.truncated == "bytes"
    assert 0 < len(wide.rows) < 11


def test_a_query_has_a_length(place: Place) -> None:
    assert "10,000 characters" in place.refusal("SELECT '" + "x" * 10_000 + "'")


def test_values_keep_every_digit(place: Place) -> None:
    row = place.run(
        "SELECT 170141183460469231731687303715884105727::HUGEINT, 9007199254740993, "
        "1.10::DECIMAL(5,2), '', NULL, '\\x00'::BLOB, 'nan'::DOUBLE, true, "
        "TIMESTAMP '2026-01-02 03:04:05.678901'"
    ).rows[0]
    assert row[:6] == (2**127 - 1, 9007199254740993, Typed("1.10"), "", None, b"\x00")
    assert str(row[6]) == "nan"
    assert row[7] is True
    assert row[8] == Typed("2026-01-02 03:04:05.678901")


def test_csv_is_safe_for_spreadsheets_and_knows_null(place: Place) -> None:
    answer = place.run(
        "SELECT '=cmd|x' AS \"=head\", -1 AS n, '-1' AS t, NULL AS gone, '' AS empty, "
        "'a\"b,c' AS quoted, '\t=1' AS tab, -1.50::DECIMAL(4,2) AS money"
    )
    head, line, *_ = csv(answer).decode().split("\r\n")
    assert head.startswith('"\'=head","n"')
    assert line == '"\'=cmd|x",-1,"\'-1",,"","a""b,c","\'\t=1",-1.50'


def test_parquet_has_types_and_nulls(place: Place) -> None:
    answer = place.run(
        "SELECT 9223372036854775807 AS a, NULL::INTEGER AS a, 1.10::DECIMAL(5,2) AS d, "
        "DATE '2026-01-02' AS day, [1, NULL] AS list, '' AS e, 0.1::FLOAT AS f"
    )
    table = pq.read_table(io.BytesIO(parquet(answer)))
    assert table.column_names == ["a", "a_1", "d", "day", "list", "e", "f"]
    row = table.to_pylist()[0]
    assert (row["a"], row["a_1"], str(row["d"])) == (2**63 - 1, None, "1.10")
    assert (row["day"].isoformat(), row["list"], row["e"]) == ("2026-01-02", "[1, null]", "")
    assert str(table.schema.field("f").type) == "float"


def test_the_copy_is_kept_until_the_store_changes(place: Place) -> None:
    taken = place.run("SELECT 1").snapshot
    assert place.run("SELECT 2").snapshot is taken
    event = RolloutEvent(
        place.rollouts["small"], -1, seeds.START_US + 9, EventKind.REWARD, reward=0.25
    )
    asyncio.run(place.store.add_event(event))
    again = place.run(
        f"SELECT reward FROM summary WHERE rollout_id = '{place.rollouts['small']}'"
    )
    assert again.snapshot is not taken
    assert again.rows == ((0.25,),)


def test_a_store_that_is_too_large_gives_its_newest_rollouts(place: Place) -> None:
    whole = place.store.snapshot()
    some = place.store.snapshot(most_bytes=20_000)
    assert 0 < some.n_rollouts < some.total_rollouts == whole.n_rollouts
    console = Console(lambda: some, lambda: 0, FAST)
    counted = console.run("SELECT count(*) FROM rollout").rows
    newest = console.run("SELECT min(created_time) FROM rollout").rows[0][0]
    assert counted == ((some.n_rollouts,),)
    older = place.one("SELECT min(created_time) FROM rollout")
    assert isinstance(newest, Typed)
    assert isinstance(older, Typed)
    assert newest.text >= older.text
    console.close()
