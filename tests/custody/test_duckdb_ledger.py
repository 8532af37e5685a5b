"""The ledger as a DuckDB file: what it keeps, through threads, kills and damage."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

from explorer.custody.errors import CustodyError, LedgerError
from explorer.custody.jsonl import JsonlLedger
from explorer.custody.records import CaptureLedgerCommit
from explorer.store.custody_ledger import DuckDBLedger, ledger_path, open_ledger
from tests.custody.build import branched, random_tree
from tests.custody.test_ledger import commits

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.custody.duckdb"


@pytest.fixture
def ledger(path: Path) -> Iterator[DuckDBLedger]:
    made = DuckDBLedger(path)
    yield made
    made.close()


def tree_commits(seed: int) -> list[CaptureLedgerCommit]:
    """Commits of a random forest; some with chains that do not follow."""
    rollout = random_tree(seed)
    source = random.Random(seed)
    chains: dict[str | None, tuple[str, ...]] = {None: ()}
    found = []
    for number, call in enumerate(rollout.calls):
        chain = (*chains[call.parent_call_id], call.staging_key)
        chains[call.model_call_id] = chain
        odd = source.choice([chain, chain, chain[1:], (*chain, "more")])
        found.append(
            CaptureLedgerCommit(
                rollout_id="r1",
                record=rollout.row(call, fingerprint_version=source.choice([2, 2, 1])),
                staging_chain=odd,
                request_items=({"role": "user", "content": f"q{number}"},),
                response_items=({"role": "assistant", "content": f"a{number % 3}"},),
            )
        )
    return found


def answers(ledger: Any, calls: list[str]) -> list[Any]:
    """Everything that a ledger says of a rollout."""
    from explorer.custody.fingerprint import assistant_fingerprint

    told: list[Any] = [ledger.manifest("r1").to_json(), ledger.has_rows("r1")]
    told += [
        ledger.candidates("r1", assistant_fingerprint([{"role": "assistant", "content": text}]))
        for text in ("a0", "a1", "a2", "none")
    ]
    for call in [*calls, "nobody"]:
        try:
            told.append(ledger.staging_chain("r1", call))
        except LedgerError as error:
            told.append(error.code)
    return told


@pytest.mark.parametrize("seed", range(40))
def test_it_says_what_the_ledger_of_files_says(tmp_path: Path, seed: int) -> None:
    """Random commits, repeats, contradictions and poison, before and after a restart."""
    source = random.Random(seed)
    files, table = JsonlLedger(tmp_path / "files"), DuckDBLedger(tmp_path / "t.duckdb")
    made = tree_commits(seed)
    calls = [commit.record.model_call_id for commit in made]
    for commit in [*made, *source.sample(made, len(made) // 2)]:
        outcomes = []
        reason = source.choice(["unresolved_parent", "worker_capture_failed"])
        poisons, changed = source.random() < 0.2, source.random() < 0.1
        if changed:
            commit = CaptureLedgerCommit.parse(commit.to_json() | {"staging_chain": ["x"]})
        for ledger in (files, table):
            try:
                if poisons:
                    ledger.record_failure("r1", commit.record.model_call_id, reason)
                ledger.record(commit)
                outcomes.append("taken")
            except CustodyError as error:
                outcomes.append(error.code)
        assert outcomes[0] == outcomes[1]
    assert answers(files, calls) == answers(table, calls)
    table.close()
    table = DuckDBLedger(tmp_path / "t.duckdb")
    assert answers(files, calls) == answers(table, calls)
    table.close()


def test_no_word_and_no_token_is_written_and_no_chain_twice(
    ledger: DuckDBLedger, path: Path
) -> None:
    for commit in commits(5):
        ledger.record(commit)
    ledger.close()
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = [
            row[0] for row in connection.execute("SELECT content FROM custody_row").fetchall()
        ]
    text = "".join(rows)
    assert len(rows) == 5
    assert not any(
        word in text for word in ("question", "answer", "token_ids", "staging_chain")
    )


def test_a_chain_is_known_after_a_restart(ledger: DuckDBLedger, path: Path) -> None:
    for commit in commits(5):
        ledger.record(commit)
    ledger.close()
    again = DuckDBLedger(path)
    assert again.staging_chain("r1", "c4") == tuple(f"r1/c{number}" for number in range(5))
    again.record(commits(5)[4])
    with pytest.raises(LedgerError, match="conflicting_commit"):
        again.record(CaptureLedgerCommit.parse(commits(5)[4].to_json() | {"staging_chain": []}))
    again.close()


def test_what_was_recorded_survives_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tests.custody.test_duckdb_ledger import DuckDBLedger, commits\n"
        "ledger = DuckDBLedger(Path(sys.argv[1]))\n"
        "for commit in commits(3): ledger.record(commit)\n"
        "ledger.record_failure('r1', 'x', 'unresolved_parent')\nos._exit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "k.duckdb")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 9
    ledger = DuckDBLedger(tmp_path / "k.duckdb")
    manifest = ledger.manifest("r1")
    assert [row.model_call_id for row in manifest.records] == ["c0", "c1", "c2"]
    assert [item.reason for item in manifest.failures] == ["unresolved_parent"]
    ledger.close()


def test_threads_that_share_rollouts_and_a_small_memory(tmp_path: Path) -> None:
    """Sixteen threads, more rollouts than are kept, every call by two of them."""
    ledger = DuckDBLedger(tmp_path / "t.duckdb", cached_rollouts=2)
    gate = threading.Barrier(16)
    names = [f"r{number}" for number in range(6)]

    def work(thread: int) -> None:
        gate.wait()
        for number in range(12):
            for name in names:
                ledger.record_failure(name, f"{thread // 2}-{number}", "unresolved_parent")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    for name in names:
        calls = [item.model_call_id for item in ledger.manifest(name).failures]
        assert len(calls) == len(set(calls)) == 8 * 12
    assert len(ledger._kept) <= 2
    ledger.close()


def test_damage_is_named_and_others_go_on(path: Path) -> None:
    ledger = DuckDBLedger(path)
    for commit in commits(3):
        ledger.record(commit)
    ledger.record_failure("r2", "a", "unresolved_parent")
    ledger.close()
    for change, words in (
        ("UPDATE custody_row SET content = 'x' WHERE place = 1", "row 1: not JSON"),
        ("DELETE FROM custody_row WHERE place = 1 AND rollout_id = 'r1'", "row 1 is missing"),
    ):
        with duckdb.connect(str(path)) as connection:
            connection.execute(change)
        ledger = DuckDBLedger(path)
        with pytest.raises(LedgerError, match=words) as caught:
            ledger.manifest("r1")
        assert caught.value.code == "damaged_ledger"
        with pytest.raises(LedgerError, match="damaged_ledger"):
            ledger.record_failure("r1", "new", "unresolved_parent")
        assert len(ledger.manifest("r2").failures) == 1
        ledger.close()


def test_a_file_in_use_a_newer_one_and_one_that_is_none(path: Path, tmp_path: Path) -> None:
    ledger = DuckDBLedger(path)
    script = (
        "import sys; from pathlib import Path\n"
        "from explorer.store.custody_ledger import DuckDBLedger\n"
        "DuckDBLedger(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"ledger_unreadable" in done.stderr
    ledger.close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO custody_version VALUES (99)")
    with pytest.raises(LedgerError, match="custody schema 99"):
        DuckDBLedger(path)
    other = tmp_path / "other.duckdb"
    other.write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerError, match="ledger_unreadable"):
        DuckDBLedger(other)


def test_a_ledger_that_cannot_write_says_so_and_takes_nothing_in(path: Path) -> None:
    ledger = DuckDBLedger(path)
    ledger.record_failure("r1", "a", "unresolved_parent")
    ledger.close()
    with pytest.raises(LedgerError, match="ledger_unwritable"):
        ledger.record_failure("r1", "b", "unresolved_parent")
    again = DuckDBLedger(path)
    assert [item.model_call_id for item in again.manifest("r1").failures] == ["a"]
    again.close()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "ä", "a b", "a\n", None, 5])
def test_the_same_ids_are_refused_everywhere(ledger: DuckDBLedger, name: Any) -> None:
    with pytest.raises(LedgerError, match="invalid_rollout_id"):
        ledger.manifest(name)
    with pytest.raises(LedgerError, match="invalid_rollout_id"):
        ledger.record_failure(name, "a", "unresolved_parent")


def test_the_ending_chooses_the_ledger(tmp_path: Path) -> None:
    path = ledger_path(tmp_path / "rollouts.duckdb")
    assert path.name == "rollouts.custody.duckdb"
    table = open_ledger(path)
    assert isinstance(table, DuckDBLedger)
    table.close()
    assert isinstance(open_ledger(tmp_path / "ledger"), JsonlLedger)
    with pytest.raises(LedgerError, match="ledger_unreadable"):
        open_ledger(path / "below-a-file")


def test_branches_have_their_own_chains(ledger: DuckDBLedger) -> None:
    rollout = branched()
    for call, chain in zip(
        rollout.calls,
        [("r1/c0",), ("r1/c0", "r1/c1"), ("r1/c0", "r1/c1", "r1/c2"), ("r1/c0", "r1/b1")],
        strict=True,
    ):
        ledger.record(
            CaptureLedgerCommit(
                rollout_id="r1",
                record=rollout.row(call),
                staging_chain=chain,
                request_items=(),
                response_items=(),
            )
        )
    assert ledger.staging_chain("r1", "b1") == ("r1/c0", "r1/b1")
