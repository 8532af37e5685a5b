"""HTTP of the worker's front: requests read whole, the engine asked, the rest passed on.

Owns: bodies, headers, connections to the engine, a client that leaves.
Must not know: captures.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Self

import aiohttp
import orjson
from yarl import URL

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[str, str], ...]
LARGEST_REQUEST = 64 * 1024 * 1024
LARGEST_REPLY = 512 * 1024 * 1024
# Of the connection and not of the message, or made anew.
_DROPPED = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer"),
        *("upgrade", "host", "content-encoding", "accept-encoding", "proxy-connection"),
        *("expect", "date", "server"),
    }
)


class Gone(Exception):
    """The client closed its connection."""


class Refused(Exception):
    """An answer of the front's own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": None, "code": status}
        head = (("content-type", "application/json"),)
        self.reply = Reply(status, head, orjson.dumps({"error": error}))


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its whole body; `address` is path and query as they came."""

    method: str
    path: str
    address: str
    headers: Headers
    body: bytes

    @classmethod
    async def read(cls, scope: Scope, receive: Receive) -> Self:
        """The request behind an ASGI scope.

        Raises:
            Gone: it never came whole.
            Refused: it is too large.
        """
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            if len(body) > LARGEST_REQUEST:
                raise Refused(413, f"a request has at most {LARGEST_REQUEST} bytes")
            more = message.get("more_body", False)
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in scope["headers"]
        )
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        address = (raw + b"?" + query if query else raw).decode("latin-1")
        return cls(scope["method"], scope["path"], address, _kept(headers), bytes(body))


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    status: int
    headers: Headers
    body: bytes

    def with_body(self, body: bytes) -> Reply:
        """The same with another body."""
        return replace(self, body=body)

    async def send(self, send: Send) -> None:
        """As ASGI messages."""
        length = ("content-length", str(len(self.body)))
        await send(_start(self.status, (*self.headers, length)))
        await send({"type": "http.response.body", "body": self.body})


class Forwarder:
    """Asks one engine.

    Args:
        engine: its base address.
        timeout_s: longest wait for a whole reply (seconds).
    """

    def __init__(self, engine: str, timeout_s: float) -> None:
        self._base = engine.rstrip("/").removesuffix("/v1")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._made: aiohttp.ClientSession | None = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._made = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._made

    async def lifespan(self, receive: Receive, send: Send) -> None:
        """ASGI's start and end."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._made is not None:
            await self._made.close()
            self._made = None
        await send({"type": "lifespan.shutdown.complete"})

    async def ask(self, request: Request, body: bytes, receive: Receive) -> Reply:
        """The engine's whole reply to a body; given up when the client leaves.

        Raises:
            Gone: the client left.
            Refused: the engine gave no whole reply.
        """
        asking = asyncio.ensure_future(self._whole(request, body))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise Gone
            return asking.result()
        finally:
            for task in (asking, leaving):
                task.cancel()
            await asyncio.gather(asking, leaving, return_exceptions=True)

    async def _whole(self, request: Request, body: bytes) -> Reply:
        try:
            async with self._sent(request, body) as response:
                found = bytearray()
                async for chunk in response.content.iter_any():
                    found += chunk
                    if len(found) > LARGEST_REPLY:
                        raise Refused(502, "the engine's reply is too large")
                return Reply(response.status, _of(response), bytes(found))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(error) from error

    async def pass_on(self, request: Request, receive: Receive, send: Send) -> None:
        """A request and its reply as they are, piece by piece; given up when the client
        leaves.

        Raises:
            Refused: the engine did not answer.
        """
        passing = asyncio.ensure_future(self._passed(request, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _passed(self, request: Request, send: Send) -> None:
        started = False
        try:
            async with self._sent(request, request.body) as response:
                await send(_start(response.status, _of(response)))
                started = True
                async for chunk in response.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, TimeoutError) as error:
            if started:
                # A broken stream must look broken: no last message is sent.
                return
            raise _unreachable(error) from error

    def _sent(self, request: Request, body: bytes) -> Any:
        return self._session.request(
            request.method,
            URL(self._base + request.address, encoded=True),
            data=body or None,
            headers=request.headers,
            allow_redirects=False,
        )


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _unreachable(error: Exception) -> Refused:
    late = isinstance(error, TimeoutError)
    return Refused(
        504 if late else 502, f"the engine gave no whole reply: {type(error).__name__}"
    )


def _kept(headers: Headers) -> Headers:
    return tuple(pair for pair in headers if pair[0] not in _DROPPED)


def _of(response: aiohttp.ClientResponse) -> Headers:
    return _kept(tuple((name.lower(), value) for name, value in response.headers.items()))


def _start(status: int, headers: Headers) -> dict[str, Any]:
    with contextlib.suppress(UnicodeEncodeError):
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return {"type": "http.response.start", "status": status, "headers": pairs}
    return {"type": "http.response.start", "status": status, "headers": []}
