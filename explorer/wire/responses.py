"""OpenAI Responses: request bytes in, reply bytes or a stream out.

Owns: the face of this dialect towards the proxy, and its errors inside a stream.
Must not know: engines, the store, the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.records import Dialect
from explorer.wire import openai_errors, sse
from explorer.wire.jsonbytes import encode, read_object
from explorer.wire.neutral import Earlier, NeutralRequest
from explorer.wire.protocol import CONTEXT_OVERFLOW, PLAIN, Streamer, Target, WireError
from explorer.wire.responses_reply import response_object
from explorer.wire.responses_request import read_request
from explorer.wire.responses_stream import ResponsesStreamer
from explorer.wire.responses_stream import merge_stream as merge_stream

DIALECT = Dialect.RESPONSES
ID_PREFIX = "resp_"
# Behind every number of a stream; an error does not know how far its stream came.
_LAST = 2**31 - 1


def parse_request(
    raw: bytes, target: Target = PLAIN, earlier: Mapping[str, Earlier] | None = None
) -> NeutralRequest:
    """The caller's request; `target` says nothing here.

    Raises:
        BadRequest: it cannot be understood, or names a reply that `earlier` lacks.
    """
    return read_request(read_object(raw), earlier)


def serve(reply: Mapping[str, Any], request: NeutralRequest, call_id: str) -> dict[str, Any]:
    """The reply as a Response object.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    return response_object(reply, request, call_id)


def encode_reply(served: Mapping[str, Any]) -> bytes:
    """The Response as JSON.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    return encode(served)


def streamer(request: NeutralRequest, call_id: str, model: str) -> ResponsesStreamer:
    """A stream of the reply to `request`."""
    return ResponsesStreamer(request, call_id, model)


refusal = openai_errors.refusal


def count_reply(tokens: int) -> bytes:
    """The answer to ``POST /v1/responses/input_tokens``."""
    return encode({"object": "response.input_tokens", "input_tokens": tokens})


def error_event(error: WireError, begun: Streamer | None = None) -> bytes:
    """A Response that failed.

    The code decides what Codex does: it tries again after ``server_error``, and gives up
    after ``invalid_prompt`` and also after ``server_is_overloaded``. Pi looks for words.
    """
    told = openai_errors.error_object(error)
    message = told["message"]
    if error.status >= 500:
        code = "server_error"
        message = f"{error.status} service overloaded, try again: {message}"
    elif error.status == 429:
        code = "rate_limit_exceeded"
    elif error.code == CONTEXT_OVERFLOW:
        code = CONTEXT_OVERFLOW
    else:
        code = "invalid_prompt"
    number = begun.number if isinstance(begun, ResponsesStreamer) else _LAST
    response = {
        "id": ID_PREFIX + (begun.call_id if isinstance(begun, ResponsesStreamer) else "failed"),
        "object": "response",
        "created_at": 0,
        "status": "failed",
        "error": {"code": code, "message": message, "param": error.param},
        "incomplete_details": None,
        "model": "",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    event = {"type": "response.failed", "sequence_number": number, "response": response}
    return sse.encode(encode(event), "response.failed")
