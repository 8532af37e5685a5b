"""A folder of this machine as a target: the same promises."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from explorer.errors import HeadMoved, HubConflict, HubNotFound, HubRefused, PublishStopped
from explorer.export.hub.folder import LocalFolder
from explorer.export.hub.target import Head, Target
from explorer.export.hub.targets import target_of
from tests.hub.making import NEVER, described, names_of, set_of, unheard

ROOT = Path(__file__).parents[2]


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def folder_target(where: Path, private: bool = True) -> Target:
    return target_of(str(where), token=None, private=private, gated="", endpoint=None)


def test_everything_arrives_and_the_head_is_named_by_the_manifest(tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 2), folder_target(tmp_path / "to")
    target.prepare()
    assert (tmp_path / "to").stat().st_mode & 0o777 == 0o700
    assert target.head() == Head(None, None)
    told: list[tuple[str, int, int]] = []
    published = target.put(upload, target.head(), lambda *said: told.append(said), NEVER)
    assert content(tmp_path / "to") == content(tmp_path / "set")
    manifest = (tmp_path / "set" / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    assert target.head() == Head(digest, manifest)
    assert (published.revision, published.uploaded) == (digest, 4)
    assert published.url == (tmp_path / "to").as_uri()
    assert told[-1][1] == told[-1][2] == published.bytes
    target.fetch(upload.files[0], tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == (tmp_path / "set" / upload.files[0]).read_bytes()
    again = target.put(upload, target.head(), unheard, NEVER)
    assert (again.uploaded, again.skipped, again.bytes) == (0, 4, 0)


def test_appending_leaves_what_was_there(tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 2), folder_target(tmp_path / "to", private=False)
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    before = {name: (tmp_path / "to" / name).stat().st_ino for name in upload.files}
    new = names_of(1, part=3)[0]
    (tmp_path / "set" / new).write_bytes(b"new")
    more = described(tmp_path / "set", (*upload.files, new))
    published = target.put(more, target.head(), unheard, NEVER)
    assert (published.uploaded, published.skipped) == (3, 2)
    after = {name: (tmp_path / "to" / name).stat().st_ino for name in upload.files}
    assert after == before
    assert content(tmp_path / "to") == content(tmp_path / "set")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 2), folder_target(tmp_path / "to")
    target.prepare()
    head = target.head()
    target.put(upload, head, unheard, NEVER)
    before = content(tmp_path / "to")
    with pytest.raises(HeadMoved):
        target.put(upload, head, unheard, NEVER)
    (tmp_path / "set" / upload.files[0]).write_bytes(b"other")
    with pytest.raises(HubConflict, match="another file of the name"):
        target.put(upload, target.head(), unheard, NEVER)
    assert content(tmp_path / "to") == before


def test_of_two_publishers_one_waits_for_nobody_and_is_told(tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 1), folder_target(tmp_path / "to")
    target.prepare()
    other = os.open(tmp_path / "to", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(HubConflict, match="somebody else is publishing"):
            target.put(upload, target.head(), unheard, NEVER)
    finally:
        os.close(other)
    target.put(upload, target.head(), unheard, NEVER)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "thesis.tex").write_text("x")
    with pytest.raises(HubConflict, match=r"thesis\.tex"):
        folder_target(tmp_path / "to").prepare()
    (tmp_path / "to" / "thesis.tex").rename(tmp_path / "to" / "manifest.json")
    with pytest.raises(HubConflict, match="none of ours"):
        folder_target(tmp_path / "to").prepare()
    with pytest.raises(HubRefused, match="could not make the folder"):
        folder_target(tmp_path / "to" / "manifest.json").prepare()
    with pytest.raises(HubNotFound):
        LocalFolder(tmp_path / "none").put(
            set_of(tmp_path / "set", 1), Head(None, None), unheard, NEVER
        )


def test_a_folder_has_no_gate(tmp_path: Path) -> None:
    with pytest.raises(HubRefused, match="no gate"):
        target_of(str(tmp_path), token=None, private=True, gated="manual", endpoint=None)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "", "a/../../b"])
def test_it_is_not_left(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "to").mkdir()
    with pytest.raises(HubRefused, match="no file of a dataset"):
        folder_target(tmp_path / "to").fetch(path, tmp_path / "got")


def test_yank_and_delete_touch_only_what_the_manifest_names(tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 2), folder_target(tmp_path / "to")
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    (tmp_path / "to" / "notes.txt").write_text("mine")
    target.remove("wrong rewards", whole=False)
    assert set(content(tmp_path / "to")) == {"README.md", "notes.txt"}
    assert "    wrong rewards\n" in (tmp_path / "to" / "README.md").read_text()
    with pytest.raises(HubNotFound):
        target.remove("again", whole=False)
    (tmp_path / "to" / "notes.txt").unlink()
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    target.remove("wrong rewards", whole=True)
    assert not (tmp_path / "to").exists()
    for filled in (True, False):
        target.prepare()
        if filled:
            target.put(upload, target.head(), unheard, NEVER)
            target.remove("wrong rewards", whole=False)
        target.remove("wrong rewards", whole=True)
        assert not (tmp_path / "to").exists()
    with pytest.raises(HubNotFound):
        target.remove("again", whole=True)


def test_stopped_it_goes_on(tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 3), folder_target(tmp_path / "to")
    target.prepare()
    stop = threading.Event()

    def heard(phase: str, done: int, of: int) -> None:
        if done:
            stop.set()

    with pytest.raises(PublishStopped):
        target.put(upload, target.head(), heard, stop)
    assert not (tmp_path / "to" / "manifest.json").exists()
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    assert content(tmp_path / "to") == content(tmp_path / "set")


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from explorer.export.hub.folder import LocalFolder
from tests.hub.making import set_of
target = LocalFolder(Path(sys.argv[2]))
target.prepare()
kill = lambda phase, done, of: done > int(sys.argv[3]) and os.kill(os.getpid(), signal.SIGKILL)
upload = set_of(Path(sys.argv[1]), 3, 3_000_000)
target.put(upload, target.head(), kill, threading.Event())
"""


@pytest.mark.parametrize("after", [1_500_000, 3_000_000, 9_000_100])
def test_killed_in_the_middle_the_next_one_makes_the_same_folder(
    tmp_path: Path, after: int
) -> None:
    here, there = tmp_path / "set", tmp_path / "to"
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(here), str(there), str(after)], cwd=ROOT, check=False
    )
    assert run.returncode == -signal.SIGKILL
    assert not (there / "README.md").exists()
    whole = {name for name in content(there) if name.endswith(".parquet")}
    assert all((there / name).read_bytes() == (here / name).read_bytes() for name in whole)
    target = folder_target(there)
    target.prepare()
    target.put(set_of(here, 3, 3_000_000), target.head(), unheard, NEVER)
    assert content(there) == content(here)
