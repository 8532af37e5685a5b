"""What happens to a call (events) and what must be done about it (commands).

Owns: the vocabulary between the sans-IO `exchange` and whatever drives it.
Must not know: sockets, engines' clients, the store's threads.

Every event carries ``time_us``, so that the exchange never reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.engine.protocol import EngineReply, EngineRequest
from explorer.errors import EngineMalformed, EngineTimeout, UpstreamFailed
from explorer.records import Admission, Body, Call, FailureKind


@dataclass(frozen=True, slots=True)
class Received:
    """The request body has arrived whole."""

    time_us: int
    raw: bytes
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EngineAnswered:
    """The engine gave a whole reply, of any status."""

    time_us: int
    reply: EngineReply


@dataclass(frozen=True, slots=True)
class EngineBroke:
    """The engine gave none."""

    time_us: int
    kind: FailureKind
    detail: str


def broke(time_us: int, error: UpstreamFailed) -> EngineBroke:
    """How the engine client's `error` ends a call."""
    kind = FailureKind.UPSTREAM_UNREACHABLE
    if isinstance(error, EngineTimeout):
        kind = FailureKind.UPSTREAM_TIMEOUT
    elif isinstance(error, EngineMalformed):
        kind = FailureKind.UPSTREAM_MALFORMED
    return EngineBroke(time_us, kind, error.message)


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """The harness closed its connection."""

    time_us: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time asked for by `WakeAfter` is over."""

    time_us: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The commit that was asked for is durable."""

    time_us: int


@dataclass(frozen=True, slots=True)
class StoreBroke:
    """The commit that was asked for did not happen."""

    time_us: int
    detail: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The server is going down."""

    time_us: int


Event = (
    Received
    | EngineAnswered
    | EngineBroke
    | ClientLeft
    | TimerFired
    | Stored
    | StoreBroke
    | Stopping
)


@dataclass(frozen=True, slots=True)
class Admit:
    """Queue the admission row; do not wait for it."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class Ask:
    """Start the generation; answer with `EngineAnswered` or `EngineBroke`."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class CancelEngine:
    """Abort the generation; no engine event follows."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the call durably; answer with `Stored` or `StoreBroke`."""

    call: Call
    bodies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class StartReply:
    """Send the status line and headers."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes of the reply; the last has ``more`` False."""

    data: bytes
    more: bool


@dataclass(frozen=True, slots=True)
class WakeAfter:
    """Answer with `TimerFired` in so many seconds (replaces an earlier timer)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """The call's life is over; no further event is taken."""


Command = Admit | Ask | CancelEngine | Commit | StartReply | Send | WakeAfter | Done
