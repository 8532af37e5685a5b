"""How a command reaches a store: through the server that has it open, or by itself.

Owns: that choice, and a short-lived application for when nobody serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from explorer import runfile
from explorer.app import Application
from explorer.engine.scripted import ScriptedEngine
from explorer.errors import ConfigurationError
from explorer.integrations.client import ExplorerClient
from explorer.server import Server, address, listen
from explorer.settings import Settings
from explorer.store import maintenance
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.web.api_shapes import plain

T = TypeVar("T")


async def reach(
    settings: Settings, work: Callable[[ExplorerClient], Coroutine[Any, Any, T]]
) -> T:
    """Runs `work` with a client of the store's server.

    When no server has the store open, one is started on a free loopback port for as long
    as the work takes; its engine refuses to sample.

    Raises:
        ConfigurationError: there is no store.
    """
    run = runfile.read(settings.store)
    if run is not None:
        async with ExplorerClient(run.url, run.token) as client:
            return await work(client)
    if not settings.store.is_file():
        raise ConfigurationError(
            f"there is no store at {settings.store} and no server beside it; name one with "
            "--store, or start `rollout-explorer serve`"
        )
    private = settings.model_copy(update={"host": "127.0.0.1", "port": 0, "public_url": None})
    sock = listen("127.0.0.1", 0)
    options = StoreOptions(min_free_bytes=settings.min_free_bytes, read_only=settings.read_only)
    store = DuckDBStore(settings.store, options)
    idle = ScriptedEngine([{"status": 503, "body": {"error": {"message": "no engine"}}}])
    application = Application(private, idle, store)
    config = uvicorn.Config(application, log_config=None, access_log=False, lifespan="off")
    up = asyncio.Event()
    server = Server(config, up, application)
    await application.desk.start()
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await up.wait()
    try:
        url = address(private, sock)
        async with ExplorerClient(url, application.operator.token) as client:
            return await work(client)
    finally:
        server.should_exit = True
        await serving
        sock.close()
        await store.close()
        application.access.database.close()


async def backup_store(settings: Settings, target: Path) -> dict[str, Any]:
    """A consistent copy at `target`; asks the server when one has the store open.

    Raises:
        ConfigurationError: there is no store.
    """
    run = runfile.read(settings.store)
    if run is not None:
        async with ExplorerClient(run.url, run.token) as client:
            answer: dict[str, Any] = await client.request(
                "POST", "/api/v1/backup", {"target": str(target)}
            )
        return answer
    copied: dict[str, Any] = plain(
        await asyncio.to_thread(maintenance.backup, settings.store, target)
    )
    return copied
