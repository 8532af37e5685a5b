"""What a durable commit costs here, as ratios to a bare append + fdatasync.

Run ``python -m benchmarks.store_commit [--rounds 3]``. Ratios within one run are the
result; absolute numbers depend on the disk and on who else uses the machine. Each
figure is the median round; every append writes as many bytes as a commit sends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from explorer.records import (
    Admission,
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    KeyHash,
    Rollout,
    RolloutId,
)
from explorer.store import DuckDBStore, StoreOptions

ROLLOUT = RolloutId("ro_benchmark")
PACED = ("append + fdatasync at 100/s", "admission + commit at 100 calls/s")
WORDS = [f"w{i:x}" for i in range(4096)]


def make_call(number: int, rng: random.Random) -> tuple[Admission, Call, list[Body]]:
    """Make a call as a proxy would: 400 prompt ids, 200 sampled ids, three bodies."""
    call_id = CallId(f"ca_{number:08d}_{rng.getrandbits(64):016x}")
    completion = np.arange(200, dtype=np.int32) + number
    call = Call(
        call_id=call_id,
        rollout_id=ROLLOUT,
        sequence=number,
        dialect=Dialect.CHAT,
        status=CallStatus.COMMITTED,
        started_us=1_700_000_000_000_000 + number,
        ended_us=1_700_000_000_000_000 + number + 900,
        capture_level=CaptureLevel.TOKENS,
        finish_reason="stop",
        engine_ms=12.5,
        requested_sampling={"temperature": 1.0, "max_tokens": 512},
        submitted_sampling={"temperature": 1.0, "max_tokens": 512, "top_p": 1.0},
        message_digests=("a" * 64, "b" * 64),
        prompt_len=400,
        completion_len=200,
        prompt_delta=np.arange(400, dtype=np.int32) + number,
        completion=completion,
        logprobs=(-0.5 - completion / 1000).astype(np.float32),
        chain_hash=rng.randbytes(32),
        preview="the first words of the reply",
    )
    request = " ".join(rng.choices(WORDS, k=500)).encode()
    reply = " ".join(rng.choices(WORDS, k=300)).encode()
    headers = (("content-type", "application/json"),)
    kinds = ((BodyKind.REQUEST, request), (BodyKind.SUBMITTED, request + b" sampling"))
    bodies = [
        Body(call_id, ROLLOUT, kind, data, headers)
        for kind, data in (*kinds, (BodyKind.REPLY, reply))
    ]
    admission = Admission(
        call_id, ROLLOUT, number, call.started_us, Dialect.CHAT, False, 0, "c" * 64
    )
    return admission, call, bodies


class Figures:
    """Collects times per name; prints p50, p95 and the ratio to the bare append."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[tuple[float, float]]] = {}

    def add(self, name: str, times: list[float]) -> None:
        """Add one round of times (seconds)."""
        ordered = sorted(times)
        pair = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)])
        self._rounds.setdefault(name, []).append(pair)

    def show(self) -> None:
        """Print the median round of each name."""
        bare = median(p50 for p50, _ in self._rounds["append + fdatasync, 1 call"])
        print(f"{'':44} {'p50 ms':>8} {'p95 ms':>8} {'x bare':>7}")
        for name, pairs in self._rounds.items():
            p50, p95 = median(p for p, _ in pairs), median(p for _, p in pairs)
            print(f"{name:44} {p50 * 1e3:8.3f} {p95 * 1e3:8.3f} {p50 / bare:7.2f}")
        rounds = zip(self._rounds[PACED[0]], self._rounds[PACED[1]], strict=True)
        ratios = sorted(commit[0] / append[0] for append, commit in rounds)
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"at 100 calls/s, commit p50 / append p50 by round: {shown}")


def bare_append(folder: Path, size: int, repeats: int) -> list[float]:
    """Time appends of ``size`` bytes, each with fdatasync."""
    data = os.urandom(size)
    times = []
    descriptor = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(repeats):
        began = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    os.close(descriptor)
    return times


def paced_append(folder: Path, size: int, rate: float, count: int) -> list[float]:
    """Time appends at a steady rate: the disk and the caches rest in between."""
    data = os.urandom(size)
    times = []
    descriptor = os.open(folder / "paced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    start = time.perf_counter()
    for index in range(count):
        time.sleep(max(0.0, start + index / rate - time.perf_counter()))
        began = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    os.close(descriptor)
    return times


async def groups(store: DuckDBStore, start: int, size: int, repeats: int) -> list[float]:
    """Time ``size`` calls committed together."""
    rng = random.Random(start)
    times = []
    for repeat in range(repeats):
        made = [make_call(start + repeat * size + i, rng) for i in range(size)]
        began = time.perf_counter()
        if size == 1:
            await store.commit_call(made[0][1], made[0][2])
        else:
            await asyncio.gather(*(store.commit_call(call, bodies) for _, call, bodies in made))
        times.append(time.perf_counter() - began)
    return times


async def paced(store: DuckDBStore, start: int, rate: float, count: int) -> list[float]:
    """Time commits at a steady rate: admission, 200 ms of "engine", commit."""
    rng = random.Random(start)
    made = [make_call(start + i, rng) for i in range(count)]
    times: list[float] = []

    async def one(index: int) -> None:
        admission, call, bodies = made[index]
        await asyncio.sleep(index / rate)
        store.admit(admission)
        await asyncio.sleep(0.2)
        began = time.perf_counter()
        await store.commit_call(call, bodies)
        times.append(time.perf_counter() - began)

    await asyncio.gather(*(one(i) for i in range(count)))
    return times


async def closed_loop(store: DuckDBStore, start: int, sessions: int, count: int) -> float:
    """Return calls per second of ``sessions`` that each wait for their commit."""
    rng = random.Random(start)
    made = iter([make_call(start + i, rng) for i in range(count)])

    async def session() -> None:
        for admission, call, bodies in made:
            store.admit(admission)
            await store.commit_call(call, bodies)

    began = time.perf_counter()
    await asyncio.gather(*(session() for _ in range(sessions)))
    return count / (time.perf_counter() - began)


async def run(folder: Path, rounds: int) -> None:
    """Run every measurement in turn, ``rounds`` times."""
    store = DuckDBStore(folder / "bench.duckdb", StoreOptions(min_free_bytes=0))
    await store.add_rollout(Rollout(ROLLOUT, 1, KeyHash("k"), "bench"))
    figures, rates, number = Figures(), [], 0
    _, _, bodies = make_call(0, random.Random(0))
    call_bytes = 3200 + sum(len(body.data) for body in bodies) // 2  # as compressed here
    for _ in range(rounds):
        for size, repeats in ((1, 200), (10, 60), (100, 15)):
            calls = "1 call" if size == 1 else f"{size} calls"
            figures.add(
                f"append + fdatasync, {calls}", bare_append(folder, call_bytes * size, repeats)
            )
            figures.add(f"commit of {calls}", await groups(store, number, size, repeats))
            number += size * repeats
        figures.add(
            PACED[0],
            await asyncio.to_thread(paced_append, folder, call_bytes, 100, 200),
        )
        figures.add(PACED[1], await paced(store, number, 100, 200))
        number += 200
        rates.append(await closed_loop(store, number, 32, 1000))
        number += 1000
    figures.show()
    print(f"closed loop, 32 sessions: {median(rates):.0f} calls/s")
    await store.close()


def main() -> None:
    """Parse the command line and run in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None, help="directory on the disk to test")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        asyncio.run(run(folder, options.rounds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
