"""Saved views: by the API, from the page, and as what `export --view` takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving
from tests.web.parsing import read
from tests.web.test_exports import command, rollout


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A whole server with one good and one bad rollout."""
    with serving(TinyEngine(), tmp_path_factory.mktemp("views") / "store.duckdb") as running:
        rollout(running)
        rollout(running, ok=False)
        yield running


def names(live: Live) -> dict[str, str]:
    """The views by name."""
    return {row["name"]: row["query"] for row in live.api("GET", "/api/v1/views")["views"]}


def test_a_view_is_saved_replaced_and_dropped(live: Live) -> None:
    made = live.api(
        "POST",
        "/api/v1/views",
        {"name": "to look at", "query": "?trainable=no&sort=-share"},
        status=201,
    )
    assert (made["query"], made["who"]) == ("trainable=no&sort=-share", "operator")
    live.api(
        "POST", "/api/v1/views", {"name": "to look at", "query": "trainable=yes"}, status=201
    )
    live.api("POST", "/api/v1/views", {"name": "a/b ü", "query": ""}, status=201)
    assert names(live) == {"a/b ü": "", "to look at": "trainable=yes"}
    page = read(httpx.get(f"{live.url}/").text)
    links = {e.attributes["href"] for e in page.elements if e.tag == "a"}
    assert {"/rollouts?trainable=yes", "/rollouts"} <= links
    live.api("DELETE", "/api/v1/views/a%2Fb%20%C3%BC", status=204)
    live.api("DELETE", "/api/v1/views/a%2Fb%20%C3%BC", status=404)
    assert set(names(live)) == {"to look at"}


@pytest.mark.parametrize(
    "body",
    [
        {"query": "run=a"},
        {"name": "x" * 81, "query": ""},
        {"name": "a=b", "query": ""},
        {"name": " a", "query": ""},
        {"name": "a", "query": 7},
        {"name": "a", "query": "state=asleep"},
        {"name": "a", "query": "colour=red"},
        {"name": "a", "query": "q=" + "x" * 4000},
        {"name": "a\n", "query": ""},
        {"name": "a", "query": "", "more": 1},
    ],
)
def test_what_is_no_view_is_refused_in_words(live: Live, body: dict[str, object]) -> None:
    error = live.api("POST", "/api/v1/views", body, status=422)["error"]
    assert error["message"]


def test_views_need_the_operator(live: Live) -> None:
    body = {"name": "mine", "query": ""}
    reply = httpx.post(
        f"{live.url}/api/v1/views", json=body, headers={"origin": "https://evil.example"}
    )
    assert reply.status_code in (401, 403)
    assert "mine" not in names(live)


def test_a_view_from_the_page(live: Live) -> None:
    here = {"origin": live.url, "authorization": f"Bearer {live.token}"}
    form = {"name": "<b>bad</b>", "query": "ok=no&sort=reward&cols=task"}
    reply = httpx.post(f"{live.url}/views", data=form, headers=here)
    assert reply.status_code == 303, reply.text[:300]
    assert reply.headers["location"] == "/rollouts?ok=no&sort=reward&cols=task"
    page = httpx.get(live.url + reply.headers["location"]).text
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    assert "<b>bad" not in page
    away = {"name": "<b>bad</b>", "query": "//evil.example"}
    reply = httpx.post(f"{live.url}/views/drop", data=away, headers=here)
    assert (reply.status_code, reply.headers["location"]) == (303, "/rollouts")
    assert "<b>bad</b>" not in names(live)


def test_export_takes_a_view_by_its_name(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as live:
        good = rollout(live)
        rollout(live, ok=False)
        live.api(
            "POST", "/api/v1/views", {"name": "good ones", "query": "trainable=yes"}, status=201
        )
    at = ("export", "--store", str(store), "--out", str(tmp_path / "out"))
    done = command(live, *at, "--view", "good ones")
    assert done.returncode == 0, done.stderr
    assert [path.name.partition(".")[0] for path in (tmp_path / "out").iterdir()] == [good]
    done = command(live, *at, "--view", "god ones")
    assert done.returncode == 2
    assert "there are good ones" in done.stderr


@pytest.mark.parametrize(
    "query",
    [
        "",
        "trainable=no",
        "trainable=yes,no&sort=-share",
        "reward=0..&ok=!no",
        "q=task%3A(none) tiny",
        "calls=1..&sort=created",
        "meta.none=(none)",
    ],
)
def test_page_files_and_programs_show_the_same(live: Live, query: str) -> None:
    answer = live.api("GET", f"/api/v1/rollouts?{query}")
    ids = [row["rollout_id"] for row in answer["rollouts"]]
    assert answer["previous"] is None
    twin = httpx.get(f"{live.url}/rollouts.json?{query}").json()
    assert [row["rollout_id"] for row in twin["rows"]] == ids
    lines = httpx.get(f"{live.url}/rollouts.csv?{query}").text.splitlines()[1:]
    assert [line.partition(",")[0] for line in lines] == ids
    page = httpx.get(f"{live.url}/rollouts?{query}", follow_redirects=True).text
    boxes = [e for e in read(page).elements if e.attributes.get("name") == "id"]
    assert [box.attributes["value"] for box in boxes] == ids
