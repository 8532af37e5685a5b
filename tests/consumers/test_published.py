"""A published dataset as its readers meet it: every config loads, and the code on the card
trains exactly the tokens that the manifest counts. From a folder and from a local Hub."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from explorer.demo.group import Outcome
from explorer.export.adapters.registry import ADAPTERS
from explorer.export.card.check import card_problems
from explorer.export.card.choice import CardChoice
from explorer.export.dataset.manifest import CARD, Manifest, read_manifest
from explorer.export.publishing.checking import check_folder
from explorer.export.publishing.procedure import Order, prepare, publish
from explorer.records import RolloutId
from tests.consumers.making import TOOL, needs_trl
from tests.export.datasets import source_of
from tests.hub.making import dataset
from tests.hub.server import LocalHub
from tests.live import Live

needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="datasets is not installed: `make test-consumers` runs these",
)
pytestmark = [needs_trl, needs_datasets]

RUNNER = Path(__file__).with_name("run_card.py")
ROOT = Path(__file__).parents[2]
CHOICE = CardChoice("Demo rollouts", "cc-by-4.0", description="Sums and dates.")


@dataclass(frozen=True, slots=True)
class Published:
    """A dataset in a folder, and what its readers' code did."""

    manifest: Manifest
    card: str
    folder: Path
    told: dict[str, Any]


def order_of(names: Iterable[str], *formats: str) -> Order:
    return Order(tuple(map(RolloutId, names)), CHOICE, formats)


def written(live: Live, order: Order, folder: Path) -> Manifest:
    """A dry run on the server's own store."""
    work = prepare(
        source_of(live.store),
        order,
        folder,
        told=lambda _: None,
        stop=threading.Event(),
    )
    return asyncio.run_coroutine_threadsafe(work, live.loop).result(120).manifest


def read_by(card: Path, weights: Path, place: Path, **environment: str) -> dict[str, Any]:
    """What the code of a card did; `place` is where a person would stand."""
    out = place / "told.json"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, RUNNER, card, str(weights), out],
        cwd=place,
        env=kept
        | {
            "HF_HOME": str(place / "hf"),
            "PYTHONPATH": str(ROOT),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(out.read_text())
    return told


@pytest.fixture(scope="module")
def in_folder(
    live: Live,
    demo: dict[str, Outcome],
    weights: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Published:
    """The demo in every format."""
    place = tmp_path_factory.mktemp("published")
    folder = place / "data"
    manifest = written(live, order_of(demo, *ADAPTERS), folder)
    told = read_by(folder / CARD, weights, place, HF_HUB_OFFLINE="1")
    return Published(manifest, (folder / CARD).read_text(), folder, told)


def rows_of(manifest: Manifest) -> dict[str, int]:
    """What `load_dataset` should find, by config."""
    parquet = {
        name: entry.rows
        for name, entry in manifest.extras.items()
        if entry.layout == "parquet" and entry.rows
    }
    return {name: entry.rows for name, entry in manifest.configs.items()} | parquet


def check_told(told: dict[str, Any], manifest: Manifest) -> None:
    """Rows of each config, and tokens of each training."""
    configs = {name: each["rows"] for name, each in told["configs"].items()}
    assert configs.pop("") == manifest.configs["sequences"].rows
    assert configs == rows_of(manifest)
    sft = told["sft"]
    assert sft["steps"] > 0
    assert sft["labels"] == sft["gradients"] == manifest.supervised_tokens
    assert sft["elsewhere"] == 0


def test_every_config_of_a_card_loads_from_its_folder(in_folder: Published) -> None:
    manifest, told = in_folder.manifest, in_folder.told
    assert {"sequences", "rollouts", "calls", "sft", "grpo"} <= set(told["configs"])
    check_told(told, manifest)
    types = told["configs"]["sequences"]["types"]
    assert types["token_ids"].endswith(": int32>")
    assert types["logprobs"].endswith(": float>")
    assert types["loss_mask"].endswith(": int8>")
    assert told["configs"]["rollouts"]["types"]["reward"] == "double"
    assert told["blocks"] == 3


def test_the_card_goes_with_what_was_written(in_folder: Published) -> None:
    assert card_problems(in_folder.card, read_manifest(in_folder.folder)) == []
    report = check_folder(in_folder.folder)
    assert report.ok, report.problems


def test_grpo_trains_the_rows_that_the_card_s_code_takes(in_folder: Published) -> None:
    rows: dict[str, list[int]] = {}
    for name in sorted((in_folder.folder / "grpo").glob("*.parquet")):
        for row in pq.read_table(name).to_pylist():
            if row["reward"] is not None:
                rows.setdefault(row["group"] or row["task"], []).append(
                    row["supervised_tokens"]
                )
    taken = [sum(each[:2]) for each in rows.values() if len(each) >= 2]
    grpo = in_folder.told["grpo"]
    assert grpo["mask"] == sum(taken) > 0
    assert (grpo["elsewhere"], grpo["beyond"]) == (0, 0)
    assert grpo["rows"] == 2 * len(taken)


@pytest.fixture(scope="module")
def pairs(live: Live) -> list[str]:
    """Two groups of two rollouts, each of one call, with different rewards."""
    names = []
    for group in ("a", "b"):
        for reward in (1.0, 0.0):
            rollout_id, key = live.create(run="pairs", group=group, task=group)
            messages = [{"role": "user", "content": f"What is 2 + 3? {group}"}]
            reply = live.chat(key, messages=messages, max_tokens=30, tools=[TOOL])
            assert reply.status_code == 200, reply.text
            live.api("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": reward})
            live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
            names.append(rollout_id)
    return names


@pytest.fixture(scope="module")
def on_hub(
    live: Live, pairs: list[str], weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Published:
    """The pairs, published to a local Hub in two parts, read by name with a token."""
    place = tmp_path_factory.mktemp("hub")
    with LocalHub() as hub:
        token = hub.people.add("ada")
        for names in (pairs[:2], pairs):
            order = order_of(names, "sft", "grpo")
            folder = place / f"work {len(names)}"
            work = publish(
                source_of(live.store),
                order,
                folder,
                dataset(hub, token),
                lambda _: None,
                threading.Event(),
            )
            outcome = asyncio.run_coroutine_threadsafe(work, live.loop).result(120)
            assert outcome.published is not None
        told = read_by(
            folder / CARD,
            weights,
            place,
            HF_ENDPOINT=hub.url,
            HF_TOKEN=token,
            HF_HUB_DISABLE_XET="1",
        )
        fetched = download(hub, token, place)
    return Published(outcome.prepared.manifest, outcome.prepared.card, fetched, told)


def download(hub: LocalHub, token: str, place: Path) -> Path:
    """Everything, as the card's own words say."""
    folder = place / "downloaded"
    subprocess.run(
        [
            Path(sys.executable).with_name("hf"),
            *("download", "ada/rollouts", "--repo-type", "dataset", "--local-dir", folder),
        ],
        env=os.environ
        | {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(place / "hf2")},
        check=True,
        capture_output=True,
        timeout=120,
    )
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return folder


def test_every_config_of_a_published_card_loads_by_name(on_hub: Published) -> None:
    assert 'load_dataset("ada/rollouts", "sequences", split="train")' in on_hub.card
    assert [part.rollouts for part in on_hub.manifest.parts] == [2, 2]
    check_told(on_hub.told, on_hub.manifest)


def test_grpo_trains_every_token_of_the_manifest_when_rewards_differ(on_hub: Published) -> None:
    grpo, manifest = on_hub.told["grpo"], on_hub.manifest
    assert all(entry.sequences == 1 for entry in manifest.rollouts)
    assert grpo["gradients"] == grpo["mask"] == manifest.supervised_tokens > 0
    assert (grpo["elsewhere"], grpo["beyond"], grpo["rows"]) == (0, 0, 4)


def test_what_was_downloaded_is_checked_alone(on_hub: Published) -> None:
    report = check_folder(on_hub.folder)
    assert report.ok, report.problems
    assert report.facts["rollouts"] == 4
