"""Requests to addresses that somebody else named: what may be reached, and how.

Owns: which addresses may be connected to, that the connection goes to the address that was
checked, and limits on redirects, size and time.
Must not know: what is asked for (sign-in, the Hub).

A name is resolved once for each connection; every address that is not public is dropped,
and the socket goes to one that is left. The check sits where the socket is opened, so a
name that answers differently the second time changes nothing, and a redirect is checked
like the first address. Host, SNI and the certificate stay those of the name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urljoin

import httpcore
import httpx

from explorer.errors import AddressRefused, RemoteFailed

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
# They hold an IPv4 address that a router or the kernel may unwrap again.
_WRAPPED = tuple(
    ipaddress.IPv6Network(each)
    for each in ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16")
)
# Never sent on to another origin.
_PERSONAL = frozenset(("authorization", "cookie", "proxy-authorization"))


@dataclass(frozen=True, slots=True)
class OutboundPolicy:
    """What may be reached.

    Attributes:
        allowed_private: `host:port` as an address names it; such a host may resolve to a
            private address and may be asked without TLS.
        max_redirects: redirects that are followed.
        max_bytes: largest body of an answer.
        timeout_s: longest time from the request to the last byte (seconds).
    """

    allowed_private: frozenset[str] = frozenset()
    max_redirects: int = 3
    max_bytes: int = 1024 * 1024
    timeout_s: float = 10.0

    def lists(self, host: str, port: int) -> bool:
        """Whether the operator named this host and port."""
        return f"{_bare(host)}:{port}" in self.allowed_private

    @classmethod
    def listing(cls, addresses: Iterable[str]) -> OutboundPolicy:
        """A policy that allows these `host:port` beside what is public."""
        split = (each.strip().rpartition(":") for each in addresses)
        return cls(frozenset(f"{_bare(host)}:{port}" for host, _, port in split))


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    headers: httpx.Headers
    body: bytes


def is_public(address: str) -> bool:
    """Whether an IP address is one of the open internet."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and (
        found.scope_id is not None
        or found.is_site_local
        or any(found in network for network in _WRAPPED)
    ):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the system's resolver has them."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RemoteFailed(f"{host} has no address: {error}") from error
    return [str(each[4][0]) for each in found]


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens sockets to checked addresses only."""

    def __init__(self, policy: OutboundPolicy, resolver: Resolver) -> None:
        self._policy = policy
        self._resolver = resolver
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first checked address that answers."""
        found = await self._resolver(_bare(host), port)
        if not self._policy.lists(host, port):
            found = [address for address in found if is_public(address)]
        failed: Exception | None = None
        for address in dict.fromkeys(found):
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        if failed is not None:
            raise failed
        raise AddressRefused(
            f"{host}:{port} is no public address; an address on a private network must be "
            "listed in ROLLOUT_EXPLORER_OUTBOUND_PRIVATE"
        )

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise AddressRefused("sockets of this machine are not reached")

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


class _LimitedStream(httpx.AsyncByteStream):
    """A body that ends by an error once it is too long or too slow."""

    def __init__(self, response: httpcore.Response, policy: OutboundPolicy, due: float) -> None:
        self._response = response
        self._most = policy.max_bytes
        self._due = due

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        stream = self._response.aiter_stream()
        while True:
            try:
                async with asyncio.timeout_at(self._due):
                    part = await anext(stream, None)
            except TimeoutError as error:
                raise httpx.ReadTimeout("the answer took too long") from error
            except httpcore.NetworkError as error:
                raise httpx.ReadError(str(error)) from error
            except httpcore.ProtocolError as error:
                raise httpx.RemoteProtocolError(str(error)) from error
            if part is None:
                return
            size += len(part)
            if size > self._most:
                raise RemoteFailed(f"the answer has more than {self._most} bytes")
            yield part

    async def aclose(self) -> None:
        """Gives the connection back, or closes it."""
        await self._response.aclose()


class PinnedTransport(httpx.AsyncBaseTransport):
    """An httpx transport that reaches public and listed addresses only.

    For libraries that want a client of their own: `AsyncClient(transport=…,
    trust_env=False)`. Each request of theirs, redirects included, is checked.
    """

    def __init__(
        self,
        policy: OutboundPolicy | None = None,
        resolver: Resolver = resolve,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.policy = policy or OutboundPolicy()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(),
            network_backend=_CheckedBackend(self.policy, resolver),
            max_connections=20,
            keepalive_expiry=5.0,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request, one answer; redirects are the caller's.

        Raises:
            AddressRefused: it may not be reached.
            httpx.TransportError: it could not be reached.
        """
        url = request.url
        self._check(url)
        assert isinstance(request.stream, httpx.AsyncByteStream)
        asked = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        due = asyncio.get_running_loop().time() + self.policy.timeout_s
        try:
            async with asyncio.timeout_at(due):
                reply = await self._pool.handle_async_request(asked)
        except (TimeoutError, httpcore.TimeoutException) as error:
            raise httpx.ConnectTimeout(f"{url.host} did not answer in time") from error
        except httpcore.NetworkError as error:
            raise httpx.ConnectError(str(error)) from error
        except httpcore.ProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        return httpx.Response(
            reply.status,
            headers=reply.headers,
            stream=_LimitedStream(reply, self.policy, due),
            extensions=reply.extensions,
        )

    def _check(self, url: httpx.URL) -> None:
        if not url.host or url.scheme not in _PORTS:
            raise AddressRefused("only addresses of the form https://host/… are reached")
        if url.userinfo:
            raise AddressRefused("an address must hold no name or password")
        port = url.port or _PORTS[url.scheme]
        if url.scheme != "https" and not self.policy.lists(url.host, port):
            raise AddressRefused(
                f"{url.host}:{port} is asked over https only; an address without TLS must be "
                "listed in ROLLOUT_EXPLORER_OUTBOUND_PRIVATE"
            )

    async def aclose(self) -> None:
        """Closes what is open."""
        await self._pool.aclose()


class Outbound:
    """Asks one address and reads the whole answer; keeps no cookies.

    Args:
        policy: what may be reached.
        resolver: names to addresses.
        ssl_context: whom to trust; default: what httpx does, `SSL_CERT_FILE` included.
    """

    def __init__(
        self,
        policy: OutboundPolicy | None = None,
        resolver: Resolver = resolve,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.transport = PinnedTransport(policy, resolver, ssl_context)
        self.policy = self.transport.policy

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        json: object = None,
        timeout: float | None = None,
    ) -> Reply:
        """Status, headers and body; a GET follows redirects, nothing else does.

        Raises:
            AddressRefused: an address on the way may not be reached.
            RemoteFailed: no answer, or one that is too long or too slow.
        """
        given = {**(headers or {}), "accept-encoding": "identity"}
        try:
            async with asyncio.timeout(timeout or self.policy.timeout_s):
                return await self._follow(method, url, given, {"data": data, "json": json})
        except (TimeoutError, httpx.TimeoutException) as error:
            raise RemoteFailed(f"{_name(url)} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            raise RemoteFailed(f"{_name(url)} could not be asked: {error}") from error

    async def _follow(
        self, method: str, url: str, headers: dict[str, str], body: dict[str, Any]
    ) -> Reply:
        for _ in range(self.policy.max_redirects + 1):
            request = httpx.Request(method, url, headers=headers, **body)
            reply = await self._once(request)
            target = reply.headers.get("location")
            if reply.status not in _REDIRECTS or not target or method not in ("GET", "HEAD"):
                return reply
            following = httpx.URL(urljoin(str(request.url), target))
            if not _same_origin(following, request.url):
                headers = {
                    name: value
                    for name, value in headers.items()
                    if name.lower() not in _PERSONAL
                }
            url = str(following)
        raise RemoteFailed(f"{_name(url)} redirects too often")

    async def _once(self, request: httpx.Request) -> Reply:
        response = await self.transport.handle_async_request(request)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                # It could unfold to any size.
                raise RemoteFailed("the answer is compressed although that was not asked for")
            body = b"".join([part async for part in response.aiter_raw()])
        finally:
            await response.aclose()
        return Reply(response.status_code, response.headers, body)

    async def aclose(self) -> None:
        """Closes what is open."""
        await self.transport.aclose()


def _bare(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _name(url: str) -> str:
    """The host of an address, for messages: paths and queries may hold secrets."""
    try:
        return httpx.URL(url).host or "the address"
    except httpx.InvalidURL:
        return "the address"


def _same_origin(one: httpx.URL, other: httpx.URL) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)
