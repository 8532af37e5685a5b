"""The real nginx with the snippet that is shipped, in front of a real server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from tests.deploy.test_files import nginx_configuration
from tests.live import Live, serving

HOST = "explorer.example.org"


@dataclass
class Front:
    """nginx in front of a server."""

    live: Live
    port: int
    secure_port: int

    def ask(self, method: str, path: str, **more: object) -> httpx.Response:
        headers = {"host": HOST, **more.pop("headers", {})}  # type: ignore[dict-item]
        return httpx.request(
            method,
            f"https://127.0.0.1:{self.secure_port}{path}",
            headers=headers,
            verify=False,
            timeout=60,
            **more,  # type: ignore[arg-type]
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    nginx = shutil.which("nginx")
    if nginx is None:
        pytest.skip("nginx is not installed")
    folder: Path = tmp_path_factory.mktemp("nginx")
    with serving(
        TinyEngine(),
        folder / "store.duckdb",
        allowed_hosts=(HOST,),
        trusted_proxies=("127.0.0.1",),
        rate_per_minute=6.0,
        rate_burst=12,
    ) as live:
        port, secure_port = free_port(), free_port()
        upstream = live.url.removeprefix("http://")
        whole = nginx_configuration(folder, port, secure_port, upstream)
        if os.geteuid() == 0:
            whole.write_text("user root;\n" + whole.read_text())
        child = subprocess.Popen([nginx, "-c", str(whole), "-g", "daemon off;"])
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", secure_port)) == 0:
                        break
                time.sleep(0.05)
            yield Front(live, port, secure_port)
        finally:
            child.terminate()
            child.wait(20)


def test_plain_http_is_sent_to_https(front: Front) -> None:
    reply = httpx.get(f"http://127.0.0.1:{front.port}/runs?x=1", headers={"host": HOST})
    assert reply.status_code == 301
    assert reply.headers["location"] == f"https://{HOST}/runs?x=1"


def test_the_server_knows_that_it_is_reached_over_https(front: Front) -> None:
    reply = front.ask("GET", "/healthz")
    assert reply.status_code == 200
    assert "max-age" in reply.headers["strict-transport-security"]
    made = front.ask(
        "POST",
        "/api/v1/rollouts",
        json={"run": "r"},
        headers={"authorization": f"Bearer {front.live.token}"},
    )
    assert made.status_code == 201
    assert made.json()["base_urls"]["openai"].startswith(f"https://{HOST}/k/")


def test_a_call_and_its_stream_come_through(front: Front) -> None:
    _, key = front.live.create(run="r")
    body = {
        "model": "m", "stream": True, "max_tokens": 8,
        "messages": [{"role": "user", "content": "What is 2 + 3? Use the calculator."}],
    }  # fmt: skip
    reply = front.ask("POST", f"/k/{key}/v1/chat/completions", json=body)
    assert reply.status_code == 200
    assert reply.text.rstrip().endswith("data: [DONE]")
    logged = (front.live.store.path.parent / "access.log").read_text()
    assert key not in logged


def test_nobody_is_the_operator_behind_it_without_the_token(front: Front) -> None:
    for path in ("/metrics", "/sql", "/api/v1/rollouts/x/training-trace"):
        assert front.ask("GET", path).status_code in (401, 403, 404)


def test_a_made_up_address_does_not_escape_the_limit(front: Front) -> None:
    answers = [
        front.ask("GET", "/runs.json", headers={"x-forwarded-for": f"198.51.100.{n}"})
        for n in range(16)
    ]
    assert {each.status_code for each in answers[-3:]} == {429}


def test_size_a_large_body_without_leave_does_not_pass(front: Front) -> None:
    reply = front.ask("POST", "/api/v1/rollouts", content=b" " * (2 * 1024 * 1024))
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"
