"""The search index of a running server: follows commits, forgets at once, links to tokens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from explorer.engine.tiny import TinyEngine
from explorer.store.search_index import index_path
from tests.live import Live, serving
from tests.web.test_exports import rollout

KEYLIKE = "rxk_" + "Q7f3" * 8


def search(live: Live, q: str, **more: str) -> Any:
    reply = httpx.get(
        f"{live.url}/api/v1/search",
        params={"q": q, **more},
        headers={"authorization": f"Bearer {live.token}"},
        timeout=30,
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def names(found: Any) -> list[str]:
    return [each["rollout"]["rollout_id"] for each in found["results"]]


def settled(live: Live, q: str, wanted: list[str]) -> Any:
    """The answer once every rollout is indexed; a reply may come before its commit."""
    for _ in range(150):
        found = search(live, q)
        if found["waiting"] == 0 and names(found) == wanted:
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def test_the_index_follows_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as live:
        one = rollout(live)
        found = settled(live, "title", [one])
        assert (found["indexed"], found["on_record"]) == (1, 1)
        (hit,) = found["results"][0]["hits"]
        assert hit["match"].lower() == "title"
        page = httpx.get(live.url + hit["href"].partition("#")[0])
        assert page.status_code == 200
        assert f"id=t{hit['token']}" in page.text.replace('"', "")
        # Both modes and the search within agree.
        assert names(search(live, "Title?", mode="contains", case="1")) == [one]
        within = live.api("GET", f"/api/v1/rollouts/{one}/search?q=Title%3F&case=1")
        assert [each["token"] for each in within["hits"]] == [hit["token"]]
        assert names(search(live, "title", run="exports")) == [one]
        assert names(search(live, "title", run="another")) == []
        # An open rollout is indexed once it is quiet, and again when it goes on.
        two, key = live.create(run="more", task="u")
        live.chat(key, messages=[{"role": "user", "content": "zebra " + KEYLIKE}], max_tokens=4)
        settled(live, "zebra", [two])
        live.chat(key, messages=[{"role": "user", "content": "giraffe"}], max_tokens=4)
        live.api("POST", f"/api/v1/rollouts/{two}/close", {})
        settled(live, "giraffe", [two])
        # What looks like a key is not in the file, nor is the key of the rollout itself.
        assert names(search(live, KEYLIKE)) == []
        for path in tmp_path.glob(index_path(store).name + "*"):
            assert KEYLIKE.encode() not in path.read_bytes()
            assert key.encode() not in path.read_bytes()
        # A removed one leaves the answers before anything else happens, then the file.
        live.api("DELETE", f"/api/v1/rollouts/{two}", status=204)
        assert names(search(live, "zebra")) == []
        assert names(search(live, "zebra", mode="contains")) == []
        assert settled(live, "zebra", [])["on_record"] == 1
        for _ in range(100):
            if len(live.application.index.indexed()) == 1:
                break
            time.sleep(0.1)
        assert list(live.application.index.indexed()) == [one]
    for path in tmp_path.glob(index_path(store).name + "*"):
        assert b"giraffe" not in path.read_bytes()
    # A damaged file costs nothing but the time to make it again.
    index_path(store).write_bytes(b"nothing a database begins with, and then some" * 50)
    with serving(TinyEngine(), store) as live:
        found = settled(live, "title", [one])
        assert "made anew" in found["index_note"]


def test_work_that_ended_by_a_fault_is_said(tmp_path: Path) -> None:
    with serving(TinyEngine(), tmp_path / "store.duckdb") as live:
        settled(live, "title", [rollout(live)])
        indexing = live.application.indexing

        async def fail() -> None:
            raise RuntimeError("a fault of ours")

        async def end() -> None:
            task = asyncio.create_task(fail())
            task.add_done_callback(indexing._ended)
            await asyncio.wait((task,))

        asyncio.run_coroutine_threadsafe(end(), live.loop).result(10)
        assert "no longer brought up to date" in httpx.get(f"{live.url}/search?q=title").text
