"""Small sets to publish, targets that do not wait long, and what must be true of a history."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path

from explorer.export.hub.client import HubClient
from explorer.export.hub.dataset import HubDataset
from explorer.export.hub.repository import Gate
from explorer.export.hub.target import Upload
from explorer.export.hub.wire import Patience
from tests.hub.repos import Repo
from tests.hub.server import LocalHub

QUICK = Patience(tries=5, first=0.02, longest=0.05, limit=5.0)
REPO = "ada/rollouts"
NEVER = threading.Event()


def names_of(shards: int, part: int = 0) -> list[str]:
    return [f"sequences/part-{at:05}-{part:016x}.parquet" for at in range(shards)]


def set_of(
    folder: Path, shards: int = 5, size: int = 100_000, more: tuple[str, ...] = ()
) -> Upload:
    """A folder like a dataset's: shards, a manifest and a card that name each of them."""
    chance = random.Random(shards * size)
    files = [*names_of(shards), *more]
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = name.endswith((".jsonl", ".json"))
        path.write_bytes(b'{"a":1}\n' if text else name.encode() + chance.randbytes(size))
    return described(folder, tuple(files))


def described(folder: Path, files: tuple[str, ...]) -> Upload:
    """Writes manifest and card for the files."""
    configs: dict[str, dict[str, list[dict[str, str]]]] = {}
    for name in files:
        entry = configs.setdefault(name.split("/")[0], {"files": []})
        entry["files"].append({"path": name})
    manifest = {"format": "rollout-explorer/dataset", "configs": configs, "extras": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    listed = "".join(f"      - {name}\n" for name in files)
    (folder / "README.md").write_text(
        "---\nlicense: mit\nconfigs:\n- config_name: sequences\n  data_files:\n"
        f"  - split: train\n    path:\n{listed}---\n\n# A set\n"
    )
    return Upload(folder, files, message="Publish 5 shards")


def dataset(
    hub: LocalHub,
    token: str | None,
    repo_id: str = REPO,
    private: bool = True,
    gated: Gate = "",
    operations: int = 500,
) -> HubDataset:
    client = HubClient(hub.url, token, QUICK)
    return HubDataset(repo_id, client, private, gated, operations)


def unheard(phase: str, done: int, of: int) -> None:
    """A listener that does not listen."""


def check_history(hub: LocalHub, repo: Repo) -> None:
    """At no commit does a reader find a manifest or a card that names a missing file."""
    for commit in repo.history:
        if "manifest.json" in commit.files:
            content = json.loads(hub.shelf.content(commit.files["manifest.json"]))
            named = [
                file["path"] for entry in content["configs"].values() for file in entry["files"]
            ]
            assert set(named) <= set(commit.files), commit.title
        if "README.md" in commit.files:
            card = hub.shelf.content(commit.files["README.md"]).decode()
            assert set(re.findall(r"^      - (\S+)$", card, re.M)) <= set(commit.files)
