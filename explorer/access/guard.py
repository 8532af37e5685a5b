"""The outermost layer: hosts, origins, response headers. Pure policy plus middleware.

Owns: which Host and Origin may talk to us, and the headers on every answer.
Must not know: what is being guarded.

A page on another site can make a person's browser send requests to this server; the
browser then says so in ``Sec-Fetch-Site`` or ``Origin``, and a request that says so is
refused before any route runs. A name that an attacker's DNS points at 127.0.0.1 is
caught by the Host check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from explorer.errors import AccessDenied, ExplorerError, HostRefused

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "[::1]"))
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))

CSP: dict[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}

_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        "; ".join(f"{name} {value}" for name, value in CSP.items()).encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


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
        """Whether a ``Host`` header value names this server."""
        return host_name(host) in self.allowed


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


class Guard:
    """ASGI middleware around everything.

    Args:
        app: what is guarded.
        hosts: the host policy.
        secret_in: key of the scope that holds a secret which stood in the address.
    """

    def __init__(self, app: App, hosts: HostPolicy, secret_in: str = "") -> None:
        self._app = app
        self._secret_in = secret_in
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses what comes from elsewhere; adds headers to what comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        error = self._refusal(scope, headers)
        if error is not None:
            await _send_refusal(send, error)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in _HEADERS if pair[0] not in present),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)

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


async def _send_refusal(send: Send, error: ExplorerError) -> None:
    body = orjson.dumps(
        {"error": {"code": error.code, "message": error.message, "details": error.details}}
    )
    await send(
        {
            "type": "http.response.start",
            "status": error.status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *_HEADERS,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
