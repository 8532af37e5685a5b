"""OpenAI chat completions: request bytes in, reply bytes or a synthesised stream out.

Owns: which fields of a chat request steer capture, what is stripped from a reply,
the chunk order of a stream, and the error shape.
Must not know: engines, the store, the clock.

A stream is made from the whole reply and is lossless: `merge_stream` of our own
chunks gives back the reply (a test proves it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from explorer.errors import BadRequest, EngineMalformed
from explorer.records import Dialect
from explorer.wire import sse
from explorer.wire.neutral import NeutralRequest, Wants

ID_PREFIX = "chatcmpl-"
DONE = sse.encode(b"[DONE]")

# Top-level keys that only exist because capture asked for them.
_CAPTURE_TOP = ("prompt_token_ids", "prompt_text", "prompt_logprobs", "kv_transfer_params")
# Per-choice keys of the same kind.
_CAPTURE_CHOICE = ("token_ids", "routed_experts", "weight_versions", "prompt_token_ids")
_TOOL_DELTA_KEYS = ("id", "type", "function")


def parse_request(raw: bytes) -> NeutralRequest:
    """The caller's chat request.

    Raises:
        BadRequest: not JSON, not an object, no messages, or more than one choice asked.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the request body must be a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a non-empty array", param="messages")
    if not all(isinstance(message, dict) for message in messages):
        raise BadRequest("every entry of `messages` must be an object", param="messages")
    if body.get("n") not in (None, 1):
        raise BadRequest(
            "`n` must be 1: each call is one node of the turn tree; "
            "send one request per sample instead",
            param="n",
        )
    stream_options = body.get("stream_options")
    usage = isinstance(stream_options, dict) and bool(stream_options.get("include_usage"))
    return NeutralRequest(
        dialect=Dialect.CHAT,
        body=body,
        stream=body.get("stream") is True,
        wants=Wants(
            token_ids=body.get("return_token_ids") is True,
            logprobs=body.get("logprobs") is True,
            reasoning=body.get("include_reasoning") is not False,
            usage_chunk=usage,
        ),
    )


def serve(reply: Mapping[str, Any], request: NeutralRequest, call_id: str) -> dict[str, Any]:
    """The reply as the caller may see it: our id, capture fields stripped."""
    served = dict(reply)
    served["id"] = ID_PREFIX + call_id
    if not request.wants.token_ids:
        for key in _CAPTURE_TOP:
            # prompt_logprobs and the like stay when the caller asked for them by name.
            if key not in request.body:
                served.pop(key, None)
    choices = []
    for choice in reply.get("choices") or []:
        kept = dict(choice)
        if not request.wants.token_ids:
            for key in _CAPTURE_CHOICE:
                kept.pop(key, None)
        if not request.wants.logprobs:
            kept["logprobs"] = None
        message = kept.get("message")
        if not request.wants.reasoning and isinstance(message, dict):
            kept["message"] = {
                key: value
                for key, value in message.items()
                if key not in ("reasoning", "reasoning_content")
            }
        choices.append(kept)
    served["choices"] = choices
    return served


def encode_reply(served: Mapping[str, Any]) -> bytes:
    """The served reply as JSON; NaN and infinities become null, never literals.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    return _encode(served)


def _encode(value: Any) -> bytes:
    """JSON of what an engine sent; lone surrogates leave as the escapes they came as."""
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        # Slower, and writes what the fast way refuses: surrogates, integers over 64 bits.
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(finite, separators=(",", ":")).encode()
    except RecursionError as error:
        raise EngineMalformed("the engine's reply is nested too deeply") from error


def stream_reply(served: Mapping[str, Any], wants: Wants) -> tuple[bytes, ...]:
    """The served reply as the events of a chat stream, `[DONE]` last.

    Order per choice: a role chunk, one chunk each for reasoning, content, every tool
    call and any other message field, then the chunk with the finish reason. The usage
    chunk comes only when asked for.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    head = {
        key: served[key]
        for key in ("id", "created", "model", "service_tier", "system_fingerprint")
        if served.get(key) is not None
    }
    head["object"] = "chat.completion.chunk"
    events: list[bytes] = []
    for choice in served.get("choices") or []:
        for piece in _choice_chunks(choice):
            chunk = head | {"choices": [piece]}
            if not events and served.get("prompt_token_ids") is not None:
                chunk["prompt_token_ids"] = served["prompt_token_ids"]
            if wants.usage_chunk:
                chunk["usage"] = None
            events.append(sse.encode(_encode(chunk)))
    if wants.usage_chunk:
        chunk = head | {"choices": [], "usage": served.get("usage")}
        events.append(sse.encode(_encode(chunk)))
    events.append(DONE)
    return tuple(events)


def _choice_chunks(choice: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    index = choice.get("index", 0)
    message = choice.get("message") or {}

    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"index": index, "delta": delta, "finish_reason": None} | more

    yield chunk({"role": message.get("role", "assistant"), "content": ""})
    for key in ("reasoning", "reasoning_content", "content", "refusal"):
        value = message.get(key)
        if value:
            yield chunk({key: value})
    calls = message.get("tool_calls")
    for position, call in enumerate(calls if isinstance(calls, list) else ()):
        # What is no object is passed on as it is: mending replies is not our part.
        delta = {"index": position} | call if isinstance(call, dict) else call
        yield chunk({"tool_calls": [delta]})
    extra = {
        key: value
        for key, value in message.items()
        if value is not None
        and key
        not in ("role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls")
    }
    if extra:
        yield chunk(extra)
    last = {
        key: value
        for key, value in choice.items()
        if key not in ("index", "message", "delta") and (value is not None or key == "logprobs")
    }
    yield chunk({}, **last)


def merge_stream(events: Iterable[sse.Event]) -> dict[str, Any]:
    """One reply from the events of a chat stream, ours or an engine's.

    Null and empty mean "nothing new"; token ids and logprobs are concatenated per
    choice in arrival order; a tool delta without a function name never starts a call.

    Returns:
        A chat completion; ``_complete`` is True when `[DONE]` was seen, and
        ``_error`` holds an error event's object.
    """
    merged: dict[str, Any] = {"object": "chat.completion", "choices": []}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.data == "[DONE]":
            merged["_complete"] = True
            continue
        chunk = orjson.loads(event.data)
        if not isinstance(chunk, dict):
            continue
        if chunk.get("error") is not None:
            merged["_error"] = chunk["error"]
            continue
        for key, value in chunk.items():
            if key not in ("choices", "object") and value is not None:
                merged[key] = value
        for piece in chunk.get("choices") or []:
            _merge_choice(choices, piece)
    merged["choices"] = [choices[index] for index in sorted(choices)]
    for choice in merged["choices"]:
        for call in choice["message"].get("tool_calls") or []:
            call.pop("_index", None)
    return merged


def _merge_choice(choices: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    index = piece.get("index") or 0
    choice = choices.setdefault(
        index, {"index": index, "message": {"role": "assistant"}, "finish_reason": None}
    )
    for key, value in piece.items():
        if key in ("index", "delta") or value is None:
            continue
        if key == "token_ids":
            choice["token_ids"] = choice.get("token_ids", []) + list(value)
        elif key == "logprobs":
            kept = choice.setdefault("logprobs", {"content": []})
            kept["content"] = (kept.get("content") or []) + (value.get("content") or [])
        else:
            choice[key] = value
    _merge_delta(choice["message"], piece.get("delta") or {})


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if value is None:
            continue
        if key == "tool_calls":
            for call in value:
                _merge_tool(message.setdefault("tool_calls", []), call)
        elif isinstance(value, str) and key != "role":
            message[key] = (message.get(key) or "") + value
        else:
            message[key] = value


def _merge_tool(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    function = delta.get("function") or {}
    wire_index = delta.get("index")
    known = [call for call in calls if call.get("_index") == wire_index]
    renamed = bool(known) and delta.get("id") not in (None, known[-1].get("id"))
    if function.get("name") and (not known or renamed):
        call = {key: delta[key] for key in _TOOL_DELTA_KEYS if delta.get(key) is not None}
        call["function"] = dict(function)
        call["_index"] = wire_index
        calls.append(call)
        return
    if not calls:
        return
    target = known[-1] if known else calls[-1]
    arguments = function.get("arguments")
    if arguments:
        held = target["function"].get("arguments") or ""
        target["function"]["arguments"] = held + arguments


def error_body(status: int, code: str, message: str, param: str | None = None) -> bytes:
    """An error in OpenAI's shape."""
    kind = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "invalid_request_error",
        415: "invalid_request_error",
        429: "rate_limit_error",
    }.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )


def error_event(body: bytes) -> bytes:
    """An error inside a stream that already began, with the closing `[DONE]`."""
    return sse.encode(body) + DONE


def models_body(names: Iterable[str], created: int) -> bytes:
    """`GET /v1/models`."""
    data = [
        {"id": name, "object": "model", "created": created, "owned_by": "rollout-explorer"}
        for name in names
    ]
    return orjson.dumps({"object": "list", "data": data})
