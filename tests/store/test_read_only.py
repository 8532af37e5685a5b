"""A store that is only shown: every write is refused, nothing beside it is touched."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import duckdb
import pytest

from explorer.errors import StoreFailed, StoreReadOnly
from explorer.export.judged import JudgedRollouts
from explorer.records import Body, BodyKind, EventKind
from explorer.store import DuckDBStore, StoreOptions
from explorer.store.interface import RolloutQuery
from explorer.store.remarks import SavedView
from explorer.store.spill import spill_path
from explorer.trace.policy import DEFAULT_POLICY
from tests.store.making import (
    make_admission,
    make_call,
    make_event,
    make_rollout,
    rollout_id,
    with_store,
)

READ_ONLY = StoreOptions(read_only=True, min_free_bytes=0)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one closed rollout, closed in order."""
    made = tmp_path / "kept" / "store.duckdb"
    made.parent.mkdir()

    async def fill(store: DuckDBStore) -> None:
        await store.add_rollout(make_rollout(1))
        call = make_call(1, 0)
        await store.admit(make_admission(call))
        await store.commit_call(
            call, [Body(call.call_id, call.rollout_id, BodyKind.REPLY, b'{"a": 1}')]
        )
        await store.add_event(make_event(1, EventKind.CLOSED))

    with_store(made, fill)
    return made


def test_everything_is_read_and_nothing_is_written(path: Path) -> None:
    before = path.read_bytes()

    async def look(store: DuckDBStore) -> None:
        assert store.list_rollouts(RolloutQuery()).total == 1
        record = store.record(rollout_id(1))
        assert record is not None
        assert len(record.calls) == 1
        assert store.bodies(record.calls[0].call_id)[0].data == b'{"a": 1}'
        assert store.snapshot().n_rollouts == 1
        assert store.health().read_only

    with_store(path, look, READ_ONLY)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


Write = Callable[[DuckDBStore], Awaitable[object]]


async def _admit(store: DuckDBStore) -> None:
    await store.admit(make_admission(make_call(1, 1)))


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.add_rollout(make_rollout(2)),
        lambda store: store.add_event(make_event(1, EventKind.DELETED)),
        _admit,
        lambda store: store.commit_call(make_call(1, 1), []),
        lambda store: store.add_vocabulary([]),
        lambda store: store.add_view(SavedView("mine", "run=a", "somebody", 1, False)),
    ],
)
def test_every_write_is_refused_in_one_sentence(path: Path, write: Write) -> None:
    async def attempt(store: DuckDBStore) -> None:
        with pytest.raises(StoreReadOnly, match="open for reading only") as caught:
            await write(store)
        assert (caught.value.status, caught.value.code) == (403, "read_only")
        assert not caught.value.retryable

    with_store(path, attempt, READ_ONLY)


def test_a_verdict_is_shown_although_its_summary_cannot_be_kept(path: Path) -> None:
    async def judge(store: DuckDBStore) -> None:
        judged = JudgedRollouts(store, lambda: DEFAULT_POLICY, lambda: 1)
        found = await judged.get(rollout_id(1))
        assert found is not None
        assert found.judgement.reasons
        assert store.list_rollouts(RolloutQuery()).rows[0].judgement is None

    with_store(path, judge, READ_ONLY)


def test_a_store_of_an_older_version_is_not_migrated(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM schema_version WHERE version >= 4")
    with pytest.raises(StoreFailed, match="rollout-explorer migrate"):
        DuckDBStore(path, READ_ONLY)
    # And it is free again for who migrates it.
    DuckDBStore(path, StoreOptions(min_free_bytes=0)).close_now()


def test_rows_in_a_spill_journal_are_not_passed_over(path: Path) -> None:
    spill_path(path).write_bytes(b"")
    with pytest.raises(StoreFailed, match="rows outside the file"):
        DuckDBStore(path, READ_ONLY)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="there is no store at"):
        DuckDBStore(tmp_path / "none.duckdb", READ_ONLY)
    assert list(tmp_path.iterdir()) == []


def test_two_readers_share_the_file_and_no_writer_joins_them(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from explorer.store import DuckDBStore, StoreOptions\n"
        "only = sys.argv[2] == 'read'\n"
        "DuckDBStore(Path(sys.argv[1]), StoreOptions(read_only=only)).close_now()"
    )

    async def others(store: DuckDBStore) -> None:
        for how, opens in (("read", True), ("write", False)):
            ended = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", code, str(path), how],
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            assert (ended.returncode == 0) is opens, ended.stderr
            if not opens:
                assert "StoreLocked" in ended.stderr

    with_store(path, others, READ_ONLY)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no user ids here")
def test_file_and_folder_need_not_be_writable(path: Path) -> None:
    # pytest's folders are for their owner alone.
    folder = Path(tempfile.mkdtemp(prefix="read-only-"))
    path = Path(shutil.copy(path, folder))
    path.chmod(0o444)
    folder.chmod(0o555)
    code = (
        "import json, os, sys; from pathlib import Path\n"
        "from explorer.store import DuckDBStore, StoreOptions\n"
        "if os.geteuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"
        "path = Path(sys.argv[1])\n"
        "assert not os.access(path, os.W_OK) and not os.access(path.parent, os.W_OK)\n"
        "store = DuckDBStore(path, StoreOptions(read_only=True))\n"
        "print(json.dumps([len(store.list_runs()), store.health().read_only]))\n"
        "store.close_now()"
    )
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT
        )
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == [1, True]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
