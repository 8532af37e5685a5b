"""Digests of what was said, for display, causes and the text capture level.

Owns: the canonical form of one message and the digests made of it.
Must not know: token ids (the prefix decision stays with them).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from explorer.wire.ids import origin_of_tool

# Arguments with more are compared as text: they may be nested deeper than JSON is written.
_MOST_BRACKETS = 200
_SIZE = 10  # bytes; short, since a thousand-turn rollout keeps one per message


def _digest(value: Any) -> str:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # lone surrogates, integers over 64 bits, deep nesting
        data = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=_SIZE).hexdigest()


def message_digest(message: Mapping[str, Any]) -> str:
    """Equal for the same message however a harness re-serialised it.

    Arguments are compared as parsed JSON, text parts as their text; ids of tool calls,
    reasoning and null fields do not count.
    """
    content = _text(message.get("content"))
    if isinstance(content, str) and not message.get("tool_calls"):
        # The usual message, in a form that no other can have.
        data = f"{message.get('role')}\0{content}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=_SIZE, person=b"text").hexdigest()
    ours = [
        origin_of_tool(call.get("id")) for call in _calls(message) if isinstance(call, Mapping)
    ]
    if message.get("role") == "assistant" and ours and None not in ours:
        # Ids that we minted say which generation this is, whatever a harness has since made
        # of the arguments: some dump them anew, one adds defaults.
        return _digest(["generation", *ours])
    calls = [
        [function.get("name"), _arguments(function.get("arguments"))]
        for call in _calls(message)
        if isinstance(call, Mapping) and isinstance(function := call.get("function"), Mapping)
    ]
    return _digest([message.get("role"), content, calls])


def _calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        if value.count("[") + value.count("{") > _MOST_BRACKETS:
            return value
        try:
            return orjson.loads(value) if value else {}
        except orjson.JSONDecodeError:
            return value
    return value


def _text(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, list):
        texts = [
            part["text"]
            for part in content
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        ]
        return "".join(texts).strip() if len(texts) == len(content) else content
    return content.strip() if isinstance(content, str) else content


def message_digests(messages: Sequence[Any]) -> tuple[str, ...]:
    """One digest per message, leading system messages left out (they are told apart
    by `system_digest`)."""
    body = list(messages)
    while body and isinstance(body[0], Mapping) and body[0].get("role") in _SYSTEM:
        body.pop(0)
    return tuple(
        message_digest(message) if isinstance(message, Mapping) else _digest(message)
        for message in body
    )


_SYSTEM = ("system", "developer")


def system_digest(messages: Sequence[Any]) -> str | None:
    """Digest of all leading system text, or None without one."""
    texts = []
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in _SYSTEM:
            break
        texts.append(_text(message.get("content")))
    return _digest(texts) if texts else None


def tools_digest(tools: Sequence[Any]) -> str | None:
    """Digest of the tool manifest in the order sent, or None without one."""
    return _digest(list(tools)) if tools else None
