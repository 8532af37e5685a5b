"""The neutral request: what any harness asked, in the engine's own terms.

Owns: the one shape that `capture` shapes and an engine answers: a chat-completions
body, plus what the caller must get back.
Must not know: any dialect's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.records import Dialect, Note


@dataclass(frozen=True, slots=True)
class Wants:
    """Which capture fields the caller asked for itself, and so must see."""

    token_ids: bool = False
    logprobs: bool = False
    reasoning: bool = True
    usage_chunk: bool = False


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """What a tool was called on the wire, where its neutral name or kind differs.

    Attributes:
        name: the name the harness knows it by.
        kind: ``function`` or ``custom`` (one free text instead of arguments).
        namespace: the namespace it stood in, if any.
    """

    name: str
    kind: str = "function"
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """A call of the same rollout that a request refers to instead of repeating it.

    Attributes:
        messages: the conversation as it was sent to the engine, without instructions.
        reply: the assistant message it was answered with, tool calls under our ids.
    """

    messages: tuple[Any, ...]
    reply: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NeutralRequest:
    """One request, parsed.

    Attributes:
        body: chat-completions body as meant by the caller; unknown fields of a chat body
            are kept. A `completions` body has ``prompt`` instead of ``messages``.
        stream: the caller wants server-sent events.
        asked: the caller's own body, decoded, for what a reply must echo.
        claims: what the body says about sessions and agents, by field name; untrusted.
        notes: what the translation left out or changed, kept with the call.
        recall: ids of earlier calls that must be read first; `body` is not whole while
            any is listed.
        tools_by_name: origin of every tool whose neutral name or kind is not its own.
    """

    dialect: Dialect
    body: dict[str, Any]
    stream: bool
    wants: Wants
    asked: Mapping[str, Any] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    recall: tuple[str, ...] = ()
    tools_by_name: Mapping[str, ToolOrigin] = field(default_factory=dict)

    @property
    def model(self) -> str | None:
        """The model name asked for, if any."""
        value = self.body.get("model")
        return value if isinstance(value, str) else None

    @property
    def messages(self) -> list[Any]:
        """The messages in neutral form; none for a plain completion."""
        value = self.body.get("messages")
        return value if isinstance(value, list) else []

    @property
    def tools(self) -> list[Any]:
        """The tool manifest in neutral form; empty when there is none."""
        value = self.body.get("tools")
        return value if isinstance(value, list) else []
