"""Two calls and several rollouts side by side, by keyboard, without scripts, and safely."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Watched, violations

pytestmark = pytest.mark.browser


def test_c_compares_the_turn_at_hand_with_the_one_it_parts_from(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/conversation")
    page.locator(".tree a[data-node]", has_text="6 agent").focus()
    page.keyboard.press("c")
    page.wait_for_url(re.compile("/compare"))
    assert site.made["forked"].calls[8].call_id in page.url
    expect(page.locator(".side-by")).to_have_count(2)
    page.go_back()
    page.wait_for_selector("html[data-ready]")
    page.locator("body").focus()
    page.keyboard.press("c")
    page.wait_for_url(re.compile("/compare"))
    expect(page.locator(".parts-at")).to_contain_text("Parts at token")


def test_c_does_nothing_where_nothing_parts(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/conversation")
    before = page.url
    page.keyboard.press("c")
    assert page.url == before


def test_both_sides_are_coloured_by_the_same_bins(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/compare")
    fill = "(e) => getComputedStyle(e).backgroundColor"
    colours = {
        page.locator(f".side-by >> nth={side}").locator(".k .b3").first.evaluate(fill)
        for side in (0, 1)
    }
    assert colours == {"rgb(235, 192, 137)"}
    hatch = "(e) => getComputedStyle(e).backgroundImage"
    masked = page.locator(".side-by >> nth=1").locator(".hatched .k i").first
    assert "repeating-linear-gradient" in masked.evaluate(hatch)


def test_comparing_works_without_scripts(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/group", java_script_enabled=False)
    page.locator("input[type=checkbox]").nth(0).check()
    page.get_by_role("button", name="Compare").click()
    assert "/compare?" in page.url
    expect(page.locator("table.sides")).to_contain_text("reward")
    page = site.visit("/rollouts/{forked}/compare", java_script_enabled=False)
    page.locator("details.shared summary").click()
    expect(page.locator("details.shared .hash").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_one_message_and_of_a_break_are_accessible(site: Watched, scheme: str) -> None:
    calls = [call.call_id for call in site.made["forked"].calls]
    for path in (
        f"/rollouts/{{forked}}/message?call={calls[1]}&n=0",
        f"/rollouts/{{forked}}/compare?a={calls[4]}&b={calls[8]}",
        f"/rollouts/{{forked}}/requests/{calls[4]}",
        "/rollouts/{forked}/timing",
        "/rollouts/{forked}/group",
    ):
        page = site.visit(path, size=NARROW, color_scheme=scheme)
        page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert violations(page) == [], path
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), path
