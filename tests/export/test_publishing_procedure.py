"""Publishing from the store to a place and again: what is there never changes."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from explorer.errors import ConfigurationError, HeadMoved, HubConflict, NothingToPublish
from explorer.export.card.choice import CardChoice
from explorer.export.dataset.manifest import CARD, MANIFEST, read_manifest
from explorer.export.hub.targets import target_of
from explorer.export.publishing.checking import check_folder
from explorer.export.publishing.procedure import (
    Order,
    Outcome,
    Prepared,
    Progress,
    prepare,
    publish,
)
from explorer.records import CallId, EventKind, Override, RolloutEvent, RolloutId
from explorer.store.duckdb_store import DuckDBStore
from explorer.store.rows import override_payload
from explorer.store.secret_marks import SecretDecision
from tests.export.datasets import ALL, FORKED, ODD, OPEN, PLAIN, add, source_of
from tests.export.test_dataset_files import SECRET, in_store, with_secret
from tests.trace.build import make_call

CHOICE = CardChoice(title="Tests", licence="cc-by-4.0")
LATE = RolloutId("01990000-0000-7000-8000-00000000000a")


def place(folder: Path) -> Any:
    return target_of(f"file:{folder}", token=None, private=True, gated="", endpoint=None)


async def published(
    store: DuckDBStore,
    work: Path,
    target: Any,
    names: Sequence[RolloutId],
    approve: Any = lambda _: None,
    formats: tuple[str, ...] | None = None,
) -> Outcome:
    told: list[Progress] = []
    order = Order(tuple(names), CHOICE, formats)
    stop = threading.Event()
    return await publish(source_of(store), order, work, target, told.append, stop, approve)


def held(folder: Path) -> dict[str, str]:
    """Every file there but hidden ones, by its digest."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def data(files: dict[str, str]) -> dict[str, str]:
    """Those that nothing may ever replace."""
    return {name: digest for name, digest in files.items() if name not in (MANIFEST, CARD)}


def test_a_dry_run_writes_what_is_published_byte_for_byte(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> tuple[Prepared, Outcome]:
        told: list[Progress] = []
        order = Order(ALL, CHOICE, ("sft", "sessions", "summary"))
        stop = threading.Event()
        dry = await prepare(
            source_of(store), order, tmp_path / "dry", told=told.append, stop=stop
        )
        assert {each.phase for each in told} == {"planning", "writing"}
        done = await published(store, tmp_path / "w", place(there), ALL, formats=order.formats)
        return dry, done

    dry, done = in_store(tmp_path / "s.duckdb", work)
    assert done.published is not None
    assert held(there) == held(tmp_path / "dry")
    assert dry.added == done.prepared.added == 3
    assert [item.rollout_id for item in done.prepared.manifest.excluded] == [OPEN]
    report = check_folder(there)
    assert report.ok, report.problems
    assert "no card" not in " ".join(report.notes)


def test_published_again_nothing_is_added_and_what_is_new_follows(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> tuple[Outcome, Outcome, Outcome, dict[str, str]]:
        first = await published(store, tmp_path / "w", place(there), ALL)
        before = held(there)
        second = await published(store, tmp_path / "w", place(there), ALL)
        assert held(there) == before
        late = make_call("l-a", 1, [1, 2], [3, 9], n_tools=1)
        await add(store, LATE, [late], closed=50, reward=1.0)
        third = await published(store, tmp_path / "w", place(there), (*ALL, LATE))
        return first, second, third, before

    first, second, third, before = in_store(tmp_path / "s.duckdb", work)
    assert first.published is not None
    assert (second.published, second.prepared.added, second.prepared.already) == (None, 0, 3)
    assert third.published is not None
    assert (third.prepared.added, third.prepared.already) == (1, 3)
    assert data(before).items() <= held(there).items()
    manifest = read_manifest(there)
    # It was sealed before all others, and stands behind them: an order within each part.
    assert [entry.rollout_id for entry in manifest.rollouts] == [ODD, FORKED, PLAIN, LATE]
    assert [part.rollouts for part in manifest.parts] == [3, 1]
    report = check_folder(there)
    assert report.ok, report.problems


def test_a_published_set_pins_what_it_was_made_under(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> tuple[dict[str, str], Outcome]:
        await published(store, tmp_path / "w", place(there), [FORKED, PLAIN])
        before = held(there)
        decided = Override("exclude_call", "wrong task", "ana", 5, CallId("p-a"))
        event = RolloutEvent(
            PLAIN, -1, 5, EventKind.OVERRIDE, payload=override_payload(decided)
        )
        await store.add_event(event)
        return before, await published(store, tmp_path / "w", place(there), [FORKED, PLAIN])

    before, after = in_store(tmp_path / "s.duckdb", work)
    assert after.published is None
    assert after.prepared.kept_otherwise == (PLAIN,)
    assert held(there) == before
    entry = {each.rollout_id: each for each in read_manifest(there).rollouts}[PLAIN]
    assert entry.trainable
    assert entry.supervised_tokens == 3


def test_hub_05_who_is_overtaken_plans_again_and_overwrites_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> tuple[Outcome, list[int]]:
        seen: list[int] = []
        rival = Order((FORKED,), CHOICE)

        def approve(prepared: Prepared) -> None:
            seen.append(prepared.added)
            if len(seen) == 1:
                # Somebody else publishes between the plan and the upload.
                run_rival()

        def run_rival() -> None:
            def there_first() -> None:
                asyncio.run(
                    publish(
                        source_of(store),
                        rival,
                        tmp_path / "rival",
                        place(there),
                        lambda _: None,
                        threading.Event(),
                    )
                )

            thread = threading.Thread(target=there_first)
            thread.start()
            thread.join()

        done = await published(store, tmp_path / "w", place(there), ALL, approve)
        return done, seen

    done, seen = in_store(tmp_path / "s.duckdb", work)
    assert seen == [3, 2]
    assert done.published is not None
    manifest = read_manifest(there)
    assert [entry.rollout_id for entry in manifest.rollouts] == [FORKED, ODD, PLAIN]
    report = check_folder(there)
    assert report.ok, report.problems


def test_who_is_overtaken_every_time_gives_up_and_says_so(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> None:
        await published(store, tmp_path / "w", place(there), [FORKED])

        def approve(_: Prepared) -> None:
            # A manifest of nearly the same content: the place is another one each time.
            path = there / MANIFEST
            path.write_bytes(path.read_bytes() + b" ")

        with pytest.raises(HeadMoved):
            await published(store, tmp_path / "w", place(there), ALL, approve)

    in_store(tmp_path / "s.duckdb", work)
    assert [entry.rollout_id for entry in read_manifest(there).rollouts] == [FORKED]


def test_pq_04_a_dataset_of_other_columns_or_formats_is_not_added_to(tmp_path: Path) -> None:
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> None:
        await published(store, tmp_path / "w", place(there), [FORKED], formats=("sft",))
        before = held(there)
        with pytest.raises(ConfigurationError, match="has these formats: sft"):
            await published(store, tmp_path / "w", place(there), ALL, formats=("dpo",))
        # Without a word about formats, those that are there.
        more = await published(store, tmp_path / "w", place(there), [FORKED, PLAIN])
        assert set(more.prepared.manifest.extras) == {"sft"}
        assert data(before).items() <= held(there).items()
        path = there / MANIFEST
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b'"schema_version": 1', b'"schema_version": 9', 1))
        with pytest.raises(HubConflict, match="publish under a new name"):
            await published(store, tmp_path / "w", place(there), ALL)
        digest = read_digest(raw)
        path.write_bytes(raw.replace(digest, b"0" * 64, 1))
        with pytest.raises(ConfigurationError, match="other columns"):
            await published(store, tmp_path / "w", place(there), ALL)

    def read_digest(raw: bytes) -> bytes:
        return raw.partition(b'"schema_sha256": "')[2][:64]

    in_store(tmp_path / "s.duckdb", work)


def test_nothing_is_published_where_everything_was_left_out(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        with pytest.raises(NothingToPublish):
            await published(store, tmp_path / "w", place(tmp_path / "there"), [OPEN])

    in_store(tmp_path / "s.duckdb", work)
    assert not list((tmp_path / "there").glob("*.json"))


def test_what_is_withheld_before_it_is_uploaded_is_not_uploaded(tmp_path: Path) -> None:
    """Who approves may take long over it, and what is out cannot be taken back."""
    there = tmp_path / "there"
    asked: list[int] = []

    async def work(store: DuckDBStore) -> Outcome:
        await with_secret(store)
        secrets = source_of(store).secrets
        review = secrets.review(SECRET)
        assert review is not None
        (found,) = review.secrets

        def decided(word: str) -> SecretDecision:
            name = found.finding.finding_id
            return SecretDecision(f"sd_{word}", SECRET, name, 0, word, "Ada", "because")

        await secrets.decide(decided("release"))

        def approve(prepared: Prepared) -> None:
            if not asked:
                doing = secrets.decide(decided("withhold"))
                thread = threading.Thread(target=lambda: asyncio.run(doing))
                thread.start()
                thread.join()
            asked.append(prepared.added)

        source, stop = source_of(store), threading.Event()
        order = Order((SECRET, PLAIN), CHOICE)
        return await publish(
            source, order, tmp_path / "w", place(there), lambda _: None, stop, approve
        )

    done = in_store(tmp_path / "s.duckdb", work)
    assert done.published is not None
    assert asked == [2, 1]
    assert [entry.rollout_id for entry in read_manifest(there).rollouts] == [PLAIN]
