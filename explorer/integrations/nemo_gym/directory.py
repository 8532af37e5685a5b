"""Staged calls as files: one folder a rollout, one JSON file a call.

Owns: the files, their durability, that a file is written once.
Must not know: what is staged, who asks.

A call is written beside its place, synced, and then linked to its name, so a reader sees the
whole file or none, and a second writer of the same call cannot replace it. No lock is held:
any number of threads and processes may stage and fetch at once. The folder's file system must
have hard links.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from explorer.custody.fields import dump, loads
from explorer.custody.records import (
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
)
from explorer.integrations.nemo_gym.keys import key_of, parts_of

SUFFIX = ".json"
_PRIVATE = 0o600
_MOST_KNOWN = 100_000


class DirectorySink:
    """A `StagingSink` and `StagingSource` over a folder.

    Args:
        root: made when it is not there.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)
        # Folders whose entry in the root is durable as far as this process knows.
        self._durable: set[str] = set()

    def stage(
        self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None
    ) -> StageResult:
        """As `StagingSink.stage`.

        Raises:
            TypeError: attachments; a file has no place for them.
            OSError: the file cannot be written.
        """
        if attachments:
            raise TypeError("a folder of staged calls takes no attachments")
        key = key_of(record)
        path = self._path(key)
        data = dump(record.to_json()).encode()
        self._make_folder(path.parent)
        beside = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            _write(beside, data)
            os.link(beside, path)
        except FileExistsError:
            if path.read_bytes() != data:
                return StageResult(ok=False, error=f"another call is stored under {key}")
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
        _sync_folder(path.parent)
        return StageResult(ok=True, staging_key=key)

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """As `StagingSource.fetch`.

        Raises:
            LookupError: a key is not there, or another call lies in its place.
            RecordError: a file is damaged.
        """
        return [self._one(key) for key in staging_keys]

    def _make_folder(self, folder: Path) -> None:
        """Made by whoever comes first; each process syncs it itself, since whoever made it may
        not have come to that yet."""
        if folder.name in self._durable:
            return
        folder.mkdir(exist_ok=True)
        _sync_folder(self._root)
        if len(self._durable) >= _MOST_KNOWN:
            self._durable.clear()
        self._durable.add(folder.name)

    def _one(self, key: str) -> StagedCallRecord:
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(f"no staged call {key}") from None
        record = StagedCallRecord.parse(loads(data))
        if key_of(record) != key:
            raise LookupError(f"{key_of(record)} lies in place of {key}")
        return record

    def _path(self, key: str) -> Path:
        rollout, call = parts_of(key)
        return self._root / rollout / (call + SUFFIX)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
