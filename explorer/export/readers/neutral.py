"""What every reader makes: rollouts as a foreign file tells them.

Owns: the neutral records. Must not know: any format, what may train.

Everything here is a claim of the file. A mask is kept as what it says and never used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ImportedCall:
    """One model call.

    Attributes:
        messages, tools: what was asked, in the chat dialect.
        reply: the assistant's message.
        mask: the file's loss mask over the sampled ids, None when it has none.
        source: the file's own name of the call.
    """

    messages: tuple[Mapping[str, Any], ...]
    reply: Mapping[str, Any]
    tools: tuple[Any, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    mask: tuple[int, ...] | None = None
    finish_reason: str | None = None
    model: str | None = None
    time_us: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class ImportedRollout:
    """One attempt; `source` says which part of the file it was."""

    source: str
    calls: tuple[ImportedCall, ...]
    task: str | None = None
    group: str | None = None
    attempt: int | None = None
    harness: str | None = None
    harness_version: str | None = None
    model: str | None = None
    reward: float | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    ok: bool | None = None
    reason: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
