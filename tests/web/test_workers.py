"""Pages and searches never hold the threads that calls are recorded with."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from explorer.engine.tiny import TinyEngine
from explorer.web.pretty import DEEPEST, dumps, loads
from tests.live import serving

MANY = 24


def test_searches_that_all_wait_for_verdicts_come_to_an_end(tmp_path: Path) -> None:
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        key = ""
        for _ in range(4):
            # Open and new, so the index does not have them: each search has them judged.
            key = live.create(run="r")[1]
            assert live.chat(key, max_tokens=4).status_code == 200

        def search(number: int) -> int:
            return httpx.get(
                f"{live.url}/api/v1/search",
                params={"q": f"nowhere{number}", "mode": "contains"},
                headers={"authorization": f"Bearer {live.token}"},
                timeout=60,
            ).status_code

        with ThreadPoolExecutor(MANY) as pool:
            found = pool.map(search, range(MANY))
            assert live.chat(key, max_tokens=4).status_code == 200
            assert set(found) == {200}


def test_brackets_within_brackets_stay_small() -> None:
    body = "[" * 400 + ",".join(['""'] * 20_000) + "]" * 400
    began = time.monotonic()
    shown = dumps(loads(body))
    assert json.loads(shown) == json.loads(body)
    assert len(shown) < 20_000 * (2 * DEEPEST + 8) + 400 * 4 * DEEPEST + 1000
    assert time.monotonic() - began < 5
