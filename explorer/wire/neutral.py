"""The neutral request: what any harness asked, in the engine's own terms.

Owns: the one shape that `capture` shapes and an engine answers: a chat-completions
body, plus what the caller must get back.
Must not know: any dialect's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer.records import Dialect


@dataclass(frozen=True, slots=True)
class Wants:
    """Which capture fields the caller asked for itself, and so must see."""

    token_ids: bool = False
    logprobs: bool = False
    reasoning: bool = True
    usage_chunk: bool = False


@dataclass(frozen=True, slots=True)
class NeutralRequest:
    """One request, parsed.

    Attributes:
        body: chat-completions body exactly as meant by the caller, unknown fields kept.
        stream: the caller wants server-sent events.
    """

    dialect: Dialect
    body: dict[str, Any]
    stream: bool
    wants: Wants

    @property
    def model(self) -> str | None:
        """The model name asked for, if any."""
        value = self.body.get("model")
        return value if isinstance(value, str) else None

    @property
    def messages(self) -> list[Any]:
        """The messages as sent."""
        value = self.body.get("messages")
        return value if isinstance(value, list) else []

    @property
    def tools(self) -> list[Any]:
        """The tool manifest as sent; empty when there is none."""
        value = self.body.get("tools")
        return value if isinstance(value, list) else []
