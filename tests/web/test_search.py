"""The search: every hit stands where it says, each text once, nothing typed is syntax."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from explorer.export.judged import JudgedRollouts
from explorer.settings import load
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.store.queries import RolloutQuery
from explorer.trace.policy import DEFAULT_POLICY
from explorer.web import words
from explorer.web.search_text import Needle, excerpt, folded
from explorer.web.searching import ROLLOUTS_PER_PAGE, Across
from explorer.web.services import Services
from tests.live import serving
from tests.web import seeds
from tests.web.conftest import Site
from tests.web.parsing import lookup, read
from tests.web.seeds import SEEDS
from tests.web.vocabulary import TOKENIZER, table

HOSTILE_QUERIES = (
    '"',
    '""',
    '"unbalanced',
    'a" OR "b',
    "NEAR(a b, 2)",
    "lock*",
    "* AND NOT",
    "text:lock",
    "-lock ^lock",
    "a\x00b",
    "\u202egnp.exe",
    "<script>alert(1)</script>",
    "100%_'; DROP TABLE passage; --",
    "🦊",
    "\ufffd",
    "  ",
    "a" * 1000,
)


def hits(site: Site, seed: str, q: str, **more: str) -> Any:
    """The twin of a search within a seed."""
    reply = site.client.get(f"/rollouts/{site.id(seed)}/search.json", params={"q": q, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def decoded(site: Site, seed: str, hit: dict[str, Any]) -> str:
    """The text of a hit's tokens, from the ids of its call."""
    ids = site.made[seed].ids(hit["call_id"]).tolist()[hit["token"] : hit["token_end"]]
    return b"".join(table()[token][0] for token in ids).decode(errors="replace")


def every_text(site: Site, seed: str) -> list[str]:
    """The text of each call's row."""
    made = site.made[seed]
    return [
        b"".join(table()[token][0] for token in made.ids(call.call_id).tolist()).decode()
        for call in made.calls
        if call.completion is not None
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tokens_of_every_hit_say_the_text(site: Site, seed: str) -> None:
    chance = random.Random(seed)
    looked = 0
    for text in every_text(site, seed):
        for _ in range(6):
            start = chance.randrange(len(text) - 20)
            q = text[start : start + chance.randint(1, 18)].strip("\r\n")
            if not q.strip():
                continue
            found = hits(site, seed, q, repeats="1")
            # A text that runs on from one call's tokens into the next's is not found.
            for hit in found["hits"]:
                if hit["token"] is None:
                    continue
                said = decoded(site, seed, hit)
                assert folded(q) in folded(said), (q, said)
                inner = decoded(site, seed, {**hit, "token": hit["token"] + 1})
                assert folded(q) not in folded(inner)
                looked += 1
    assert looked > 5


def test_a_character_split_over_tokens_is_found(site: Site) -> None:
    for q in ("🦊", "漢字", "a family 👩‍💻", "naïve"):
        found = hits(site, "small", q)
        assert found["total"] == 1, q
        hit = found["hits"][0]
        assert hit["token_end"] - hit["token"] > 1
        assert q in decoded(site, "small", hit)
        assert hit["kind"] == "sampled"
        assert hit["trained"] == hit["token_end"] - hit["token"]


def test_a_hit_says_who_speaks_and_what_trains(site: Site) -> None:
    asked = hits(site, "small", "make the tests pass")["hits"]
    assert [(h["turn"], h["role"], h["kind"], h["trained"]) for h in asked] == [
        ("1", "user", "user", 0)
    ]
    tool = hits(site, "small", "total 3")["hits"]
    assert [(h["turn"], h["role"], h["kind"]) for h in tool] == [
        ("2", "tool", "tool output"),
        ("3", "tool", "tool output"),
    ]
    for hit in (*asked, *tool):
        assert site.client.get(hit["href"].partition("#")[0]).status_code == 200
        page = site.text(hit["turn_href"].partition("#")[0])
        assert f'id="{hit["turn_href"].partition("#")[2]}"' in page


def test_what_requests_repeat_is_found_once(site: Site) -> None:
    # All nine calls but two go on from this prompt; one turn begins anew with its system text.
    assert hits(site, "forked", "make the tests pass")["total"] == 1
    once = hits(site, "forked", "family")
    again = hits(site, "forked", "family", repeats="1")
    assert once["total"] == 1
    assert once["repeated"] > 0
    assert again["total"] == once["total"] + once["repeated"]


def test_text_that_no_token_has_is_found_in_its_message(site: Site) -> None:
    found = hits(site, "refused", "look first")
    assert [(h["token"], h["kind"]) for h in found["hits"]] == [(None, "reply reasoning")] * 2
    page = site.text(found["hits"][0]["href"])
    assert "I should look first." in read(page).text
    assert [h["kind"] for h in hits(site, "small", seeds.BIG_ID)["hits"]] == [
        "reply tool call"
    ] * 3


def test_case_counts_only_when_asked(site: Site) -> None:
    assert hits(site, "small", "PLEASE repair")["total"] == 1
    assert hits(site, "small", "PLEASE repair", case="1")["total"] == 0
    assert hits(site, "small", "Please repair", case="1")["total"] == 1


@pytest.mark.parametrize("q", HOSTILE_QUERIES)
def test_nothing_typed_is_syntax_or_markup(site: Site, q: str) -> None:
    for path in (f"/rollouts/{site.id('hostile')}/search", "/search"):
        for mode in ("ranked", "contains"):
            reply = site.client.get(path, params={"q": q, "mode": mode})
            assert reply.status_code == 200, (path, q, reply.text[:200])
            assert "<script>alert" not in reply.text
            # A text box holds what was typed, and nothing stands beside it.
            assert "\u202e" not in reply.text.replace(f'value="{q}"', "")


def test_a_query_that_is_too_long_is_refused_in_words(site: Site) -> None:
    reply = site.client.get("/search.json", params={"q": "a" * 1001})
    assert reply.status_code == 422
    assert "at most 1,000" in reply.json()["error"]["message"]
    # A megabyte does not get past the server's own limit of an address.
    host, port = site.served.url.removeprefix("http://").split(":")
    line = http.client.HTTPConnection(host, int(port), timeout=30)
    with contextlib.suppress(ConnectionError):
        line.request("GET", "/search?q=" + "a" * 1_000_000)
        assert line.getresponse().status in (400, 414, 431)
    line.close()
    assert site.client.get("/search").status_code == 200


def test_contains_looks_through_what_the_filters_leave(site: Site) -> None:
    every = site.json("/search.json?q=lock&mode=contains")
    assert every["looked"] == every["candidates"] == len(SEEDS)
    assert every["stopped"] == ""
    found = {result["row"]["rollout_id"] for result in every["results"]}  # type: ignore[attr-defined]
    expected = {site.id(name) for name in SEEDS if hits(site, name, "lock")["total"]}
    assert found == expected
    some = site.json("/search.json?q=lock&mode=contains&task=other-task")
    assert [r["row"]["rollout_id"] for r in some["results"]] == [site.id("ranked")]  # type: ignore[attr-defined]
    typed = site.json("/search.json?q=lock&mode=contains&within=task%3Aother-task")
    assert typed["candidates"] == some["candidates"] == 1
    counts = {r["row"]["rollout_id"]: r["n_hits"] for r in every["results"]}  # type: ignore[attr-defined]
    for name in SEEDS:
        if site.id(name) in counts:
            assert counts[site.id(name)] == hits(site, name, "lock")["total"]


def test_a_filter_that_cannot_be_read_is_named(site: Site) -> None:
    assert "there is no filter `colour`" in site.text("/search?q=a&colour=red")
    reply = site.client.get("/search.json?q=a&colour=red")
    assert reply.status_code == 422
    assert "colour" in reply.json()["error"]["message"]


def test_without_an_index_the_page_says_so(site: Site) -> None:
    page = read(site.text("/search?q=lock")).text
    assert "No ranked search: this server keeps no search index" in page


@pytest.mark.parametrize(
    "path",
    [
        "/search",
        "/search?q=lock&mode=contains",
        "/rollouts/{forked}/search?q=lock",
        "/rollouts/{small}/search?q=nowhere",
        "/rollouts/{small}/search",
    ],
)
def test_numbers_equal_the_twins(site: Site, path: str) -> None:
    page = read(site.text(path))
    links = [e.attributes for e in page.elements if e.tag == "link"]
    twin = site.client.get(next(a["href"] for a in links if a.get("rel") == "alternate"))
    for number in page.numbers:
        value = lookup(twin.json(), number.attributes["data-k"])
        assert number.attributes["value"] == ("" if value is None else str(value))
        assert number.text == words.thousands(value)


def test_hits_come_in_pages(long_site: Site) -> None:
    first = hits(long_site, "long", "line of the tool")
    assert (first["total"], first["more"]) == (10_000, True)
    assert (first["first"], first["last"]) == (1, 200)
    second = long_site.client.get(
        first["next_href"].replace("/search?", "/search.json?")
    ).json()
    assert (second["first"], second["last"]) == (201, 400)
    tokens = [hit["token"] for page in (first, second) for hit in page["hits"]]
    assert len(set(tokens)) == 400
    assert tokens == sorted(tokens)


def test_a_long_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def work() -> None:
        store = DuckDBStore(tmp_path / "many.duckdb", StoreOptions(min_free_bytes=0))
        await seeds.fill(store)
        names = {seed.rollout.rollout_id for seed in (make() for make, *_ in SEEDS.values())}
        for number in range(ROLLOUTS_PER_PAGE):
            made = seeds.maker(f"many-{number}", task=f"many-{number}")
            made.call("the needle is here\n", said=seeds.FIRST)
            await seeds.write(store, made, 1.0, True, close=True)
            names.add(made.rollout.rollout_id)
        judged = JudgedRollouts(store, lambda: DEFAULT_POLICY, lambda: seeds.START_US)
        known = {name: await judged.get(name) for name in names}
        services = Services(
            store=store,
            judged=judged,
            settings=load(),
            certificate=lambda: None,
            vocabulary=lambda tokenizer: table() if tokenizer == TOKENIZER else {},
            started_us=0,
        )
        across = Across(services, RolloutQuery(limit=1), known.get)
        needle = Needle("repair", case=False)
        seen: list[str] = []
        cursor, rounds = None, 0
        while rounds == 0 or cursor:
            found = across.contains(needle, cursor)
            seen += [each.summary.rollout_id for each in found.shown]
            cursor, rounds = found.cursor, rounds + 1
            assert bool(found.stopped) is (cursor is not None)
        assert rounds == 2
        # Every one of them but the hostile seed, and none twice.
        assert len(seen) == len(set(seen)) == len(names) - 1
        await store.close()

    asyncio.run(work())


def test_programs_get_the_same(site: Site) -> None:
    found = hits(site, "forked", "lock")
    page = site.client.get(f"/rollouts/{site.id('forked')}/search.json?q=lock").json()
    assert page["hits"] == found["hits"]


def test_letters_fold_in_place() -> None:
    for text in ("İstanbul", "ΟΔΟΣ", "straße", "\u212a"):
        assert len(folded(text)) == len(text)
    assert list(Needle("οδος", case=False).places("ΟΔΟΣ")) == [(0, 4)]
    assert list(Needle("stan", case=False).places("İSTAN")) == [(1, 5)]
    assert list(Needle("aa", case=False).places("aaaaa")) == [(0, 2), (2, 4)]
    assert Needle("", case=False).count("text") == 0


def test_an_excerpt_is_one_safe_line() -> None:
    text = "x" * 80 + "e\u0301" + "\u202ehit\n" + "y" * 300
    part = excerpt(text, 83, 87)
    assert part.match == "hit↵"
    assert part.before.startswith("…")
    assert "\\u202e" in part.before
    assert part.after.endswith("…")
    assert "\n" not in part.before + part.match + part.after
    # A mark is never cut from its letter at the edge.
    edge = "z" * 10 + "e\u0301" + "w" * 49
    assert excerpt(edge, 61, 61).before == "…" + "w" * 49


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("q", ["the", "a", "e"])
def test_what_a_hit_says_of_training_is_what_the_token_says(
    site: Site, seed: str, q: str
) -> None:
    """Also where two calls have one prompt, so that the second adds only its completion."""
    hits: Any = site.json(f"/rollouts/{{{seed}}}/search.json?q={q}&repeats=1")["hits"]
    for hit in hits[:12]:
        if hit["token"] is None:
            continue
        said = [
            site.json(
                f"/rollouts/{{{seed}}}/tokens/inspect.json?branch={hit['call_id']}&t={at}"
            )["token"]["trained"]  # type: ignore[index]
            for at in range(hit["token"], hit["token_end"])
        ]
        assert hit["trained"] == sum(said), hit


def test_of_twins_each_hit_says_what_its_own_call_trains(tmp_path: Path) -> None:
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        rollout_id, key = live.create()
        asked: Any = {"messages": [{"role": "user", "content": "What is 4 + 5?"}]}
        for seed in (1, 2):
            assert live.chat(key, seed=seed, **asked).status_code == 200
        calls = live.calls(rollout_id)
        live.api(
            "POST",
            f"/api/v1/rollouts/{rollout_id}/overrides",
            {"kind": "role", "role": "agent", "call_id": calls[1]["call_id"], "reason": "used"},
            status=201,
        )
        live.api(
            "POST",
            f"/api/v1/rollouts/{rollout_id}/overrides",
            {"kind": "exclude_call", "call_id": calls[0]["call_id"], "reason": "not used"},
            status=201,
        )
        base = f"{live.url}/rollouts/{rollout_id}"
        hits = httpx.get(f"{base}/search.json", params={"q": "e"}).json()["hits"]
        seen = set()
        for hit in hits:
            if hit["token"] is None:
                continue
            query = {"branch": hit["call_id"], "t": hit["token"]}
            token = httpx.get(f"{base}/tokens/inspect.json", params=query).json()["token"]
            assert bool(hit["trained"]) is token["trained"], hit
            seen.add((hit["call_id"], token["trained"]))
        # Both answers were found, and the second one trains where it was sampled.
        assert {call["call_id"] for call in calls} == {name for name, _ in seen}
        assert (calls[1]["call_id"], True) in seen
