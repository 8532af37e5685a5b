"""Lists as people use them: keys, facets, chips, columns, choosing rows, saved views."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NARROW, Watched, until

pytestmark = pytest.mark.browser

FOCUSED_ROW = (
    "[...document.querySelectorAll('tr[data-row]')].indexOf("
    "document.activeElement.closest('tr[data-row]'))"
)


def listing(site: Watched, path: str = "/rollouts") -> Page:
    """A list whose keys work."""
    page = site.visit(path)
    until(page, "'lists' in document.documentElement.dataset")
    return page


def test_rows_by_keyboard_alone(site: Watched) -> None:
    page = listing(site)
    page.keyboard.press("j")
    assert page.evaluate(FOCUSED_ROW) == 0
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate(FOCUSED_ROW) == 1
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("td.pick input:checked")).to_have_count(2)
    expect(page.locator("[data-selected]")).to_have_text("2 chosen")
    chosen = page.locator("td.pick input:checked").evaluate_all("all => all.map(e => e.value)")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.type("jx")
    assert page.input_value("input[name=q][type=search]") == "jx"
    expect(page.locator("td.pick input:checked")).to_have_count(2)
    page.locator("[data-compare]").click()
    page.wait_for_url(re.compile(r"/compare\?"))
    assert all(f"id={each}" in page.url for each in chosen)


def test_enter_opens_the_row(site: Watched) -> None:
    page = listing(site)
    page.keyboard.press("j")
    page.keyboard.press("j")
    href = page.locator("tr[data-row]").nth(1).locator("th a").get_attribute("href")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(str(href)))


def test_the_rows_are_one_tab_stop(site: Watched) -> None:
    page = listing(site)
    inside = page.evaluate(
        "[...document.querySelectorAll('tr[data-row]')].map(row => "
        "[...row.querySelectorAll('a, input')].filter(e => e.tabIndex >= 0).length > 0)"
    )
    assert inside.count(True) == 1


def test_typed_terms_become_chips_and_go(site: Watched) -> None:
    page = listing(site)
    page.keyboard.press("/")
    page.keyboard.type("state:closed -task:other-task fix")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("state=closed"))
    chips = page.locator("[aria-label='Filters in force'] .chip")
    expect(chips).to_have_count(4)  # and one that clears all
    assert page.input_value("input[name=q][type=search]") == "fix"
    page.get_by_role("link", name=re.compile("task is not other-task")).click()
    page.wait_for_url(re.compile(r"^(?!.*task=).*$"))
    expect(chips).to_have_count(3)
    page.go_back()
    expect(chips).to_have_count(4)


def test_facets_toggle(site: Watched) -> None:
    page = listing(site)
    before = page.locator("h1").inner_text()
    page.locator(".facet a", has_text=re.compile("^open")).first.click()
    page.wait_for_url(re.compile("state=open"))
    expect(page.locator("tr[data-row]")).to_have_count(1)
    page.locator(".facet a[aria-current]").click()
    page.wait_for_url(re.compile("/rollouts$"))
    expect(page.locator("h1")).to_have_text(before)


def test_columns_are_chosen_in_the_address(site: Watched) -> None:
    page = listing(site, "/rollouts?cols=task,tokens")
    heads = page.locator("table.list thead th").all_inner_texts()
    assert [head.strip() for head in heads] == ["Choose", "Rollout", "Task", "Sampled"]
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Purpose").check()
    page.get_by_role("button", name="Show these").click()
    page.wait_for_url(re.compile("cols=purpose"))
    expect(page.locator("table.list thead th")).to_have_count(5)


def test_narrow_screens_have_closed_filters_and_no_sideways_scroll(site: Watched) -> None:
    page = site.open(size=NARROW)
    for path in ("/rollouts", "/runs", "/runs/grpo-tiny%20%23412", "/"):
        page.goto(site.address(path))
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    page.goto(site.address("/rollouts"))
    page.wait_for_selector("html[data-ready]")
    assert not page.evaluate("document.querySelector('.facets details').open")
    for menu in ("Views", "Columns", "Take along"):
        page.get_by_text(menu, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        page.get_by_text(menu, exact=True).click()


def test_lists_without_a_script(site: Watched) -> None:
    page = site.visit("/rollouts", java_script_enabled=False)
    page.locator(".facet a", has_text=re.compile("^open")).first.click()
    assert "state=open" in page.url
    page.fill("input[name=q][type=search]", "trainable:yes")
    page.get_by_role("button", name="Find").click()
    assert "trainable=yes" in page.url
    page.goto(site.address("/rollouts"))
    page.locator("td.pick input").nth(0).check()
    page.locator("td.pick input").nth(1).check()
    page.get_by_role("button", name="Compare").click()
    assert page.url.count("id=") == 2
