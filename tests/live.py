"""A whole server in a thread, on a free loopback port: no fakes, real sockets.

with serving(engine, store_path) as live:
    live.url, live.token, live.application
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn

from explorer.app import Application
from explorer.engine.protocol import Engine
from explorer.server import Server, address, listen
from explorer.settings import Settings
from explorer.store.duckdb_store import DuckDBStore, StoreOptions


@dataclass
class Live:
    """A running server and a client that holds the operator's token."""

    url: str
    token: str
    application: Application
    store: DuckDBStore
    loop: asyncio.AbstractEventLoop

    def api(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """One API call as the operator; asserts the status and decodes the answer."""
        response = httpx.request(
            method,
            self.url + path,
            content=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self.token}"},
            timeout=30,
        )
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def create(self, **wanted: Any) -> tuple[str, str]:
        """A new rollout: its id and capture key."""
        made = self.api("POST", "/api/v1/rollouts", wanted, status=201)
        return made["rollout_id"], made["capture_key"]

    def chat(self, key: str, *, raw: bytes | None = None, **body: Any) -> httpx.Response:
        """One chat call on the wire."""
        whole = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | body
        return httpx.post(
            self.url + "/v1/chat/completions",
            content=raw if raw is not None else orjson.dumps(whole),
            headers={"authorization": f"Bearer {key}"},
            timeout=60,
        )

    def calls(self, rollout_id: str) -> list[dict[str, Any]]:
        """Every ended call of a rollout."""
        found: list[dict[str, Any]] = self.api(
            "GET", f"/api/v1/rollouts/{rollout_id}/calls?limit=1000"
        )["calls"]
        return found


@contextlib.contextmanager
def serving(engine: Engine, store_path: Path, /, **settings: Any) -> Iterator[Live]:
    """Starts a server around `engine`; stops it, with everything recorded, at the end.

    `listen_port` takes a port that a server had before; the rest are settings.
    """
    port = settings.pop("listen_port", 0)
    chosen = Settings(host="127.0.0.1", port=0, store=store_path, **settings)
    store = DuckDBStore(store_path, StoreOptions(min_free_bytes=chosen.min_free_bytes))
    ready = threading.Event()
    held: dict[str, Any] = {}

    def run() -> None:
        async def work() -> None:
            sock = listen("127.0.0.1", port)
            application = Application(chosen, engine, store)
            await application.start()
            config = uvicorn.Config(
                application, log_config=None, access_log=False, lifespan="off", ws="none"
            )
            up = asyncio.Event()
            server = Server(config, up, application)
            held.update(
                application=application,
                server=server,
                url=address(chosen, sock),
                loop=asyncio.get_running_loop(),
            )
            task = asyncio.create_task(server.serve(sockets=[sock]))
            await up.wait()
            ready.set()
            await task
            await application.stop()
            sock.close()

        try:
            asyncio.run(work())
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    assert "server" in held, "the server did not start"
    application = held["application"]
    try:
        yield Live(held["url"], application.operator.token, application, store, held["loop"])
    finally:
        held["server"].should_exit = True
        thread.join(30)
        assert not thread.is_alive()
