"""Scans of stored rollouts: written once, decided by the latest word, also read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.errors import NotFound, SecretsUndecided, StoreReadOnly
from explorer.export.secrets import SecretScans
from explorer.records import (
    Body,
    BodyKind,
    KeyHash,
    Rollout,
    RolloutId,
    TokenizerId,
    VocabularyEntry,
)
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.store.remarks import Annotation
from explorer.store.secret_marks import SecretDecision
from tests.trace.build import make_call
from tests.trace.test_secret_scan import KEYS, vocabulary_of

KEY = KEYS["github_token"]
ONE, OTHER = RolloutId("r1"), RolloutId("r2")
TOKENIZER = TokenizerId("bytes")
VOCABULARY, IDS = vocabulary_of([bytes([byte]) for byte in f"say {KEY} now".encode()])
OPTIONS = StoreOptions(min_free_bytes=0)


async def fill(store: DuckDBStore) -> None:
    """`r1` holds a key in its ids and nowhere else; `r2` one in its metadata, and a path."""
    entries = [
        VocabularyEntry(TOKENIZER, token, raw, special)
        for token, (raw, special) in VOCABULARY.items()
    ]
    await store.add_vocabulary(entries)
    one = Rollout(ONE, 1, KeyHash("k1"), run="r", tokenizer_id=TOKENIZER)
    await store.add_rollout(one)
    call = make_call("c1", 0, IDS[:8], IDS[8:])
    await store.commit_call(call, [Body(call.call_id, ONE, BodyKind.REQUEST, b"{}")])
    told = {"token": KEY, "home": "/home/alice"}
    await store.add_rollout(
        replace(one, rollout_id=OTHER, key_hash=KeyHash("k2"), metadata=told)
    )


def with_loop(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Runs an asynchronous test."""

    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def scans_of(store: DuckDBStore) -> SecretScans:
    def read(name: TokenizerId | None) -> dict[int, tuple[bytes, bool]]:
        found = store.vocabulary(name) if name is not None else ()
        return {each.token_id: (each.raw, each.special) for each in found}

    clock = iter(range(100, 10_000))
    return SecretScans(store, read, lambda: next(clock))


def decision(rollout_id: RolloutId, finding_id: str, word: str, number: int) -> SecretDecision:
    return SecretDecision(f"sd_{number}", rollout_id, finding_id, 0, word, "Ada", "because")


@with_loop
async def test_a_finding_is_written_once_and_the_latest_decision_counts(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
    try:
        await fill(store)
        scans = scans_of(store)
        for stamp in store.record_stamps():
            assert await scans.mark(stamp) == stamp.text
            assert await scans.mark(stamp) == stamp.text
        assert [len(store.secret_rows(each)) for each in (ONE, OTHER)] == [1, 2]
        assert store.quarantined() == ()
        marks = store.secret_marks()
        assert (marks[ONE].n_secrets, marks[ONE].n_paths) == (1, 0)
        assert (marks[OTHER].n_secrets, marks[OTHER].n_paths) == (1, 1)
        assert store.secret_mark(ONE) == marks[ONE]
        assert store.secrets_undecided() == {ONE, OTHER}
        assert store.secrets_in_lists() == {OTHER} == scans.unlisted()
        dumped = (tmp_path / "s.duckdb").read_bytes()
        dumped += (tmp_path / "s.duckdb.wal").read_bytes()
        assert KEY.encode() in dumped  # the metadata, as it was given
        rows = str([store.secret_rows(each) for each in (ONE, OTHER)])
        assert KEY not in rows
        (found,) = [row for row in store.secret_rows(OTHER) if row.blocks]
        for number, (word, refusal, listed) in enumerate(
            [
                ("withhold", "withholds", False),
                ("release", "", True),
                ("withhold", "holds", False),
            ]
        ):
            await scans.decide(decision(OTHER, found.finding_id, word, number))
            told = scans.export_refusal(OTHER)
            assert (told is None) == (refusal == "")
            assert refusal in (told or "")
            assert (OTHER not in scans.unlisted()) == listed
            record = store.record(OTHER)
            assert record is not None
            assert (KEY in str(scans.record(record).rollout.metadata)) == listed
        assert store.secrets_undecided() == {ONE}
        assert [each.decision for each in store.secret_decisions(OTHER)] == [
            "withhold",
            "release",
            "withhold",
        ]
        with pytest.raises(SecretsUndecided):
            scans.require_released(ONE)
        with pytest.raises(NotFound):
            await scans.decide(decision(ONE, "sf_none", "release", 9))
        path = next(row for row in store.secret_rows(OTHER) if not row.blocks)
        with pytest.raises(NotFound):
            await scans.decide(decision(OTHER, path.finding_id, "release", 10))
        assert scans.review(RolloutId("none")) is None
        assert scans.export_refusal(RolloutId("none")) is None
    finally:
        await store.close()


@with_loop
async def test_what_is_noted_later_is_read_too(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
    try:
        await fill(store)
        scans = scans_of(store)
        review = scans.review(ONE)
        assert review is not None
        assert [item.finding.kind for item in review.items] == ["github_token"]
        noted = Annotation("an_1", ONE, 5, "Ada", note=f"is {KEYS['gitlab_token']} one?")
        await store.add_annotation(noted)
        review = scans.review(ONE)
        assert review is not None
        assert {item.finding.kind for item in review.items} == {"github_token", "gitlab_token"}
        assert (review.state, review.n_undecided) == ("undecided", 2)
        assert ONE in scans.unlisted()
    finally:
        await store.close()


@with_loop
async def test_ids_that_are_learned_later_are_scanned_again(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
    try:
        await fill(store)
        known: dict[int, tuple[bytes, bool]] = {}
        scans = SecretScans(store, lambda _: known, lambda: 1)
        (stamp,) = [each for each in store.record_stamps() if each.rollout_id == ONE]
        assert await scans.mark(stamp) == f"{stamp.text}/0" in scans.stamps(stamp)
        assert scans.export_refusal(ONE) is None
        known.update(VOCABULARY)
        assert scans.export_refusal(ONE) is not None
    finally:
        await store.close()


def test_a_store_that_takes_nothing_is_scanned_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    store = DuckDBStore(path, OPTIONS)

    async def make() -> None:
        await fill(store)
        await store.close()

    asyncio.run(make())
    shown = DuckDBStore(path, StoreOptions(min_free_bytes=0, read_only=True))

    async def look() -> None:
        scans = scans_of(shown)
        for stamp in shown.record_stamps():
            assert await scans.mark(stamp) == stamp.text
        assert shown.secret_marks() == {}
        assert scans.export_refusal(ONE) is not None
        assert scans.unlisted() == {OTHER}
        review = scans.review(ONE)
        assert review is not None
        with pytest.raises(StoreReadOnly):
            await scans.decide(decision(ONE, review.items[0].finding.finding_id, "release", 1))
        await shown.close()

    asyncio.run(look())


@with_loop
async def test_many_readers_wait_for_one_scan(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)
    try:
        await fill(store)
        scans = scans_of(store)
        found = await asyncio.gather(
            *(asyncio.to_thread(scans.scanned, ONE) for _ in range(12))
        )
        assert len({id(each) for each in found}) == 1
        assert np.all([each is not None for each in found])
    finally:
        await store.close()
