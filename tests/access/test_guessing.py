"""Nobody guesses the operator's token: not by being slowed down, not from many addresses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from explorer.access.identity import MOST_WRONG
from explorer.engine.scripted import ScriptedEngine
from tests.live import Live, serving

HOST = "demo.example"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with serving(
        ScriptedEngine([{"text": "an answer"}]),
        tmp_path / "store.duckdb",
        allowed_hosts=(HOST,),
        trusted_proxies=("127.0.0.1",),
        rate_per_minute=6.0,
        rate_burst=3,
    ) as live:
        yield live


def guess(live: Live, token: str, who: str, path: str = "/api/v1/audit") -> httpx.Response:
    headers = {"host": HOST, "x-forwarded-for": who, "authorization": f"Bearer {token}"}
    return httpx.get(live.url + path, headers=headers, timeout=30)


@pytest.mark.parametrize("path", ["/api/v1/audit", "/v1/models"])
def test_whoever_is_slowed_down_cannot_go_on_guessing(live: Live, path: str) -> None:
    who = "203.0.113.9"
    answers = [guess(live, f"wrong-{number}", who, path) for number in range(MOST_WRONG + 5)]
    assert answers[-1].status_code == 429
    right = guess(live, live.token, who, path)
    # The right one is answered as a wrong one is, or the answer would be an oracle.
    assert right.status_code == 429
    assert (
        right.json()["error"]["message"].split(";")[0]
        == (answers[-1].json()["error"]["message"].split(";")[0])
    )
    assert guess(live, live.token, "203.0.113.10").status_code == 200


def test_one_network_of_ipv6_is_one_guesser(live: Live) -> None:
    for number in range(MOST_WRONG + 5):
        guess(live, f"wrong-{number}", f"2001:db8:1:2::{number + 1:x}")
    assert guess(live, live.token, "2001:db8:1:2::ffff").status_code == 429
    assert guess(live, live.token, "2001:db8:1:3::1").status_code == 200


def test_the_operator_is_not_slowed_down(live: Live) -> None:
    found = {guess(live, live.token, "203.0.113.9").status_code for _ in range(12)}
    assert found == {200}
