"""`publish` and `withdraw` as people run them, against the local Hub and folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from explorer.cli import cli
from explorer.export.publishing.checking import check_folder
from tests.export.test_dataset_command import command, store
from tests.hub.faults import waiting
from tests.hub.server import LocalHub

__all__ = ["store"]

REPO = "ada/rollouts"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with LocalHub() as made:
        yield made


def environment(hub: LocalHub, token: str | None, home: Path) -> dict[str, str]:
    """Of a person at this Hub, with nothing of this machine's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    kept |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
    return kept if token is None else kept | {"HF_TOKEN": token}


def arguments(store: Path, *more: str) -> list[str]:
    at = [sys.executable, "-m", "explorer", "publish", "--store", str(store)]
    return [*at, "--licence", "cc-by-4.0", "--view", "run=r", *more]


def run(hub: LocalHub, token: str | None, *words: str | Path, typed: str = "") -> Result:
    """A command of somebody at this Hub, with nothing of this machine's own."""
    own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_TOKEN_PATH": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
        told = [str(word) for word in words]
        return CliRunner().invoke(cli, told, input=typed, env=own)


def publish(
    hub: LocalHub, token: str | None, store: Path, *more: str, typed: str = ""
) -> Result:
    at = ("publish", "--store", store, "--licence", "cc-by-4.0", "--view", "run=r")
    return run(hub, token, *at, *more, typed=typed)


def files_of(hub: LocalHub, repo: str = REPO) -> dict[str, bytes]:
    """What is at the head of a dataset's repository."""
    made = hub.dataset(repo)
    return {name: hub.shelf.read(made, name) for name in made.head.files}


def names(hub: LocalHub) -> set[str]:
    """Repositories that there are."""
    return {name for _, name in hub.shelf.repos}


def fetched(hub: LocalHub, into: Path, repo: str = REPO) -> dict[str, bytes]:
    """What a reader gets, written to a folder."""
    found = files_of(hub, repo)
    for name, data in found.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return found


def test_it_goes_to_the_hub_private_with_a_card_and_verifies(
    hub: LocalHub, store: Path, tmp_path: Path
) -> None:
    token = hub.people.add("ada", "contribute-repos")
    done = publish(hub, token, store, "--repo", REPO, "--with", "sft", "--with", "sessions")
    assert done.exit_code == 1, done.stderr  # one rollout is open
    assert "3 rollouts, 11 calls, 3 sequences, 10 tokens train" in done.stderr
    assert "private" in done.stderr
    assert REPO in done.stderr
    assert token not in done.stderr + done.stdout
    assert hub.dataset(REPO).private
    found = fetched(hub, tmp_path / "got")
    report = check_folder(tmp_path / "got")
    assert report.ok, report.problems
    assert b"license: cc-by-4.0" in found["README.md"]
    # Nothing is left on the way.
    assert not list((store.parent / f"{store.name}.publish").iterdir())
    again = publish(hub, token, store, "--repo", REPO)
    assert again.exit_code == 1
    assert "has all 3 of them already" in again.stderr
    assert fetched(hub, tmp_path / "got") == found


def test_hub_06_public_needs_the_name_again(hub: LocalHub, store: Path) -> None:
    token = hub.people.add("ada")
    done = publish(hub, token, store, "--repo", REPO, "--public")
    assert done.exit_code == 2
    assert f"--confirm {REPO}" in done.stderr
    done = publish(hub, token, store, "--repo", REPO, "--public", "--confirm", "ada/other")
    assert done.exit_code == 2
    assert "nothing was done" in done.stderr
    assert REPO not in names(hub)
    done = publish(hub, token, store, "--repo", REPO, "--public", "--confirm", REPO)
    assert done.exit_code == 1, done.stderr
    assert not hub.dataset(REPO).private


@pytest.mark.parametrize("name", ["me/my--data", "me/..x", "me/" + "a" * 120, "My Data"])
def test_hub_03_a_name_is_checked_before_anything_is_written(
    hub: LocalHub, store: Path, name: str
) -> None:
    token = hub.people.add("me")
    done = publish(hub, token, store, "--repo", name)
    assert done.exit_code == 2
    assert "96" in done.stderr or "--" in done.stderr or "namespace" in done.stderr.lower()
    assert not store.with_name(store.name + ".publish").exists()
    assert not names(hub)


def test_what_is_missing_is_said(hub: LocalHub, store: Path, tmp_path: Path) -> None:
    done = publish(hub, None, store, "--repo", REPO)
    assert done.exit_code == 2
    assert "token" in done.stderr
    done = publish(hub, "hf_wrong", store, "--repo", REPO)
    assert done.exit_code == 2
    assert "token" in done.stderr
    assert "hf_wrong" not in done.stderr
    done = publish(hub, None, store)
    assert "--repo" in done.stderr
    done = publish(hub, None, store, "--dry-run")
    assert "--out" in done.stderr
    done = publish(hub, None, store, "--repo", REPO, "--licence", "mine")
    assert "no licence id" in done.stderr


def test_without_a_token_it_says_how_to_give_one(hub: LocalHub, store: Path) -> None:
    done = publish(hub, None, store, "--repo", REPO)
    assert done.exit_code == 2
    assert "set HF_TOKEN" in done.stderr
    assert hub.shelf.repos == {}


def test_a_token_comes_from_a_file_too(hub: LocalHub, store: Path, tmp_path: Path) -> None:
    token = hub.people.add("ada")
    done = publish(hub, None, store, "--repo", REPO, "--token-file", "-", typed=token + "\n")
    assert done.exit_code == 1, done.stderr
    assert hub.dataset(REPO).private


def test_hub_05_killed_in_the_middle_it_goes_on_and_is_byte_identical(
    hub: LocalHub, store: Path, tmp_path: Path
) -> None:
    token = hub.people.add("ada")
    more = ("--with", "sft", "--title", "Rollouts")
    undisturbed = publish(hub, token, store, "--repo", "ada/whole", *more)
    assert undisturbed.exit_code == 1, undisturbed.stderr
    whole = fetched(hub, tmp_path / "whole", "ada/whole")
    # The third large file never arrives.
    fault = hub.faults.add(r"^PUT /", waiting(60), first=3)
    killed = subprocess.Popen(
        arguments(store, "--repo", REPO, *more),
        env=environment(hub, token, store.parent / "home"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while fault.seen < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert fault.seen == 3
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert "manifest.json" not in files_of(hub)
    hub.faults.clear()
    done = publish(hub, token, store, "--repo", REPO, *more)
    assert done.exit_code == 1, done.stderr
    got = fetched(hub, tmp_path / "got")
    assert got.keys() == whole.keys()
    for name, data in got.items():
        same = whole[name].replace(b"ada/whole", REPO.encode())
        assert data == same, name
    assert check_folder(tmp_path / "got").ok


def test_withdrawn_it_says_why_and_whole_it_is_gone(hub: LocalHub, store: Path) -> None:
    token = hub.people.add("ada")
    assert publish(hub, token, store, "--repo", REPO).exit_code == 1
    at = ("withdraw", "--repo", REPO, "--reason", "a name")

    def withdrawn(*more: str) -> Result:
        return run(hub, token, *at, *more)

    assert withdrawn("--confirm", "ada/else").exit_code == 2
    assert "manifest.json" in files_of(hub)
    done = withdrawn("--confirm", REPO)
    assert done.exit_code == 0, done.stderr
    files = files_of(hub)
    assert "manifest.json" not in files
    assert b"a name" in files["README.md"]
    assert "earlier revisions still hold the data" in done.stderr
    assert not [name for name in files if name.endswith(".parquet")]
    # What was taken away does not come back by a command that somebody runs every night.
    done = publish(hub, token, store, "--repo", REPO)
    assert done.exit_code == 2
    assert "was withdrawn" in done.stderr
    assert files_of(hub) == files
    done = publish(hub, token, store, "--repo", REPO, "--anew")
    assert done.exit_code == 1, done.stderr
    assert "manifest.json" in files_of(hub)
    assert withdrawn("--whole", "--confirm", REPO).exit_code == 0
    assert REPO not in names(hub)


def test_a_folder_and_a_dry_run_need_no_token(store: Path, tmp_path: Path) -> None:
    at = ("publish", "--store", store, "--licence", "mit", "--view", "run=r")
    done = command(*at, "--dry-run", "--out", tmp_path / "dry")
    assert done.exit_code == 1, done.output
    assert "nothing was uploaded" in done.stderr
    done = command(*at, "--to", f"file:{tmp_path / 'there'}", "--title", "dry")
    assert done.exit_code == 1, done.output
    for name in ("manifest.json", "README.md"):
        assert (tmp_path / "there" / name).read_bytes() == (
            tmp_path / "dry" / name
        ).read_bytes()
    assert command("verify", tmp_path / "there").exit_code == 0
    manifest = orjson.loads((tmp_path / "there" / "manifest.json").read_bytes())
    assert manifest["counts"]["supervised_tokens"] == 10
