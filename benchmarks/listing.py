"""Server time of the rollout list over 10,000 rollouts of 50 calls.

    python -m benchmarks.listing [--rollouts 10000] [--calls 50] [--repeat 40]

The store is filled by SQL, with rows as the writer makes them. Times are those of the page's
handler, from request to response, on one thread at a time; "cold" is the first request of a
fresh process that opens the file. Every request runs through the whole application of pages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import duckdb
import httpx

from explorer.store import DuckDBStore, StoreOptions
from tests.web.serving import build_app

AIM_WARM_MS, AIM_COLD_MS = 100.0, 300.0
OPTIONS = StoreOptions(min_free_bytes=0, app_version="benchmark")
_ID = "'ro_' || lpad(i::VARCHAR, 32, '0')"


def fill(path: Path, rollouts: int, calls: int) -> None:
    """A store of the declared schema, with rows made by SQL."""
    DuckDBStore(path, OPTIONS).close_now()
    connection = duckdb.connect(str(path))
    connection.execute(
        f"INSERT INTO rollout SELECT {_ID}, make_timestamptz(1790000000000000 + i * 1000000), "
        "'key-' || i, 'run-' || (i % 20), 'task-' || (i // 8 % 500), 'group-' || (i // 8), "
        "i % 8, CASE WHEN i % 50 = 0 THEN 'eval' ELSE 'train' END, 'harness-' || (i % 5), "
        "'1', '{\"seed\": ' || i || '}', '{}', '{}', 'vllm', 'vllm', '0.11', "
        "'org/model-' || (i % 3), NULL, NULL, NULL, '', NULL, NULL, false FROM range(?) t(i)",
        [rollouts],
    )
    for number, kind, reward, ok in (
        (0, "started", "NULL", "NULL"),
        (1, "reward", "round(hash(i) % 5 / 4.0, 2)", "NULL"),
        (2, "closed", "NULL", "i % 9 > 0"),
    ):
        connection.execute(
            f"INSERT INTO rollout_event SELECT {_ID}, ?, "
            f"make_timestamptz(1790000001000000 + i * 1000000), ?, {reward}, {ok}, NULL, "
            "'{}' FROM range(?) t(i)",
            [number, kind, rollouts],
        )
    connection.execute(
        f"INSERT INTO judgement SELECT {_ID}, md5(i::VARCHAR), 'default', "
        "make_timestamptz(1790000002000000 + i * 1000000), i % 3 > 0, "
        "CASE WHEN i % 3 > 0 THEN hash(i) % 5000 ELSE 0 END, 5000, ?, "
        "CASE WHEN i % 3 = 0 THEN 1 ELSE 0 END, i % 4, "
        "CASE WHEN i % 3 = 0 THEN '[\"no_certificate\",\"reward_missing\"]' ELSE '[]' END "
        "FROM range(?) t(i)",
        [calls, rollouts],
    )
    for ended in ("false", "true"):
        connection.execute(
            "INSERT INTO call SELECT 'ca_' || lpad(i::VARCHAR, 32, '0'), "
            f"{ended}, 'ro_' || lpad((i // (100 * $calls) * 100 + i % 100)::VARCHAR, 32, '0'), "
            "i // 100 % $calls, 'chat', "
            "CASE WHEN i % 40 = 0 THEN 'failed' ELSE 'committed' END, NULL, "
            "make_timestamptz(1790000000000000 + i), make_timestamptz(1790000000000001 + i), "
            "812.5, 'stop', 'tokens', 'chatcmpl-' || i, 'model', 7, 7, NULL, 0, 900, i % 200, "
            "'0123456789abcdef'::BLOB, '0123456789abcdef'::BLOB, '0123456789abcdef'::BLOB, "
            "NULL, NULL, 'The test fails because', '{\"n_messages\": 9}', '[]', NULL, NULL, "
            "NULL FROM range($count) t(i)",
            {"calls": calls, "count": rollouts * calls},
        )
    connection.close()


Time = tuple[float, float]  # milliseconds of the clock, and of CPU in this process


async def ask(client: httpx.AsyncClient, path: str) -> tuple[Time, httpx.Response]:
    """Milliseconds of one request, and its answer."""
    began, spent = time.perf_counter(), time.process_time()
    reply = await client.get(path)
    took = ((time.perf_counter() - began) * 1e3, (time.process_time() - spent) * 1e3)
    assert reply.status_code == 200, (path, reply.status_code)
    return took, reply


async def middle_page(client: httpx.AsyncClient, pages: int) -> str:
    """The address of a page far into the list."""
    path = "/rollouts"
    for _ in range(pages - 1):
        _, reply = await ask(client, path.replace("/rollouts?", "/rollouts.json?"))
        path = reply.json()["next_href"] if path != "/rollouts" else await _second(client)
    return path


async def _second(client: httpx.AsyncClient) -> str:
    _, reply = await ask(client, "/rollouts.json")
    return str(reply.json()["next_href"])


async def warm(store: DuckDBStore, repeat: int) -> list[tuple[str, list[Time]]]:
    """Times by request."""
    transport = httpx.ASGITransport(app=build_app(store, {}, csp=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
        requests = {
            "first page": "/rollouts",
            "filtered": "/rollouts?" + urlencode({"reward": "0..0.5", "trainable": "no"}),
            "by share": "/rollouts?sort=share",
            "by metadata": "/rollouts?meta.seed=77",
            "text": "/rollouts?q=group-77",
            "page 50": await middle_page(client, 50),
            "one run": "/runs/run-3",
            "runs": "/runs",
            "home": "/",
        }
        found = []
        for name, path in requests.items():
            times = [(await ask(client, path))[0] for _ in range(repeat)]
            found.append((name, times))
        found.append(("after a write", await after_writes(store, client, repeat)))
    return found


async def after_writes(
    store: DuckDBStore, client: httpx.AsyncClient, repeat: int
) -> list[Time]:
    """The first page when a call ended since the last one: summaries are made again."""
    from tests.store.making import make_call

    times = []
    for number in range(repeat):
        await store.commit_call(make_call(999_999, number), ())
        times.append((await ask(client, "/rollouts"))[0])
    return times


def once(path: Path) -> None:
    """Print the milliseconds of the first request of this process."""

    async def work() -> Time:
        store = DuckDBStore(path, OPTIONS)
        transport = httpx.ASGITransport(app=build_app(store, {}, csp=False))
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
            took, _ = await ask(client, "/rollouts?sort=share")
        await store.close()
        return took

    print(*asyncio.run(work()))


def cold(path: Path, repeat: int) -> list[Time]:
    """First requests of fresh processes."""
    command = [sys.executable, __file__, "--once", str(path)]
    around = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[1]))
    found = []
    for _ in range(repeat):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=around)
        took, spent = done.stdout.split()
        found.append((float(took), float(spent)))
    return found


def facets(store: DuckDBStore, repeat: int) -> list[Time]:
    """The facets alone."""
    from explorer.store.queries import RolloutQuery

    times = []
    for _ in range(repeat):
        began, spent = time.perf_counter(), time.process_time()
        store.facets(RolloutQuery())
        times.append(((time.perf_counter() - began) * 1e3, (time.process_time() - spent) * 1e3))
    return times


def line(name: str, times: Sequence[Time], aim: float) -> bool:
    """Print one row; True when its p95 is within the aim.

    On a machine with other work the CPU time is what a quiet one would take.
    """
    shown = []
    for ordered in (sorted(took for took, _ in times), sorted(spent for _, spent in times)):
        shown.append(statistics.median(ordered))
        shown.append(ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))])
    print(f"{name:16}" + "".join(f"{each:>10.1f}" for each in shown) + f"{aim:>8.0f}")
    return shown[1] < aim


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once is not None:
        once(given.once)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.duckdb"
        fill(path, given.rollouts, given.calls)
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"{given.rollouts:,} rollouts × {given.calls} calls; load average {load}")
        print(f"{'ms':16}{'p50':>10}{'p95':>10}{'CPU p50':>10}{'CPU p95':>10}{'aim':>8}")
        well = line("cold", cold(path, 8), AIM_COLD_MS)
        store = DuckDBStore(path, OPTIONS)
        well = line("facets alone", facets(store, given.repeat), AIM_WARM_MS) and well
        for name, times in asyncio.run(warm(store, given.repeat)):
            well = line(name, times, AIM_WARM_MS) and well
        store.close_now()
    raise SystemExit(0 if well else 1)


if __name__ == "__main__":
    main()
