"""Strict digests of a conversation: equal only where a harness merely wrote it anew.

Owns: what of a message counts, and the chain of its digests.
Must not know: calls, tokens.

What may differ: white space around a text, text parts or one text, reasoning, ids of tool
calls, and how the JSON of arguments is spelt. Nothing else may.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

_SYSTEM = ("system", "developer")
# Fields that shape the prompt beside messages and tools.
_RENDERING = (
    *("chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
    *("add_special_tokens", "mm_processor_kwargs", "truncate_prompt_tokens", "functions"),
)
_TEXT_PARTS = (None, "text", "input_text", "output_text")
# More deeply nested arguments are compared as text.
_MOST_BRACKETS = 200


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a body says, by digests. `keys[n]` stands for all messages up to number n."""

    keys: tuple[bytes, ...]
    system: bytes
    tools: bytes
    rendering: bytes
    _names: tuple[tuple[str, int], ...] = ()

    @property
    def head(self) -> tuple[bytes, bytes, bytes]:
        """What shapes a prompt beside the messages."""
        return self.system, self.tools, self.rendering

    def key_with(self, reply: Mapping[str, Any]) -> bytes:
        """The key of the messages and a reply to them."""
        last = self.keys[-1] if self.keys else b""
        return _chained(last, _message(reply, dict(self._names)))


def conversation(body: Mapping[str, Any]) -> Conversation:
    """The digests of a chat body."""
    messages = body["messages"]
    names: dict[str, int] = {}
    keys: list[bytes] = []
    last, leading, system = b"", True, []
    for message in messages:
        if leading and message.get("role") in _SYSTEM:
            # Told apart, so that a changed system prompt has a name of its own.
            system.append([message["role"], _text(message.get("content"))])
            keys.append(last)
            continue
        leading = False
        last = _chained(last, _message(message, names))
        keys.append(last)
        for call in _calls(message):
            names.setdefault(str(call.get("id")), len(names))
    return Conversation(
        keys=tuple(keys),
        system=_digest(system),
        tools=_digest(body.get("tools") or []),
        rendering=_digest({name: body[name] for name in _RENDERING if body.get(name)}),
        _names=tuple(names.items()),
    )


def only_text(messages: Sequence[Any]) -> bool:
    """Whether every message is an object that holds text and nothing else."""
    return all(
        isinstance(message, Mapping) and isinstance(_text(message.get("content")), str)
        for message in messages
    )


def _message(message: Mapping[str, Any], names: Mapping[str, int]) -> bytes:
    told = message.get("tool_calls") or []
    calls = [_call(call) for call in told] if isinstance(told, list) else told
    # Ids may be renamed, but a result must stay with its call.
    answers = message.get("tool_call_id")
    place = None if answers is None else names.get(str(answers), str(answers))
    extra = {name: message[name] for name in ("name", "function_call") if message.get(name)}
    if message.get("role") == "tool":
        extra.pop("name", None)
    return _digest(
        [message.get("role"), _text(message.get("content")), calls, place, extra or None]
    )


def _call(call: Any) -> Any:
    """A tool call without its id; one that is none of a function as it stands."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return [function.get("name"), _arguments(function.get("arguments"))]


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return (
        [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    )


def _text(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        texts = [_part(part) for part in content]
        whole = [text for text in texts if text is not None]
        if len(whole) == len(content):
            return "".join(whole).strip()
    return content


def _part(part: Any) -> str | None:
    """The text of a part; None for one that holds something else."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS:
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        if value.count("[") + value.count("{") > _MOST_BRACKETS:
            return value
        try:
            value = orjson.loads(value) if value else {}
        except orjson.JSONDecodeError:
            return value
    return _plain_numbers(value)


def _plain_numbers(value: Any) -> Any:
    """JavaScript writes 1.0 as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain_numbers(each) for name, each in value.items()}
    return value


def _chained(last: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(last + message, digest_size=16).digest()


def _digest(value: Any) -> bytes:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # lone surrogates, integers over 64 bits
        data = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(data, digest_size=16).digest()
