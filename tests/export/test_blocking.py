"""What a trainer's thread is told when there is no server, and how long its command runs."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from explorer.integrations.attempts import Attempt, Endpoint
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.command import CommandAgent


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{url} cannot be reached: Connection"):
            ExplorerServer(url).model()


def test_a_server_that_says_nothing_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=f"{url} did not answer in 0.2 s"):
            ExplorerServer(url, timeout_s=0.2).model()


@pytest.mark.parametrize(("own", "allowed"), [(0.3, 20.0), (20.0, 0.3), (0.3, None)])
def test_the_shorter_time_counts(own: float, allowed: float | None) -> None:
    name, at = "01a228ed-1a24-7bb6-82e6-db4332c09e5f", "http://h"
    endpoint = Endpoint(name, "key", at, at, at, page=at, model="m")
    agent = CommandAgent([sys.executable, "-c", "import time; time.sleep(30)"], timeout_s=own)
    began = time.monotonic()
    ended = agent(Attempt("t", endpoint, timeout_s=allowed))
    assert (ended.ok, ended.exit_code) == (False, 124)
    assert "within 0.3 seconds" in (ended.reason or "")
    assert time.monotonic() - began < 15
