"""The public address is asked from outside; a dead or foreign one stops new rollouts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from explorer.access.public_address import PublicAddress
from explorer.engine.scripted import ScriptedEngine
from explorer.errors import PublicAddressDead
from tests.live import Live, serving


class Tunnel:
    """A real forwarder of connections on a port of its own, that can be cut and turned."""

    def __init__(self) -> None:
        self.target = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if not self.target:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        sink.close()


@pytest.fixture
def tunnel() -> Iterator[Tunnel]:
    made = Tunnel()
    yield made
    made.listener.close()


@contextmanager
def server(folder: Path, name: str, **settings: object) -> Iterator[Live]:
    engine = ScriptedEngine([{"text": "hello", "token_ids": [1, 2], "logprobs": [-1, -1]}])
    with serving(engine, folder / f"{name}.duckdb", **settings) as live:
        yield live


def forget(live: Live) -> None:
    """As if the last answer had come long ago."""
    live.application.public._asked = float("-inf")


def test_dep_01_a_dead_or_foreign_address_stops_new_rollouts(
    tunnel: Tunnel, tmp_path: Path
) -> None:
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    tunnel.target = port
    with (
        server(
            tmp_path, "mine", public_url=tunnel.url, public_url_probe_s=3600.0, listen_port=port
        ) as live,
        server(tmp_path, "other") as other,
    ):
        here = f"http://127.0.0.1:{port}"
        operator = {"authorization": f"Bearer {live.token}"}

        def create() -> httpx.Response:
            return httpx.post(
                f"{here}/api/v1/rollouts", json={"run": "r"}, headers=operator, timeout=30
            )

        # Alive: the tunnel leads here.
        made = create()
        assert made.status_code == 201, made.text
        key = made.json()["capture_key"]
        assert made.json()["base_urls"]["openai"].startswith(tunnel.url)

        # Yesterday's tunnel.
        tunnel.target = 0
        forget(live)
        dead = create()
        assert dead.status_code == 503
        assert dead.json()["error"]["code"] == "public_address_dead"
        assert "does not answer" in dead.json()["error"]["message"]
        page = httpx.get(f"{here}/", headers=operator)
        assert 'role="alert"' in page.text
        assert "does not answer" in page.text

        # A tunnel that somebody else's server took over.
        tunnel.target = int(other.url.rpartition(":")[2])
        forget(live)
        foreign = create()
        assert foreign.status_code == 503
        assert "another server" in foreign.json()["error"]["message"]

        # Keys are what they were, whatever the tunnel says.
        for base in (here, tunnel.url):
            unknown = httpx.post(
                f"{base}/v1/chat/completions",
                json={"model": "m", "messages": []},
                headers={"authorization": "Bearer rxk_of_nobody"},
            )
            assert unknown.status_code == 401
        known = httpx.post(
            f"{here}/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
            headers={"authorization": f"Bearer {key}"},
            timeout=30,
        )
        assert known.status_code == 200, known.text

        # And back.
        tunnel.target = port
        forget(live)
        assert create().status_code == 201
        assert 'role="alert"' not in httpx.get(f"{here}/", headers=operator).text


def test_the_timer_notices_without_being_asked(tunnel: Tunnel) -> None:
    async def work() -> None:
        address = PublicAddress(tunnel.url, 0.2)
        address.start()
        for _ in range(100):
            if address.reason:
                break
            await asyncio.sleep(0.05)
        assert "does not answer" in address.reason
        await address.stop()

    asyncio.run(work())


def test_without_an_address_or_with_zero_nothing_is_asked() -> None:
    async def work() -> None:
        for address in (PublicAddress(None, 300), PublicAddress("http://127.0.0.1:1", 0)):
            address.start()
            await address.require()
            assert address.reason == ""
            await address.stop()

    asyncio.run(work())


def test_a_page_that_is_no_json_is_another_server() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>")
        await writer.drain()
        writer.close()

    async def work() -> None:
        served = await asyncio.start_server(page, "127.0.0.1", 0)
        async with served:
            port = served.sockets[0].getsockname()[1]
            address = PublicAddress(f"http://127.0.0.1:{port}/", 300)
            with pytest.raises(PublicAddressDead, match="another server"):
                await address.require()
            await address.stop()

    asyncio.run(work())


def test_every_process_has_a_number_of_its_own() -> None:
    assert PublicAddress(None, 0).instance != PublicAddress(None, 0).instance


def test_many_who_wait_for_a_dead_address_ask_it_once() -> None:
    asked = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.3)
        writer.close()

    async def work() -> None:
        served = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with served:
            port = served.sockets[0].getsockname()[1]
            address = PublicAddress(f"http://127.0.0.1:{port}", 300)
            ended = await asyncio.gather(
                *(address.require() for _ in range(20)), return_exceptions=True
            )
            assert all(isinstance(each, PublicAddressDead) for each in ended)
            await address.stop()

    asyncio.run(work())
    assert asked == 1
