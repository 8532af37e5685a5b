"""A folder of this machine as a target: the same promises, kept with renames and a lock.

Owns: the order in which files appear in a folder, and that two publishers do not mix.
Must not know: how a dataset is made, any network.

A state is named by the digest of its manifest. A data file appears whole or not at all and is
never replaced; the manifest and then the card replace the old ones when all data is there.
Between these two renames the card is that of the state before: it names less than is there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from explorer.errors import HeadMoved, HubConflict, HubNotFound, HubRefused
from explorer.export.hub.ours import is_ours, named_files
from explorer.export.hub.reading import Account, digests
from explorer.export.hub.target import (
    CARD,
    MANIFEST,
    Head,
    Listener,
    Published,
    Upload,
    go_on,
    withdrawn_card,
)

_ARRIVING = ".arriving"
_PIECE = 1 << 20


@contextmanager
def _told(what: str) -> Iterator[None]:
    """The disk's failures in our words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HubRefused(f"could not {what}: the disk is full") from error
        raise HubRefused(
            f"could not {what}: {error.strerror or type(error).__name__}"
        ) from error


@dataclass
class LocalFolder:
    """A folder; see `Target`. A private one is for its owner only."""

    folder: Path
    private: bool = True
    title: str = field(init=False)

    def __post_init__(self) -> None:
        self.title = f"the folder {self.folder}"

    def prepare(self) -> None:
        """Makes it; refuses one that holds something else."""
        with _told(f"make {self.title}"):
            self.folder.mkdir(
                mode=0o700 if self.private else 0o777, parents=True, exist_ok=True
            )
        manifest = self.head().manifest
        foreign = sorted(
            name for name in self._names() if name != CARD and not name.endswith(_ARRIVING)
        )
        if manifest is not None and not is_ours(manifest):
            raise HubConflict(
                f"{self.title} has a {MANIFEST} that is none of ours; choose another"
            )
        if manifest is None and foreign and not self._begun_by_us():
            raise HubConflict(
                f"{self.title} holds something else ({ascii(foreign[0])[:80]} for one), and "
                "nothing is written over; choose another folder"
            )

    @property
    def _begun(self) -> Path:
        return self.folder / f".rollout-explorer{_ARRIVING}"

    def _begun_by_us(self) -> bool:
        """Whether a publishing of ours did not come to its end here."""
        return self._begun.exists()

    def head(self) -> Head:
        """What is there now."""
        with _told(f"read {self.title}"):
            try:
                manifest = (self.folder / MANIFEST).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return Head(None, None)
        return Head(hashlib.sha256(manifest).hexdigest(), manifest)

    def fetch(self, path: str, to: Path) -> None:
        """One file of what is there."""
        source = self._inside(path)
        if not source.is_file():
            raise HubNotFound(f"{self.title} has no {path}")
        with _told(f"read {path} of {self.title}"):
            shutil.copyfile(source, to)

    def _inside(self, path: str) -> Path:
        parts = PurePosixPath(path).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise HubRefused(f"{path!r} is no file of a dataset")
        return self.folder.joinpath(*parts)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else publishes here. The folder itself is locked: no file stays behind."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise HubConflict(
                    f"somebody else is publishing to {self.title} now; publish again when they "
                    "are done"
                ) from error
            yield
        finally:
            os.close(descriptor)

    def put(
        self, upload: Upload, head: Head, listener: Listener, stop: threading.Event
    ) -> Published:
        """Data files, manifest, card; see the module."""
        if not self.folder.is_dir():
            raise HubNotFound(f"{self.title} is not there; it was to be made before")
        with _told(f"publish to {self.title}"), self._alone():
            if self.head().revision != head.revision:
                raise HeadMoved(f"{self.title} changed since it was looked at; plan again")
            wanted = self._planned(upload, stop)
            missing = [name for name, there in wanted.items() if not there]
            account = Account(listener, "uploading", sum(map(upload.size, wanted)))
            if missing:
                for left in self.folder.rglob(f".*{_ARRIVING}"):
                    left.unlink()
                self._begun.touch()
            for name, there in wanted.items():
                if not there:
                    self._copy(upload.folder / name, self._inside(name), stop, account)
                account.done(upload.size(name))
            self._begun.unlink(missing_ok=True)
            _to_disk(self.folder)
        return Published(
            url=self.folder.resolve().as_uri(),
            revision=self.head().revision,
            uploaded=len(missing),
            skipped=len(wanted) - len(missing),
            bytes=sum(map(upload.size, missing)),
        )

    def _planned(self, upload: Upload, stop: threading.Event) -> dict[str, bool]:
        """By file, in order, whether it is there already.

        Raises:
            HubConflict: one would be written over.
        """
        planned = {}
        for name in upload.names:
            there = self._inside(name)
            same = there.exists() and digests(there, stop) == digests(
                upload.folder / name, stop
            )
            if there.exists() and not same and name not in upload.last:
                raise HubConflict(
                    f"{self.title} has another file of the name {name}, and nothing is written "
                    "over"
                )
            planned[name] = same
        return planned

    @staticmethod
    def _copy(source: Path, there: Path, stop: threading.Event, account: Account) -> None:
        there.parent.mkdir(parents=True, exist_ok=True)
        beside = there.with_name(f".{there.name}{_ARRIVING}")
        with source.open("rb") as old, beside.open("wb") as new:
            while piece := old.read(_PIECE):
                go_on(stop)
                new.write(piece)
                account.at(new.tell())
            new.flush()
            os.fsync(new.fileno())
        os.replace(beside, there)
        _to_disk(there.parent)

    def remove(self, reason: str, whole: bool) -> None:
        """Deletes what its manifest names, and nothing else; a folder keeps no revisions."""
        manifest = self.head().manifest
        if whole and manifest is None and self._names() <= {CARD, self._begun.name}:
            self._remove_whole()
            return
        if manifest is None or not is_ours(manifest):
            raise HubNotFound(f"{self.title} has no dataset of ours")
        named = [self._inside(name) for name in named_files(manifest)]
        with _told(f"take the dataset out of {self.title}"), self._alone():
            (self.folder / MANIFEST).unlink()
            card = self.folder / CARD
            beside = card.with_name(f".{CARD}{_ARRIVING}")
            beside.write_text(withdrawn_card(reason), encoding="utf-8")
            os.replace(beside, card)
            _to_disk(self.folder)
            for path in named:
                path.unlink(missing_ok=True)
            for parent in {path.parent for path in named} - {self.folder}:
                _drop_if_empty(parent)
        if whole:
            self._remove_whole()

    def _names(self) -> set[str]:
        """What lies in it; nothing where it is not."""
        with _told(f"read {self.title}"):
            return (
                {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
            )

    def _remove_whole(self) -> None:
        if not self.folder.is_dir():
            raise HubNotFound(f"{self.title} is not there")
        with _told(f"delete {self.title}"):
            (self.folder / CARD).unlink(missing_ok=True)
            self._begun.unlink(missing_ok=True)
            _drop_if_empty(self.folder)


def _drop_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def _to_disk(folder: Path) -> None:
    """Renames in it outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
