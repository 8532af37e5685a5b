"""Many rollouts at once against a slow engine: what is lost, what waits, what it takes.

    python -m benchmarks.load [--rollouts 400] [--delay 30] [--kilobytes 200]

Every rollout makes one call, streamed on its own wire, with a large body, while the engine
takes `--delay` seconds for each. Printed: calls answered and recorded (they must be equal),
the time of ``/healthz`` meanwhile, memory per call in flight, and what a server whose limit
is lower than the load answers to the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.proxy import (
    HERE,
    free_port,
    operator_token,
    process,
    quantile,
    rss_mb,
    store_bytes,
    wait_for,
)

ENDS = (b"[DONE]", b"message_stop", b"response.completed")
WIRES: tuple[tuple[str, str], ...] = (
    ("/v1/chat/completions", "messages"),
    ("/v1/messages", "messages"),
    ("/v1/responses", "input"),
)


def body_of(number: int, kilobytes: int) -> tuple[str, bytes]:
    """Path and body of one rollout's call."""
    path, field = WIRES[number % len(WIRES)]
    text = f"bench_slow {number} " + "word " * (kilobytes * 200)
    said = [{"role": "user", "content": text}]
    body: dict[str, Any] = {"model": "stub", "stream": True, "max_tokens": 100, field: said}
    return path, orjson.dumps(body)


async def create(session: aiohttp.ClientSession, url: str, store: Path) -> tuple[str, str]:
    """A rollout's id and key."""
    headers = {"Authorization": f"Bearer {operator_token(store)}"}
    async with session.post(url + "/api/v1/rollouts", headers=headers) as made:
        answer = orjson.loads(await made.read())
        return answer["rollout_id"], answer["capture_key"]


# In a process of its own: the one that makes the load is busy itself.
WATCH = """
import http.client, sys, time
link = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
while True:
    began = time.perf_counter()
    link.request("GET", "/healthz")
    link.getresponse().read()
    print((time.perf_counter() - began) * 1000, flush=True)
    time.sleep(0.02)
"""


async def call(
    session: aiohttp.ClientSession, url: str, key: str, number: int, kilobytes: int
) -> tuple[int, bool]:
    """Status, and whether the stream came to its end."""
    path, raw = body_of(number, kilobytes)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with session.post(url + path, data=raw, headers=headers) as response:
        data = await response.read()
        ended = any(
            mark in data for mark in (b"[DONE]", b"message_stop", b"response.completed")
        )
        return response.status, response.status == 200 and ended


async def main(rollouts: int, delay_s: float, kilobytes: int) -> bool:
    """Runs the load and prints; False where something was lost."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "load.duckdb"
        engine, server, small = free_port(), free_port(), free_port()
        engine_url = f"http://127.0.0.1:{engine}"
        url = f"http://127.0.0.1:{server}"
        stub = (sys.executable, str(HERE / "stub_engine.py"), str(engine), "0", str(delay_s))
        serve = (sys.executable, "-m", "explorer", "serve", "--engine", engine_url)
        timeout = aiohttp.ClientTimeout(total=delay_s * 4 + 120)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            with process(*stub):
                await wait_for(session, engine_url + "/v1/models")
                with process(*serve, "--store", str(store), "--port", str(server)) as child:
                    await wait_for(session, url + "/healthz")
                    fine = await _whole(session, url, store, child.pid, rollouts, kilobytes)
                limited = Path(folder) / "limited.duckdb"
                url = f"http://127.0.0.1:{small}"
                with process(
                    "env",
                    f"ROLLOUT_EXPLORER_MAX_IN_FLIGHT={rollouts // 4}",
                    *serve,
                    "--store",
                    str(limited),
                    "--port",
                    str(small),
                ):
                    await wait_for(session, url + "/healthz")
                    await _limited(session, url, limited, rollouts, kilobytes)
        return fine


async def _whole(
    session: aiohttp.ClientSession,
    url: str,
    store: Path,
    pid: int,
    rollouts: int,
    kilobytes: int,
) -> bool:
    made = [await create(session, url, store) for _ in range(rollouts)]
    before = rss_mb(pid)
    watch = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WATCH, url.rpartition(":")[2], stdout=asyncio.subprocess.PIPE
    )
    began = time.perf_counter()
    calls = [
        asyncio.create_task(call(session, url, key, number, kilobytes))
        for number, (_, key) in enumerate(made)
    ]
    peak = before
    while not all(task.done() for task in calls):
        peak = max(peak, rss_mb(pid))
        await asyncio.sleep(0.2)
    took = time.perf_counter() - began
    watch.terminate()
    told, _ = await watch.communicate()
    times = [float(line) for line in told.decode().split()[:-1]]
    answered = sum(ended for _, ended in (task.result() for task in calls))
    headers = {"Authorization": f"Bearer {operator_token(store)}"}
    recorded = 0
    for rollout_id, _ in made:
        address = f"{url}/api/v1/rollouts/{rollout_id}/calls"
        async with session.get(address, headers=headers) as response:
            rows = orjson.loads(await response.read())["calls"]
        recorded += sum(row["status"] == "committed" for row in rows)
    print(f"{rollouts} rollouts, one call each of {kilobytes} kB, three wires, streamed")
    print(f"  answered whole {answered}, recorded {recorded}, in {took:.1f} s")
    print(
        f"  /healthz meanwhile: p50 {quantile(times, 0.5):.1f} ms, "
        f"p99 {quantile(times, 0.99):.1f} ms, worst {max(times):.1f} ms of {len(times)}"
    )
    print(
        f"  memory {before:.0f} MB before, {peak:.0f} MB at most: "
        f"{(peak - before) * 1024 / rollouts:.0f} kB a call in flight"
    )
    print(f"  store {store_bytes(store) / 1e6:.1f} MB")
    return answered == recorded == rollouts


async def _limited(
    session: aiohttp.ClientSession, url: str, store: Path, rollouts: int, kilobytes: int
) -> None:
    _, key = await create(session, url, store)
    results = await asyncio.gather(
        *(call(session, url, key, number, kilobytes) for number in range(rollouts))
    )
    statuses = Counter(status for status, _ in results)
    print(f"with room for {rollouts // 4} calls: {dict(statuses)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=400)
    parser.add_argument("--delay", type=float, default=30.0, help="the engine's time (s)")
    parser.add_argument("--kilobytes", type=int, default=200, help="size of a request")
    chosen = parser.parse_args()
    sys.exit(not asyncio.run(main(chosen.rollouts, chosen.delay, chosen.kilobytes)))
