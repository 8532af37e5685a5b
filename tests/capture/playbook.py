"""Builds exchanges and reads their commands, so that tests say only what matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson

from explorer.capture import events as ev
from explorer.capture.call_context import CallContext
from explorer.capture.exchange import Exchange
from explorer.capture.fence import Fence
from explorer.capture.ids import uuid7
from explorer.capture.lineage import Lineage
from explorer.capture.sampling import SamplingPlan
from explorer.engine.protocol import EngineReply
from explorer.records import (
    CallId,
    CaptureLevel,
    IdArray,
    KeyHash,
    Purpose,
    Rollout,
    RolloutId,
)

C = TypeVar("C")
TIME = 1_800_000_000_000_000
ROLLOUT = Rollout(RolloutId(uuid7(TIME)), TIME, KeyHash("0" * 64), "run")


def make_exchange(
    *,
    lineage: Lineage | None = None,
    sequence: int = 0,
    level: CaptureLevel = CaptureLevel.TOKENS,
    purpose: Purpose = Purpose.TRAIN,
    sampling: dict[str, Any] | None = None,
    certificate: Callable[[str | None, str | None], str] | None = None,
    external: bool = False,
    rollout: Rollout = ROLLOUT,
    fence: Fence | None = None,
) -> Exchange:
    """A new exchange of `rollout`; its fence is at version 3 unless one is given."""
    if fence is None:
        fence = Fence()
        fence.ready(3)
    return Exchange(
        CallContext(
            call_id=CallId(uuid7(TIME + sequence)),
            rollout=rollout,
            sequence=sequence,
            plan=SamplingPlan(level, purpose, sampling or {}, model="m"),
            place=(lineage or Lineage()).place,
            fence=fence,
            certificate=certificate or (lambda fingerprint, model: "cert"),
            timeout_s=9.0,
            external=external,
        )
    )


def received(**body: Any) -> ev.Received:
    """A chat request of one user message with more fields."""
    whole = {"messages": [{"role": "user", "content": "x"}]} | body
    return ev.Received(TIME, orjson.dumps(whole), (("user-agent", "test"),))


def completion(
    prompt: Sequence[int] = (1, 2),
    sampled: Sequence[int] = (7, 8),
    **choice: Any,
) -> dict[str, Any]:
    """A vLLM-shaped reply whose counts agree."""
    content = [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []} for _ in sampled
    ]
    whole: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi"},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": list(sampled),
    }
    return {
        "id": "chatcmpl-up",
        "model": "m",
        "choices": [whole | choice],
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)},
        "prompt_token_ids": list(prompt),
    }


def answered(
    body: dict[str, Any] | bytes | None = None, status: int = 200, after_us: int = 1000
) -> ev.EngineAnswered:
    """The engine's reply."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body or completion())
    return ev.EngineAnswered(TIME + after_us, EngineReply(status, (), raw))


def only(commands: Sequence[ev.Command], kind: type[C]) -> C:
    """The one command of a kind."""
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


def kinds(commands: Sequence[ev.Command]) -> list[str]:
    """Names of the commands, in order."""
    return [type(command).__name__ for command in commands]


def ids(values: Sequence[int]) -> IdArray:
    """Token ids."""
    return np.array(values, dtype=np.int32)
