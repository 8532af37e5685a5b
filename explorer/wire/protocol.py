"""What every dialect module offers; each is a module of functions of this shape.

Owns: the `Wire` and `Streamer` protocols and the errors they word.
Must not know: any dialect's bytes.

Between `parse_request` and `serve` stands the neutral form: a chat-completions body, and
a chat completion whose tool calls carry our ids already (`ids.with_our_ids`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from explorer.records import Dialect
from explorer.wire import sse
from explorer.wire.neutral import Earlier, NeutralRequest

# The codes of errors after which a rollout takes no more calls, whoever asks.
ENDED = frozenset(("rollout_closed", "budget_exhausted"))
CONTEXT_OVERFLOW = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Target:
    """What the address says beside the body; only Google's says anything."""

    model: str | None = None
    stream: bool | None = None
    sse: bool = True


PLAIN = Target()


@dataclass(frozen=True, slots=True)
class WireError:
    """An error before a dialect words it.

    Attributes:
        status: HTTP status; a dialect may change it to what its clients obey.
        code: ours, stable (`errors`), or `CONTEXT_OVERFLOW`.
        prompt_tokens, limit_tokens: for `CONTEXT_OVERFLOW`, where they are known.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    prompt_tokens: int | None = None
    limit_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A whole error reply in a dialect."""

    status: int
    body: bytes


class Streamer(Protocol):
    """One reply as server-sent events.

    `live` may be called any number of times before `finish`, with pieces whose
    concatenation begins the final reasoning and text; `finish` sends the rest. Without
    `live`, `finish` alone is the whole stream. Nothing is sent after `finish` or `fail`.
    """

    def live(self, reasoning: str, text: str) -> bytes:
        """Events for a piece that the engine has just sampled; either may be empty."""
        ...

    def finish(self, served: Mapping[str, Any]) -> bytes:
        """Every event that is still missing, the closing ones too."""
        ...


class Wire(Protocol):
    """A dialect."""

    DIALECT: Dialect
    ID_PREFIX: str

    def parse_request(
        self, raw: bytes, target: Target = ..., earlier: Mapping[str, Earlier] | None = ...
    ) -> NeutralRequest:
        """The caller's request.

        Args:
            raw: the body as it came.
            earlier: by call id, what an answer to `NeutralRequest.recall` found; None
                before anything was looked up.

        Raises:
            BadRequest: it cannot be understood; the message says what to change.
        """
        ...

    def serve(
        self, reply: Mapping[str, Any], request: NeutralRequest, call_id: str
    ) -> dict[str, Any]:
        """The caller's view of a chat completion: its dialect, our id, nothing of capture
        that it did not ask for. ``id`` (``responseId`` for Google) is set."""
        ...

    def encode_reply(self, served: Mapping[str, Any]) -> bytes:
        """`served` as one JSON body."""
        ...

    def streamer(self, request: NeutralRequest, call_id: str, model: str) -> Streamer:
        """A stream of the reply to `request`; `model` is the name shown before the reply
        is known."""
        ...

    def merge_stream(self, events: Iterable[sse.Event]) -> dict[str, Any]:
        """What a client reads from our stream: equal to the `served` it was made from."""
        ...

    def count_reply(self, tokens: int) -> bytes:
        """The answer to a question about the length of a prompt."""
        ...

    def refusal(self, error: WireError) -> Refusal:
        """The error with the status and shape that this dialect's clients obey."""
        ...

    def error_event(self, error: WireError, begun: Streamer | None = None) -> bytes:
        """The error inside a stream that has begun, worded so that clients try again where
        that can help; `begun` knows what was sent already."""
        ...
