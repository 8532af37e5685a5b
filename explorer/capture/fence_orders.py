"""What a trainer may say about the weights, checked already.

Owns: these two orders. Must not know: JSON, what is done about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from explorer.capture.fence import Drain


@dataclass(frozen=True, slots=True)
class SyncOrder:
    """A trainer is about to change the weights."""

    coming: int
    lease_s: float
    drain: Drain
    wait_s: float


@dataclass(frozen=True, slots=True)
class ReadyOrder:
    """The engine has new weights, or is to load them now."""

    version: int
    label: str | None = None
    path: Path | None = None
