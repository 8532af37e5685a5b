"""Addresses that somebody else named: only public and listed ones are ever connected to."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from explorer.access.outbound import (
    Outbound,
    OutboundPolicy,
    PinnedTransport,
    Resolver,
    is_public,
    resolve,
)
from explorer.errors import AddressRefused, RemoteFailed

Answer = Callable[[str, dict[str, str]], bytes]


class Web:
    """A real HTTP server on 127.0.0.1 that counts connections and keeps requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            self.requests.append((first, headers))
            writer.write(self.answer(first.split()[1], headers))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def web(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    served = Web(answer)
    server = await asyncio.start_server(served.handle, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served


def ok(body: bytes = b"fine", *more: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(body)}", "connection: close", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(target: str, status: int = 302) -> bytes:
    lines = [f"HTTP/1.1 {status} Found", f"location: {target}", "content-length: 0"]
    return "\r\n".join([*lines, "connection: close"]).encode() + b"\r\n\r\n"


def answering(*rounds: Sequence[str]) -> Resolver:
    """A resolver that gives one list after the other, the last one again and again."""
    left = list(rounds)

    async def find(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return find


def listing(*addresses: str, **more: float) -> OutboundPolicy:
    return OutboundPolicy(frozenset(addresses), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def client(
    policy: OutboundPolicy | None = None, resolver: Resolver = resolve
) -> AsyncIterator[Outbound]:
    made = Outbound(policy, resolver)
    try:
        yield made
    finally:
        await made.aclose()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await work()

    asyncio.run(go())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "2002:7f00:1::",
        "2002:808:808::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "2001:0:7f00:1::",
        "fe80::1",
        "fe80::1%eth0",
        "2606:4700::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "localhost",
        "",
    ],
)
def test_no_address_of_an_inner_network_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_of_the_open_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]"],
)
def test_no_spelling_of_loopback_is_reached(host: str) -> None:
    async def work() -> None:
        async with web(lambda path, headers: ok()) as served, client() as outbound:
            with pytest.raises((AddressRefused, RemoteFailed)):
                await outbound.request("GET", f"https://{host}:{served.port}/")
            assert served.connections == 0

    run(work)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/",
        "file:///etc/passwd",
        "http://example.org/",
        "https://user:pass@example.org/",
        "https:///nothing",
        "unix:///run/docker.sock",
        "nothing",
    ],
)
def test_only_https_without_a_password_is_asked(url: str) -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError("nothing may be resolved")

    async def work() -> None:
        async with client(None, never) as outbound:
            with pytest.raises((AddressRefused, RemoteFailed)):
                await outbound.request("GET", url)

    run(work)


def test_a_listed_address_is_reached_and_only_that_port() -> None:
    async def work() -> None:
        async with (
            web(lambda path, headers: ok()) as served,
            web(lambda path, headers: ok()) as other,
            client(listing(f"127.0.0.1:{served.port}")) as outbound,
        ):
            reply = await outbound.request("GET", f"http://127.0.0.1:{served.port}/x?y=1")
            assert (reply.status, reply.body) == (200, b"fine")
            assert served.requests[0][0] == "GET /x?y=1 HTTP/1.1"
            with pytest.raises(AddressRefused):
                await outbound.request("GET", f"http://127.0.0.1:{other.port}/")
            # A name that points there is not the address that was listed.
            with pytest.raises(AddressRefused):
                await outbound.request("GET", f"http://localhost:{served.port}/")
            assert other.connections == 0

    run(work)


@pytest.mark.parametrize("target", ["https://127.0.0.1:{0}/in", "https://inner.test:{0}/in"])
def test_a_redirect_to_an_inner_address_is_not_followed(target: str) -> None:
    async def work() -> None:
        async with web(lambda path, headers: ok(b"secret")) as inner:
            aim = target.format(inner.port)
            async with (
                web(lambda path, headers: redirect(aim)) as outer,
                client(
                    listing(f"outer.test:{outer.port}"), answering(["127.0.0.1"])
                ) as outbound,
            ):
                with pytest.raises(AddressRefused, match="no public address"):
                    await outbound.request("GET", f"http://outer.test:{outer.port}/")
                assert (outer.connections, inner.connections) == (1, 0)

    run(work)


def test_a_name_that_changes_is_connected_to_where_it_was_checked() -> None:
    async def work() -> None:
        asked: list[str] = []

        async def changing(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            # TEST-NET would be refused; the first answer must be public, the next is not.
            return ["8.8.8.8"] if len(asked) == 1 else ["127.0.0.1"]

        async with web(lambda path, headers: ok()) as served:
            policy = OutboundPolicy(timeout_s=1.0)
            async with client(policy, changing) as outbound:
                url = f"https://rebinding.test:{served.port}/"
                with pytest.raises(RemoteFailed):  # nothing answers there
                    await outbound.request("GET", url)
                # Checked and connected by one and the same answer.
                assert len(asked) == 1
                with pytest.raises(AddressRefused):
                    await outbound.request("GET", url)
                assert len(asked) == 2
            assert served.connections == 0

    run(work)


def test_inner_addresses_among_public_ones_are_dropped() -> None:
    async def work() -> None:
        async with web(lambda path, headers: ok()) as served:
            policy = OutboundPolicy(timeout_s=0.5)
            mixed = answering(["127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1"])
            async with client(policy, mixed) as outbound:
                with pytest.raises(AddressRefused):
                    await outbound.request("GET", f"https://mixed.test:{served.port}/")
            assert served.connections == 0

    run(work)


def test_redirects_end_and_only_reading_follows_them() -> None:
    async def work() -> None:
        async with web(lambda path, headers: redirect(f"{path}x", 307)) as served:
            base = f"http://127.0.0.1:{served.port}/"
            async with client(listing(f"127.0.0.1:{served.port}")) as outbound:
                with pytest.raises(RemoteFailed, match="redirects too often"):
                    await outbound.request("GET", base)
                assert [first.split()[1] for first, _ in served.requests] == [
                    "/", "/x", "/xx", "/xxx",
                ]  # fmt: skip
                posted = await outbound.request("POST", base, data={"code": "c"})
                assert posted.status == 307
                assert len(served.requests) == 5

    run(work)


def test_a_token_does_not_travel_to_another_origin() -> None:
    async def work() -> None:
        async with web(lambda path, headers: ok()) as second:
            aim = f"http://127.0.0.1:{second.port}/there"

            def first_answer(path: str, headers: dict[str, str]) -> bytes:
                return redirect("/again") if path == "/" else redirect(aim)

            async with web(first_answer) as first:
                policy = listing(f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}")
                async with client(policy) as outbound:
                    await outbound.request(
                        "GET",
                        f"http://127.0.0.1:{first.port}/",
                        headers={"Authorization": "Bearer hf_secret", "X-Kept": "yes"},
                    )
            assert [h.get("authorization") for _, h in first.requests] == [
                "Bearer hf_secret",
                "Bearer hf_secret",
            ]
            (_, headers) = second.requests[0]
            assert "authorization" not in headers
            assert headers["x-kept"] == "yes"

    run(work)


def test_cookies_are_not_kept() -> None:
    async def work() -> None:
        async with web(lambda path, headers: ok(b"", "set-cookie: a=b; path=/")) as served:
            async with client(listing(f"127.0.0.1:{served.port}")) as outbound:
                for _ in range(2):
                    await outbound.request("GET", f"http://127.0.0.1:{served.port}/")
            assert [headers.get("cookie") for _, headers in served.requests] == [None, None]

    run(work)


def test_a_long_answer_is_given_up_with_and_without_a_length() -> None:
    def long(path: str, headers: dict[str, str]) -> bytes:
        body = b"x" * 5000
        if path == "/length":
            return ok(body)
        return b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body

    async def work() -> None:
        async with web(long) as served:
            policy = listing(f"127.0.0.1:{served.port}", max_bytes=4999)
            async with client(policy) as outbound:
                for path in ("/length", "/none"):
                    with pytest.raises(RemoteFailed, match="more than 4999 bytes"):
                        await outbound.request("GET", f"http://127.0.0.1:{served.port}{path}")

    run(work)


def test_a_compressed_answer_that_nobody_asked_for_is_not_unfolded() -> None:
    async def work() -> None:
        async with (
            web(lambda path, headers: ok(b"\x1f\x8b", "content-encoding: gzip")) as served,
            client(listing(f"127.0.0.1:{served.port}")) as outbound,
        ):
            with pytest.raises(RemoteFailed, match="compressed"):
                await outbound.request("GET", f"http://127.0.0.1:{served.port}/")
            assert served.requests[0][1]["accept-encoding"] == "identity"

    run(work)


def test_an_answer_that_drips_is_given_up_in_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            for _ in range(200):
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def work() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            policy = listing(f"127.0.0.1:{port}", timeout_s=0.4)
            url = f"http://127.0.0.1:{port}/"
            began = asyncio.get_running_loop().time()
            async with client(policy) as outbound:
                with pytest.raises(RemoteFailed, match="in time"):
                    await outbound.request("GET", url)
            # A library's own client ends as early.
            transport = PinnedTransport(policy)
            async with httpx.AsyncClient(transport=transport, timeout=None) as library:
                with pytest.raises(httpx.ReadTimeout):
                    await library.get(url)
            assert asyncio.get_running_loop().time() - began < 3

    run(work)


def test_a_library_that_follows_redirects_is_checked_at_each() -> None:
    async def work() -> None:
        async with web(lambda path, headers: ok()) as inner:
            aim = f"https://127.0.0.1:{inner.port}/"
            async with web(lambda path, headers: redirect(aim)) as outer:
                transport = PinnedTransport(listing(f"127.0.0.1:{outer.port}"))
                async with httpx.AsyncClient(
                    transport=transport, trust_env=False, follow_redirects=True
                ) as library:
                    with pytest.raises(AddressRefused):
                        await library.get(f"http://127.0.0.1:{outer.port}/")
                assert (outer.connections, inner.connections) == (1, 0)

    run(work)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a server called `name` and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "cert.pem"
    pem.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


def test_tls_is_checked_by_name_although_the_socket_goes_to_an_address(tmp_path: Path) -> None:
    server, trust = certificate(tmp_path, "idp.test")
    names: list[str | None] = []
    server.sni_callback = lambda sock, name, context: names.append(name)

    async def work() -> None:
        async with web(lambda path, headers: ok(), server) as served:
            good, bad = f"idp.test:{served.port}", f"other.test:{served.port}"
            outbound = Outbound(listing(good, bad), answering(["127.0.0.1"]), trust)
            reply = await outbound.request("GET", f"https://{good}/")
            assert reply.status == 200
            assert served.requests[0][1]["host"] == good
            with pytest.raises(RemoteFailed, match="certificate"):
                await outbound.request("GET", f"https://{bad}/")
            await outbound.aclose()
        assert names == ["idp.test", "other.test"]
        assert len(served.requests) == 1

    run(work)


def test_json_and_form_bodies_arrive() -> None:
    bodies: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
        writer.write(ok(b'{"a": 1}'))
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(keep, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, client(listing(f"127.0.0.1:{port}")) as outbound:
            url = f"http://127.0.0.1:{port}/token"
            await outbound.request("POST", url, data={"code": "a b", "x": "1"})
            reply = await outbound.request("POST", url, json={"k": [1]})
            assert reply.body == b'{"a": 1}'

    run(work)
    assert bodies == [b"code=a+b&x=1", b'{"k":[1]}']


def test_an_error_never_shows_path_or_query() -> None:
    async def work() -> None:
        async with client(OutboundPolicy(timeout_s=2), answering([])) as outbound:
            with pytest.raises(AddressRefused) as caught:
                await outbound.request("GET", "https://gone.test/cb?code=verysecret")
            assert "verysecret" not in str(caught.value)

    run(work)
