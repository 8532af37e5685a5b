"""What the documents cost that leave: the Training trace and the Capture audit.

    python -m benchmarks.export [--turns 200] [--tokens 32000]
    python -m benchmarks.export --parquet

The second is `benchmarks.dataset`: 1,000 rollouts of 10,000 tokens beside a bare Parquet write.

One conversation of `turns` calls, the last one `tokens` long. Each part runs in a process of
its own and says: bytes written, CPU seconds, MB/s, and the memory it took beyond the record
that it started from. `judge` is counted apart: pages and listings need it, too. Where the real
`openenv` is installed (the environment of `make test-consumers`), its exporter writes the same
conversation in the same run. Aims: at most 0.25 of its CPU, and under 64 MB.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.tree import make_call
from explorer.records import (
    Call,
    CaptureLevel,
    Certificate,
    EventKind,
    KeyHash,
    LogprobKind,
    Rollout,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
)

PARTS = ("trace", "trace+hash", "contract", "audit", "judge", "openenv")
CPU_AIM = 0.25
MEMORY_AIM_MB = 64.0


def conversation(turns: int, tokens: int) -> list[Call]:
    """Calls that continue each other; a call samples as much as its tools add."""
    random = np.random.default_rng(7)
    start = min(2000, tokens // 4)
    each = max(2, (tokens - start) // (2 * turns))
    calls: list[Call] = []
    for number in range(turns):
        size = start if number == 0 else each
        calls.append(
            make_call(
                number,
                random.integers(0, 150_000, size, dtype=np.int32),
                random.integers(0, 150_000, each, dtype=np.int32),
                parent=calls[-1] if calls else None,
            )
        )
        calls[-1].logprobs[:] = -random.exponential(0.7, each).astype(np.float32)  # type: ignore[index]
    return calls


def our_record(turns: int, tokens: int) -> RolloutRecord:
    certificate = Certificate(
        *("c", 0, "vllm", "vllm", "0.32", "m", None),
        CaptureLevel.TOKENS,
        LogprobKind.PROCESSED,
        certifiable=True,
    )
    rollout = RolloutId("r")
    return RolloutRecord(
        Rollout(rollout, 0, KeyHash(""), "run"),
        (RolloutEvent(rollout, 0, 0, EventKind.CLOSED, 1.0, True),),
        tuple(conversation(turns, tokens)),
        certificate,
    )


def ours(part: str, turns: int, tokens: int) -> Callable[[], Iterator[bytes]]:
    """The part's work, on a record that is judged already (unless judging is the work)."""
    import hashlib

    from explorer.trace.assemble import training_trace
    from explorer.trace.audit import capture_audit
    from explorer.trace.contract import contract
    from explorer.trace.verdict import judge

    record = our_record(turns, tokens)
    judgement = judge(record)
    if part == "judge":

        def again() -> Iterator[bytes]:
            judge(record)
            yield b""

        return again
    if part == "trace+hash":

        def hashed() -> Iterator[bytes]:
            digest = hashlib.sha256()
            for chunk in training_trace(record, judgement):
                digest.update(chunk)
            yield from training_trace(record, judgement)

        return hashed
    writers: dict[str, Callable[..., Iterator[bytes]]] = {
        "trace": training_trace,
        "audit": capture_audit,
        "contract": contract,
    }
    return lambda: writers[part](record, judgement)


def theirs(turns: int, tokens: int) -> Callable[[], Iterator[bytes]]:
    """OpenEnv's own path from a captured session to the trace as JSON."""
    from openenv.core.harness.capture.contract import to_training_trace
    from openenv.core.harness.capture.export import export_session
    from openenv.core.harness.capture.graph import TurnNode
    from openenv.core.harness.capture.sessions import Session

    session = Session(session_id="s1", capture_level="tokens", purpose="train")
    full: list[int] = []
    for number, call in enumerate(conversation(turns, tokens)):
        assert call.prompt_delta is not None
        assert call.completion is not None
        assert call.logprobs is not None
        prompt = full + call.prompt_delta.tolist()
        sampled = call.completion.tolist()
        session.graph.add_turn(
            TurnNode(
                node_id=f"{number:012x}",
                prompt_ids=prompt,
                sampled_ids=sampled,
                sampled_logprobs=call.logprobs.astype(float).tolist(),
                finish_reason="stop",
                n_tools=1,
            )
        )
        full = prompt + sampled

    def write() -> Iterator[bytes]:
        document = export_session(session)
        yield to_training_trace(session.graph, document).model_dump_json().encode()

    return write


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(part: str, turns: int, tokens: int) -> dict[str, Any]:
    """One part, in this process: the best of three runs, memory from the first."""
    write = theirs(turns, tokens) if part == "openenv" else ours(part, turns, tokens)
    gc.collect()
    before, peak = resident_mb(), 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident_mb())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    sizes = [sum(len(chunk) for chunk in write())]
    done.set()
    watcher.join()
    peak = max(peak, resident_mb())
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        sizes.append(sum(len(chunk) for chunk in write()))
        best = min(best, time.process_time() - start)
    assert len(set(sizes)) == 1, "a document changed between two runs"
    return {
        "part": part,
        "bytes": sizes[0],
        "cpu_s": best,
        "peak_mb": peak - before,
        "maxrss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--parquet", action="store_true")
    args = parser.parse_args()
    if args.parquet:
        subprocess.run([sys.executable, "-m", "benchmarks.dataset"], check=True)
        return
    if args.part:
        print(json.dumps(measure(args.part, args.turns, args.tokens)))
        return
    have = importlib.util.find_spec("openenv") is not None
    rows = {}
    for part in PARTS if have else PARTS[:-1]:
        command = [sys.executable, "-m", "benchmarks.export", "--part", part]
        command += ["--turns", str(args.turns), "--tokens", str(args.tokens)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows[part] = json.loads(out)
    print(f"{args.turns} turns, {args.tokens} tokens in the longest call")
    for part, row in rows.items():
        rate = row["bytes"] / 1e6 / row["cpu_s"]
        print(
            f"  {part:<11} {row['bytes'] / 1e6:8.2f} MB  {row['cpu_s']:7.3f} CPU s  "
            f"{rate:8.1f} MB/s  {row['peak_mb']:7.1f} MB more memory"
        )
    if not have:
        print("  openenv is not installed here: run this with .venv-consumers/bin/python")
        return
    their = rows["openenv"]["cpu_s"]
    for name, parts in {
        "trace": ("trace",),
        "trace+hash": ("trace+hash",),
        "judge + trace+hash": ("judge", "trace+hash"),
        "judge + trace + audit": ("judge", "trace", "audit"),
    }.items():
        spent = sum(rows[part]["cpu_s"] for part in parts)
        print(
            f"  {name:<22} / openenv's exporter: {spent / their:5.3f} of the CPU "
            f"(aim {CPU_AIM})"
        )
    most = max(row["peak_mb"] for part, row in rows.items() if part != "openenv")
    print(
        f"  most memory of ours {most:.1f} MB (aim under {MEMORY_AIM_MB:.0f}), "
        f"theirs {rows['openenv']['peak_mb']:.1f} MB"
    )


if __name__ == "__main__":
    main()
