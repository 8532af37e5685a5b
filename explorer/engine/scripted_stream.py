"""A scripted reply as the stream that vLLM would have sent, whole or broken off.

Owns: how a chat completion is cut into chunks, and the faults that only a stream has.
Must not know: scripts, tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

# The stream ends half way; ends whole but without `[DONE]`; breaks off with an error event.
STREAM_FAULTS = frozenset(["cut", "no_done", "error_event"])
DEFAULT_PIECES = 4


def chunks_of(reply: Mapping[str, Any], pieces: int, fault: str | None) -> Iterator[bytes]:
    """SSE events of `reply`, its text and ids spread over `pieces` chunks.

    As in vLLM's streams, text and ids do not line up: they are cut independently.
    """
    events = list(_events(reply, max(1, pieces)))
    if fault == "cut":
        yield from events[: len(events) // 2]
        return
    if fault == "error_event":
        yield from events[: len(events) // 2]
        yield _event({"error": {"message": "worker lost", "type": "x", "code": 500}})
        yield b"data: [DONE]\n\n"
        return
    yield from events
    if fault != "no_done":
        yield b"data: [DONE]\n\n"


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _events(reply: Mapping[str, Any], pieces: int) -> Iterator[bytes]:
    head = {key: reply[key] for key in ("id", "created", "model") if key in reply}
    head["object"] = "chat.completion.chunk"
    choice = reply["choices"][0]
    message = choice["message"]

    def chunk(delta: Mapping[str, Any], **more: Any) -> bytes:
        piece = {"index": 0, "delta": delta, "finish_reason": None} | more
        return _event(head | {"choices": [piece]})

    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    yield _event(head | {"choices": [role], "prompt_token_ids": reply.get("prompt_token_ids")})
    ids, entries = choice.get("token_ids"), choice.get("logprobs")
    reasoning, content = message.get("reasoning") or "", message.get("content") or ""
    # A model reasons first and speaks then.
    first = pieces // 2 if reasoning and content else pieces if reasoning else 0
    for number in range(pieces):
        if number < first:
            delta = {"reasoning": _cut(reasoning, number, first)}
        else:
            delta = {"content": _cut(content, number - first, pieces - first)}
        more: dict[str, Any] = {"token_ids": None if ids is None else _cut(ids, number, pieces)}
        if entries is not None:
            more["logprobs"] = {"content": _cut(entries["content"], number, pieces)}
        yield chunk(delta, **more)
    for position, call in enumerate(message.get("tool_calls") or []):
        named = {**call, "index": position, "function": {"name": call["function"]["name"]}}
        yield chunk({"tool_calls": [named]}, token_ids=[])
        arguments = {"arguments": call["function"]["arguments"]}
        yield chunk({"tool_calls": [{"index": position, "function": arguments}]}, token_ids=[])
    yield chunk(
        {},
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        token_ids=None if ids is None else [],
    )
    yield _event(head | {"choices": [], "usage": reply.get("usage")})


def _cut(value: Any, number: int, pieces: int) -> Any:
    size = len(value)
    return value[size * number // pieces : size * (number + 1) // pieces]
