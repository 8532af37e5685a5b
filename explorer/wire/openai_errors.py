"""Errors in OpenAI's shape, for chat, completions and responses.

Owns: their types, codes and the words that clients act upon.
Must not know: what went wrong.
"""

from __future__ import annotations

from typing import Any

import orjson

from explorer.wire.protocol import CONTEXT_OVERFLOW, Refusal, WireError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


def error_object(error: WireError) -> dict[str, Any]:
    """``{message, type, param, code}``."""
    status = error.status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message = error.message
    if error.code == CONTEXT_OVERFLOW and "maximum context length" not in message:
        # The words by which agents know that they must shorten the conversation.
        limit = "" if error.limit_tokens is None else f" is {error.limit_tokens} tokens"
        message = f"This model's maximum context length{limit or ' is exceeded'}. {message}"
    return {"message": message, "type": kind, "param": error.param, "code": error.code}


def refusal(error: WireError) -> Refusal:
    """The error as a whole reply."""
    return Refusal(error.status, orjson.dumps({"error": error_object(error)}))


def stream_error(error: WireError) -> bytes:
    """The error as the data of an event. A fault of the server is worded as a passing one:
    Pi tries again only where the text says so."""
    told = error_object(error)
    if error.status >= 500:
        told["message"] = f"{error.status} service overloaded, try again: {error.message}"
    return orjson.dumps({"error": told})
