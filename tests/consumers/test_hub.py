"""A published dataset as the real `datasets` loads it from a Hub."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from explorer.export.card.card import card_text
from explorer.export.card.choice import CardChoice
from explorer.export.dataset.schema import CONFIGS
from explorer.export.hub.target import Upload
from explorer.export.hub.targets import target_of
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import OPTIONS, fill, table, written
from tests.hub.server import LocalHub

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="datasets is not installed: `make test-consumers` runs these",
)

# One process for all questions of one reader: the address is read when it is imported.
READER = """
import json, sys
from datasets import load_dataset
answers = []
for asked in json.loads(sys.argv[1]):
    try:
        found = load_dataset(**asked)
    except Exception as error:
        answers.append({"error": type(error).__name__, "said": str(error)})
        continue
    if asked.get("streaming"):
        rows = [row for row in found]
        answers.append({"rows": len(rows), "columns": sorted(rows[0]) if rows else []})
    else:
        answers.append(
            {"rows": len(found), "columns": found.column_names, "first": repr(found[0])}
        )
print("ANSWERS" + json.dumps(answers))
"""


@dataclass(frozen=True)
class Published:
    hub: LocalHub
    ada: str
    bob: str
    folder: Path
    revision: str


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """One dataset, private, and the same again behind a gate."""
    root = tmp_path_factory.mktemp("hub")
    folder = root / "data"

    async def make() -> Any:
        store = DuckDBStore(root / "s.duckdb", OPTIONS)
        await fill(store)
        manifest = await written(store, folder)
        await store.close()
        return manifest

    manifest = asyncio.run(make())
    files = tuple(file.path for file in manifest.files)
    choice = CardChoice("Rollouts of a test", "mit")
    with LocalHub() as hub:
        ada, bob = hub.people.add("ada"), hub.people.add("bob")
        revision = ""
        for name, private, gated in (("ada/own", True, ""), ("ada/asked", False, "manual")):
            (folder / "README.md").write_text(card_text(manifest, choice, name))
            target = target_of(
                name,
                token=ada,
                private=private,
                gated="manual" if gated else "",
                endpoint=hub.url,
            )
            target.prepare()
            published = target.put(
                Upload(folder, files), target.head(), lambda *told: None, threading.Event()
            )
            revision = revision or str(published.revision)
        yield Published(hub, ada, bob, folder, revision)


def loaded(there: Published, home: Path, *asked: dict[str, Any]) -> list[dict[str, Any]]:
    """What `load_dataset` gives for each, in a process that knows this Hub only."""
    environment = {
        "HF_ENDPOINT": there.hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PATH": os.environ["PATH"],
    }
    wanted = [{"split": "train"} | each for each in asked]
    run = subprocess.run(
        [sys.executable, "-c", READER, json.dumps(wanted)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers: list[dict[str, Any]] = json.loads(run.stdout.split("ANSWERS")[1])
    return answers


def test_every_config_is_loaded_by_its_owner_and_by_nobody_else(
    there: Published, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"path": "ada/own", "token": there.ada}
    configs = list(CONFIGS)
    *found, default, pinned, streamed = loaded(
        there,
        tmp_path,
        *({"name": config} | own for config in configs),
        own,
        own | {"name": "sequences", "revision": there.revision},
        own | {"name": "sequences", "streaming": True},
    )
    for config, answer in zip(configs, found, strict=True):
        expected = table(there.folder, config)
        assert answer["columns"] == expected.column_names
        assert answer["rows"] == expected.num_rows
        assert answer["first"] == repr(expected.slice(0, 1).to_pylist()[0])
    sequences = found[configs.index("sequences")]
    assert default == sequences
    assert pinned == sequences
    assert streamed["rows"] == sequences["rows"]
    assert streamed["columns"] == sorted(sequences["columns"])
    # On another machine: here it would be found in the cache.
    strangers = (False, there.bob)
    for refused in loaded(
        there, tmp_path / "other", *(own | {"token": token} for token in strangers)
    ):
        assert refused["error"] == "DatasetNotFoundError"


def test_behind_a_gate_it_is_loaded_by_those_who_were_let_in(
    there: Published, tmp_path: Path
) -> None:
    asked = {"path": "ada/asked", "name": "sequences"}
    without, other, owner = loaded(
        there,
        tmp_path,
        asked | {"token": False},
        asked | {"token": there.bob},
        asked | {"token": there.ada},
    )
    for refused in (without, other):
        assert refused["error"] == "DatasetNotFoundError"
        assert "gated" in refused["said"]
    expected = table(there.folder, "sequences").num_rows
    assert owner["rows"] == expected
    there.hub.dataset("ada/asked").let_in.add("bob")
    (let_in,) = loaded(there, tmp_path / "later", asked | {"token": there.bob})
    assert let_in["rows"] == expected
