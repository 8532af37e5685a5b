"""The one protocol that every engine answers.

An engine takes a chat-completions body in vLLM's dialect and answers with the
bytes of a vLLM-shaped chat completion; to a body with ``prompt`` and no ``messages`` it
answers as vLLM's ``/v1/completions`` does. So a real vLLM's bytes are kept as they
came, and every other engine is read by the same parser (`engine.reply`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from explorer.records import Note

# Ids of questions that a probe asks begin so; a scripted engine spends no reply on them.
PROBE_ID = "probe-"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One un-streamed generation to make.

    Attributes:
        body: chat or plain completions request (vLLM dialect), already shaped by policy.
        request_id: our call id, sent as ``X-Request-Id``.
        timeout_s: seconds until the engine gives up with `EngineTimeout`.
        raw: `body` as the exact JSON bytes to send, when already encoded.
    """

    body: Mapping[str, Any]
    request_id: str
    timeout_s: float
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class EngineReply:
    """Exactly what the engine answered; 4xx and 5xx are replies, not exceptions.

    `notes` say what was odd about how the body travelled.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says about itself; None where it does not say.

    `certifiable` is False for an engine whose logprobs are made up (scripted). `flags` are
    those it was started with, parsers first of all, as far as it says.
    """

    name: str
    version: str
    model: str
    max_model_len: int | None
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    fingerprint: str | None
    certifiable: bool
    flags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """One token id with its exact bytes."""

    token_id: int
    raw: bytes
    special: bool


class Engine(Protocol):
    """What samples tokens.

    Cancelling the task that awaits `generate` aborts the generation. `generate`
    and `stream` raise `EngineUnavailable` or `EngineTimeout`.
    """

    kind: str

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def generate(self, request: EngineRequest) -> EngineReply: ...

    def stream(self, request: EngineRequest) -> AsyncIterator[bytes]: ...

    async def facts(self) -> EngineFacts: ...

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """Every token id with bytes; empty when the engine cannot say exactly."""
        ...

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Prompt ids of a body, as the engine itself would make them."""
        ...
