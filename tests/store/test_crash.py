"""kill -9 and a full disk: what was acknowledged is there, whole and once."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from explorer.records import CallId, CallStatus, FailureKind, RolloutId
from explorer.store import DuckDBStore
from tests.store.making import OPTIONS, make_rollout, rollout_id

KILLS = 20


def start(mode: str, path: Path, seed: int = 0) -> subprocess.Popen[str]:
    """Start a child of `tests.store.child`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.child", mode, str(path), str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str]) -> list[list[str]]:
    """Return the whole lines a child printed."""
    output, _ = child.communicate(timeout=60)
    return [line.split(" ", 2) for line in output.split("\n")[:-1]]


def check(store: DuckDBStore, lines: list[list[str]]) -> None:
    """Assert that everything acknowledged is stored, with bodies that verify."""
    for line in lines:
        if line[0] == "rollout":
            number = int(line[1])
            assert store.rollout(rollout_id(number)) == make_rollout(number)
        elif line[0] == "call":
            call = store.call(CallId(line[1]))
            assert call is not None, line
            assert call.status is CallStatus.COMMITTED
        elif line[0] == "admitted":
            call = store.call(CallId(line[1]))
            assert call is not None, line  # ended, or ended as lost when the store opened
        elif line[0] == "event":
            record = store.record(rollout_id(int(line[1])))
            assert record is not None
            assert int(line[2]) in {event.sequence for event in record.events}


def check_whole(store: DuckDBStore, numbers: list[int], *, every: int = 1) -> None:
    """Assert that each stored call is whole: lost, or with three bodies that decode."""
    for number in numbers:
        record = store.record(rollout_id(number))
        if record is None:
            continue
        assert record.open_calls == ()
        assert len({call.call_id for call in record.calls}) == len(record.calls)
        for call in record.calls[::every]:
            bodies = store.bodies(call.call_id)
            if call.status is CallStatus.ABORTED:
                assert call.failure_kind is FailureKind.LOST_ON_RESTART
                assert bodies == ()
            else:
                assert [body.kind.value for body in bodies] == ["request", "submitted", "reply"]
                assert bodies[1].data == bodies[0].data + b"!"


def test_twenty_kills_at_random_instants(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    rng = random.Random(20261129)
    acknowledged: list[list[str]] = []
    for seed in range(KILLS):
        child = start("load", path, seed)
        assert child.stdout is not None
        first = child.stdout.readline().split()
        time.sleep(rng.uniform(0.0, 0.5))
        child.send_signal(signal.SIGKILL)
        lines = [first, *finish(child)]
        acknowledged += lines
        store = DuckDBStore(path, OPTIONS)
        try:
            check(store, lines)
            check_whole(store, [seed * 100 + i for i in range(8)], every=4)
            assert store.quarantined() == ()
        finally:
            store.close_now()
    assert sum(line[0] == "call" for line in acknowledged) > 10 * KILLS
    store = DuckDBStore(path, OPTIONS)
    check(store, acknowledged[::10])
    store.close_now()


def test_db_03_killed_right_after_the_acknowledgement(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    child = start("one", path, 7)
    lines = finish(child)
    assert child.returncode == -signal.SIGKILL
    store = DuckDBStore(path, OPTIONS)
    check(store, lines)
    record = store.record(rollout_id(7))
    assert record is not None
    # The admission committed with it, or came too late to be promised; never half.
    lost = [call for call in record.calls if call.status is CallStatus.ABORTED]
    assert len(lost) == len(record.calls) - 1
    assert all(call.failure_kind is FailureKind.LOST_ON_RESTART for call in lost)
    store.close_now()


def test_full_disk_spills_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    child = start("spill", path)
    lines = finish(child)
    assert child.returncode == 0
    spilled = next(line for line in lines if line[0] == "spilled")
    spilling, refused = json.loads(" ".join(spilled[1:]))
    assert spilling is True
    assert "reopened" in refused
    assert lines[-1][:2] == ["again", "false"]
    _check_spilled(path, lines)


def test_killed_while_spilling_replays_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    child = start("spill-die", path)
    lines = finish(child)
    assert child.returncode == -signal.SIGKILL
    assert path.with_name(path.name + ".spill").exists()
    _check_spilled(path, lines)
    assert not path.with_name(path.name + ".spill").exists()


def _check_spilled(path: Path, lines: list[list[str]]) -> None:
    store = DuckDBStore(path, OPTIONS)
    try:
        check(store, lines)
        assert sum(line[0] == "call" for line in lines) == 150
        record = store.record(RolloutId("ro_000001"))
        assert record is not None
        assert [call.sequence for call in record.calls] == list(range(150))
        assert record.events[-1].reward == 2.0
        check_whole(store, [1])
        digests = {
            hashlib.sha256(body.data).hexdigest()
            for call in record.calls
            for body in store.bodies(call.call_id)
        }
        assert len(digests) == 450
        assert store.quarantined() == ()
    finally:
        store.close_now()
