"""The outermost layer: hosts, origins, sizes, rates. Pure policy plus middleware.

Owns: which Host and Origin may talk to us, and the order in which a request is looked at
before any route runs.
Must not know: what is being guarded.

A page on another site can make a person's browser send requests to this server; the
browser then says so in ``Sec-Fetch-Site`` or ``Origin``, and a request that says so is
refused before any route runs. A name that an attacker's DNS points at 127.0.0.1 is
caught by the Host check.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from explorer.access.bodies import BodyLimits
from explorer.access.headers import CSP as CSP
from explorer.access.headers import HeaderPolicy
from explorer.access.limits import Limiter, address_key
from explorer.errors import AccessDenied, ExplorerError, HostRefused, RateLimited

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, Receive, Send, ExplorerError], Awaitable[None]]

_PORT = re.compile(r"(?::[0-9]{0,5})?")
LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "[::1]"))
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))

OPEN_PATHS = frozenset(("/healthz", "/readyz"))
STATIC = "/static/"
# After a body was refused: what is still read of it, to be dropped.
_LINGER_BYTES = 4 * 1024 * 1024
_LINGER_S = 1.0


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Host names (lower case, without port) that may stand in ``Host``."""

    allowed: frozenset[str]

    @classmethod
    def of(cls, listen_host: str, extra: Iterable[str], public_url: str | None) -> HostPolicy:
        """Loopback names, the address listened on, and what the operator listed."""
        names = set(LOOPBACK_NAMES) | {name.lower() for name in extra}
        if listen_host not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
            names.add(listen_host.lower())
        if public_url:
            public = urlsplit(public_url).hostname
            if public:
                names.add(public.lower())
        return cls(frozenset(names))

    def allows(self, host: str) -> bool:
        """Whether a ``Host`` header value names this server; after the name comes at most a
        port, since addresses that we tell are made of the whole value."""
        name = host_name(host)
        port = host.strip()[len(name) :]
        return name in self.allowed and _PORT.fullmatch(port) is not None


def host_name(host: str) -> str:
    """``Host`` without its port, lower case; an IPv6 address keeps its brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def cross_site(method: str, headers: dict[bytes, bytes]) -> str | None:
    """Why a request comes from another site, or None when it does not.

    Browsers set ``Sec-Fetch-Site``; where it is missing, ``Origin`` must equal ``Host``.
    Programs set neither. Safe methods may be linked to from anywhere.
    """
    if method in SAFE_METHODS:
        return None
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        if site in (b"same-origin", b"none"):
            return None
        return f"Sec-Fetch-Site is {site.decode('latin-1')}"
    origin = headers.get(b"origin")
    if origin is None:
        return None
    text = origin.decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1").lower()
    try:
        if urlsplit(text).netloc.lower() == host:
            return None
    except ValueError:
        pass  # no address at all, such as an open bracket: not this server's
    return f"Origin {text[:200]} is not this server"


@dataclass(frozen=True, slots=True)
class Rates:
    """Who is limited, and by what.

    Attributes:
        limiter: tokens by address.
        is_wire: whether a request is a harness's.
        has_key: whether it carries a capture key that is known.
        is_operator: whether it is the operator's.
        refused: hears of a request that came too often.
    """

    limiter: Limiter
    is_wire: Callable[[Scope], bool]
    has_key: Callable[[Scope], bool]
    is_operator: Callable[[Scope], bool]
    refused: Callable[[Scope], None] = lambda scope: None


async def refuse_as_json(
    scope: Scope, receive: Receive, send: Send, error: ExplorerError
) -> None:
    """One error in the API's shape; for whoever cannot be given more."""
    del scope, receive
    body = orjson.dumps(
        {"error": {"code": error.code, "message": error.message, "details": error.details}}
    )
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Guard:
    """ASGI middleware around everything.

    Args:
        app: what is guarded.
        hosts: the host policy.
        secret_in: key of the scope that holds a secret which stood in the address.
        headers: what goes on every answer.
        bodies: how large a body may be; None where the routes see to it.
        rates: how often an address may ask; None: any number of times.
        refuse: words a refusal of a request that came to the right host.
    """

    def __init__(
        self,
        app: App,
        hosts: HostPolicy,
        secret_in: str = "",
        *,
        headers: HeaderPolicy | None = None,
        bodies: BodyLimits | None = None,
        rates: Rates | None = None,
        refuse: Refuse = refuse_as_json,
    ) -> None:
        self._app = app
        self._secret_in = secret_in
        self._hosts = hosts
        self._headers = headers or HeaderPolicy()
        self._bodies = bodies
        self._rates = rates
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses what comes from elsewhere; adds headers to what comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        added = self._headers.of(scope["path"], scope.get("scheme", "http"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in added if pair[0] not in present),
                ]
            await send(message)

        error = self._refusal(scope, headers)
        if error is not None:
            await refuse_as_json(scope, receive, send_with_headers, error)
            return
        try:
            receive = self._limited(scope, headers, receive)
        except ExplorerError as refused:
            # The line is closed after the answer: most of the body is never read.
            ending = _closing(receive, send_with_headers)
            await self._refuse(scope, receive, ending, refused)
            return
        await self._at_a_rate(scope, receive, send_with_headers)

    def _limited(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Raises BodyTooLarge where the announced body is; counts one that comes."""
        bodies, rates = self._bodies, self._rates
        if bodies is None or (rates is not None and rates.is_wire(scope)):
            return receive
        bodies.check_length(scope["path"], headers)
        return bodies.counted(scope["path"], receive)

    async def _at_a_rate(self, scope: Scope, receive: Receive, send: Send) -> None:
        rates, path = self._rates, scope["path"]
        if rates is None or path in OPEN_PATHS or path.startswith(STATIC):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        key = address_key(client[0] if client else None)
        if rates.is_wire(scope):
            if rates.has_key(scope):
                await self._app(scope, receive, send)
                return
            if scope["method"] == "POST":
                await self._try_key(rates, key, (scope, receive, send))
                return
        if rates.is_operator(scope):
            await self._app(scope, receive, send)
            return
        wait_s = rates.limiter.take(key)
        if wait_s is None:
            await self._app(scope, receive, send)
        else:
            rates.refused(scope)
            await self._refuse(scope, receive, send, _too_often(wait_s))

    async def _try_key(
        self, rates: Rates, key: str, asked: tuple[Scope, Receive, Send]
    ) -> None:
        """A call whose key is not in memory: it may be of a rollout that was closed, which
        only the answer tells; one for a key that nobody has counts."""
        scope, receive, send = asked
        wait_s: float | None = None

        async def watched(message: Message) -> None:
            nonlocal wait_s
            if message["type"] == "http.response.start" and message["status"] == 401:
                wait_s = rates.limiter.take(key)
            if wait_s is None:
                await send(message)

        await self._app(scope, receive, watched)
        if wait_s is not None:
            await self._refuse(scope, receive, send, _too_often(wait_s))

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ExplorerError | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._hosts.allows(host):
            return HostRefused(
                f"this server does not answer to the host name {host_name(host)[:200]!r}; "
                "list it in ROLLOUT_EXPLORER_ALLOWED_HOSTS if it is yours"
            )
        # Another site cannot make a browser send these; Basic it sends by itself.
        bearer = headers.get(b"authorization", b"")[:7].lower() == b"bearer "
        # Nor can it know the secret key that an address holds.
        if (
            scope.get(self._secret_in)
            or bearer
            or b"x-api-key" in headers
            or b"x-goog-api-key" in headers
        ):
            return None
        why = cross_site(scope["method"], headers)
        if why is not None:
            return AccessDenied(f"cross-site request refused: {why}")
        return None


def _too_often(wait_s: float) -> RateLimited:
    seconds = max(1, math.ceil(wait_s))
    return RateLimited(
        f"too many requests from this address; try again in {seconds} s "
        "(ROLLOUT_EXPLORER_RATE_PER_MINUTE is the limit)",
        retry_after_s=seconds,
    )


def _closing(receive: Receive, send: Send) -> Send:
    """`send`, which closes the line after a while. Closed at once, with a body on its way, the
    kernel would throw away the answer that the client has not read yet."""

    async def ending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        elif not message.get("more_body"):
            await send({**message, "more_body": True})
            await _linger(receive)
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return ending


async def _linger(receive: Receive) -> None:
    """Drops what comes, but neither much of it nor for long."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while size < _LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
