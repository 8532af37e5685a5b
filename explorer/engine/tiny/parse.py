"""Generated text to reasoning, content and tool calls, as vLLM's qwen3 and hermes parsers do.

Owns: that split, and its quirks that clients see. Must not know: tokens, requests, replies.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

THINK_START = "<think>"
THINK_END = "</think>"
CALL_START = "<tool_call>"
_CALLS = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is JSON text. The id is made up anew each time, as in vLLM."""

    call_id: str
    name: str
    arguments: str

    def as_json(self) -> dict[str, Any]:
        """The call as it stands in a message."""
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """The parts of an assistant turn; None where there is none of it."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]


def parse_message(text: str, *, tools: bool, thinks: bool = True) -> ParsedMessage:
    """Split `text`; calls are looked for only when `tools` were offered.

    Text without an end of thinking is all reasoning, even when thinking never began: that is
    what vLLM's qwen3 parser does with a model that is expected to think. With `thinks` False
    nothing is expected: text without any mark of thinking is content.
    """
    before, start, after = text.partition(THINK_START)
    reasoning, end, content = (after if start else before).partition(THINK_END)
    if not (start or end or thinks):
        reasoning, content = "", text
    elif not end:
        return ParsedMessage(reasoning or None, None, ())
    if tools and CALL_START in content:
        calls = parse_calls(content)
        if calls:
            lead = content[: content.index(CALL_START)]
            return ParsedMessage(reasoning or None, lead if lead.strip() else None, calls)
    return ParsedMessage(reasoning or None, content or None, ())


def parse_calls(content: str) -> tuple[ToolCall, ...]:
    """The tool calls in `content`; none at all when a single one of them is malformed."""
    calls = []
    for closed, unclosed in _CALLS.findall(content):
        try:
            call = json.loads(closed or unclosed)
            name, arguments = call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError):
            return ()
        if not isinstance(name, str):
            return ()
        calls.append(
            ToolCall(
                f"chatcmpl-tool-{secrets.token_hex(8)}",
                name,
                json.dumps(arguments, ensure_ascii=False),
            )
        )
    return tuple(calls)
