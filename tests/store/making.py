"""Records for the store's tests, with every field set to something."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from explorer.records import (
    NULL_LOGPROB_BITS,
    Admission,
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    EventKind,
    KeyHash,
    Note,
    Purpose,
    Rollout,
    RolloutEvent,
    RolloutId,
    TokenizerId,
)
from explorer.store import DuckDBStore, StoreOptions

T = TypeVar("T")
OPTIONS = StoreOptions(min_free_bytes=0, app_version="test")


def with_store(
    path: Path,
    work: Callable[[DuckDBStore], Awaitable[T]],
    options: StoreOptions = OPTIONS,
) -> T:
    """Open a store, run a coroutine on it, close it."""

    async def run() -> T:
        store = await asyncio.to_thread(DuckDBStore, path, options)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def rollout_id(number: int) -> RolloutId:
    """Return the id of a rollout made here."""
    return RolloutId(f"ro_{number:06d}")


def make_rollout(
    number: int = 0, *, run: str = "run-a", task: str | None = "task-a"
) -> Rollout:
    """Make a rollout."""
    return Rollout(
        rollout_id=rollout_id(number),
        created_us=1_790_000_000_000_000 + number,
        key_hash=KeyHash(f"key-{number}"),
        run=run,
        task=task,
        group=f"group-{number % 3}",
        attempt=number,
        purpose=Purpose.TRAIN,
        harness="harness",
        harness_version="1.2",
        metadata={"seed": 2**80, "text": "naïve \ud800 \x00", "nan": None},
        sampling={"temperature": 1.0},
        budgets={"calls": 10},
        engine_kind="tiny",
        engine_name="tiny-1",
        engine_version="0",
        model="tiny",
        tokenizer_id=TokenizerId("tok"),
        chat_template_sha256="aa",
        certificate_id="ce_1",
        app_version="0.1.0",
    )


def make_event(number: int, kind: EventKind, *, reward: float | None = None) -> RolloutEvent:
    """Make an event that asks for its number."""
    return RolloutEvent(rollout_id(number), -1, 1_790_000_001_000_000, kind, reward)


def make_admission(call: Call) -> Admission:
    """Make the admission of a call."""
    return Admission(
        call.call_id,
        call.rollout_id,
        call.sequence,
        call.started_us,
        call.dialect,
        call.stream,
        call.n_tools,
        "f" * 64,
    )


def make_call(rollout: int, sequence: int, *, parent: int | None = None) -> Call:
    """Make a committed call with tokens."""
    logprobs = np.array([-0.5, -np.inf, 0, -9999.0], dtype=np.float32)
    logprobs.view(np.uint32)[2] = NULL_LOGPROB_BITS
    return Call(
        call_id=call_id(rollout, sequence),
        rollout_id=rollout_id(rollout),
        sequence=sequence,
        dialect=Dialect.CHAT,
        status=CallStatus.COMMITTED,
        started_us=1_790_000_000_000_000 + sequence,
        ended_us=1_790_000_000_500_000 + sequence,
        stream=True,
        http_status=200,
        engine_ms=1.25,
        finish_reason="stop",
        capture_level=CaptureLevel.TOKENS,
        response_id=f"chatcmpl-{sequence}",
        requested_sampling={"seed": None, "temperature": 1.0},
        constraints=("bias",),
        message_digests=("a", "b"),
        claims={"session": "s"},
        stored_parent_id=None if parent is None else call_id(rollout, parent),
        prefix_len=0 if parent is None else 7,
        prompt_len=5,
        completion_len=4,
        prompt_delta=np.arange(5, dtype=np.int32),
        completion=np.array([1, 2, 3, 2**31 - 1], dtype=np.int32),
        logprobs=logprobs,
        top_logprobs=b"[]",
        chain_hash=b"\x00\xff" * 16,
        notes=(Note("code", "detail"), Note("other")),
        preview="snow ☃ and \x00",
        served_sha256="b" * 64,
    )


def call_id(rollout: int, sequence: int) -> CallId:
    """Return the id of a call made here."""
    return CallId(f"ca_{rollout:06d}_{sequence:06d}")


def make_bodies(call: Call, rng: random.Random, size: int = 600) -> list[Body]:
    """Make the three bodies of a call from random bytes."""
    request = rng.randbytes(size)
    data = {
        BodyKind.REQUEST: request,
        BodyKind.SUBMITTED: request + b"!",
        BodyKind.REPLY: rng.randbytes(size // 2),
    }
    headers = (("content-type", "application/json"), ("x-odd", "ä"))
    return [Body(call.call_id, call.rollout_id, kind, data[kind], headers) for kind in data]


def facts(call: Call) -> dict[str, object]:
    """Return a call's fields in a form that compares by value, arrays by their bits."""
    found: dict[str, object] = {}
    for name in Call.__slots__:
        value = getattr(call, name)
        if isinstance(value, np.ndarray):
            value = (str(value.dtype), value.tobytes())
        elif isinstance(value, float):
            value = np.float64(value).tobytes()
        found[name] = value
    return found
