"""Tool arguments of an echoed turn as they were sampled, where a dialect cannot carry them.

Owns: when an echoed object may stand for the text that it was parsed from.
Must not know: which call said it.

Anthropic's and Google's dialects send arguments as objects, so a harness has no way to send
back the text. Some text must be written for the engine; where the echoed object is still what
the sampled text says, that text is the one. An object that says anything else is written as
it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from explorer.records import Dialect

OBJECT_DIALECTS = (Dialect.MESSAGES, Dialect.GOOGLE)


def sampled_arguments(reply: Mapping[str, Any]) -> dict[str, str]:
    """Argument texts of a chat completion's tool calls, by our id."""
    found: dict[str, str] = {}
    for choice in reply.get("choices") or []:
        message = choice.get("message") if isinstance(choice, dict) else None
        for call in _calls(message):
            text = _function(call).get("arguments")
            if isinstance(text, str) and isinstance(call.get("id"), str):
                found[call["id"]] = text
    return found


def with_sampled_arguments(messages: list[Any], sampled: Mapping[str, str]) -> list[Any]:
    """The messages with every echoed call's arguments as they were sampled."""
    if not sampled:
        return messages
    return [_restored(message, sampled) for message in messages]


def _restored(message: Any, sampled: Mapping[str, str]) -> Any:
    calls = _calls(message)
    if not any(_id(call) in sampled for call in calls):
        return message
    return message | {"tool_calls": [_with_text(call, sampled) for call in calls]}


def _with_text(call: Any, sampled: Mapping[str, str]) -> Any:
    text = sampled.get(_id(call) or "")
    echoed = _function(call).get("arguments")
    if text is None or echoed == text or not _same(echoed, text):
        return call
    return call | {"function": call["function"] | {"arguments": text}}


def _same(echoed: Any, text: str) -> bool:
    """Whether both are the same JSON, keys in any order; 1 and 1.0 and true are not."""
    if not isinstance(echoed, str):
        return False
    try:
        return _canonical(echoed) == _canonical(text)
    except (orjson.JSONDecodeError, TypeError):
        return False


def _canonical(text: str) -> bytes:
    return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)


def _calls(message: Any) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return calls if isinstance(calls, list) else []


def _id(call: Any) -> str | None:
    value = call.get("id") if isinstance(call, dict) else None
    return value if isinstance(value, str) else None


def _function(call: Any) -> dict[str, Any]:
    value = call.get("function") if isinstance(call, dict) else None
    return value if isinstance(value, dict) else {}
