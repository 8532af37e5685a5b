"""Anthropic Messages: the served message, its errors, and the dialect's door.

Owns: which block shows which part of a reply, stop reasons, usage and error words.
Must not know: engines, the store, the clock.

Requests are read in `messages_request`, streams written in `messages_stream`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from explorer.records import ABORTS, Dialect
from explorer.wire import messages_request, messages_stream, sse
from explorer.wire.echo import arguments_shown, sign
from explorer.wire.ids import tool_call_id
from explorer.wire.jsonbytes import encode
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import CONTEXT_OVERFLOW, ENDED, Refusal, Streamer, WireError
from explorer.wire.replyview import chosen, counts, reasoning_of, tool_calls_of

DIALECT = Dialect.MESSAGES
ID_PREFIX = "msg_"

parse_request = messages_request.parse_request

_ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def serve(reply: Mapping[str, Any], request: NeutralRequest, call_id: str) -> dict[str, Any]:
    """The message that the caller reads: reasoning, text, then calls."""
    choice, message = chosen(reply)
    blocks: list[dict[str, Any]] = []
    reasoning = reasoning_of(message)
    if reasoning:
        # A client refuses a thinking block without a signature, and echoes ours.
        shown = reasoning if _thinking_shown(request) else ""
        blocks.append({"type": "thinking", "thinking": shown, "signature": sign(reasoning)})
    text = message.get("content")
    if isinstance(text, str) and text:
        blocks.append({"type": "text", "text": text})
    for place, call in enumerate(tool_calls_of(message)):
        blocks.append(
            {
                "type": "tool_use",
                "id": call.id or tool_call_id(call_id, place),
                "name": call.name,
                "input": arguments_shown(call.arguments),
            }
        )
    called = any(block["type"] == "tool_use" for block in blocks)
    stop_reason, stop_sequence = _stop(choice, called, request.asked.get("stop_sequences"))
    model = reply.get("model")
    return {
        "id": ID_PREFIX + call_id,
        "type": "message",
        "role": "assistant",
        "model": model if isinstance(model, str) else request.model or "",
        "content": blocks,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": _usage(reply),
    }


def _thinking_shown(request: NeutralRequest) -> bool:
    thinking = request.asked.get("thinking")
    return not (isinstance(thinking, dict) and thinking.get("display") == "omitted")


def _stop(
    choice: Mapping[str, Any], called: bool, sequences: Any
) -> tuple[str | None, str | None]:
    finish = choice.get("finish_reason")
    if not isinstance(finish, str) or finish in ABORTS:
        return None, None
    if finish == "length":
        return "max_tokens", None
    if called or finish == "tool_calls":
        return "tool_use", None
    if finish == "content_filter":
        return "refusal", None
    stopped = choice.get("stop_reason")
    if isinstance(stopped, str) and isinstance(sequences, list) and stopped in sequences:
        return "stop_sequence", stopped
    return "end_turn", None


def _usage(reply: Mapping[str, Any]) -> dict[str, int]:
    told = counts(reply)
    return {
        "input_tokens": told.prompt - told.cached,
        "output_tokens": told.completion,
        "cache_read_input_tokens": told.cached,
        "cache_creation_input_tokens": 0,
    }


def encode_reply(served: Mapping[str, Any]) -> bytes:
    """The served message as JSON.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    return encode(served)


def streamer(
    request: NeutralRequest, call_id: str, model: str
) -> messages_stream.MessagesStreamer:
    """A stream of the reply to `request`."""
    return messages_stream.MessagesStreamer(
        ID_PREFIX + call_id, model, _thinking_shown(request)
    )


def merge_stream(events: Iterable[sse.Event]) -> dict[str, Any]:
    """The message that a client reads from a stream."""
    return messages_stream.merge(events)


def count_reply(tokens: int) -> bytes:
    """The answer of ``count_tokens``."""
    return orjson.dumps({"input_tokens": tokens})


def _error_object(status: int, error: WireError) -> dict[str, Any]:
    message = error.message
    if error.code == CONTEXT_OVERFLOW:
        # The words by which agents know that they must shorten the conversation.
        known = error.prompt_tokens is not None and error.limit_tokens is not None
        numbers = f": {error.prompt_tokens} tokens > {error.limit_tokens} maximum"
        message = "prompt is too long" + (numbers if known else "")
    usual = "api_error" if status >= 500 else "invalid_request_error"
    return {"type": _ERROR_TYPES.get(status, usual), "message": message}


def refusal(error: WireError) -> Refusal:
    """The error as a whole reply; after the end of a rollout with the status that stops
    this dialect's clients at once."""
    status = error.status
    if error.code in ENDED:
        status = 403
    elif error.code == CONTEXT_OVERFLOW:
        status = 400
    told = {"type": "error", "error": _error_object(status, error), "request_id": None}
    return Refusal(status, encode(told))


def error_event(error: WireError, begun: Streamer | None = None) -> bytes:
    """The error inside a stream. A fault of the server is worded as a passing one, which
    clients try again."""
    status = 529 if error.status >= 500 else refusal(error).status
    told = {"type": "error", "error": _error_object(status, error)}
    return sse.encode(encode(told), "error")
