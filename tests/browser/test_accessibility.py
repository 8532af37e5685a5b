"""axe finds no WCAG A or AA violation, in both schemes and at both widths, on every page.

Headings, landmarks and regions are in order, too. `addresses.py` says which pages there are.
"""

from __future__ import annotations

from dataclasses import fields
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page

from explorer.web.context_docs import every_context
from explorer.web.contexts import PAGES
from tests.browser.addresses import ADDRESSES, EVERY
from tests.browser.conftest import NARROW, WIDE, Watched, until, violations
from tests.web.parsing import read

pytestmark = pytest.mark.browser

# Fragments that a page puts into itself: their templates begin no document.
FRAGMENTS = {"section_part.html"}
# Menus lie over the page, and one closes another: they have a test of their own.
OPEN_ALL = "for (const d of document.querySelectorAll('details:not(.menu)')) d.open = true"
MENUS = ("/", "/rollouts", "/rollouts/{refused}/tokens")


def shown(site: Watched, page: Page, path: str) -> None:
    """The page with its folds open: they count, too."""
    page.goto(site.address(path))
    page.wait_for_selector("html[data-ready]")
    page.evaluate(OPEN_ALL)


def test_every_page_template_has_an_address() -> None:
    assert every_context()
    assert {page.template for page in PAGES} - FRAGMENTS == set(ADDRESSES)


@pytest.mark.parametrize("template", sorted(set(ADDRESSES) - {"error.html"}))
def test_an_address_answers_with_its_template(site: Watched, template: str) -> None:
    kinds = [page for page in PAGES if page.template == template]
    documented = [
        {item.name for item in fields(kind) if not item.metadata.get("markup")}
        for kind in kinds
    ]
    for path in ADDRESSES[template]:
        text = httpx.get(urlsplit(site.address(path))._replace(fragment="").geturl()).text
        links = [e.attributes for e in read(text).elements if e.tag == "link"]
        twin = next(each["href"] for each in links if each.get("rel") == "alternate")
        answer = httpx.get(f"{site.url}{twin}")
        # A list shows what it can of a filter with a mistake; its twin refuses to guess.
        if path != ADDRESSES[template][0] and answer.status_code == 422:
            continue
        assert set(answer.json()) in documented, path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_violation(site: Watched, scheme: str, size: dict[str, int]) -> None:
    page = site.open(size=size, color_scheme=scheme)
    found = {}
    for path in EVERY:
        shown(site, page, path)
        wrong = violations(page)
        if wrong:
            found[path] = wrong
    assert found == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_violation_in_an_open_menu(site: Watched, scheme: str, size: dict[str, int]) -> None:
    page = site.open(size=size, color_scheme=scheme)
    found = {}
    for path in MENUS:
        page.goto(site.address(path))
        page.wait_for_selector("html[data-ready]")
        for menu in page.locator("details.menu").all():
            if menu.is_visible():
                menu.evaluate("e => { e.open = true }")
                assert page.locator("details.menu[open]").count() == 1
                # What an open menu covers in part is no target until it closes.
                wrong = violations(page, without=("target-size",))
                if wrong:
                    found[f"{path} {menu.locator('summary').first.inner_text()}"] = wrong
    assert found == {}


def test_no_page_is_wider_than_a_narrow_window(site: Watched) -> None:
    page = site.open(size=NARROW)
    wide = []
    for path in EVERY:
        shown(site, page, path)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path)
    assert wide == []


@pytest.mark.parametrize("colours", ["forced", "chosen"])
def test_no_violation_in_forced_colours_and_without_motion(site: Watched, colours: str) -> None:
    forced = "active" if colours == "forced" else "none"
    page = site.open(reduced_motion="reduce", forced_colors=forced)
    moving = {}
    found = {}
    for path in EVERY:
        shown(site, page, path)
        wrong = page.evaluate(
            """() => [...document.querySelectorAll("*")].flatMap((e) =>
              [null, "::before", "::after"].map((part) => [e, getComputedStyle(e, part)]))
              .filter(([, s]) => parseFloat(s.transitionDuration) > 0
                || s.animationName !== "none" || s.scrollBehavior === "smooth")
              .map(([e]) => `${e.tagName}.${e.className}`)"""
        )
        if wrong:
            moving[path] = wrong
        # Forced colours are the reader's own choice: axe cannot see what is painted.
        wrong = [] if colours == "chosen" else violations(page, without=("color-contrast",))
        if wrong:
            found[path] = wrong
    assert moving == {}
    assert found == {}


def test_a_long_verdict_is_read_whole_in_a_narrow_window(site: Watched) -> None:
    page = site.visit("/rollouts/{refused}/conversation", size=NARROW)
    sentence = "Not trainable: No passing certificate says what this engine's logprobs are."
    page.locator(".verdict .clip").evaluate("(e, text) => { e.textContent = text; }", sentence)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    clip = page.locator(".verdict .clip")
    assert clip.evaluate("e => 0 < e.scrollWidth && e.scrollWidth <= e.clientWidth")


def test_the_open_sheet(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens", size=NARROW)
    page.locator(".agent .k i").nth(5).click()
    page.wait_for_selector("#inspect dl")
    assert violations(page) == []


@pytest.mark.parametrize("path", ["/", "/rollouts", "/rollouts/{forked}/tokens", "/search"])
def test_menus_open_inside_a_narrow_window(site: Watched, path: str) -> None:
    page = site.visit(path, size=NARROW)
    opened = 0
    for menu in page.locator("details.menu").all():
        if not menu.is_visible():
            continue
        menu.locator("summary").first.click()
        box = menu.locator(".pop").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= NARROW["width"]
        page.keyboard.press("Escape")
        opened += 1
    assert opened


def test_in_forced_colours_one_tab_is_marked(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens?t=140", forced_colors="active")
    colour = "all => all.map(e => getComputedStyle(e).borderBottomColor)"
    tabs = page.locator(".tabs a").evaluate_all(colour)
    current = page.locator(".tabs a[aria-current]").evaluate_all(colour)
    assert len(tabs) > 5
    assert [each for each in tabs if each == current[0]] == current


def test_keys_dialog(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    assert violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_open_charts(site: Watched, scheme: str) -> None:
    page = site.visit("/rollouts/{ranked}/tokens", color_scheme=scheme)
    page.locator("details.chartbox summary").click()
    page.wait_for_selector("details.chartbox[data-ready]")
    assert violations(page) == []
    page.goto(site.address("/runs"))
    until(page, "document.querySelector('.chartbox[data-ready]') !== null")
    assert violations(page) == []
