"""The ledger's files: torn ends, damage, several writers, what others do to a file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from explorer.custody.errors import CustodyError, FingerprintError, LedgerError
from explorer.custody.fingerprint import assistant_fingerprint
from explorer.custody.jsonl import JsonlLedger
from explorer.custody.ledger import LedgerIndex
from explorer.custody.records import CaptureLedgerCommit, RolloutManifest
from tests.custody.build import linear
from tests.custody.test_properties import operations

ROOT = Path(__file__).parents[2]


def commits(count: int = 3) -> list[CaptureLedgerCommit]:
    """The commits of a line of calls."""
    rollout, chain, found = linear(count), [], []
    items: list[dict[str, Any]] = []
    for index, call in enumerate(rollout.calls):
        chain.append(call.staging_key)
        items = [*items, {"role": "user", "content": f"question {index} é"}]
        answer = {"role": "assistant", "content": f"answer {index}"}
        found.append(
            CaptureLedgerCommit(
                rollout_id="r1",
                record=rollout.row(call, fingerprint_version=2, admitted_at=float(index)),
                staging_chain=tuple(chain),
                request_items=tuple(items),
                response_items=(answer,),
            )
        )
        items = [*items, answer]
    return found


def written(root: Path) -> tuple[JsonlLedger, Path]:
    """A ledger with three commits and a poison row."""
    ledger = JsonlLedger(root)
    for commit in commits():
        ledger.record(commit)
    ledger.record_failure("r1", "x", "unresolved_parent")
    return ledger, ledger.path_of("r1")


def test_a_row_has_exactly_its_columns_in_one_spelling(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    first, *_, last = path.read_bytes().splitlines(keepends=True)
    row = json.loads(first)
    assert set(row) == {
        *("model_call_id", "fingerprint", "context_len", "context_digest", "digest"),
        *("staging_digest", "parent_call_id", "staging_key", "weight_version", "prev_len"),
        *("delta_len", "cum_len", "extras_digest", "mode", "admitted_at", "staging_chain"),
        *("chain_hash", "cumulative_hash", "response_id", "output_fingerprint"),
        *("continuation_fingerprint", "fingerprint_version"),
    }
    record = commits()[0].record
    assert (row["digest"], row["staging_digest"]) == (record.cumulative_hash, record.digest)
    assert first == json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert last == b'{"failure_reason":"unresolved_parent","model_call_id":"x"}\n'


def test_no_token_and_no_word_of_the_conversation_is_written(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    text = path.read_text()
    assert "question" not in text
    assert "answer" not in text
    assert "token_ids" not in text


def test_a_file_is_private(tmp_path: Path) -> None:
    written(tmp_path)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o600}


def test_a_torn_end_is_cut_off_wherever_it_is_torn(tmp_path: Path) -> None:
    _, path = written(tmp_path / "whole")
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    torn_root = tmp_path / "torn"
    JsonlLedger(torn_root)
    torn = torn_root / path.name
    for cut in range(len(whole)):
        torn.write_bytes(whole[:cut])
        ledger = JsonlLedger(torn_root)
        manifest = ledger.manifest("r1")
        # A line that lacks nothing but its end is whole.
        rows = sum(cut >= end - 1 for end in ends)
        assert len(manifest.records) + len(manifest.failures) == rows, cut
        if cut % 7 == 0 or cut + 2 > len(whole):
            for commit in commits():
                ledger.record(commit)
            ledger.record_failure("r1", "x", "unresolved_parent")
            assert torn.read_bytes() == whole, cut


def test_a_torn_end_of_another_writer_is_seen_by_a_ledger_in_use(tmp_path: Path) -> None:
    ledger, path = written(tmp_path)
    assert len(ledger.manifest("r1").records) == 3
    with path.open("ab") as file:
        file.write(b'{"failure_reason":"' + b"long" * 1000)
    assert len(ledger.manifest("r1").failures) == 1
    ledger.record_failure("r1", "y", "worker_capture_failed")
    assert path.read_bytes().endswith(
        b'"x"}\n{"failure_reason":"worker_capture_failed","model_call_id":"y"}\n'
    )


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"5", b"[]", b"not json", b"\xff", b'{"model_call_id":""}', b'{"a":NaN}'),
        *(
            b'{"model_call_id":"z","model_call_id":"z"}',
            b'{"failure_reason":5,"model_call_id":"z"}',
        ),
        b'{"model_call_id":"z","staging_key":"k","response_id":"r","chain_hash":"x",'
        b'"cumulative_hash":"y"}',
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_written_after_it(
    line: bytes, tmp_path: Path
) -> None:
    ledger, path = written(tmp_path)
    damaged = line + b"\n" + path.read_bytes()
    for ledger_in_use in (ledger, JsonlLedger(tmp_path)):
        path.unlink()
        path.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"damaged_ledger: .*jsonl, line 1: "):
                ledger_in_use.manifest("r1")
        with pytest.raises(LedgerError, match="damaged_ledger"):
            ledger_in_use.record_failure("r1", "y", "worker_capture_failed")
        assert path.read_bytes() == damaged


def test_two_rows_that_commit_one_call_are_damage(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[0])
    with pytest.raises(LedgerError, match="line 2: a second row commits call c0"):
        JsonlLedger(tmp_path).manifest("r1")


@pytest.mark.parametrize("bad", ["", "a/b", "../x", "a b", "é", "a\n", "a\x00", None, 5])
def test_an_id_that_cannot_name_a_file(bad: Any, tmp_path: Path) -> None:
    ledger = JsonlLedger(tmp_path)
    with pytest.raises(LedgerError, match="invalid_rollout_id"):
        ledger.manifest(bad)
    with pytest.raises(LedgerError, match="invalid_rollout_id"):
        ledger.record_failure(bad, "x", "y")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_rollout_is_empty(tmp_path: Path) -> None:
    ledger = JsonlLedger(tmp_path)
    assert ledger.manifest("r1") == RolloutManifest(rollout_id="r1")
    assert not ledger.has_rows("r1")
    assert ledger.candidates("r1", "0" * 64) == ()
    with pytest.raises(LedgerError, match="unknown_call"):
        ledger.staging_chain("r1", "c0")


@pytest.mark.parametrize(("call", "reason"), [("", "x"), ("x", ""), ("x", None), (5, "x")])
def test_a_poison_without_call_or_reason(call: Any, reason: Any, tmp_path: Path) -> None:
    with pytest.raises(CustodyError):
        JsonlLedger(tmp_path).record_failure("r1", call, reason)
    assert not JsonlLedger(tmp_path).has_rows("r1")


def test_a_conversation_without_a_fingerprint_is_not_committed(tmp_path: Path) -> None:
    commit = commits(1)[0]
    bad = CaptureLedgerCommit.parse(commit.to_json() | {"request_items": [{"content": 5}]})
    with pytest.raises(FingerprintError):
        JsonlLedger(tmp_path).record(bad)
    assert not JsonlLedger(tmp_path).has_rows("r1")


def test_two_ledgers_over_one_folder_see_each_other(tmp_path: Path) -> None:
    one, two = JsonlLedger(tmp_path), JsonlLedger(tmp_path)
    made = commits()
    one.record(made[0])
    two.record(made[1])
    one.record(made[2])
    assert one.manifest("r1") == two.manifest("r1")
    assert two.staging_chain("r1", "c2") == made[2].staging_chain
    fingerprint = assistant_fingerprint([*made[1].request_items, *made[1].response_items])
    assert [row.model_call_id for row in two.candidates("r1", fingerprint)] == ["c1"]


def test_a_file_that_was_replaced_shortened_or_removed_is_read_again(tmp_path: Path) -> None:
    ledger, path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    assert len(ledger.manifest("r1").records) == 1
    other = tmp_path / "other"
    other.write_bytes(b"".join(lines))
    other.rename(path)
    assert len(ledger.manifest("r1").records) == 3
    path.unlink()
    assert not ledger.has_rows("r1")
    ledger.record(commits()[0])
    assert path.read_bytes() == lines[0]


def test_a_failed_write_leaves_a_ledger_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, path = written(tmp_path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match=r"ledger_unwritable: .*No space left"):
            ledger.record_failure("r1", "y", "worker_capture_failed")
    # The row was not acknowledged; whether it stands is for the file to say.
    assert path.read_bytes().startswith(before)
    ledger.record_failure("r1", "y", "worker_capture_failed")
    assert [row.model_call_id for row in ledger.manifest("r1").failures] == ["x", "y"]


def test_few_rollouts_are_kept_in_memory(tmp_path: Path) -> None:
    ledger = JsonlLedger(tmp_path, cached_rollouts=2)
    for number in range(5):
        ledger.record_failure(f"r{number}", "x", "unresolved_parent")
    for number in range(5):
        assert len(ledger.manifest(f"r{number}").failures) == 1
    assert len(ledger._cache) == 2


WRITER = """
import pathlib, sys, time
from explorer.custody.jsonl import JsonlLedger
ledger = JsonlLedger(sys.argv[1])
go = pathlib.Path(sys.argv[1], "go")
pathlib.Path(sys.argv[1], "ready-" + sys.argv[2]).touch()
while not go.exists():
    time.sleep(0.001)
for number in range(40):
    ledger.record_failure("r1", f"{sys.argv[2]}-{number}", "worker_capture_failed")
"""


def test_writers_of_several_processes_and_threads_lose_nothing(tmp_path: Path) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"p{n}"], cwd=ROOT)
        for n in range(2)
    ]
    ledger = JsonlLedger(tmp_path)

    def write(name: str) -> None:
        for number in range(40):
            ledger.record_failure("r1", f"{name}-{number}", "worker_capture_failed")

    while len(list(tmp_path.glob("ready-*"))) < 2:
        time.sleep(0.01)
        assert [child.poll() for child in children] == [None, None]
    (tmp_path / "go").touch()
    threads = [threading.Thread(target=write, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [child.wait() for child in children] == [0, 0]
    calls = [row.model_call_id for row in ledger.manifest("r1").failures]
    assert len(calls) == len(set(calls)) == 200
    for name in ("t0", "t1", "t2", "p0", "p1"):
        mine = [call for call in calls if call.startswith(name)]
        assert mine == [f"{name}-{number}" for number in range(40)]


def test_threads_that_commit_one_call_agree_on_one_row(tmp_path: Path) -> None:
    ledger = JsonlLedger(tmp_path)
    commit = commits(1)[0]
    other = CaptureLedgerCommit.parse(
        commit.to_json() | {"response_items": [{"role": "assistant", "content": "other"}]}
    )
    refused: list[str] = []

    def write(mine: CaptureLedgerCommit) -> None:
        try:
            ledger.record(mine)
        except LedgerError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=write, args=((commit, other)[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["conflicting_commit"] * 4
    assert len(ledger.path_of("r1").read_bytes().splitlines()) == 1


def test_an_odd_chain_is_kept_as_it_was_written() -> None:
    index = LedgerIndex("r1")
    base = {"response_id": "r", "delta_len": 1}
    index.add({**base, "model_call_id": "a", "staging_key": "ka", "staging_chain": []})
    child = {"model_call_id": "b", "parent_call_id": "a", "staging_key": "kb"}
    index.add({**base, **child, "staging_chain": ["kb"]})
    grandchild = {"model_call_id": "c", "parent_call_id": "b", "staging_key": "kc"}
    index.add({**base, **grandchild, "staging_chain": ["kb", "kc"]})
    orphan = {"model_call_id": "d", "parent_call_id": "absent", "staging_key": "kd"}
    index.add({**base, **orphan, "staging_chain": ["kz", "kd"]})
    assert index.staging_chain("a") == ()
    assert index.staging_chain("b") == ("kb",)
    assert index.staging_chain("c") == ("kb", "kc")
    assert index.staging_chain("d") == ("kz", "kd")


def test_a_write_costs_the_same_after_many_rows_as_after_few(tmp_path: Path) -> None:
    def cost(rows: int) -> int:
        ledger = JsonlLedger(tmp_path / str(rows))
        for number in range(rows):
            ledger.record_failure("r1", f"c{number}", "worker_capture_failed")
        return operations(lambda: ledger.record_failure("r1", "last", "unresolved_parent"))

    assert cost(10) == cost(200)
