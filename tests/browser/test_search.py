"""Search, hit, token: by keyboard, by mouse, without JavaScript, in a small window."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, Watched

pytestmark = pytest.mark.browser


def test_a_search_ends_at_its_token(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens")
    page.keyboard.press("/")
    expect(page.locator("[data-finder]")).to_be_focused()
    # Keys are letters in a box.
    page.keyboard.type("delete the rest")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/search\?q=delete\+the\+rest"))
    expect(page.locator("table.hits tbody tr")).to_have_count(1)
    expect(page.locator("mark")).to_have_text("delete the rest")
    page.locator("a.hit").click()
    page.wait_for_url(re.compile(r"#t\d+"))
    token = int(page.url.rpartition("#t")[2])
    selected = page.locator(".k .c")
    expect(selected).to_be_in_viewport()
    expect(selected).to_contain_text("delete")
    position = page.locator("#inspect dd").first
    expect(position).to_have_text(re.compile(rf"^{token} turn 6"))
    page.go_back()
    expect(page.locator("mark")).to_have_text("delete the rest")


def test_a_hit_leads_to_its_turn(site: Watched) -> None:
    page = site.visit("/rollouts/{long}/search?q=of+the+tool&case=1")
    row = page.locator("table.hits tbody tr").nth(160)
    turn = row.locator("td a").first
    number = turn.inner_text()
    turn.click()
    page.wait_for_url(re.compile(rf"#turn-{number}$"))
    section = page.locator(f"#turn-{number}")
    expect(section).to_be_in_viewport()
    expect(section).to_contain_text("of the tool")


def test_it_works_without_javascript(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens", java_script_enabled=False)
    page.locator("[data-finder]").fill("漢字")
    page.locator("[data-finder]").press("Enter")
    page.wait_for_url(re.compile("/search"))
    expect(page.locator("mark")).to_have_text("漢字")
    page.locator("a.hit").click()
    page.wait_for_url(re.compile(r"/tokens\?branch=.*&t=\d+#t\d+"))
    token = page.url.rpartition("#t")[2]
    expect(page.locator(f"#t{token}")).to_be_in_viewport()


def test_across_from_the_keyboard(site: Watched) -> None:
    page = site.visit("/search?mode=contains")
    page.keyboard.press("/")
    page.keyboard.type("other forks")
    page.locator("input[name=within]").fill("task:other-task")
    page.locator("[data-find]").fill("lock")
    page.locator("[data-find]").press("Enter")
    page.wait_for_url(re.compile("mode=contains"))
    ranked = site.made["ranked"].rollout.rollout_id
    expect(page.locator(".results > li")).to_have_count(1)
    page.locator(".results a.hit").first.click()
    page.wait_for_url(re.compile(f"{ranked}/tokens.*#t"))
    expect(page.locator(".k .c")).to_be_in_viewport()
    page.go_back()
    page.locator(".chip", has_text="task").click()
    page.wait_for_url(lambda url: "within" not in url)
    assert page.locator(".results > li").count() > 3


def test_a_small_window_has_a_way_to_it(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens", size=NARROW)
    page.locator("nav.tabs a", has_text="Search").click()
    page.wait_for_url(re.compile("/search$"))
    page.locator("[data-find]").fill("lock")
    page.locator("[data-find]").press("Enter")
    # Loaded, so with its style sheets: before them a hit is seen, but stands elsewhere.
    page.wait_for_url(re.compile("/search.*q=lock"))
    hit = page.locator("a.hit").first
    expect(hit).to_be_visible()
    box = hit.locator("mark").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= NARROW["width"]
