"""OpenAI chat completions: request bytes in, reply bytes or a synthesised stream out.

Owns: which fields of a chat request steer capture, what is stripped from a reply,
the chunk order of a stream, and the error shape.
Must not know: engines, the store, the clock.

A stream is made from the whole reply and is lossless: `merge_stream` of our own
chunks gives back the reply (a test proves it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from explorer.errors import BadRequest
from explorer.records import Dialect
from explorer.wire import openai_errors, sse
from explorer.wire.chat_merge import merge_stream as merge_stream
from explorer.wire.claims import body_claims
from explorer.wire.jsonbytes import encode, read_object
from explorer.wire.neutral import Earlier, NeutralRequest, Wants
from explorer.wire.protocol import PLAIN, Streamer, Target, WireError

DIALECT = Dialect.CHAT
ID_PREFIX = "chatcmpl-"
DONE = sse.encode(b"[DONE]")

# Top-level keys that only exist because capture asked for them.
_CAPTURE_TOP = ("prompt_token_ids", "prompt_text", "prompt_logprobs", "kv_transfer_params")
# Per-choice keys of the same kind.
_CAPTURE_CHOICE = ("token_ids", "routed_experts", "weight_versions", "prompt_token_ids")


def parse_request(
    raw: bytes, target: Target = PLAIN, earlier: Mapping[str, Earlier] | None = None
) -> NeutralRequest:
    """The caller's chat request; `target` and `earlier` say nothing here.

    Raises:
        BadRequest: not JSON, not an object, no messages, or more than one choice asked.
    """
    body = read_object(raw)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` must be a non-empty array", param="messages")
    if not all(isinstance(message, dict) for message in messages):
        raise BadRequest("every entry of `messages` must be an object", param="messages")
    if body.get("n") is True or body.get("n") not in (None, 1):
        raise BadRequest(
            "`n` must be 1: each call is one node of the turn tree; "
            "send one request per sample instead",
            param="n",
        )
    stream_options = body.get("stream_options")
    usage = isinstance(stream_options, dict) and bool(stream_options.get("include_usage"))
    return NeutralRequest(
        dialect=DIALECT,
        body=body,
        stream=body.get("stream") is True,
        asked=body,
        claims=body_claims(body),
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
    return encode(served)


def streamer(request: NeutralRequest, call_id: str, model: str) -> ChatStreamer:
    """A stream of the reply to `request`."""
    return ChatStreamer(request, call_id, model)


class ChatStreamer:
    """The chunks of one reply, `[DONE]` last.

    Order per choice: a role chunk, one chunk each for reasoning, content, every tool
    call and any other message field, then the chunk with the finish reason. The usage
    chunk comes only when asked for.
    """

    def __init__(self, request: NeutralRequest, call_id: str, model: str) -> None:
        self._wants = request.wants
        self._early = {"id": ID_PREFIX + call_id, "created": 0, "model": model}
        self._sent: dict[str, int] = {}

    def live(self, reasoning: str, text: str) -> bytes:
        """Chunks of what has just been sampled; the first one has the role."""
        head = self._early | {"object": "chat.completion.chunk"}
        events: list[bytes] = []
        if not self._sent:
            self._sent = {"reasoning": 0, "content": 0}
            events.append(self._chunk(head, _piece(0, {"role": "assistant", "content": ""})))
        for key, value in (("reasoning", reasoning), ("content", text)):
            if value and (key == "content" or self._wants.reasoning):
                self._sent[key] += len(value)
                events.append(self._chunk(head, _piece(0, {key: value})))
        return b"".join(events)

    def _chunk(self, head: Mapping[str, Any], piece: Mapping[str, Any], **more: Any) -> bytes:
        usage = {"usage": None} if self._wants.usage_chunk else {}
        return sse.encode(encode({**head, "choices": [piece], **more, **usage}))

    def finish(self, served: Mapping[str, Any]) -> bytes:
        """The rest of the stream.

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
            for piece in _choice_chunks(choice, self._sent):
                more = {}
                if not events and served.get("prompt_token_ids") is not None:
                    more["prompt_token_ids"] = served["prompt_token_ids"]
                events.append(self._chunk(head, piece, **more))
        if self._wants.usage_chunk:
            chunk = head | {"choices": [], "usage": served.get("usage")}
            events.append(sse.encode(encode(chunk)))
        events.append(DONE)
        return b"".join(events)


def _piece(index: Any, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None} | more


def _choice_chunks(
    choice: Mapping[str, Any], sent: Mapping[str, int]
) -> Iterable[dict[str, Any]]:
    """The chunks of one choice, less the first `sent` characters of a field."""
    index = choice.get("index", 0)
    message = choice.get("message") or {}
    if not sent:
        yield _piece(index, {"role": message.get("role", "assistant"), "content": ""})
    for key in ("reasoning", "reasoning_content", "content", "refusal"):
        value = message.get(key)
        if isinstance(value, str):
            value = value[sent.get(key, 0) :]
        if value:
            yield _piece(index, {key: value})
    calls = message.get("tool_calls")
    for position, call in enumerate(calls if isinstance(calls, list) else ()):
        # What is no object is passed on as it is: mending replies is not our part.
        delta = {"index": position} | call if isinstance(call, dict) else call
        yield _piece(index, {"tool_calls": [delta]})
    extra = {
        key: value
        for key, value in message.items()
        if value is not None
        and key
        not in ("role", "content", "reasoning", "reasoning_content", "refusal", "tool_calls")
    }
    if extra:
        yield _piece(index, extra)
    last = {
        key: value
        for key, value in choice.items()
        if key not in ("index", "message", "delta") and (value is not None or key == "logprobs")
    }
    yield _piece(index, {}, **last)


def model_body(name: str, created: int) -> bytes:
    """`GET /v1/models/{name}`: any name is served, by the engine's one model."""
    return orjson.dumps(_model(name, created))


def _model(name: str, created: int) -> dict[str, Any]:
    # The last three are what Anthropic's SDK reads.
    stamp = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "rollout-explorer",
        "type": "model",
        "display_name": name,
        "created_at": stamp,
    }


def models_body(names: Iterable[str], created: int) -> bytes:
    """`GET /v1/models`."""
    data = [_model(name, created) for name in names]
    return orjson.dumps({"object": "list", "data": data, "has_more": False})


def count_reply(tokens: int) -> bytes:
    """The length of a prompt; OpenAI's chat has no such route, so the shape is ours."""
    return orjson.dumps({"input_tokens": tokens})


refusal = openai_errors.refusal


def error_event(error: WireError, begun: Streamer | None = None) -> bytes:
    """An error inside a stream that already began, with the closing `[DONE]`."""
    return sse.encode(openai_errors.stream_error(error)) + DONE
