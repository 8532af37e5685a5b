"""What goes in comes out: every field, every character, every bit of a float."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explorer.errors import StoreFailed
from explorer.records import (
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    EventKind,
    FailureKind,
    LogprobKind,
    Note,
    Override,
    Role,
    RolloutEvent,
    RolloutId,
    TokenizerId,
    VocabularyEntry,
)
from explorer.store import DuckDBStore, override_payload
from explorer.store.interface import RolloutStatus
from tests.store.making import (
    OPTIONS,
    call_id,
    facts,
    make_admission,
    make_bodies,
    make_call,
    make_event,
    make_rollout,
    rollout_id,
    with_store,
)

_numbers = itertools.count()
text = st.text(st.characters(codec="utf-8"))  # all Unicode, U+0000 too
any_text = st.text()  # lone surrogates too, which JSON can escape
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.lists(st.integers(-(2**31), 2**31 - 1)).map(lambda v: np.array(v, dtype=np.int32))
bits = st.lists(st.integers(0, 2**32 - 1))
logprobs = bits.map(lambda v: np.array(v, dtype=np.uint32).view(np.float32))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(any_text, json_values, max_size=4)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Draw a call with a fresh id."""

    def maybe(strategy: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | strategy)

    return Call(
        call_id=CallId(f"{next(_numbers)} {draw(text)}"),
        rollout_id=RolloutId("ro_hypothesis"),
        sequence=draw(int64),
        dialect=make_call(0, 0).dialect,
        status=draw(st.sampled_from(CallStatus)),
        started_us=draw(st.integers(0, 2**52)),
        ended_us=draw(st.integers(0, 2**52)),
        failure_kind=maybe(st.sampled_from(FailureKind)),
        failure_detail=maybe(any_text),
        stream=draw(st.booleans()),
        engine_ms=maybe(st.floats()),
        finish_reason=maybe(text),
        capture_level=draw(st.sampled_from(CaptureLevel)),
        response_id=maybe(text),
        requested_sampling=draw(objects),
        submitted_sampling=draw(objects),
        constraints=tuple(draw(st.lists(any_text, max_size=3))),
        claims=draw(st.dictionaries(any_text, any_text, max_size=3)),
        stored_parent_id=maybe(text),
        prefix_len=draw(int64),
        prompt_len=maybe(int64),
        prompt_delta=maybe(ids),
        completion=maybe(ids),
        logprobs=maybe(logprobs),
        top_logprobs=maybe(st.binary()),
        chain_hash=maybe(st.binary()),
        usage_cached=maybe(st.integers()),
        notes=tuple(draw(st.lists(st.builds(Note, any_text, any_text), max_size=3))),
        preview=draw(text),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBStore]:
    """One store for all drawn examples."""
    opened = DuckDBStore(tmp_path_factory.mktemp("store") / "store.duckdb", OPTIONS)
    yield opened
    opened.close_now()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.lists(calls(), min_size=1, max_size=4), data=st.data())
def test_any_call_and_body(store: DuckDBStore, drawn: list[Call], data: st.DataObject) -> None:
    headers = st.lists(st.tuples(any_text, any_text), max_size=2).map(tuple)
    kinds = st.sets(st.sampled_from(list(BodyKind)))
    bodies = {
        call.call_id: [
            Body(
                call.call_id, call.rollout_id, kind, data.draw(st.binary()), data.draw(headers)
            )
            for kind in BodyKind
            if kind in data.draw(kinds)
        ]
        for call in drawn
    }

    async def commit() -> None:
        await asyncio.gather(*(store.commit_call(call, bodies[call.call_id]) for call in drawn))

    asyncio.run(commit())
    for call in drawn:
        back = store.call(call.call_id)
        assert back is not None
        assert facts(back) == facts(call)
        found = [(b.kind, b.data, b.headers) for b in store.bodies(call.call_id)]
        assert found == [(b.kind, b.data, b.headers) for b in bodies[call.call_id]]


@settings(max_examples=40, deadline=None)
@given(
    metadata=objects,
    run=text,
    task=st.none() | text,
    attempt=st.none() | int64,
    reward=st.none() | st.floats(),
    reason=st.none() | text,
)
def test_any_rollout_and_event(
    store: DuckDBStore,
    metadata: dict[str, Any],
    run: str,
    task: str | None,
    attempt: int | None,
    reward: float | None,
    reason: str | None,
) -> None:
    rollout = replace(
        make_rollout(next(_numbers)), metadata=metadata, run=run, task=task, attempt=attempt
    )
    event = RolloutEvent(
        rollout.rollout_id, -1, 5, EventKind.REWARD, reward, reason=reason, payload=metadata
    )

    async def add() -> RolloutEvent:
        await store.add_rollout(rollout)
        return await store.add_event(event)

    added = asyncio.run(add())
    assert store.rollout(rollout.rollout_id) == rollout
    record = store.record(rollout.rollout_id)
    assert record is not None
    assert repr(record.events) == repr((added,))
    assert added.sequence == 0


def test_every_field_of_a_record(tmp_path: Path) -> None:
    certificate = Certificate(
        "ce_1", 9, "tiny", "tiny-1", "0", "tiny", None, CaptureLevel.TOKENS,
        LogprobKind.PROCESSED, True, {"mean": 0.5, "nan": None}, ("why",),
    )  # fmt: skip
    override = Override("role", "because", "me", 7, CallId("c"), Role.SUBAGENT)

    async def work(store: DuckDBStore) -> None:
        rng = random.Random(1)
        await store.add_certificate(certificate)
        await store.add_certificate(replace(certificate, certificate_id="ce_0", time_us=8))
        await store.add_rollout(make_rollout(0))
        await store.add_event(make_event(0, EventKind.STARTED))
        event = replace(make_event(0, EventKind.OVERRIDE), payload=override_payload(override))
        assert (await store.add_event(event)).sequence == 1
        calls = [make_call(0, 0), make_call(0, 1, parent=0)]
        for call in reversed(calls):
            await store.commit_call(call, make_bodies(call, rng))
        waiting = make_admission(make_call(0, 2))
        await store.admit(waiting)
        record = store.record(rollout_id(0))
        assert record is not None
        assert record.rollout == make_rollout(0)
        assert [facts(call) for call in record.calls] == [facts(call) for call in calls]
        assert record.certificate == certificate
        assert record.overrides == (override,)
        assert record.open_calls == (waiting,)
        assert store.next_sequence(rollout_id(0)) == 3
        assert store.next_sequence(rollout_id(99)) == 0
        assert store.certificate("ce_0") is not None
        assert store.latest_certificate(model="tiny") == certificate
        assert store.latest_certificate(engine_name="other") is None
        assert store.rollout_by_key(make_rollout(0).key_hash) == make_rollout(0)

    with_store(tmp_path / "store.duckdb", work)


def test_state_follows_the_events_and_deletion_hides(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        for number in (1, 0):
            await store.add_rollout(make_rollout(number))
        call = make_call(0, 0)
        await store.commit_call(call, make_bodies(call, random.Random(1)))
        assert [r.rollout_id for r in store.open_rollouts()] == [rollout_id(0), rollout_id(1)]
        await store.add_event(make_event(0, EventKind.REWARD, reward=0.25))
        await store.add_event(
            replace(make_event(0, EventKind.CLOSED), ok=False, reason="gave up", time_us=77)
        )
        await store.add_event(make_event(0, EventKind.REWARD, reward=1.0))
        state = store.rollout_state(rollout_id(0))
        assert state is not None
        assert state.status is RolloutStatus.CLOSED
        assert (state.reward, state.ok, state.reason) == (1.0, False, "gave up")
        assert state.closed_us == 77
        assert [r.rollout_id for r in store.open_rollouts()] == [rollout_id(1)]
        await store.add_event(make_event(0, EventKind.DELETED))
        assert store.rollout(rollout_id(0)) is None
        assert store.record(rollout_id(0)) is None
        assert store.rollout_by_key(make_rollout(0).key_hash) is None
        assert store.call(call.call_id) is None
        assert store.bodies(call.call_id) == ()
        state = store.rollout_state(rollout_id(0))
        assert state is not None
        assert state.status is RolloutStatus.DELETED
        assert store.rollout_state(rollout_id(5)) is None

    with_store(tmp_path / "store.duckdb", work)


def test_duplicates_count_as_stored_only_when_equal(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        call = make_call(0, 0)
        bodies = make_bodies(call, random.Random(1))
        await store.commit_call(call, bodies)
        await store.commit_call(make_call(0, 0), bodies)
        await asyncio.gather(*(store.commit_call(make_call(0, 0), bodies) for _ in range(3)))
        await store.add_rollout(make_rollout(0))
        await store.add_rollout(make_rollout(0))
        assert store.quarantined() == ()
        with pytest.raises(StoreFailed, match="set aside"):
            await store.commit_call(replace(call, finish_reason="length"), bodies)
        with pytest.raises(StoreFailed, match="set aside"):
            await store.commit_call(call, bodies[:1])
        with pytest.raises(StoreFailed, match="set aside"):
            await store.add_rollout(replace(make_rollout(0), run="other"))
        back = store.call(call_id(0, 0))
        assert back is not None
        assert facts(back) == facts(call)
        assert [b.data for b in store.bodies(call.call_id)] == [b.data for b in bodies]
        assert len(store.quarantined()) == 3

    with_store(tmp_path / "store.duckdb", work)


def test_vocabulary_is_stored_once_per_tokenizer(tmp_path: Path) -> None:
    one = [VocabularyEntry(TokenizerId("t1"), i, bytes([i % 256]), i < 3) for i in range(3000)]
    other = [VocabularyEntry(TokenizerId("t2"), 0, b"\xff", False)]

    async def work(store: DuckDBStore) -> None:
        await store.add_vocabulary(one)
        await store.add_vocabulary([*one[:5], *other])
        assert store.vocabulary(TokenizerId("t1")) == tuple(one)
        assert store.vocabulary(TokenizerId("t2")) == tuple(other)
        assert store.vocabulary(TokenizerId("t3")) == ()

    with_store(tmp_path / "store.duckdb", work)


def test_writes_from_several_loops_and_reads_from_threads(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "store.duckdb", OPTIONS)

    async def one_loop(number: int) -> int:
        await store.add_rollout(make_rollout(number))
        seen = 0
        for sequence in range(40):
            call = make_call(number, sequence)
            await store.commit_call(call, make_bodies(call, random.Random(sequence), 100))
            record = await asyncio.to_thread(store.record, rollout_id(number))
            assert record is not None
            seen += len(record.calls)
        return seen

    async def threads() -> list[int]:
        return await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, one_loop(number)) for number in range(4))
        )

    assert asyncio.run(threads()) == [sum(range(1, 41))] * 4
    store.close_now()

    async def late() -> None:
        await store.add_event(make_event(0, EventKind.CLOSED))

    with pytest.raises(StoreFailed, match="closed"):
        asyncio.run(late())
    with pytest.raises(StoreFailed, match="not readable"):
        store.rollout(rollout_id(0))
