"""A reply that is passed on while the engine still samples it.

Owns: reading the engine's stream, what of it may be shown at once, and what it makes when
it has ended.
Must not know: the harness's dialect, the store.

Only text and reasoning are shown early. Tool calls, the finish reason and usage follow the
commit, so that nothing is acted upon that is not on record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from explorer.engine.protocol import EngineReply
from explorer.engine.reply import ParsedReply, read_completion
from explorer.errors import EngineMalformed
from explorer.records import FailureKind, Note
from explorer.wire import chat, sse

_HEADERS = (("content-type", "text/event-stream"),)


class LiveReply:
    """Collects one streamed completion.

    Args:
        event_limit: most bytes that one event may take (bytes).
    """

    def __init__(self, event_limit: int = sse.DEFAULT_EVENT_LIMIT) -> None:
        self._decoder = sse.Decoder(event_limit)
        self._events: list[sse.Event] = []
        self._raw: list[bytes] = []
        self.shown = False

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """What `chunk` completed and may be shown: (reasoning, text) pieces.

        Raises:
            EngineMalformed: an event is larger than the limit.
        """
        self._raw.append(chunk)
        events = self._decoder.feed(chunk)
        self._events += events
        pieces = [piece for event in events if (piece := _piece(event.data)) is not None]
        self.shown = self.shown or bool(pieces)
        return pieces

    @property
    def reply(self) -> EngineReply:
        """The engine's bytes as they came."""
        return EngineReply(200, _HEADERS, b"".join(self._raw))

    def parsed(self, max_tokens: int | None) -> ParsedReply:
        """What the stream says as a whole; a stream that is not whole has a `failure`."""
        try:
            merged = chat.merge_stream(self._events)
        except EngineMalformed as error:
            return ParsedReply(
                failure=FailureKind.UPSTREAM_MALFORMED, failure_detail=error.message
            )
        complete = merged.pop("_complete", False)
        error_event = merged.pop("_error", None)
        unpaired = merged.pop("_unpaired", False)
        if not merged["choices"]:
            failure = FailureKind.FAILED_MIDSTREAM if error_event else FailureKind.INCOMPLETE
            return ParsedReply(failure=failure, failure_detail=_why(error_event))
        parsed = read_completion(merged, max_tokens=max_tokens)
        if unpaired:
            note = Note("logprob_misalign", "ids and logprobs came in different events")
            parsed = replace(parsed, notes=(*parsed.notes, note))
        if error_event is not None:
            return replace(
                parsed,
                failure=FailureKind.FAILED_MIDSTREAM,
                failure_detail=_why(error_event),
            )
        if not complete or parsed.finish_reason is None:
            return replace(parsed, failure=FailureKind.INCOMPLETE, failure_detail=_why(None))
        return parsed


def _why(error: Any) -> str:
    if error is None:
        return "the engine's stream ended without its final chunk and [DONE]"
    message = error.get("message") if isinstance(error, dict) else error
    return f"the engine broke off its stream: {message}"[:500]


def _piece(data: str) -> tuple[str, str] | None:
    """Reasoning and text of one event's first choice; None when it adds neither."""
    if data == "[DONE]":
        return None
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(delta, dict):
        return None
    if choice.get("index") not in (None, 0):
        return None  # another choice than the one that is read
    reasoning = delta.get("reasoning")
    text = delta.get("content")
    piece = (
        reasoning if isinstance(reasoning, str) else "",
        text if isinstance(text, str) else "",
    )
    return piece if any(piece) else None
