"""What is over its time or size is deleted everywhere, and `compact` removes its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import pytest
import zstandard

from explorer import columns
from explorer.columns import Kind
from explorer.engine.tiny import TinyEngine
from explorer.hosting import RetentionLimit
from explorer.records import RolloutId
from explorer.retention import DAY_US, over
from explorer.server import open_store
from explorer.settings import load
from explorer.store import maintenance
from explorer.store.sizes import RolloutSize
from tests.live import Live, serving

NOW = 1_000 * DAY_US
PLANTED = "xylophonemarmalade"


def sized(name: str, days: float, size: int = 10, *, closed: bool = True) -> RolloutSize:
    return RolloutSize(RolloutId(name), "run", int(NOW - days * DAY_US), closed, size)


def gone(
    rollouts: list[RolloutSize], limits: dict[str, RetentionLimit], level: str = "private"
) -> list[str]:
    levels = {each.rollout_id: level for each in rollouts}
    found = over(rollouts, levels, limits, NOW)  # type: ignore[arg-type]
    return [each.rollout.rollout_id for each in found]


def test_what_is_too_old_goes_and_what_is_younger_stays() -> None:
    rollouts = [sized("a", 31), sized("b", 30.01, closed=False), sized("c", 29.9)]
    assert gone(rollouts, {"private": RetentionLimit(days=30)}) == ["a", "b"]


def test_the_oldest_closed_ones_make_room() -> None:
    rollouts = [sized("a", 9, 50), sized("b", 8, 40, closed=False), sized("c", 7, 30)]
    assert gone(rollouts, {"private": RetentionLimit(bytes=120)}) == []
    assert gone(rollouts, {"private": RetentionLimit(bytes=119)}) == ["a"]
    assert gone(rollouts, {"private": RetentionLimit(bytes=60)}) == ["a", "c"]


def test_age_makes_room_before_size_is_looked_at() -> None:
    rollouts = [sized("a", 40, 50), sized("b", 8, 40), sized("c", 7, 30)]
    assert gone(rollouts, {"private": RetentionLimit(days=30, bytes=70)}) == ["a"]


def test_a_limit_holds_for_its_own_visibility() -> None:
    rollouts = [sized("a", 900, 10**9)]
    limits = {"private": RetentionLimit(days=1, bytes=0)}
    assert gone(rollouts, limits, "public") == []
    assert gone(rollouts, limits) == ["a"]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A server that keeps private rollouts for a day."""
    with serving(
        TinyEngine(),
        tmp_path / "store.duckdb",
        retention={"private": {"days": 1}},
        compact_at_start=True,
    ) as live:
        yield live


def record(live: Live, text: str) -> str:
    rollout_id, key = live.create(run="r")
    reply = live.chat(key, messages=[{"role": "user", "content": text}], max_tokens=8)
    assert reply.status_code == 200, reply.text
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    return rollout_id


def make_older(live: Live, rollout_id: str, days: float) -> None:
    """Only the clock makes rollouts old."""
    with live.store._database.reading() as cursor:
        cursor.execute(
            "UPDATE rollout SET created_time = created_time - to_days(?) WHERE rollout_id = ?",
            [int(days), rollout_id],
        )


def sweep(live: Live) -> list[str]:
    found = asyncio.run_coroutine_threadsafe(
        live.application.retention.sweep(), live.loop
    ).result(60)
    return [each.rollout.rollout_id for each in found]


def places(live: Live, rollout_id: str) -> list[int]:
    """How every address of a rollout answers the operator."""
    headers = {"authorization": f"Bearer {live.token}"}
    base = f"{live.url}/api/v1/rollouts/{rollout_id}"
    pages = f"{live.url}/rollouts/{rollout_id}"
    return [
        httpx.get(address, headers=headers, timeout=30).status_code
        for address in (
            *(base, f"{base}/calls", f"{base}/tree", f"{base}/training-trace"),
            *(f"{base}/capture-audit", pages, f"{pages}/tokens", f"{pages}/tokens.json"),
        )
    ]


def everything(folder: Path) -> bytes:
    """The bytes of every file, and of everything that is packed in a database."""
    parts: list[bytes] = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        parts.append(path.read_bytes())
        if path.suffix == ".duckdb":
            parts.append(unpacked(path))
    return b"\n".join(parts)


def unpacked(path: Path) -> bytes:
    parts: list[bytes] = []
    with duckdb.connect(str(path), read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        for (table,) in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"').fetchall():
                for value in row:
                    if isinstance(value, bytes):
                        parts.append(value)
                        if value[:4] == zstandard.MAGIC_NUMBER.to_bytes(4, "little"):
                            # What goes on from an earlier body opens only with it.
                            with contextlib.suppress(zstandard.ZstdError):
                                parts.append(zstandard.decompress(value, 1 << 24))
                    else:
                        parts.append(str(value).encode("utf-8", "replace"))
    return b"\n".join(parts)


def wait_for(check: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_is_over_its_time_is_gone_everywhere_but_for_an_audit_row(live: Live) -> None:
    old = record(live, f"What is {PLANTED} times 7?")
    kept = record(live, "What is 2 + 3? Use the calculator.")
    index = live.application.index
    wait_for(lambda: {old, kept} <= set(index.indexed()))
    assert set(places(live, old)) <= {200, 303, 409}
    assert old in json.dumps(live.api("GET", f"/search.json?q={PLANTED}"))

    make_older(live, old, 2)
    assert sweep(live) == [old]
    # At once: pages, programs, lists, search.
    assert set(places(live, old)) == {404}
    assert [row["rollout_id"] for row in live.api("GET", "/api/v1/rollouts")["rollouts"]] == [
        kept
    ]
    assert set(index.indexed()) == {kept}
    assert old not in json.dumps(live.api("GET", f"/search.json?q={PLANTED}"))
    assert sweep(live) == []
    rows = [
        row
        for row in live.application.access.audit.every()
        if row["event"] == "rollout_expired"
    ]
    assert [(row["object"], row["who"]) for row in rows] == [(old, "server")]
    assert "kept 1 days" in rows[0]["reason"]


def test_the_bytes_are_gone_after_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with serving(TinyEngine(), path) as live:
        old = record(live, f"What is {PLANTED} times 7?")
        kept = record(live, "What is 2 + 3? Use the calculator.")
        wait_for(lambda: {old, kept} <= set(live.application.index.indexed()))
        found = live.store.record(RolloutId(old))
        assert found is not None
        completion = found.calls[0].completion
        assert completion is not None
        ids = np.asarray(completion, dtype="<i4").tobytes()
        assert len(ids) >= 4 * 4
        live.api("DELETE", f"/api/v1/rollouts/{old}", status=204)
        assert set(places(live, old)) == {404}
    before = everything(tmp_path)
    assert PLANTED.encode() in before
    assert ids in before

    open_store(load(store=path, compact_at_start=True)).close_now()
    after = everything(tmp_path)
    assert PLANTED.encode() not in after
    assert ids not in after
    assert old.encode() not in unpacked(path)
    assert kept.encode() in after
    # The audit row stays, in its own file.
    assert old.encode() in unpacked(tmp_path / "store.access.duckdb")

    with serving(TinyEngine(), path) as live:
        assert set(places(live, old)) == {404}
        assert 200 in places(live, kept)
        live.api("DELETE", f"/api/v1/rollouts/{old}", status=404)


def test_a_start_without_deleted_rollouts_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    settings = load(store=path, compact_at_start=True)
    open_store(settings).close_now()
    inode = path.stat().st_ino
    open_store(settings).close_now()
    assert path.stat().st_ino == inode


def test_copies_from_before_a_migration_are_named_by_compact(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    open_store(load(store=path)).close_now()
    copy = path.with_name("store.duckdb.before-v3")
    copy.write_bytes(b"old rows")
    assert maintenance.compact(path).copies == (copy,)
    assert copy.exists()


def test_sizes_count_tokens_and_bodies(live: Live) -> None:
    small = record(live, "What is 2 + 3? Use the calculator.")
    large = record(live, "What is 2 + 3? " + "Use the calculator. " * 40)
    sizes = {each.rollout_id: each for each in live.store.sizes()}
    assert sizes[RolloutId(small)].size > 500
    assert sizes[RolloutId(large)].size > sizes[RolloutId(small)].size
    assert all(each.closed for each in sizes.values())
    sized_kinds = {Kind.BLOB, Kind.TEXT, Kind.JSON}
    assert {column.kind for column in columns.CALL.columns} & sized_kinds == sized_kinds


def test_the_reset_wipes_what_visitors_left_and_is_in_the_log(live: Live) -> None:
    asyncio.run_coroutine_threadsafe(live.application._reset(), live.loop).result(30)
    rows = live.application.access.audit.every()
    reset = [row for row in rows if row["event"] == "demo_reset"]
    assert len(reset) == 1
    detail = reset[0]["detail"]
    told = json.loads(detail) if isinstance(detail, str) else detail
    assert told == {"requests": 0, "sessions": 0, "tokens": 0}
