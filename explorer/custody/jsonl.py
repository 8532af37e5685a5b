"""The ledger as files: one `<rollout>.lineage.jsonl` a rollout, shared by processes.

Owns: the files, their locks, their durability, the repair of a torn last line.
Must not know: what rows mean.

A row is one line that is written, flushed and synced before the call returns. A last line
without its end was never acknowledged, so whoever uses the file next cuts it off. If only the
line's end is missing, the row is whole: it is kept and its end is added.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from explorer.custody.errors import LedgerError, RecordError
from explorer.custody.fields import dump, loads
from explorer.custody.ledger import (
    IndexedLedger,
    LedgerIndex,
    checked_rollout_id,
)

SUFFIX = ".lineage.jsonl"
LOCK_SUFFIX = ".tokens.lock"
CACHED_ROLLOUTS = 256
MARK_BYTES = 256

_PRIVATE = 0o600


@dataclass
class _Cached:
    """What was read of one file, and up to which byte."""

    index: LedgerIndex
    inode: int = 0
    offset: int = 0
    lines: int = 0
    # What stands before `offset`: a file made anew may get the old one's inode.
    mark: bytes = b""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self, rollout_id: str, inode: int = 0) -> None:
        """Forgets what was read."""
        self.index = LedgerIndex(rollout_id)
        self.inode, self.offset, self.lines, self.mark = inode, 0, 0, b""

    def advance(self, line: bytes) -> None:
        """One more line was taken in, `line` with its end."""
        self.offset += len(line)
        self.lines += 1
        self.mark = line[-MARK_BYTES:]


class JsonlLedger(IndexedLedger):
    """A `CaptureLedger` over a directory."""

    def __init__(self, root: str | Path, cached_rollouts: int = CACHED_ROLLOUTS) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)
        self._limit = cached_rollouts
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._cache_lock = threading.Lock()

    def path_of(self, rollout_id: str) -> Path:
        """The file of a rollout.

        Raises:
            LedgerError: an id that cannot be a file's name.
        """
        return self._root / f"{checked_rollout_id(rollout_id)}{SUFFIX}"

    def _append(self, rollout_id: str, row: Mapping[str, Any]) -> None:
        with self._current(rollout_id) as cached:
            if not cached.index.accepts(row):
                return
            path = self.path_of(rollout_id)
            line = dump(row).encode() + b"\n"
            try:
                cached.inode = self._write(path, cached.offset, line)
            except OSError as error:
                # What lies in the file is not known: the next use reads it again.
                cached.reset(rollout_id)
                raise LedgerError("ledger_unwritable", f"{path.name}: {error}") from error
            cached.index.add(row)
            cached.advance(line)

    def _write(self, path: Path, offset: int, line: bytes) -> int:
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE)
        with os.fdopen(descriptor, "r+b") as file:
            file.seek(offset)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            inode = os.fstat(file.fileno()).st_ino
        if is_new:
            _sync_directory(self._root)
        return inode

    @contextmanager
    def _current(self, rollout_id: str) -> Iterator[_Cached]:
        """The rollout's rows as the file has them now, with the file locked."""
        path = self.path_of(rollout_id)
        cached = self._cached(rollout_id)
        lock_path = self._root / f"{rollout_id}{LOCK_SUFFIX}"
        with cached.lock:
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, _PRIVATE)
            except OSError as error:
                raise LedgerError("ledger_unreadable", f"{lock_path.name}: {error}") from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._refresh(rollout_id, path, cached)
                yield cached
            finally:
                os.close(lock)

    def _cached(self, rollout_id: str) -> _Cached:
        with self._cache_lock:
            if rollout_id not in self._cache:
                self._cache[rollout_id] = _Cached(LedgerIndex(rollout_id))
            self._cache.move_to_end(rollout_id)
            while len(self._cache) > self._limit:
                self._cache.popitem(last=False)
            return self._cache[rollout_id]

    def _refresh(self, rollout_id: str, path: Path, cached: _Cached) -> None:
        """Takes in what other processes have added; the whole file if it is another one."""
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                file.seek(cached.offset - len(cached.mark))
                data = file.read()
                if found.st_ino != cached.inode or not data.startswith(cached.mark):
                    cached.reset(rollout_id, found.st_ino)
                    file.seek(0)
                    data = file.read()
            data = data[len(cached.mark) :]
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                data = _repaired(path, cached.offset, data, whole)
        except FileNotFoundError:
            cached.reset(rollout_id)
            return
        except OSError as error:
            raise LedgerError("ledger_unreadable", f"{path.name}: {error}") from error
        for line in data.split(b"\n")[:-1]:
            cached.advance(line + b"\n")
            try:
                cached.index.add(loads(line))
            except RecordError as error:
                where = f"{path.name}, line {cached.lines}"
                cached.reset(rollout_id)
                raise LedgerError("damaged_ledger", f"{where}: {error.detail}") from error


def _repaired(path: Path, offset: int, data: bytes, whole: int) -> bytes:
    """Ends the last line of the file if it is a row, else cuts it off; what is whole then.

    `data` is what the file holds from `offset` on, `whole` how much of it is ended lines. The
    file is locked, so nobody is writing the line.
    """
    try:
        is_row = isinstance(loads(data[whole:]), dict)
    except RecordError:
        is_row = False
    with path.open("r+b") as file:
        if is_row:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        else:
            file.truncate(offset + whole)
        file.flush()
        os.fsync(file.fileno())
    return data + b"\n" if is_row else data[:whole]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
