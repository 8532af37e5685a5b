"""Where a worker stages: what comes back, what is refused, many at once, hostile ids."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

from explorer.custody.protocols import Material, StagingSink, StagingSource
from explorer.custody.records import CaptureAdmission, StagedCallRecord
from explorer.custody.worker import RolloutTokenCapture
from explorer.integrations.nemo_gym.directory import DirectorySink
from explorer.integrations.nemo_gym.duckdb_sink import DuckDBSink
from explorer.integrations.nemo_gym.keys import key_of, key_part, parts_of

HOSTILE = [
    *("..", ".", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "~", "~" + "0" * 64, ".x"),
    *("a\0b", "a\nb", "é", "𝄞" * 90, "x" * 5000, "%2F", "con", " ", "A", "a", "C:\\x", "*?"),
]


def record(rollout: str = "r1", call: str = "a", **more: Any) -> StagedCallRecord:
    """One staged call, made by the worker itself."""
    kept: list[StagedCallRecord] = []

    class Keep:
        def stage(self, staged: StagedCallRecord, *, attachments: Any = None) -> Any:
            kept.append(staged)

    capture = RolloutTokenCapture(Keep(), lambda: 7)
    values: dict[str, Any] = {"prompt": [1, 2**64 - 1], "generated": [3], "logprobs": [-0.1]}
    admission = CaptureAdmission(rollout_id=rollout, model_call_id=call, mode="text")
    capture.complete(capture.begin(admission), Material(**values | more))
    return kept[0]


@pytest.fixture(params=["directory", "duckdb"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "directory":
        yield DirectorySink(tmp_path / "staged")
        return
    made = DuckDBSink(tmp_path / "staged.duckdb")
    yield made
    made.close()


def test_what_is_staged_comes_back_in_the_order_that_was_asked(sink: Any) -> None:
    assert isinstance(sink, StagingSink)
    assert isinstance(sink, StagingSource)
    extras = {"routed_experts": "nrlre1:int8:1x1x1:AA==", "é": [1, 1.0, True, None, -0.0]}
    calls = [record(call=name, extras=extras if name == "b" else None) for name in "abc"]
    keys = [str(sink.stage(call).staging_key) for call in calls]
    assert keys == ["r1/a", "r1/b", "r1/c"]
    found: list[Any] = sink.fetch([keys[2], keys[0], keys[1], keys[2]])
    assert found == [calls[2], calls[0], calls[1], calls[2]]
    assert found[2].extras == extras
    assert [type(value) for value in found[2].extras["é"]] == [
        int,
        float,
        bool,
        type(None),
        float,
    ]
    assert sink.fetch([]) == []


def test_a_call_is_stored_once(sink: Any) -> None:
    first = record()
    assert sink.stage(first) == sink.stage(first)
    other = sink.stage(record(generated=[4]))
    assert not other.ok
    assert other.error == "another call is stored under r1/a"
    assert sink.fetch(["r1/a"]) == [first]


def test_no_id_leaves_its_place_and_no_two_share_one(sink: Any, tmp_path: Path) -> None:
    before = {path for path in tmp_path.parent.rglob("*") if tmp_path not in path.parents}
    pairs = [(name, "c") for name in HOSTILE] + [("r", name) for name in HOSTILE]
    calls = [record(*pair) for pair in pairs]
    keys = [sink.stage(call).staging_key for call in calls]
    assert len(set(keys)) == len(pairs)
    assert sink.fetch(keys) == calls
    after = {path for path in tmp_path.parent.rglob("*") if tmp_path not in path.parents}
    assert before == after
    assert {path.parent.parent.name for path in tmp_path.rglob("*.json")} <= {"staged"}


@pytest.mark.parametrize(
    "key", ["r1/zz", "../x", "r1/../a", "", "/", "r1", "r1/a/b", "r1/.a.part"]
)
def test_a_key_that_is_not_there(sink: Any, key: str) -> None:
    sink.stage(record())
    with pytest.raises(LookupError):
        sink.fetch(["r1/a", key])


def test_attachments_are_refused(sink: Any) -> None:
    with pytest.raises(TypeError, match="attachments"):
        sink.stage(record(), attachments={"pixels": b""})


def test_many_threads_stage_at_once(sink: Any) -> None:
    calls = [record(call=str(number), generated=[number + 1]) for number in range(32)]
    gate = threading.Barrier(8)

    def stage(part: int) -> list[str]:
        gate.wait()
        return [sink.stage(call).staging_key for call in calls[part::8]]

    with ThreadPoolExecutor(8) as pool:
        keys = [key for part in pool.map(stage, range(8)) for key in part]
    assert sorted(keys) == sorted(map(key_of, calls))
    assert sink.fetch(list(map(key_of, calls))) == calls


def test_one_of_many_that_stage_the_same_call_differently_wins(sink: Any) -> None:
    calls = [record(generated=[number + 1]) for number in range(8)]
    gate = threading.Barrier(8)

    def stage(call: StagedCallRecord) -> bool:
        gate.wait()
        return bool(sink.stage(call).ok)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(stage, calls))
    assert sum(won) == 1
    assert sink.fetch(["r1/a"]) == [calls[won.index(True)]]


def test_what_lies_in_a_file_is_checked_when_it_is_read(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    sink.stage(record())
    sink.stage(record(call="b"))
    path = tmp_path / "r1" / "a.json"
    whole = path.read_bytes()
    assert [item.name for item in path.parent.iterdir() if item.name.startswith(".")] == []
    for damaged in (whole[:-1], whole.replace(b"18446744073709551615", b"5"), b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"JSON|digest|missing"):
            sink.fetch(["r1/a"])
    path.write_bytes((tmp_path / "r1" / "b.json").read_bytes())
    with pytest.raises(LookupError, match="r1/b lies in place of r1/a"):
        sink.fetch(["r1/a"])


def test_what_lies_in_a_row_is_checked_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "staged.duckdb"
    for change in (
        "token_ids_delta = from_hex('00')",
        "token_mask_delta = generation_log_probs_delta",
        "weight_version = 8",
        "extras = '{}'",
        "model_call_id = 'b'",
    ):
        path.unlink(missing_ok=True)
        sink = DuckDBSink(path)
        sink.stage(record())
        sink.close()
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"UPDATE staged_call SET {change}")
        sink = DuckDBSink(path, read_only=True)
        with pytest.raises(ValueError):  # noqa: PT011 - whichever rule it breaks first
            sink.fetch(["r1/a"])
        sink.close()


def test_a_row_that_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """The process ends at once after the acknowledgement, without closing anything."""
    script = (
        "import os, sys\n"
        "from tests.custody.test_sinks import DirectorySink, DuckDBSink, record\n"
        "for sink in (DirectorySink(sys.argv[1] + '/d'), DuckDBSink(sys.argv[1] + '/f')):\n"
        "    assert sink.stage(record()).ok\n"
        "os._exit(9)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 9
    table = DuckDBSink(tmp_path / "f")
    assert DirectorySink(tmp_path / "d").fetch(["r1/a"]) == table.fetch(["r1/a"]) == [record()]
    table.close()


def test_parts_of_keys_are_distinct_and_read_back() -> None:
    parts = [key_part(name) for name in HOSTILE]
    assert len(set(parts)) == len(HOSTILE)
    for part in parts:
        assert parts_of(f"{part}/x") == (part, "x")
        assert len(part) <= 120
        assert not part.startswith(".")
    assert key_of(record()) == "r1/a" == record().staging_key


TRANSFER_QUEUE = os.environ.get("ROLLOUT_EXPLORER_TRANSFER_QUEUE_PYTHON")


@pytest.mark.skipif(TRANSFER_QUEUE is None, reason="names no interpreter with transferqueue")
def test_a_real_transfer_queue() -> None:
    """Another interpreter stages from eight threads and reads back; see the script."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [str(TRANSFER_QUEUE), str(Path(__file__).with_name("queue_peer.py"))],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == "all of it holds"
