"""The whole demo, crawled: every page answers, and every number equals its twin's."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from explorer.demo.group import run_group
from explorer.engine.tiny import TinyEngine
from explorer.web import words
from tests.live import Live, serving
from tests.web.parsing import Found, lookup, read

MOST_PAGES = 1500
# Downloads and streams are no pages; they have their own tests.
NOT_PAGES = ("/api/", "/static/", ".json", ".csv", ".parquet", "/live", "/picture", "/raw")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = tmp_path_factory.mktemp("demo") / "s.duckdb"
    with serving(TinyEngine(), path, top_logprobs=5) as live:
        asyncio.run(run_group(live.url, live.token, seed=0, attempts=1))
        # A page and its twin are two requests: between them the index must not go on.
        for _ in range(300):
            if live.api("GET", "/api/v1/search?q=a")["waiting"] == 0:
                break
            time.sleep(0.1)
        yield live


def links(page: Found, at: str) -> Iterator[str]:
    """Pages of this server that the page leads to, one per path and filter."""
    for element in page.elements:
        href = element.attributes.get("href") if element.tag == "a" else None
        if not href:
            continue
        found = urlsplit(urljoin(at, href))
        path = found.path + (f"?{found.query}" if found.query else "")
        if found.netloc != urlsplit(at).netloc or any(each in path for each in NOT_PAGES):
            continue
        # Facets multiply without end: two filters at once are enough.
        if found.path in ("/rollouts", "/compare") and found.query.count("=") > 2:
            continue
        yield path


def family(path: str) -> str:
    """Addresses that differ in a view's state only count once per rollout and tab."""
    parts = urlsplit(path)
    names = sorted(pair.split("=")[0] for pair in parts.query.split("&") if pair)
    return f"{parts.path}?{'&'.join(names)}"


def test_every_number_on_every_page_equals_its_twin(demo: Live) -> None:
    waiting = deque(["/", "/rollouts", "/runs", "/help/keys"])
    seen: set[str] = set()
    families: set[str] = set()
    wrong: list[str] = []
    numbers = 0
    with httpx.Client(base_url=demo.url, timeout=60) as client:
        while waiting and len(seen) < MOST_PAGES:
            path = waiting.popleft()
            if path in seen or family(path) in families:
                continue
            seen.add(path)
            families.add(family(path))
            reply = client.get(path, follow_redirects=True)
            if reply.status_code != 200:
                wrong.append(f"{path}: {reply.status_code}")
                continue
            page = read(reply.text)
            waiting.extend(links(page, str(reply.url)))
            twin = [
                e.attributes["href"]
                for e in page.elements
                if e.attributes.get("rel") == "alternate"
            ]
            if not twin:
                wrong.append(f"{path}: no twin")
                continue
            facts = client.get(twin[0]).json()
            for number in page.numbers:
                key = number.attributes["data-k"]
                value = lookup(facts, key)
                wanted = "" if value is None else str(value)
                if number.attributes["value"] != wanted or number.text != words.thousands(
                    value
                ):
                    wrong.append(
                        f"{path}: {key} is {number.attributes['value']}, twin {wanted}"
                    )
                numbers += 1
    assert wrong == []
    # It did walk: every tab of every rollout, and every call.
    rollouts = demo.api("GET", "/api/v1/rollouts?limit=200")["rollouts"]
    assert len(rollouts) >= 7
    for rollout in rollouts:
        for tab in ("tokens", "conversation", "timing", "requests", "group", "notes"):
            assert any(p.startswith(f"/rollouts/{rollout['rollout_id']}/{tab}") for p in seen)
        for call in demo.calls(rollout["rollout_id"]):
            assert f"/rollouts/{rollout['rollout_id']}/requests/{call['call_id']}" in seen
    assert numbers > 3_000
    assert len(seen) < MOST_PAGES
