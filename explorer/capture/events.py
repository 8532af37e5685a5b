"""What happens to a call (events) and what must be done about it (commands).

Owns: the vocabulary between the sans-IO `exchange` and whatever drives it.
Must not know: sockets, engines' clients, the store's threads.

Every event carries ``time_us``, so that the exchange never reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer.custody.admission import Served
from explorer.custody.records import CaptureAdmission
from explorer.engine.protocol import EngineReply, EngineRequest
from explorer.engine.suffix import Extend as ExtendRequest
from explorer.engine.suffix import Extension
from explorer.errors import EngineMalformed, EngineTimeout, ExplorerError, UpstreamFailed
from explorer.records import Admission, Body, Call, FailureKind
from explorer.wire.neutral import Earlier

Labels = tuple[str | None, str | None]
NO_LABELS: Labels = (None, None)


@dataclass(frozen=True, slots=True)
class Received:
    """The request body has arrived whole."""

    time_us: int
    raw: bytes
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EngineAnswered:
    """The engine gave a whole reply, of any status; `labels` are what it called its weights
    before and after."""

    time_us: int
    reply: EngineReply
    labels: Labels = NO_LABELS


@dataclass(frozen=True, slots=True)
class Recalled:
    """The earlier calls that `Recall` asked for; those that do not exist are missing."""

    time_us: int
    earlier: dict[str, Earlier]


@dataclass(frozen=True, slots=True)
class Counted:
    """The length of the prompt that `CountPrompt` asked for (tokens)."""

    time_us: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Extended:
    """The ids that `Extend` asked for, or why there are none."""

    time_us: int
    found: Extension


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """Some bytes of a live stream (`Ask.live`)."""

    time_us: int
    data: bytes


@dataclass(frozen=True, slots=True)
class EngineStreamEnded:
    """A live stream has ended, well or not; its own events say which. `labels` as above."""

    time_us: int
    labels: Labels = NO_LABELS


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


@dataclass(frozen=True, slots=True)
class Authorised:
    """Whether the call that `Authorise` asked about may be captured; `broken` says why nobody
    can tell."""

    time_us: int
    admission: CaptureAdmission | None
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The ledger holds what `Settle` told it."""

    time_us: int


@dataclass(frozen=True, slots=True)
class LetIn:
    """The fence is open again, for which `AwaitFence` waited."""

    time_us: int


@dataclass(frozen=True, slots=True)
class ShutOut:
    """The fence stayed shut for as long as a call may wait, or the rollout was closed
    meanwhile."""

    time_us: int
    error: ExplorerError


Event = (
    Received
    | Recalled
    | Counted
    | Extended
    | EngineAnswered
    | EngineChunk
    | EngineStreamEnded
    | EngineBroke
    | ClientLeft
    | TimerFired
    | Stored
    | StoreBroke
    | Stopping
    | Authorised
    | Settled
    | LetIn
    | ShutOut
)


@dataclass(frozen=True, slots=True)
class Admit:
    """Queue the admission row; do not wait for it."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class Recall:
    """Read earlier calls of this rollout; answer with `Recalled`."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountPrompt:
    """Let the engine count this body's prompt; answer with `Counted`."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Extend:
    """Tokenise what a conversation adds to an earlier call; answer with `Extended`."""

    wanted: ExtendRequest


@dataclass(frozen=True, slots=True)
class Ask:
    """Start the generation; answer with `EngineAnswered` or `EngineBroke`. When `live`,
    with `EngineChunk` as they come and then `EngineStreamEnded`, or as before when the
    engine refuses to stream."""

    request: EngineRequest
    live: bool = False


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
class Authorise:
    """Ask the ledger of external custody; answer with `Authorised`. `items` are None where the
    conversation has no form by which it could be found."""

    items: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell that ledger how an admitted call ended; answer with `Settled` or `StoreBroke`.
    `served` is None where no reply of the engine is served."""

    admission: CaptureAdmission
    coordinates: Any
    served: Served | None


@dataclass(frozen=True, slots=True)
class AwaitFence:
    """New weights are being loaded; answer with `LetIn` or `ShutOut`."""


@dataclass(frozen=True, slots=True)
class Done:
    """The call's life is over; no further event is taken."""


Command = (
    Admit
    | Recall
    | CountPrompt
    | Extend
    | Ask
    | CancelEngine
    | Commit
    | StartReply
    | Send
    | WakeAfter
    | Done
    | Authorise
    | Settle
    | AwaitFence
)
