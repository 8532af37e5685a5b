"""A bare ASGI forwarder, as a yardstick for what any Python proxy costs here.

    python benchmarks/forwarder.py PORT ENGINE_URL [json]

It looks up no key, shapes nothing, parses nothing (or only decodes and encodes the JSON
both ways), records nothing.
"""

from __future__ import annotations

import sys
from typing import Any

import aiohttp
import orjson
import uvicorn


class Forwarder:
    """The ASGI application."""

    def __init__(self, url: str, parse: bool) -> None:
        self.url = url
        self.parse = parse
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if self.session is None:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        if self.parse and raw:
            raw = orjson.dumps(orjson.loads(raw))
        method, path = scope["method"], scope["path"]
        async with self.session.request(method, self.url + path, data=raw) as response:
            body = await response.read()
            status = response.status
        if self.parse:
            body = orjson.dumps(orjson.loads(body))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        Forwarder(sys.argv[2], "json" in sys.argv[3:]),
        port=int(sys.argv[1]),
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,
    )
