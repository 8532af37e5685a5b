"""Readable rollouts for tests: a small script of calls becomes a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from explorer.custody.digest import chain_hash
from explorer.records import (
    NULL_LOGPROB_BITS,
    Admission,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    Dialect,
    EventKind,
    FailureKind,
    IdArray,
    KeyHash,
    LogprobArray,
    LogprobKind,
    Override,
    Purpose,
    Rollout,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
)

ROLLOUT = RolloutId("r1")
NULL = float("nan")  # in `logprobs_of`, None is what becomes the null value

CERTIFIED = Certificate(
    certificate_id="cert-1",
    time_us=1,
    engine_kind="vllm",
    engine_name="tiny",
    engine_version="0.32.0",
    model="tiny",
    fingerprint="f",
    capture_level=CaptureLevel.TOKENS,
    logprob_kind=LogprobKind.PROCESSED,
    certifiable=True,
    numbers={"ratio": 1.0},
)
RAW = replace(CERTIFIED, certificate_id="cert-raw", logprob_kind=LogprobKind.RAW)
SCRIPTED = replace(
    CERTIFIED,
    certificate_id="cert-scripted",
    certifiable=False,
    logprob_kind=LogprobKind.UNKNOWN,
)


def ids(values: Iterable[int]) -> IdArray:
    return np.array(list(values), dtype=np.int32)


def logprobs_of(values: Iterable[float | None]) -> LogprobArray:
    """float32, None as the one null value."""
    listed = list(values)
    array = np.array([0.0 if value is None else value for value in listed], np.float32)
    bits = array.view(np.uint32)
    for place, value in enumerate(listed):
        if value is None:
            bits[place] = NULL_LOGPROB_BITS
    return array


def make_call(
    name: str,
    sequence: int,
    prompt: Sequence[int] | None,
    completion: Sequence[int] | None,
    *,
    parent: Call | None = None,
    prefix_len: int | None = None,
    logprobs: Sequence[float | None] | None = None,
    **fields: Any,
) -> Call:
    """A committed token-level call; with `parent`, stored as a delta against it.

    `prompt` is always the whole prompt. Any field of `Call` can be given.
    """
    shared = 0
    if parent is not None:
        shared = full_len(parent) if prefix_len is None else prefix_len
    delta = None if prompt is None else ids(prompt[shared:])
    sampled = None if completion is None else ids(completion)
    if logprobs is None and sampled is not None:
        values: LogprobArray | None = np.full(sampled.size, -0.25, np.float32)
    else:
        values = None if logprobs is None else logprobs_of(logprobs)
    both = None if delta is None or sampled is None else np.concatenate([delta, sampled])
    link = parent.chain_hash if parent is not None else None
    usable = both is not None and (both.size == 0 or int(both.min()) >= 0)
    facts: dict[str, Any] = {
        "rollout_id": ROLLOUT,
        "dialect": Dialect.CHAT,
        "status": CallStatus.COMMITTED,
        "started_us": sequence * 10,
        "ended_us": sequence * 10 + 5,
        "finish_reason": "stop",
        "capture_level": CaptureLevel.TOKENS,
        "stored_parent_id": None if parent is None else parent.call_id,
        "prefix_len": shared,
        "prompt_len": None if prompt is None else len(prompt),
        "completion_len": None if sampled is None else int(sampled.size),
        "prompt_delta": delta,
        "completion": sampled,
        "logprobs": values,
        "usage_prompt": None if prompt is None else len(prompt),
        "usage_completion": None if sampled is None else int(sampled.size),
        "chain_hash": chain_hash(link, both) if usable and both is not None else None,
        "weight_version_start": 7,
        "weight_version_end": 7,
    }
    return Call(CallId(name), sequence=sequence, **(facts | fields))


def full_len(call: Call) -> int:
    assert call.prompt_delta is not None
    assert call.completion is not None
    return call.prefix_len + int(call.prompt_delta.size) + int(call.completion.size)


def failed_call(name: str, sequence: int, **fields: Any) -> Call:
    """A call that never had a reply, without ids."""
    facts: dict[str, Any] = {
        "status": CallStatus.FAILED,
        "failure_kind": FailureKind.UPSTREAM_STATUS,
        "capture_level": CaptureLevel.TEXT,
        "finish_reason": None,
    }
    return make_call(name, sequence, None, None, **(facts | fields))


def admission(name: str, sequence: int, n_tools: int = 0) -> Admission:
    return Admission(CallId(name), ROLLOUT, sequence, 0, Dialect.CHAT, False, n_tools, "")


def event(kind: EventKind, sequence: int = 1, **fields: Any) -> RolloutEvent:
    return RolloutEvent(ROLLOUT, sequence, sequence, kind, **fields)


def record(
    *calls: Call,
    certificate: Certificate | None = CERTIFIED,
    overrides: Sequence[Override] = (),
    events: Sequence[RolloutEvent] | None = None,
    open_calls: Sequence[Admission] = (),
    purpose: Purpose = Purpose.TRAIN,
) -> RolloutRecord:
    """A closed, successful rollout unless told otherwise."""
    if events is None:
        events = (event(EventKind.CLOSED, ok=True, reward=1.0),)
    return RolloutRecord(
        rollout=Rollout(ROLLOUT, 0, KeyHash("secret-hash"), run="run", purpose=purpose),
        events=tuple(events),
        calls=calls,
        certificate=certificate,
        overrides=tuple(overrides),
        open_calls=tuple(open_calls),
    )


def override(kind: str, call_id: str | None = None, **fields: Any) -> Override:
    name = None if call_id is None else CallId(call_id)
    return Override(kind, "because", "ada", 1, call_id=name, **fields)


def two_turns() -> tuple[Call, Call]:
    """a: [1 2] -> [3 4]; b: [1 2 3 4 5] -> [6]."""
    first = make_call("a", 1, [1, 2], [3, 4], n_tools=2)
    second = make_call("b", 2, [1, 2, 3, 4, 5], [6], parent=first, n_tools=2)
    return first, second
