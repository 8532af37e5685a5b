"""What the capture proxy costs: direct against proxied, in one run.

    python benchmarks/proxy.py [--quick] [--rounds 3]

Engine: `stub_engine.py`, 0 ms, prebuilt body, 200 prompt and 100 sampled ids with
logprobs. Everything is on: keys, sampling policy, parsing, prefix index, custody chain,
raw bodies, durable group commit before the reply. Stub, proxy and client share the
machine's cores, so read the ratios, not the absolute numbers. A bare ASGI forwarder runs
in the same round, without and with JSON decoding: what any Python proxy costs here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

HERE = Path(__file__).parent
TURNS = 1000
MESSAGES = [
    {"role": "system", "content": "You are a careful assistant. " * 20},
    {"role": "user", "content": "Please fix the failing test. " * 20},
]


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child process, ended at the end."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


def cpu_s(pid: int) -> float:
    """User and system time of a process so far (seconds)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process (MB)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def wait_for(session: aiohttp.ClientSession, url: str) -> None:
    """Until a server answers."""
    for _ in range(600):
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with session.get(url) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit(f"{url} did not come up")


class Target:
    """Where calls go: an address and one key per worker."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.url = url + "/v1/chat/completions"
        self.keys = keys


async def load(
    session: aiohttp.ClientSession, target: Target, at_once: int, calls: int
) -> tuple[list[float], float]:
    """Latencies (ms) and calls per second of a closed loop."""
    raw = orjson.dumps({"model": "stub", "messages": MESSAGES, "temperature": 0.7})
    latencies: list[float] = []
    left = iter(range(calls))

    async def worker(number: int) -> None:
        headers = {
            "Authorization": f"Bearer {target.keys[number % len(target.keys)]}",
            "Content-Type": "application/json",
        }
        for _ in left:
            began = time.perf_counter()
            async with session.post(target.url, data=raw, headers=headers) as response:
                await response.read()
                if response.status != 200:
                    raise SystemExit(f"{response.status} from {target.url}")
            latencies.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*(worker(n) for n in range(at_once)))
    return latencies, calls / (time.perf_counter() - began)


def quantile(values: list[float], share: float) -> float:
    """A quantile by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def compare(
    session: aiohttp.ClientSession,
    targets: dict[str, Target],
    pid: int,
    quick: bool,
    rounds: int,
) -> None:
    """Throughput and latency of every target, interleaved, medians over the rounds."""
    print("ratios are to direct in the same round, medians over the rounds")
    print(
        f"{'in flight':>9} {'':>10} {'calls/s':>9} {'ratio':>6} {'p50 ms':>8} {'p95 ms':>8}"
        f" {'CPU ms/call':>12}"
    )
    for target in targets.values():
        await load(session, target, 8, 200)
    for at_once, calls in ((1, 400), (32, 4000), (256, 4000)):
        calls = calls // 4 if quick else calls
        rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in targets}
        for _ in range(rounds):
            direct_rate = 0.0
            for name, target in targets.items():
                before = cpu_s(pid)
                latencies, rate = await load(session, target, at_once, calls)
                used = (cpu_s(pid) - before) / calls * 1000
                direct_rate = direct_rate or rate
                p50, p95 = quantile(latencies, 0.5), quantile(latencies, 0.95)
                rows[name].append((rate, rate / direct_rate, p50, p95, used))
        for name, found in rows.items():
            rate, ratio, p50, p95, used = map(statistics.median, zip(*found, strict=True))
            shown = f"{used:12.3f}" if name == "proxied" else ""
            print(
                f"{at_once:9d} {name:>10} {rate:9.0f} {ratio:6.2f} {p50:8.2f} {p95:8.2f}"
                f" {shown}"
            )


async def grow(
    session: aiohttp.ClientSession,
    direct: Target,
    proxied: Target,
    pid: int,
    store: Path,
    turns: int,
) -> None:
    """One rollout that grows; each turn direct and proxied, so that both see the same."""
    history: list[dict[str, Any]] = list(MESSAGES)
    times: dict[str, list[float]] = {"direct": [], "proxied": []}
    before = rss_mb(pid)
    size_before = store_bytes(store)
    for turn in range(turns):
        raw = orjson.dumps({"model": "stub", "messages": history, "bench_turn": turn})
        for name, target in (("direct", direct), ("proxied", proxied)):
            headers = {"Authorization": f"Bearer {target.keys[-1]}"}
            began = time.perf_counter()
            async with session.post(target.url, data=raw, headers=headers) as response:
                await response.read()
                if response.status != 200:
                    raise SystemExit(f"{response.status} from {target.url}")
            times[name].append((time.perf_counter() - began) * 1000)
        history.append({"role": "assistant", "content": "word " * 15})
        history.append({"role": "user", "content": f"turn {turn} " * 5})
    tenth = max(1, turns // 10)
    added = [b - a for a, b in zip(times["direct"], times["proxied"], strict=True)]
    print(f"one rollout, {turns} turns, {turns * 30} tokens:")
    for name, values in (*times.items(), ("added", added)):
        first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
        print(
            f"  {name:8} first decile {first:7.2f} ms, last {last:7.2f} ms:"
            f" {last / first:5.2f}x"
        )
    print(f"  memory gained {rss_mb(pid) - before:.1f} MB")
    print(f"  store grew {(store_bytes(store) - size_before) / 1e6:.1f} MB")


def operator_token(store: Path) -> str:
    """The operator's token, from the run-file beside the store."""
    return str(orjson.loads(Path(f"{store}.run.json").read_bytes())["token"])


def store_bytes(store: Path) -> int:
    """The store's file and write-ahead log (bytes)."""
    return sum(path.stat().st_size for path in (store, Path(f"{store}.wal")) if path.exists())


async def main(quick: bool, rounds: int) -> None:
    """Starts everything and prints the tables."""
    turns = TURNS // 5 if quick else TURNS
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        store = Path(folder) / "bench.duckdb"
        ports = [free_port() for _ in range(4)]
        direct_url, bare_url, json_url, proxy_url = (
            f"http://127.0.0.1:{port}" for port in ports
        )
        stub = (sys.executable, str(HERE / "stub_engine.py"), str(ports[0]), str(turns))
        stack.enter_context(process(*stub))
        forward = (sys.executable, str(HERE / "forwarder.py"))
        stack.enter_context(process(*forward, str(ports[1]), direct_url))
        stack.enter_context(process(*forward, str(ports[2]), direct_url, "json"))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for url in (direct_url, bare_url, json_url):
                await wait_for(session, url + "/v1/models")
            command = (sys.executable, "-m", "explorer", "serve", "--engine", direct_url)
            child = stack.enter_context(
                process(*command, "--store", str(store), "--port", str(ports[3]))
            )
            await wait_for(session, proxy_url + "/healthz")
            token = operator_token(store)
            keys = []
            for _ in range(257):
                async with session.post(
                    proxy_url + "/api/v1/rollouts",
                    headers={"Authorization": f"Bearer {token}"},
                ) as made:
                    keys.append(orjson.loads(await made.read())["capture_key"])
            targets = {
                "direct": Target(direct_url, ["none"]),
                "forwarder": Target(bare_url, ["none"]),
                "+ JSON": Target(json_url, ["none"]),
                "proxied": Target(proxy_url, keys),
            }
            await compare(session, targets, child.pid, quick, rounds)
            await grow(session, targets["direct"], targets["proxied"], child.pid, store, turns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the calls")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians of")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.quick, chosen.rounds))
