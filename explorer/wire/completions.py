"""OpenAI plain completions: request bytes in, reply bytes or a stream out.

Owns: what a prompt may be, and old-style logprobs made of an engine's entries.
Must not know: engines, the store, the clock.

A neutral body of this dialect has ``prompt`` and no ``messages``; the neutral reply is a
chat completion all the same, whose content is the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from explorer.errors import BadRequest
from explorer.records import Dialect, Note
from explorer.wire import openai_errors, sse
from explorer.wire.claims import body_claims
from explorer.wire.jsonbytes import encode, read_object
from explorer.wire.neutral import Earlier, NeutralRequest, Wants
from explorer.wire.protocol import PLAIN, Streamer, Target, WireError

DIALECT = Dialect.COMPLETIONS
ID_PREFIX = "cmpl-"
DONE = sse.encode(b"[DONE]")
DEFAULT_MAX_TOKENS = 16
MOST_LOGPROBS = 20
_TOP = ("created", "model", "service_tier", "system_fingerprint", "usage")
_CHOICE = ("finish_reason", "stop_reason")
_CAPTURE = ("token_ids", "prompt_token_ids")
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def parse_request(
    raw: bytes, target: Target = PLAIN, earlier: Mapping[str, Earlier] | None = None
) -> NeutralRequest:
    """The caller's request; `target` and `earlier` say nothing here.

    Raises:
        BadRequest: no single prompt, more than one choice, or what cannot be recorded.
    """
    asked = read_object(raw)
    _refuse_unrecordable(asked)
    body = dict(asked)
    body["prompt"] = _prompt(asked.get("prompt"))
    notes = []
    if body.pop("messages", None) is not None:
        notes.append(Note("fields_not_forwarded", "messages"))
    if body.get("max_tokens") is None:
        # What every server of this dialect does, said aloud.
        body["max_tokens"] = DEFAULT_MAX_TOKENS
    count = asked.get("logprobs")
    if count is not None and not (type(count) is int and 0 <= count <= MOST_LOGPROBS):
        raise BadRequest(
            f"`logprobs` must be a whole number from 0 to {MOST_LOGPROBS}", param="logprobs"
        )
    options = asked.get("stream_options")
    return NeutralRequest(
        dialect=DIALECT,
        body=body,
        stream=asked.get("stream") is True,
        asked=asked,
        claims=body_claims(asked),
        notes=tuple(notes),
        wants=Wants(
            token_ids=asked.get("return_token_ids") is True,
            logprobs=count is not None,
            usage_chunk=isinstance(options, dict) and bool(options.get("include_usage")),
        ),
    )


def _refuse_unrecordable(asked: Mapping[str, Any]) -> None:
    for key in ("n", "best_of"):
        if asked.get(key) is not None and (type(asked[key]) is not int or asked[key] != 1):
            raise BadRequest(
                f"`{key}` must be 1: each call is one node of the turn tree; "
                "send one request per sample instead",
                param=key,
            )
    if asked.get("echo"):
        raise BadRequest(
            "`echo` is not supported: it mixes the prompt into what was sampled; "
            "leave it out and put the prompt before the text yourself",
            param="echo",
        )
    for key in ("suffix", "prompt_embeds"):
        if asked.get(key):
            raise BadRequest(f"`{key}` is not supported: leave it out", param=key)


def _prompt(value: Any) -> str | list[int]:
    """One prompt: text or token ids, perhaps alone in a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        if all(type(token) is int and token >= 0 for token in value):
            return value
        if all(isinstance(item, str | list) for item in value):
            raise BadRequest(
                "`prompt` must be one prompt: send one request per prompt", param="prompt"
            )
    raise BadRequest("`prompt` must be text or an array of token ids", param="prompt")


def serve(reply: Mapping[str, Any], request: NeutralRequest, call_id: str) -> dict[str, Any]:
    """The reply as a text completion: our id, capture fields only where asked for."""
    made: dict[str, Any] = {"id": ID_PREFIX + call_id, "object": "text_completion"}
    made |= {key: reply[key] for key in _TOP if key in reply}
    choices = reply.get("choices")
    made["choices"] = [
        _choice(choice, reply, request)
        for choice in (choices if isinstance(choices, list) else ())
        if isinstance(choice, dict)
    ]
    return made


def _choice(
    choice: Mapping[str, Any], reply: Mapping[str, Any], request: NeutralRequest
) -> dict[str, Any]:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    made: dict[str, Any] = {"index": choice.get("index", 0)}
    made["text"] = "" if text is None else text
    logprobs = choice.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    made["logprobs"] = None
    if request.wants.logprobs and isinstance(entries, list):
        made["logprobs"] = old_logprobs(entries, request.asked.get("logprobs"))
    made |= {key: choice.get(key) for key in _CHOICE}
    if request.wants.token_ids:
        for key in _CAPTURE:
            found = choice.get(key)
            made[key] = reply.get(key) if found is None and key in reply else found
    if request.asked.get("prompt_logprobs") is not None:
        made["prompt_logprobs"] = choice.get("prompt_logprobs")
    return made


def old_logprobs(entries: Sequence[Any], most: Any) -> dict[str, list[Any]]:
    """Old-style logprobs: the `most` best alternatives of each token, and always itself."""
    made: dict[str, list[Any]] = {key: [] for key in _LISTS}
    offset = 0
    for entry in entries:
        told = entry if isinstance(entry, dict) else {}
        token = told.get("token")
        made["tokens"].append(token)
        made["token_logprobs"].append(told.get("logprob"))
        made["top_logprobs"].append(_alternatives(told, most if type(most) is int else 0))
        made["text_offset"].append(offset)
        offset += len(token) if isinstance(token, str) else 0
    return made


def _alternatives(entry: Mapping[str, Any], most: int) -> dict[str, Any] | None:
    listed = entry.get("top_logprobs")
    kept = {}
    if isinstance(entry.get("token"), str):
        kept[entry["token"]] = entry.get("logprob")
    others = [
        other
        for other in (listed if isinstance(listed, list) else ())
        if isinstance(other, dict) and isinstance(other.get("token"), str)
    ]
    # An engine names the sampled token first, whatever its rank; nulls cannot be ranked.
    if all(type(other.get("logprob")) in (int, float) for other in others):
        others.sort(key=lambda other: -other["logprob"])
    for other in others[:most]:
        kept.setdefault(other["token"], other.get("logprob"))
    return kept or None


def encode_reply(served: Mapping[str, Any]) -> bytes:
    """The text completion as JSON.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    return encode(served)


def streamer(request: NeutralRequest, call_id: str, model: str) -> CompletionStreamer:
    """A stream of the reply to `request`."""
    return CompletionStreamer(request, call_id, model)


class CompletionStreamer:
    """The chunks of one text completion, `[DONE]` last; the last chunk of text has all
    logprobs and ids, since only a whole reply has them."""

    def __init__(self, request: NeutralRequest, call_id: str, model: str) -> None:
        self._usage = request.wants.usage_chunk
        self._early = {"id": ID_PREFIX + call_id, "created": 0, "model": model}
        self._sent = 0

    def _chunk(self, head: Mapping[str, Any], choice: Mapping[str, Any]) -> bytes:
        told = {**head, "object": "text_completion", "choices": [choice]}
        return sse.encode(encode(told | ({"usage": None} if self._usage else {})))

    def live(self, reasoning: str, text: str) -> bytes:
        """A chunk of what was just sampled; a plain completion has no reasoning."""
        if not text:
            return b""
        self._sent += len(text)
        piece = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        return self._chunk(self._early, piece)

    def finish(self, served: Mapping[str, Any]) -> bytes:
        """The rest of the stream."""
        head = {key: value for key, value in served.items() if key not in ("choices", "usage")}
        events = []
        for choice in served["choices"]:
            text = choice["text"]
            rest = text[self._sent :] if isinstance(text, str) else text
            events.append(self._chunk(head, choice | {"text": rest}))
        if self._usage:
            told = {**head, "choices": [], "usage": served.get("usage")}
            events.append(sse.encode(encode(told)))
        return b"".join([*events, DONE])


def merge_stream(events: Iterable[sse.Event]) -> dict[str, Any]:
    """One text completion from the chunks of a stream, ours or an engine's.

    Text, ids and logprobs are joined per choice in the order they came. ``_complete`` is
    True when `[DONE]` was seen; ``_error`` holds the object of an error event.
    """
    merged: dict[str, Any] = {"object": "text_completion", "choices": []}
    choices: dict[Any, dict[str, Any]] = {}
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
            if key != "choices" and (value is not None or key not in merged):
                merged[key] = value
        for piece in chunk.get("choices") or []:
            _join(choices.setdefault(piece.get("index") or 0, {}), piece)
    merged["choices"] = [choices[index] for index in sorted(choices)]
    return merged


def _join(choice: dict[str, Any], piece: Mapping[str, Any]) -> None:
    for key, value in piece.items():
        held = choice.get(key)
        if held is None:
            choice[key] = value
        elif value is None:
            continue
        elif key == "text" or key == "token_ids":
            choice[key] = held + value
        elif key == "logprobs":
            choice[key] = {
                name: (held.get(name) or []) + (value.get(name) or []) for name in _LISTS
            }
        else:
            choice[key] = value


def count_reply(tokens: int) -> bytes:
    """The length of a prompt; this dialect has no such route, so the shape is ours."""
    return encode({"input_tokens": tokens})


refusal = openai_errors.refusal


def error_event(error: WireError, begun: Streamer | None = None) -> bytes:
    """An error inside a stream that already began, with the closing `[DONE]`."""
    return sse.encode(openai_errors.stream_error(error)) + DONE
