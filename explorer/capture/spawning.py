"""Whether a new conversation was begun by a tool call of an earlier one.

Owns: finding, word for word, an argument of an earlier tool call in a first user turn.
Must not know: roles; it leaves a note, and `trace` decides what it shows.

Several harnesses name no parent for their subagents. What they all do is hand a text argument
of the parent's call to the child as its first user turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from explorer.records import Note
from explorer.wire.ids import origin_of_tool
from explorer.wire.neutral import NeutralRequest
from explorer.wire.restoring import OBJECT_DIALECTS, with_sampled_arguments

CODE = "prompt_from_argument"
# Shorter arguments, such as a path, stand in many prompts by chance.
_SHORTEST = 24
_MOST_TEXT = 200_000


def spawned_by(
    messages: Sequence[Any], tools: Sequence[Any], sampled_arguments: Mapping[str, str]
) -> Note | None:
    """A note with the id of the call whose argument begins this conversation.

    Args:
        sampled_arguments: argument texts of the rollout's tool calls so far, by our id.
    """
    if not tools or not sampled_arguments:
        return None
    text = _first_user_text(messages)
    if text is None:
        return None
    for name, arguments in reversed(list(sampled_arguments.items())):
        origin = origin_of_tool(name)
        if origin is not None and any(value in text for value in _strings(arguments)):
            return Note(CODE, origin[0])
    return None


def _first_user_text(messages: Sequence[Any]) -> str | None:
    """What the user said in a conversation that nobody has answered yet."""
    said: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") in ("assistant", "tool"):
            return None
        if message.get("role") == "user":
            said += _texts(message.get("content"))
    text = "\n".join(said)
    return text if _SHORTEST <= len(text) <= _MOST_TEXT else None


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]


def _strings(arguments: str) -> Iterator[str]:
    try:
        values = [orjson.loads(arguments)]
    except orjson.JSONDecodeError:
        return
    while values:
        value = values.pop()
        if isinstance(value, str):
            if len(value.strip()) >= _SHORTEST:
                yield value.strip()
        elif isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value


def with_what_was_sampled(
    request: NeutralRequest, sampled: Mapping[str, str]
) -> NeutralRequest:
    """The request with echoed arguments as they were sampled, where its dialect cannot carry
    their text, and a note where an earlier call's arguments began this conversation.

    Args:
        sampled: argument texts of earlier tool calls, by id.
    """
    if request.dialect in OBJECT_DIALECTS:
        said = with_sampled_arguments(request.messages, sampled)
        request = replace(request, body=request.body | {"messages": said})
    spawned = spawned_by(request.messages, request.tools, sampled)
    if spawned is not None:
        request = replace(request, notes=(*request.notes, spawned))
    return request
