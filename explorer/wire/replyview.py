"""Reading a chat completion of an engine, any value of which may be of any type.

Owns: which choice is shown, and what counts as its reasoning, calls and usage.
Must not know: any dialect that shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_COUNT = 2**53 - 1


@dataclass(frozen=True, slots=True)
class CallView:
    """A tool call; `arguments` are as the engine sent them."""

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens, 0 where the engine does not say; `cached` is part of `prompt`, `reasoning`
    part of `completion`."""

    prompt: int
    completion: int
    cached: int
    reasoning: int


def chosen(reply: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(choice, message) that is shown: the first one; empty where there is none."""
    choices = reply.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            return choice, _object(choice.get("message"))
    return {}, {}


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning text; empty without any."""
    for key in ("reasoning", "reasoning_content"):
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def tool_calls_of(message: Mapping[str, Any]) -> Iterator[CallView]:
    """Every tool call that is one."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            tool_id, name = call.get("id"), function.get("name")
            yield CallView(
                tool_id if isinstance(tool_id, str) else "",
                name if isinstance(name, str) else "",
                function.get("arguments"),
            )


def counts(reply: Mapping[str, Any]) -> Counts:
    """The engine's own counts."""
    usage = _object(reply.get("usage"))
    prompt = _count(usage, "prompt_tokens")
    completion = _count(usage, "completion_tokens")
    cached = _count(_object(usage.get("prompt_tokens_details")), "cached_tokens")
    reasoning = _count(_object(usage.get("completion_tokens_details")), "reasoning_tokens")
    return Counts(prompt, completion, min(cached, prompt), min(reasoning, completion))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(source: Mapping[str, Any], key: str) -> int:
    value = source.get(key)
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else 0
