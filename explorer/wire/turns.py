"""Neutral messages made of turns in which tool results and text stand together.

Owns: the order of tool and user messages made of one turn, and when parts are one text.
Must not know: any dialect's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def content_of(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Content made of parts: one text part is the same as its plain text."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].get("type") == "text":
        return str(parts[0]["text"])
    return list(parts)


def text_part(text: str) -> dict[str, Any]:
    """A text part."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """An image part; `url` may be a data: URL."""
    return {"type": "image_url", "image_url": {"url": url}}


class UserTurn:
    """One turn of a user that may hold tool results: they become tool messages, what stands
    before or behind them user messages. So text that a harness adds behind its last result
    adds a message and changes none.
    """

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._parts: list[dict[str, Any]] = []

    def part(self, part: dict[str, Any]) -> None:
        """Text or an image of the user's."""
        self._parts.append(part)

    def result(self, tool_call_id: str, content: str | list[dict[str, Any]]) -> None:
        """A tool result."""
        self._flush()
        self._messages.append(
            {"role": "tool", "tool_call_id": tool_call_id, "content": content}
        )

    def _flush(self) -> None:
        if self._parts:
            self._messages.append({"role": "user", "content": content_of(self._parts)})
            self._parts = []

    def messages(self) -> list[dict[str, Any]]:
        """What the turn becomes; an empty turn is an empty user message."""
        self._flush()
        return self._messages or [{"role": "user", "content": ""}]


def assistant(
    content: str | list[dict[str, Any]],
    reasoning: str = "",
    tool_calls: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The one message of an assistant's turn."""
    made: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        made["reasoning"] = reasoning
    if tool_calls:
        made["tool_calls"] = list(tool_calls)
    return made


def tool_call(tool_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function."""
    return {
        "id": tool_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def function_tool(name: str, description: Any, parameters: Any) -> dict[str, Any]:
    """An entry of the tool manifest; what is not given is left out."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    if isinstance(parameters, dict):
        function["parameters"] = parameters
    return {"type": "function", "function": function}
