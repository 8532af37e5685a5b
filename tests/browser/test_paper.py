"""On paper and without JavaScript: everything can still be read, and forms still work."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.addresses import EVERY
from tests.browser.conftest import NARROW, Watched

pytestmark = pytest.mark.browser

PRINTED = (
    "/rollouts/{forked}/conversation",
    "/rollouts/{forked}/tokens?t=140",
    "/rollouts/{ranked}/tokens?m=version",
    "/rollouts/{forked}/compare",
    "/compare?id={small}&id={forked}",
    "/rollouts/{forked}/requests",
    "/rollouts/{forked}/requests/{call}",
    "/rollouts",
    "/runs",
    "/search?q=lock",
)
# Elements with a box that stick to the window: on paper they would cover or repeat.
STUCK = """() => [...document.querySelectorAll("body *")].filter((e) =>
  ["sticky", "fixed"].includes(getComputedStyle(e).position) && e.getClientRects().length)
  .map((e) => `${e.tagName}.${e.className}`)"""
# What scrolls on a screen is cut off on paper.
CUT = """() => [...document.querySelectorAll("body *")].filter((e) => {
  const s = getComputedStyle(e);
  return e.getClientRects().length && e.clientHeight > 40
    && (/auto|scroll/.test(s.overflowY) && e.scrollHeight > e.clientHeight + 1);
}).map((e) => `${e.tagName}.${e.className} ${e.scrollHeight} in ${e.clientHeight}`)"""
# Controls with a box that need a script to do anything.
DEAD = """() => [...document.querySelectorAll("button[type=button], .jsonly")]
  .filter((e) => e.getClientRects().length).map((e) => e.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("path", PRINTED)
def test_a_printed_page_is_whole_and_light(site: Watched, path: str) -> None:
    page = site.open()
    page.context.add_cookies([{"name": "theme", "value": "dark", "url": site.url}])
    page.goto(site.address(path))
    page.wait_for_selector("html[data-ready]")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(STUCK) == []
    assert page.evaluate(CUT) == []
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 33, 38)"
    for gone in (".side.left", ".side.right", ".facets", ".minimap", ".skip", ".buttons"):
        for part in page.locator(gone).all():
            expect(part).to_be_hidden()
    expect(page.locator("main")).to_be_visible()
    # The first page says whose it is: the crumbs, or the heading.
    expect(page.locator(".crumbs, h1").first).to_be_visible()
    assert page.pdf(print_background=True).startswith(b"%PDF")


@pytest.mark.parametrize("metric", ["logprob", "version", "mask"])
def test_printed_tokens_keep_their_fills_and_the_legend(site: Watched, metric: str) -> None:
    page = site.visit(f"/rollouts/{{ranked}}/tokens?m={metric}")
    page.emulate_media(media="print")
    expect(page.locator(f".legend.{metric}")).to_be_visible()
    expect(page.locator(".legend .key.hatch")).to_be_visible()
    assert (
        page.evaluate(
            "getComputedStyle(document.querySelector('.agent .k i')).printColorAdjust"
        )
        == "exact"
    )
    swatch = page.locator(f".legend.{metric} li").first
    assert swatch.evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    # The rows that an observer would fill while scrolling are all there.
    skipped = page.evaluate(
        "[...document.querySelectorAll('.k')]"
        ".filter((e) => getComputedStyle(e).contentVisibility === 'auto').length"
    )
    assert skipped == 0


def test_printed_conversations_have_the_reasoning(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/conversation")
    reasoning = page.locator("pre.reason").first
    assert not reasoning.evaluate("e => e.checkVisibility({contentVisibilityAuto: true})")
    page.emulate_media(media="print")
    assert reasoning.evaluate("e => e.checkVisibility({contentVisibilityAuto: true})")
    assert reasoning.evaluate("e => e.getBoundingClientRect().height") > 10
    assert page.locator(".tabs a:visible").count() == 1


def bare(site: Watched, path: str, **options: object) -> Page:
    """A page in a browser that runs no script."""
    return site.visit(path, java_script_enabled=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", EVERY)
def test_every_page_reads_without_script(site: Watched, path: str) -> None:
    page = bare(site, path, size=NARROW)
    main = page.locator("main")
    expect(main).to_be_visible()
    assert len(main.inner_text()) > 20
    assert page.evaluate(DEAD) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("h1").count() == 1
    fold = page.locator("details > summary").first
    if fold.count() and fold.is_visible():
        before = fold.evaluate("e => e.parentElement.open")
        fold.press("Enter")
        assert fold.evaluate("e => e.parentElement.open") is not before


def test_lists_are_filtered_sorted_and_paged_without_script(site: Watched) -> None:
    page = bare(site, "/rollouts?limit=3")
    first = page.locator("tr[data-row] th a").all_inner_texts()
    assert len(first) == 3
    page.get_by_role("link", name="next ›").click()
    page.wait_for_url(re.compile("cursor="))
    second = page.locator("tr[data-row] th a").all_inner_texts()
    assert second
    assert not set(first) & set(second)
    page.get_by_role("link", name="‹ previous").click()
    page.wait_for_url(re.compile("cursor="))
    assert page.locator("tr[data-row] th a").all_inner_texts() == first
    page = bare(site, "/rollouts")
    page.locator("input[name=reward]").fill("0..0.2")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url(re.compile(r"reward=0\.\.0\.2"))
    expect(page.locator("[aria-label='Filters in force'] .chip").first).to_contain_text(
        "reward"
    )
    page.locator("input[type=search][name=q]").first.fill("task:fix-the-lock")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url(re.compile("q=|task="))
    page.go_back()
    page.locator("details.menu > summary", has_text="Columns").click()
    page.get_by_label("Purpose").check()
    page.get_by_role("button", name="Show these").click()
    page.wait_for_url(re.compile("cols="))
    expect(page.locator("table.list thead")).to_contain_text("Purpose")


def test_rollouts_are_chosen_and_compared_without_script(site: Watched) -> None:
    page = bare(site, "/rollouts")
    boxes = page.locator("td.pick input")
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("button", name=re.compile("^Compare")).click()
    page.wait_for_url(re.compile(r"/compare\?id=.+&id="))
    expect(page.locator("main")).to_contain_text("prefix")


def test_a_long_conversation_goes_on_without_script(site: Watched) -> None:
    page = bare(site, "/rollouts/{long}/conversation")
    seen = page.locator("section[data-turn]").count()
    assert 0 < seen < 40
    page.locator("main a", has_text=re.compile("(more|next|turn)")).last.click()
    page.wait_for_load_state()
    numbers = [
        item.get_attribute("data-turn") for item in page.locator("section[data-turn]").all()
    ]
    assert numbers
    assert numbers[0] == str(seen + 1)
