"""The free-space guard: no new work is taken when the disk is nearly full.

Owns: the margin and the cached measurement. Must not know: what is refused.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from explorer.errors import StoreFailed

_REFRESH_S = 0.5


class SpaceGuard:
    """Compares free bytes with ``margin`` + 2 x WAL (a checkpoint may need both)."""

    def __init__(self, path: Path, wal_path: Path, min_free_bytes: int) -> None:
        self._path = path
        self._wal_path = wal_path
        self._min_free = min_free_bytes
        self._checked = float("-inf")
        self.free_bytes = 0
        self.wal_bytes = 0

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._checked < _REFRESH_S:
            return
        self._checked = now
        stats = os.statvfs(self._path.parent)
        self.free_bytes = stats.f_bavail * stats.f_frsize
        try:
            self.wal_bytes = os.stat(self._wal_path).st_size
        except FileNotFoundError:
            self.wal_bytes = 0

    @property
    def short(self) -> bool:
        """Whether new work must be refused now."""
        self._measure()
        return self.free_bytes < self._min_free + 2 * self.wal_bytes

    def require(self) -> None:
        """Raise `StoreFailed` when new work must be refused."""
        if self.short:
            raise StoreFailed(
                f"only {self.free_bytes} bytes are free beside the store; nothing new is "
                "admitted below ROLLOUT_EXPLORER_MIN_FREE_BYTES "
                f"({self._min_free}) plus twice the write-ahead log",
                free_bytes=self.free_bytes,
            )
