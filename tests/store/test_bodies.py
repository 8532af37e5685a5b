"""Chains of bodies: small, with key frames, decodable from any point."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from explorer.errors import StoreDamaged
from explorer.records import Body, BodyKind, CallId
from explorer.store import DuckDBStore, StoreOptions
from explorer.store.bodies import BodyMemory
from explorer.store.jsontext import load
from tests.store.making import call_id, make_call, with_store


def growing(count: int) -> list[bytes]:
    """Make request bodies that repeat their conversation."""
    rng = random.Random(3)
    messages: list[dict[str, str]] = []
    found = []
    for number in range(count):
        words = " ".join(f"{rng.getrandbits(40):x}" for _ in range(70))
        messages.append({"role": "user" if number % 2 else "assistant", "content": words})
        found.append(json.dumps({"model": "m", "messages": messages, "n": 1}).encode())
    return found


def test_two_hundred_growing_bodies(tmp_path: Path) -> None:
    datas = growing(200)

    async def work(store: DuckDBStore) -> None:
        for sequence, data in enumerate(datas):
            call = make_call(0, sequence, parent=sequence - 1 if sequence else None)
            kinds = (
                (BodyKind.REQUEST, data),
                (BodyKind.SUBMITTED, data[:-1] + b', "seed": 1}'),
            )
            bodies = [Body(call.call_id, call.rollout_id, kind, each) for kind, each in kinds]
            await store.commit_call(call, bodies)
        for sequence, data in enumerate(datas):
            found = store.bodies(call_id(0, sequence))
            assert [body.data for body in found] == [data, data[:-1] + b', "seed": 1}']

    path = tmp_path / "store.duckdb"
    with_store(path, work)
    connection = duckdb.connect(str(path), read_only=True)
    rows = connection.execute(
        "SELECT body_index, length(hex(request_body)) // 2, length(hex(submitted_body)) // 2 "
        "FROM call ORDER BY sequence"
    ).fetchall()
    connection.close()
    depths = [load(row[0])[0]["depth"] for row in rows]
    assert depths == [number % 32 for number in range(200)]
    plain = sum(len(data) for data in datas)
    packed = sum(row[1] for row in rows)
    assert plain > 25 * packed  # the words are random: 7 key frames are most of it
    assert sum(row[2] for row in rows) < packed / 4


def test_equal_bodies_are_stored_once(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(5000)

    async def work(store: DuckDBStore) -> None:
        for sequence in range(3):
            call = make_call(0, sequence)  # no stored parent: the previous call is the base
            kinds = (BodyKind.REQUEST, BodyKind.SUBMITTED, BodyKind.REPLY)
            bodies = [Body(call.call_id, call.rollout_id, kind, data) for kind in kinds]
            await store.commit_call(call, bodies)
            assert [body.data for body in store.bodies(call.call_id)] == [data] * 3

    path = tmp_path / "store.duckdb"
    with_store(path, work)
    connection = duckdb.connect(str(path), read_only=True)
    rows = connection.execute(
        "SELECT request_body IS NULL, submitted_body IS NULL, reply_body IS NULL FROM call "
        "ORDER BY sequence"
    ).fetchall()
    connection.close()
    assert rows == [(False, True, False), (True, True, True), (True, True, True)]


def test_memory_is_bounded_and_a_miss_is_a_key_frame(tmp_path: Path) -> None:
    rng = random.Random(2)
    memory = BodyMemory(limit_bytes=10_000)
    for sequence in range(50):
        call = make_call(sequence, sequence)
        memory.pack(
            call, [Body(call.call_id, call.rollout_id, BodyKind.REPLY, rng.randbytes(4000))]
        )
    assert memory._bytes <= 10_000

    async def work(store: DuckDBStore) -> None:
        data = rng.randbytes(5000)
        for sequence in range(4):
            call = make_call(0, sequence, parent=sequence - 1 if sequence else None)
            await store.commit_call(
                call, [Body(call.call_id, call.rollout_id, BodyKind.REQUEST, data)]
            )
            assert store.bodies(call.call_id)[0].data == data

    with_store(
        tmp_path / "store.duckdb", work, StoreOptions(min_free_bytes=0, body_memory_bytes=100)
    )


def test_a_chain_goes_on_after_a_restart_and_a_failed_parent(tmp_path: Path) -> None:
    datas = growing(6)
    path = tmp_path / "store.duckdb"
    for sequence, data in enumerate(datas):
        call = make_call(0, sequence, parent=sequence - 1 if sequence else None)
        if sequence == 3:
            call = replace(call, stored_parent_id=CallId("never stored"))

        async def work(store: DuckDBStore, call=call, data=data) -> None:  # type: ignore[no-untyped-def]
            body = Body(call.call_id, call.rollout_id, BodyKind.REQUEST, data)
            await store.commit_call(call, [body])
            assert store.bodies(call.call_id)[0].data == data

        with_store(path, work)


def test_a_changed_body_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"

    async def write(store: DuckDBStore) -> None:
        for sequence in range(2):
            call = make_call(0, sequence)
            body = Body(call.call_id, call.rollout_id, BodyKind.REPLY, b"x" * (9 + sequence))
            await store.commit_call(call, [body])

    with_store(path, write)
    connection = duckdb.connect(str(path))
    connection.execute("UPDATE call SET reply_body = 'yyyyyyyyy'::BLOB WHERE sequence = 0")
    connection.close()

    async def read(store: DuckDBStore) -> None:
        with pytest.raises(StoreDamaged, match="another digest"):
            store.bodies(call_id(0, 0))

    with_store(path, read)
