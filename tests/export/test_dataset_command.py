"""`export --format parquet` and `verify DIR`, with and without a server."""

from __future__ import annotations

import asyncio
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from explorer import runfile
from explorer.cli import cli
from explorer.engine.scripted import ScriptedEngine
from explorer.export.adapters.registry import ADAPTERS
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import FORKED, ODD, OPEN, OPTIONS, PLAIN, fill
from tests.live import serving


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.duckdb"

    async def make() -> None:
        made = DuckDBStore(path, OPTIONS)
        await fill(made)
        await made.close()

    asyncio.run(make())
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_list_becomes_a_dataset_that_verifies(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    at = ("export", "--format", "parquet", "--store", store, "--out", out)
    done = command(*at, "--view", "run=r")
    assert done.exit_code == 1, done.output  # one is open
    assert "3 rollouts, 11 calls, 3 sequences, 10 tokens train" in done.stderr
    assert "left out 1: rollout_open" in done.stderr
    assert "1 without sequences: " in done.stderr
    checked = command("verify", out, "--json")
    assert checked.exit_code == 0, checked.output
    (report,) = json.loads(checked.output)
    assert (report["kind"], report["ok"], report["facts"]["rollouts"]) == ("dataset", True, 3)
    names = pq.read_table(out / "rollouts").column("rollout_id").to_pylist()
    assert names == [ODD, FORKED, PLAIN]
    done = command(*at, "--query", "run=r&ok=yes")
    assert done.exit_code == 0, done.output
    assert pq.read_table(out / "rollouts").column("rollout_id").to_pylist() == [FORKED]
    # Nothing to write: what is there stays.
    done = command(*at, "--query", "run=nobody")
    assert done.exit_code == 2
    assert "nothing to write" in done.stderr
    done = command(*at, OPEN)
    assert done.exit_code == 1
    assert "left out 1: rollout_open" in done.stderr
    assert pq.read_table(out / "rollouts").num_rows == 1
    (file,) = (out / "calls").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    checked = command("verify", out)
    assert checked.exit_code == 1
    assert "NOT SOUND" in checked.output
    assert command("verify", tmp_path).exit_code == 1


def test_a_server_that_has_the_store_open_gives_the_same(store: Path, tmp_path: Path) -> None:
    at = ("export", "--format", "parquet", "--store", store, "--view", "run=r")
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    assert command(*at, "--out", alone).exit_code == 1
    with serving(ScriptedEngine([{"text": "x"}]), store) as live:
        run = runfile.RunFile(live.url, live.token, os.getpid())
        runfile.write(store, run)
        try:
            done = command(*at, "--out", beside)
            assert done.exit_code == 1, done.output
            other = command(*at, "--out", tmp_path / "other", "--policy", "strict")
        finally:
            runfile.remove(store)
    assert files(alone) == files(beside)
    assert other.exit_code == 2
    assert "the same --policy" in other.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--needs", "reward", "--view", "run=r"], "go with documents"),
        (["--view", "run=r", "--with", "nothing"], "there is no format 'nothing'"),
        (["--view", "nobody"], "no view is called"),
        (["../x"], "no rollout's id"),
        ([], "name rollouts"),
    ],
)
def test_what_cannot_be_done_is_said(
    store: Path, tmp_path: Path, more: list[str], said: str
) -> None:
    at: list[Any] = ["export", "--format", "parquet", "--store", store]
    done = command(*at, "--out", tmp_path / "data", *more)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "data").exists()


def test_lower_limits_are_taken_from_the_command(store: Path, tmp_path: Path) -> None:
    at = ("export", "--format", "parquet", "--store", store, "--view", "run=r", "--bodies")
    sizes = ("--row-group-mb", "0.000001", "--shard-mb", "0.000001")
    assert command(*at, *sizes, "--out", tmp_path / "data").exit_code == 1
    assert len(list((tmp_path / "data" / "calls").iterdir())) == 11
    requests = pq.read_table(tmp_path / "data" / "calls").column("request").to_pylist()
    assert all(json.loads(text)["id"] for text in requests)


EVERY = [part for name in ADAPTERS for part in ("--with", name)]


def test_every_format_lies_beside_the_record_and_verifies(store: Path, tmp_path: Path) -> None:
    at = ("export", "--format", "parquet", "--store", store, "--view", "run=r")
    done = command(*at, *EVERY, "--out", tmp_path / "data")
    assert done.exit_code == 1, done.output  # one is open
    assert "sft: 3 rows" in done.stderr
    checked = command("verify", tmp_path / "data", "--json")
    assert checked.exit_code == 0, checked.output
    (report,) = json.loads(checked.output)
    assert report["facts"]["formats"] == sorted(ADAPTERS)
    sft = pq.read_table(tmp_path / "data" / "sft").to_pylist()
    trained = sum(label != -100 for row in sft for label in row["labels"])
    assert trained == report["facts"]["supervised_tokens"] == 10


def test_a_zip_file_holds_the_same_and_verifies(store: Path, tmp_path: Path) -> None:
    at = ("export", "--store", store, "--view", "run=r", "--with", "summary")
    assert command(*at, "--format", "parquet", "--out", tmp_path / "data").exit_code == 1
    done = command(*at, "--format", "zip", "--out", tmp_path / "d.zip")
    assert done.exit_code == 1, done.output
    assert "3 rollouts, 11 calls" in done.stderr
    with zipfile.ZipFile(tmp_path / "d.zip") as opened:
        held = {name.rpartition("/")[2]: opened.read(name) for name in opened.namelist()}
    assert held == files(tmp_path / "data")
    checked = command("verify", tmp_path / "d.zip")
    assert checked.exit_code == 0, checked.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d.zip",
        "data",
        "s.access.duckdb",
        "s.duckdb",
    ]
    (tmp_path / "bad.zip").write_bytes((tmp_path / "d.zip").read_bytes()[:-200])
    done = command("verify", tmp_path / "bad.zip")
    assert done.exit_code == 1
    assert "is no zip file that can be read" in done.output
    done = command(*at, "--format", "zip", "--out", tmp_path / "data")
    assert done.exit_code == 2
    assert "a zip file needs a name" in done.stderr


def test_other_formats_go_with_datasets(store: Path, tmp_path: Path) -> None:
    done = command(
        *("export", "--store", store, "--out", tmp_path / "x", "--with", "sft", PLAIN)
    )
    assert done.exit_code == 2
    assert "go with --format parquet or zip" in done.stderr
