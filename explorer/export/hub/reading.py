"""Files on their way up: read in pieces, counted, stopped, opened late.

Owns: reading a file for an upload, and its digests.
Must not know: where it goes.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from explorer.export.hub.target import Listener, go_on

_PIECE = 1 << 20


class Account:
    """How much is done, told at every megabyte and at the end of each file."""

    def __init__(self, listener: Listener, phase: str, of: int) -> None:
        self._listener, self._phase, self._of = listener, phase, of
        self._before, self._file, self._told = 0, 0, -1
        self._tell(end=True)

    def at(self, offset: int) -> None:
        """So far into the present file; a repeated upload begins at its start again."""
        self._file = offset
        self._tell(end=False)

    def done(self, size: int) -> None:
        """A file is done, sent or not."""
        self._before += size
        self._file = 0
        self._tell(end=True)

    def _tell(self, end: bool) -> None:
        done = self._before + self._file
        if done != self._told and (end or abs(done - self._told) >= _PIECE):
            self._told = done
            self._listener(self._phase, done, self._of)


class Reading(io.BufferedIOBase):
    """A local file for the library, open only while it is read.

    The library sends a file object by HTTP, piece by piece; of a path it would know better
    ways, which can neither be watched nor stopped.
    """

    def __init__(
        self, path: Path, stop: threading.Event, heard: Callable[[int], None] | None = None
    ) -> None:
        self._path, self._stop, self._heard = path, stop, heard
        self._size = path.stat().st_size
        self._at = 0
        self._file: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        go_on(self._stop)
        if self._file is None:
            self._file = self._path.open("rb")
        self._file.seek(self._at)
        piece = self._file.read(-1 if size is None else size)
        self._at += len(piece)
        if self._heard is not None:
            self._heard(self._at)
        if self._at >= self._size:
            self.rest()
        return piece

    def rest(self) -> None:
        """From the start again, and closed until then."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rewind(self) -> None:
        """Back to the start."""
        self.rest()
        self._at = 0

    def close(self) -> None:
        self.rest()
        super().close()


@dataclass(frozen=True, slots=True)
class Digests:
    """A file's names by content: SHA-256, and the blob that git would keep."""

    size: int
    sha256: str
    git: str


def digests(path: Path, stop: threading.Event) -> Digests:
    """Both, in one reading."""
    size = path.stat().st_size
    plain, blob = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    blob.update(b"blob %d\0" % size)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            go_on(stop)
            plain.update(piece)
            blob.update(piece)
    return Digests(size, plain.hexdigest(), blob.hexdigest())


def digests_of(content: bytes) -> Digests:
    """The same of bytes."""
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return Digests(len(content), hashlib.sha256(content).hexdigest(), blob.hexdigest())
