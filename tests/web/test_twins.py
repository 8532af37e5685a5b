"""Every number on a page equals its JSON twin's."""

from __future__ import annotations

import pytest

from explorer.web import words
from explorer.web.header import TABS
from tests.web.conftest import Site
from tests.web.parsing import lookup, read
from tests.web.seeds import SEEDS

LISTS = ("/", "/runs", "/runs/grpo-tiny%20%23412", "/rollouts", "/engine", "/help/keys")
TAB_PAGES = tuple(f"/rollouts/{{{name}}}/{tab}" for name in SEEDS for tab, _ in TABS)


def twin_of(page: str) -> str:
    """Address of the twin, as the page itself says."""
    links = [e.attributes for e in read(page).elements if e.tag == "link"]
    return next(a["href"] for a in links if a.get("rel") == "alternate")


@pytest.mark.parametrize("path", [*LISTS, *TAB_PAGES])
def test_numbers_equal_the_twins(site: Site, path: str) -> None:
    page = site.text(path)
    twin = site.client.get(twin_of(page)).json()
    for number in read(page).numbers:
        value = lookup(twin, number.attributes["data-k"])
        assert number.attributes["value"] == ("" if value is None else str(value))
        assert number.text == words.thousands(value)


def test_numbers_are_there(site: Site) -> None:
    counts = {path: len(read(site.text(path)).numbers) for path in ("/", "/rollouts")}
    assert all(count > 10 for count in counts.values()), counts


def test_every_call_has_a_page_and_a_twin(site: Site) -> None:
    for call in site.made["forked"].calls:
        path = f"/rollouts/{{forked}}/requests/{call.call_id}"
        page, twin = read(site.text(path)), site.json(f"{path}.json")
        for number in page.numbers:
            value = lookup(twin, number.attributes["data-k"])
            assert number.attributes["value"] == ("" if value is None else str(value))


def test_verdict_on_every_tab_is_the_judges(site: Site) -> None:
    for name in SEEDS:
        texts = {
            str(lookup(site.json(f"/rollouts/{{{name}}}/{tab}.json"), "header.verdict.text"))
            for tab, _ in TABS
        }
        assert len(texts) == 1
        for tab, _ in TABS:
            assert texts.pop() in read(site.text(f"/rollouts/{{{name}}}/{tab}")).text
            break
