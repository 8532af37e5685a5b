"""Google generateContent: the served response, its errors, and the dialect's door.

Owns: which part shows which part of a reply, finish reasons, usage, error words, and the
list of models in Google's form.
Must not know: engines, the store, the clock.

Requests are read in `google_request`, streams written in `google_stream`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from explorer.records import ABORTS, Dialect
from explorer.wire import google_request, google_stream, sse
from explorer.wire.echo import arguments_shown, sign_as_bytes
from explorer.wire.google_tools import pick
from explorer.wire.ids import tool_call_id
from explorer.wire.jsonbytes import encode
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import CONTEXT_OVERFLOW, ENDED, Refusal, Streamer, WireError
from explorer.wire.replyview import chosen, counts, reasoning_of, tool_calls_of

DIALECT = Dialect.GOOGLE
ID_PREFIX = ""

parse_request = google_request.parse_request

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    504: "DEADLINE_EXCEEDED",
}


def serve(reply: Mapping[str, Any], request: NeutralRequest, call_id: str) -> dict[str, Any]:
    """The response that the caller reads: thoughts, text, then calls."""
    choice, message = chosen(reply)
    parts: list[dict[str, Any]] = []
    text = message.get("content")
    if isinstance(text, str) and text:
        parts.append({"text": text})
    for place, call in enumerate(tool_calls_of(message)):
        tool_id = call.id or tool_call_id(call_id, place)
        shown = {"id": tool_id, "name": call.name, "args": arguments_shown(call.arguments)}
        parts.append({"functionCall": shown})
    reasoning = reasoning_of(message)
    if reasoning:
        # Gemini CLI throws thoughts away and keeps the signature of what stands behind.
        parts = parts or [{"text": ""}]
        parts[0] = parts[0] | {"thoughtSignature": sign_as_bytes(reasoning)}
        if _thoughts_shown(request):
            parts.insert(0, {"text": reasoning, "thought": True})
    model = reply.get("model")
    candidate = {
        "content": {"role": "model", "parts": parts},
        "finishReason": _finish_reason(choice.get("finish_reason")),
        "index": 0,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(reply),
        "modelVersion": model if isinstance(model, str) else request.model or "",
        "responseId": call_id,
    }


def _thoughts_shown(request: NeutralRequest) -> bool:
    config: Any = request.asked
    for name in ("generationConfig", "thinkingConfig"):
        config = pick(config, name)
        if not isinstance(config, dict):
            return True
    return pick(config, "includeThoughts") is not False


def _finish_reason(finish: Any) -> str:
    if not isinstance(finish, str) or finish in ABORTS:
        return "OTHER"
    return {"length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(finish, "STOP")


def _usage(reply: Mapping[str, Any]) -> dict[str, int]:
    told = counts(reply)
    return {
        "promptTokenCount": told.prompt,
        "candidatesTokenCount": told.completion - told.reasoning,
        "thoughtsTokenCount": told.reasoning,
        "totalTokenCount": told.prompt + told.completion,
        "cachedContentTokenCount": told.cached,
    }


def encode_reply(served: Mapping[str, Any]) -> bytes:
    """The served response as JSON.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    return encode(served)


def streamer(request: NeutralRequest, call_id: str, model: str) -> google_stream.GoogleStreamer:
    """A stream of the reply to `request`, in the form that its address asks for."""
    as_events = request.asked.get("alt") != "json"
    return google_stream.GoogleStreamer(call_id, model, as_events, _thoughts_shown(request))


def merge_stream(events: Iterable[sse.Event]) -> dict[str, Any]:
    """The response that a client puts together from a stream of events."""
    return google_stream.merge(events)


def count_reply(tokens: int) -> bytes:
    """The answer of ``countTokens``."""
    return orjson.dumps({"totalTokens": tokens})


def _model(name: str) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "baseModelId": name,
        "version": "1",
        "displayName": name,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def models_body(names: Iterable[str]) -> bytes:
    """``GET /v1beta/models``."""
    return orjson.dumps({"models": [_model(name) for name in names]})


def model_body(name: str) -> bytes:
    """``GET /v1beta/models/{name}``."""
    return orjson.dumps(_model(name))


def _error_body(error: WireError) -> dict[str, Any]:
    code, message = error.status, error.message
    name = _STATUSES.get(code, "UNAVAILABLE" if code >= 500 else "INVALID_ARGUMENT")
    if error.code in ENDED:
        code, name = 400, "FAILED_PRECONDITION"
    elif error.code == CONTEXT_OVERFLOW:
        code, name = 400, "INVALID_ARGUMENT"
        message = "The input token count exceeds the maximum number of tokens allowed."
        if error.prompt_tokens is not None and error.limit_tokens is not None:
            message = (
                f"The input token count ({error.prompt_tokens}) exceeds the maximum number "
                f"of tokens allowed ({error.limit_tokens})."
            )
    return {"error": {"code": code, "message": message, "status": name}}


def refusal(error: WireError) -> Refusal:
    """The error as a whole reply."""
    body = _error_body(error)
    return Refusal(body["error"]["code"], encode(body))


def error_event(error: WireError, begun: Streamer | None = None) -> bytes:
    """The error inside a stream, of events or a JSON array. A fault of the server is worded
    as a passing one, which clients try again."""
    if isinstance(begun, google_stream.GoogleStreamer):
        return begun.fail(error_in_stream(error))
    return sse.encode(encode(error_in_stream(error)))


def error_in_stream(error: WireError) -> dict[str, Any]:
    """The error's body for a stream that has begun."""
    body = _error_body(error)
    if error.status >= 500:
        body["error"] |= {"code": 503, "status": "UNAVAILABLE"}
        body["error"]["message"] = f"The model is overloaded, try again: {error.message}"
    return body
