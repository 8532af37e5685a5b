"""How far long work is, in a terminal or in a log.

Owns: one line that is written over where somebody looks, a line now and then elsewhere.
Must not know: the work.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

_WIDTH = 30
_EVERY_S = 0.2
_SILENT_S = 10.0


@dataclass(slots=True)
class Phase:
    """What is done now.

    Attributes:
        words: what it is called.
        unit: of what is counted; `bytes` are shown in MB.
    """

    words: str
    unit: str
    _told: float = field(default_factory=time.monotonic)
    _open: bool = False

    def told(self, done: int, of: int) -> None:
        """`done` of `of` is done."""
        live = sys.stderr.isatty()
        now = time.monotonic()
        last = done >= of
        if not last and now - self._told < (_EVERY_S if live else _SILENT_S):
            return
        if last and not self._open:
            # It was over before anybody could have asked.
            return
        self._told = now
        self._open = not last
        line = f"{self.words:<9}{_bar(done, of) if live else ''}{self._count(done, of)}"
        sys.stderr.write(f"\r{line}\x1b[K" if live else f"{line}\n")
        if live and last:
            sys.stderr.write("\n")
        sys.stderr.flush()

    def _count(self, done: int, of: int) -> str:
        if self.unit == "bytes":
            return f"{done / 1e6:.1f} of {of / 1e6:.1f} MB"
        return f"{done} of {of} {self.unit}"


def _bar(done: int, of: int) -> str:
    full = _WIDTH * done // max(of, 1)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}] "
