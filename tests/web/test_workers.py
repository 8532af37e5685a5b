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


def test_one_deeply_nested_message_ends_no_search_and_no_page(tmp_path: Path) -> None:
    deep = b"[" * 900 + b'"needle"' + b"]" * 900
    body = (
        b'{"model": "m", "messages": [{"role": "user", "content": "hi", "x": ' + deep + b"}]}"
    )
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        rollout_id, key = live.create(run="r")
        live.chat(key, raw=body)
        file = b'{"turns": [{"request": {"messages": [{"role": "user", "content": ' + deep
        file += b'}]}, "response": {"role": "assistant", "content": "plain needle", "x": '
        made = httpx.post(
            f"{live.url}/api/v1/imports",
            content=file + deep + b"}}]}",
            headers={"authorization": f"Bearer {live.token}"},
        ).json()["imported"]
        for each in (rollout_id, *made):
            call = live.calls(each)[0]["call_id"]
            for page in ("", "/conversation", f"/requests/{call}", "/search?q=needle"):
                reply = httpx.get(f"{live.url}/rollouts/{each}{page}", follow_redirects=True)
                assert reply.status_code == 200, page
            for number in ("0", "reply"):
                reply = httpx.get(
                    f"{live.url}/rollouts/{each}/message", params={"call": call, "n": number}
                )
                assert reply.status_code in (200, 404)
        for mode in ("contains", "ranked"):
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                found = live.api("GET", f"/api/v1/search?q=needle&mode={mode}")
                if made[0] in [each["rollout"]["rollout_id"] for each in found["results"]]:
                    break
                time.sleep(0.2)
            assert made[0] in [each["rollout"]["rollout_id"] for each in found["results"]]


def test_brackets_within_brackets_stay_small() -> None:
    body = "[" * 140 + ",".join(['""'] * 20_000) + "]" * 140
    began = time.monotonic()
    shown = dumps(loads(body))
    assert json.loads(shown) == json.loads(body)
    assert len(shown) < 20_000 * (2 * DEEPEST + 8) + 400 * 4 * DEEPEST + 1000
    assert time.monotonic() - began < 5
