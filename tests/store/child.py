"""Children of the store's crash and disk tests: ``python -m tests.store.child MODE PATH SEED``.

Each prints one line per acknowledged record and is killed, or kills itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

from explorer.errors import StoreFailed
from explorer.records import EventKind
from explorer.store import DuckDBStore
from tests.store.making import (
    OPTIONS,
    make_admission,
    make_bodies,
    make_call,
    make_event,
    make_rollout,
)


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)


async def load(store: DuckDBStore, seed: int) -> None:
    """Write for ever from eight sessions."""
    rng = random.Random(seed)

    async def session(number: int) -> None:
        await store.add_rollout(make_rollout(number))
        say("rollout", number)
        for sequence in itertools.count():
            parent = sequence - 1 if sequence else None
            call = make_call(number, sequence, parent=parent)
            admitted = store.admit(make_admission(call))
            if rng.random() < 0.2:
                await admitted
                say("admitted", call.call_id)
            await store.commit_call(call, make_bodies(call, rng, rng.randrange(10, 20_000)))
            say("call", call.call_id)
            if rng.random() < 0.1:
                event = await store.add_event(make_event(number, EventKind.REWARD, reward=0.5))
                say("event", number, event.sequence)

    await asyncio.gather(*(session(seed * 100 + i) for i in range(8)))


async def one(store: DuckDBStore, seed: int) -> None:
    """Die right after the first acknowledgement."""
    call = make_call(seed, 0)
    await store.add_rollout(make_rollout(seed))
    store.admit(make_admission(make_call(seed, 1)))
    await store.commit_call(call, make_bodies(call, random.Random(seed)))
    say("call", call.call_id)
    os.kill(os.getpid(), signal.SIGKILL)


async def spill(store: DuckDBStore, *, die: bool) -> None:
    """Fill the "disk" (a limit on file sizes), go on, then make room or die."""
    rng = random.Random(5)
    await store.add_rollout(make_rollout(1))
    for sequence in range(150):
        if sequence == 20:
            health = store.health()
            # The log reaches it after some more large calls; the journal, which begins then,
            # has room for the rest.
            limit = max(health.size_bytes, health.wal_bytes) + 256 * 1024
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        call = make_call(1, sequence, parent=sequence - 1 if sequence else None)
        store.admit(make_admission(call))
        await store.commit_call(call, make_bodies(call, rng, 20_000 if sequence < 50 else 100))
        say("call", call.call_id)
    await store.add_event(make_event(1, EventKind.REWARD, reward=2.0))
    health = store.health()
    refused = ""
    try:
        await store.add_rollout(make_rollout(2))
    except StoreFailed as error:
        refused = error.message
    say("spilled", json.dumps([health.spilling, refused]))
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for _ in range(200):
        if not store.health().spilling:
            break
        await asyncio.sleep(0.1)
    await store.add_rollout(make_rollout(2))
    say("again", json.dumps(store.health().spilling))
    await store.close()


async def hold(store: DuckDBStore) -> None:
    """Keep the file open until the parent closes our standard input."""
    say("open")
    await asyncio.to_thread(sys.stdin.read)
    await store.close()


def main() -> None:
    """Run the mode named on the command line."""
    mode, path, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    store = DuckDBStore(path, OPTIONS)
    if mode == "load":
        asyncio.run(load(store, seed))
    elif mode == "one":
        asyncio.run(one(store, seed))
    elif mode == "hold":
        asyncio.run(hold(store))
    else:
        asyncio.run(spill(store, die=mode == "spill-die"))


if __name__ == "__main__":
    main()
