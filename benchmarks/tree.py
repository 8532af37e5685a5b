"""How long the tree takes, in CPU time.

    python benchmarks/tree.py

1. 400 roots that diverge late after a shared prefix of 30,000 tokens: under 1 s.
2. 500, 1,000 and 2,000 calls in one rollout: linear.
3. The same 2,000 calls through the whole verdict.
4. The capture proxy's use: find the parent, then add, call by call.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

import numpy as np

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    IdArray,
    KeyHash,
    Rollout,
    RolloutId,
    RolloutRecord,
)
from explorer.trace.prefix import PrefixIndex
from explorer.trace.tree import build_tree
from explorer.trace.verdict import judge

PREFIX = 30_000
ROOTS = 400
LIMIT_S = 1.0
VOCABULARY = 150_000


def make_call(
    number: int, delta: IdArray, completion: IdArray, *, parent: Call | None = None
) -> Call:
    held = 0
    if parent is not None:
        assert parent.prompt_len is not None
        assert parent.completion is not None
        held = parent.prompt_len + int(parent.completion.size)
    return Call(
        CallId(str(number)),
        RolloutId("r"),
        number,
        Dialect.CHAT,
        CallStatus.COMMITTED,
        0,
        0,
        finish_reason="stop",
        capture_level=CaptureLevel.TOKENS,
        stored_parent_id=None if parent is None else parent.call_id,
        prefix_len=held,
        prompt_len=held + int(delta.size),
        completion_len=int(completion.size),
        prompt_delta=delta,
        completion=completion,
        logprobs=np.full(completion.size, -0.5, np.float32),
    )


def late_roots() -> list[Call]:
    random = np.random.default_rng(0)
    shared = random.integers(0, VOCABULARY, PREFIX, dtype=np.int32)
    calls = []
    for number in range(ROOTS):
        # Each leaves the others at its own place in the last 200 tokens.
        tail = random.integers(0, VOCABULARY, 200, dtype=np.int32)
        prompt = np.concatenate([shared[: PREFIX - number % 200], tail])
        calls.append(make_call(number, prompt, random.integers(0, 99, 50, dtype=np.int32)))
    return calls


def chain(length: int, delta: int = 60, sampled: int = 40) -> list[Call]:
    random = np.random.default_rng(1)
    calls: list[Call] = []
    for number in range(length):
        calls.append(
            make_call(
                number,
                random.integers(0, VOCABULARY, delta, dtype=np.int32),
                random.integers(0, VOCABULARY, sampled, dtype=np.int32),
                parent=calls[-1] if calls else None,
            )
        )
    return calls


def cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def proxy_use(calls: list[Call]) -> float:
    index = PrefixIndex()
    spent = 0.0
    for call in calls:
        assert call.prompt_delta is not None
        assert call.completion is not None
        started = time.process_time()
        match = index.find_parent(call.prompt_delta)
        assert match is None
        index.add(call.call_id, call.sequence, call.prompt_delta, call.completion)
        spent += time.process_time() - started
    return spent


def main() -> int:
    roots = late_roots()
    taken = cpu_s(lambda: build_tree(roots))
    print(f"{ROOTS} late roots after {PREFIX} shared tokens: {taken:.3f} CPU s")
    print(f"  the same in the capture proxy's index: {proxy_use(roots):.3f} CPU s")
    per_call = []
    for length in (500, 1000, 2000):
        calls = chain(length)
        spent = cpu_s(lambda calls=calls: build_tree(calls))  # type: ignore[misc]
        per_call.append(spent / length)
        print(
            f"{length} calls in one rollout: {spent:.3f} CPU s, "
            f"{spent / length * 1e6:.0f} us a call"
        )
    calls = chain(2000)
    record = RolloutRecord(Rollout(RolloutId("r"), 0, KeyHash("k"), "run"), (), tuple(calls))
    print(f"2000 calls through the whole verdict: {cpu_s(lambda: judge(record)):.3f} CPU s")
    linear = per_call[-1] < 2 * per_call[0]
    print(f"limit {LIMIT_S} s kept: {taken < LIMIT_S}; linear: {linear}")
    return 0 if taken < LIMIT_S and linear else 1


if __name__ == "__main__":
    sys.exit(main())
