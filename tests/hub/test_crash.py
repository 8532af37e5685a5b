"""A publisher is killed at every kind of moment; the next one goes on, and nobody can tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub.faults import Act, Doing
from tests.hub.making import NEVER, REPO, check_history, dataset, set_of, unheard
from tests.hub.server import LocalHub
from tests.hub.wire import Answer, CutOff

ROOT = Path(__file__).parents[2]


class Publisher:
    """A process that publishes, until a request of its own kills it."""

    def __init__(self, hub: LocalHub, token: str, folder: Path, operations: int = 500) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.hub.publisher"),
                *(hub.url, REPO, str(folder), str(operations)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._token = token

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)

    def run(self) -> int:
        """Its exit code."""
        _, said = self._process.communicate(self._token.encode() + b"\n", timeout=60)
        assert b"Traceback" not in said, said.decode()
        return self._process.returncode


def killing(publisher: list[Publisher], undone: bool) -> Act:
    """kill -9 at this request; `undone`: and the Hub never got to it."""

    def act(doing: Doing) -> Answer:
        publisher[0].kill()
        if undone:
            raise CutOff
        return doing()

    return act


def crash(hub: LocalHub, token: str, folder: Path, at: str, first: int, undone: bool) -> None:
    """Publishes until the `first`-th request that matches."""
    started: list[Publisher] = []
    fault = hub.faults.add(at, killing(started, undone), first=first, times=1)
    started.append(Publisher(hub, token, folder, 500 if "many" not in folder.name else 5))
    assert started[0].run() == -signal.SIGKILL
    assert fault.seen == first
    hub.faults.planned.remove(fault)


@pytest.fixture
def wanted(hub: LocalHub, ada: str, tmp_path: Path) -> dict[str, str]:
    """What is there when nothing goes wrong, by SHA-256."""
    return uninterrupted(hub, ada, tmp_path / "set", 5)


def uninterrupted(
    hub: LocalHub, token: str, folder: Path, shards: int, operations: int = 500
) -> dict[str, str]:
    target = dataset(hub, token, "ada/uninterrupted", operations=operations)
    target.prepare()
    target.put(set_of(folder, shards), target.head(), unheard, NEVER)
    found = hub.shelf.sums(hub.dataset("ada/uninterrupted"))
    hub.faults.clear()
    return found


def test_hub_05_killed_after_3_of_5_shards_it_goes_on_and_readers_never_saw_half_a_set(
    hub: LocalHub, ada: str, tmp_path: Path, wanted: dict[str, str]
) -> None:
    crash(hub, ada, tmp_path / "set", "PUT /upload", 4, undone=True)
    repo = hub.dataset(REPO)
    assert len(repo.lfs) == 3
    assert set(repo.head.files) == {".gitattributes"}
    hub.faults.clear()
    assert Publisher(hub, ada, tmp_path / "set").run() == 0
    # The three that were there are not sent again.
    assert len(hub.faults.asked("PUT /upload")) == 2
    assert hub.shelf.sums(repo) == wanted
    assert len(repo.history) == 2
    check_history(hub, repo)


@pytest.mark.parametrize(
    ("at", "first", "undone"),
    [
        ("POST /api/repos/create", 1, False),
        ("PUT /upload", 1, False),
        ("lfs/verify", 5, True),
        ("/commit/", 1, True),
        ("/commit/", 1, False),
    ],
)
def test_killed_anywhere_the_next_one_makes_the_same_repository(
    hub: LocalHub,
    ada: str,
    tmp_path: Path,
    wanted: dict[str, str],
    at: str,
    first: int,
    undone: bool,
) -> None:
    folder = tmp_path / "set"
    crash(hub, ada, folder, at, first, undone)
    check_history(hub, hub.dataset(REPO))
    target = dataset(hub, ada)
    target.prepare()
    target.put(set_of(folder), target.head(), unheard, NEVER)
    repo = hub.dataset(REPO)
    assert hub.shelf.sums(repo) == wanted
    assert len(repo.history) == 2
    check_history(hub, repo)


@pytest.mark.parametrize("first", [2, 4])
def test_killed_between_commits_it_is_known_as_ours_and_finished(
    hub: LocalHub, ada: str, tmp_path: Path, first: int
) -> None:
    folder = tmp_path / "many"
    wanted = uninterrupted(hub, ada, folder, 12, operations=5)
    crash(hub, ada, folder, "/commit/", first, undone=True)
    repo = hub.dataset(REPO)
    assert len(repo.history) == first
    assert "manifest.json" not in repo.head.files
    check_history(hub, repo)
    target = dataset(hub, ada, operations=5)
    target.prepare()
    target.put(set_of(folder, 12), target.head(), unheard, NEVER)
    assert hub.shelf.sums(repo) == wanted
    check_history(hub, repo)


def test_the_check_of_histories_finds_half_a_set(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    """What the other tests rest on can fail."""
    uninterrupted(hub, ada, tmp_path / "set", 2)
    repo = hub.dataset("ada/uninterrupted")
    files = {name: file for name, file in repo.head.files.items() if "00001" not in name}
    hub.shelf.commit(repo, "main", files, ("half", "", "ada"))
    with pytest.raises(AssertionError):
        check_history(hub, repo)
