"""The mouse is never used: two journeys, the focus ring everywhere, and the shortcuts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import FloatRect, Page, expect

from explorer.web.keys import KEYS
from tests.browser.addresses import ADDRESSES, EVERY
from tests.browser.conftest import WIDE, Watched, until

pytestmark = pytest.mark.browser

BROWSER_NAMES = {"→": "ArrowRight", "←": "ArrowLeft", "Esc": "Escape"}
WALKED = (
    "/rollouts",
    "/runs/grpo-tiny%20%23412",
    "/rollouts/{forked}/tokens?t=140",
    "/rollouts/{forked}/conversation",
    "/rollouts/{forked}/requests/{call}",
    "/rollouts/{refused}/findings",
    "/rollouts/{forked}/compare",
    "/rollouts/{forked}/group",
    "/rollouts/{forked}/notes",
    "/compare?id={small}&id={forked}",
    "/search?q=lock",
    "/sql",
)
MOST_STOPS = 260

# The focused element, its ring, and what of the ring's box lies outside what clips it.
FOCUS = """() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const style = getComputedStyle(e);
  const name = `${e.tagName.toLowerCase()} ${(e.getAttribute("aria-label")
    || e.innerText || e.name || e.id || "").trim().slice(0, 40)}`;
  const grow = parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
  const box = e.getBoundingClientRect();
  let cut = "";
  for (let p = e.parentElement; p && p !== document.documentElement; p = p.parentElement) {
    const s = getComputedStyle(p);
    if (s.overflowX === "visible" && s.overflowY === "visible") continue;
    const b = p.getBoundingClientRect();
    const over = [b.left - box.left + grow, b.top - box.top + grow,
      box.right + grow - b.right, box.bottom + grow - b.bottom];
    if (Math.max(...over) > 0.6 && box.height < b.height && box.width < b.width) {
      cut = `${p.tagName}.${p.className}: ${over.map((v) => v.toFixed(1))}`;
    }
  }
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  const hit = document.elementFromPoint(Math.min(Math.max(x, 1), innerWidth - 2),
    Math.min(Math.max(y, 1), innerHeight - 2));
  const seen = hit && (e.contains(hit) || hit.contains(e)
    || [...(e.labels ?? [])].some((l) => l.contains(hit)));
  if (!e.dataset.stop) e.dataset.stop = String(++window.stops || (window.stops = 1));
  return {name, stop: e.dataset.stop, visible: e.matches(":focus-visible"),
    style: style.outlineStyle, width: parseFloat(style.outlineWidth), cut, seen: Boolean(seen),
    big: box.height > innerHeight / 2};
}"""


def stops(page: Page) -> list[dict[str, Any]]:
    """Every tab stop in order, as the Tab key finds them."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUS)
        if at is None or at["stop"] in seen:
            break
        seen.add(at["stop"])
        found.append(at)
    return found


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element that matches has the focus."""
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if page.evaluate("(s) => document.activeElement?.matches(s) ?? false", selector):
            return
    raise AssertionError(f"Tab never came to {selector}")


def ready(page: Page, address: str) -> None:
    """Wait for a page whose keys work."""
    page.wait_for_url(re.compile(address))
    page.wait_for_selector("html[data-ready]")


@pytest.mark.parametrize("path", WALKED)
def test_every_tab_stop_has_a_ring_that_can_be_seen(site: Watched, path: str) -> None:
    page = site.visit(path)
    found = stops(page)
    assert len(found) > 5
    ringless = [
        at for at in found if not at["visible"] or at["style"] == "none" or at["width"] < 2
    ]
    assert ringless == []
    assert [(at["name"], at["cut"]) for at in found if at["cut"]] == []
    assert [at["name"] for at in found if not at["seen"] and not at["big"]] == []


@pytest.mark.parametrize("path", WALKED)
def test_tab_order_begins_with_the_way_past_the_header(site: Watched, path: str) -> None:
    page = site.visit(path)
    names = [str(at["name"]) for at in stops(page)]
    assert names[0] == "a Skip to content"
    # The order of the page: what comes first in the text comes first by Tab.
    in_order = page.evaluate(
        """() => {
          const all = [...document.querySelectorAll("[data-stop]")];
          const places = all.map((e) => Number(e.dataset.stop));
          return places.every((place, i) => !i || places[i - 1] < place);
        }"""
    )
    assert in_order
    assert page.locator("[tabindex]:not([tabindex='0']):not([tabindex='-1'])").count() == 0


def test_the_way_past_the_header_leads_past_it(site: Watched) -> None:
    for path in WALKED:
        page = site.visit(path)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("#main$"))
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.getElementById('main').contains(document.activeElement) || "
            "document.getElementById('main').compareDocumentPosition("
            "document.activeElement) & Node.DOCUMENT_POSITION_FOLLOWING"
        ), path


def test_the_ring_is_painted(site: Watched) -> None:
    page = site.visit("/rollouts")
    until(page, "'lists' in document.documentElement.dataset")
    for _ in range(14):
        page.keyboard.press("Tab")
        box = page.evaluate(
            "(({x, y, width, height}) => ({x: x - 4, y: y - 4, width: width + 8, "
            "height: height + 8}))(document.activeElement.getBoundingClientRect())"
        )
        clip: FloatRect = {
            "x": max(0, box["x"]),
            "y": max(0, box["y"]),
            "width": box["width"],
            "height": box["height"],
        }
        name = page.evaluate("document.activeElement.outerHTML.slice(0, 80)")
        with_ring = page.screenshot(clip=clip)
        page.evaluate("document.activeElement.style.outline = '0'")
        without = page.screenshot(clip=clip)
        page.evaluate("document.activeElement.style.outline = ''")
        assert with_ring != without, name


@pytest.mark.parametrize("template", sorted(ADDRESSES))
def test_help_tells_the_keys_of_every_kind_of_page(site: Watched, template: str) -> None:
    page = site.visit(ADDRESSES[template][0])
    listed = {BROWSER_NAMES.get(key, key) for item in KEYS for key in item.keys}
    registered = set(page.evaluate("document.documentElement.dataset.keys").split(" "))
    assert registered <= listed
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    shown = set(page.locator("#keys kbd").all_inner_texts())
    assert shown == {key for item in KEYS for key in item.keys}
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()


def test_the_help_page_and_the_dialog_say_the_same(site: Watched) -> None:
    page = site.visit("/help/keys")
    rows = page.locator("main table tbody tr").all_inner_texts()
    page.keyboard.press("?")
    assert page.locator("#keys tbody tr").all_inner_texts() == rows


@pytest.mark.parametrize("kind", ["input", "textarea", "select"])
def test_no_shortcut_works_while_something_is_written(site: Watched, kind: str) -> None:
    paths = {
        "input": (
            "/rollouts/{forked}/notes",
            "/rollouts",
            "/search",
            "/rollouts/{forked}/tokens",
        ),
        "textarea": ("/rollouts/{forked}/notes", "/sql"),
        "select": ("/rollouts/{forked}/tokens", "/rollouts/{forked}/compare"),
    }
    for path in paths[kind]:
        page = site.visit(path)
        field = page.locator(f"{kind}:not([type=hidden]):not([type=checkbox])").first
        field.focus()
        before = page.url
        for key in ("j", "w", "n", "m", "5", "g", "c", "]", "?", "x", "/"):
            page.keyboard.press(key)
        page.wait_for_timeout(60)
        assert page.url.split("?")[0] == before.split("?")[0], path
        expect(page.locator("#keys")).to_be_hidden()
        if kind != "select":
            assert page.evaluate("document.activeElement.value").endswith("jwnm5gc]?x/")


def test_journey_of_a_researcher_by_keys_alone(site: Watched) -> None:
    page = site.open(permissions=["clipboard-read", "clipboard-write"])
    page.goto(site.address("/rollouts?sort=reward"))
    until(page, "'lists' in document.documentElement.dataset")
    refused = site.made["refused"].rollout.rollout_id
    while refused not in str(page.evaluate("document.activeElement.href ?? ''")):
        before = page.evaluate("document.activeElement.outerHTML")
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.outerHTML") != before
    # Two keystrokes from the list to the worst token.
    page.keyboard.press("Enter")
    ready(page, f"{refused}")
    page.keyboard.press("w")
    expect(page.locator("#inspect dl")).to_be_visible()
    expect(page.locator(".k .c")).to_be_in_viewport()
    # Why it does not train stands beside it, and the verdict leads to the finding.
    expect(page.locator("#inspect .why")).not_to_be_empty()
    tab_to(page, "#inspect [data-link]")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.toast').textContent === 'copied'")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = site.open()
    other.goto(link)
    ready(other, refused)
    expect(other.locator("#inspect dl")).to_be_visible()
    assert other.locator("#inspect").inner_text() == page.locator("#inspect").inner_text()
    expect(other.locator(".k .c")).to_be_in_viewport()
    # The siblings: where each parts from this one, and one of them beside it.
    page.keyboard.press("g")
    ready(page, "/group$")
    tab_to(page, ".parting > a")
    page.keyboard.press("Enter")
    ready(page, "/compare\\?")
    assert refused in page.url
    expect(page.locator("main")).to_contain_text("prefix")


def test_journey_of_a_harness_developer_by_keys_alone(site: Watched) -> None:
    page = site.visit("/")
    tab_to(page, "nav.main a[href='/rollouts']")
    page.keyboard.press("Enter")
    ready(page, "/rollouts$")
    until(page, "'lists' in document.documentElement.dataset")
    forked = site.made["forked"].rollout.rollout_id
    while forked not in str(page.evaluate("document.activeElement.href ?? ''")):
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    ready(page, forked)
    # The tree: each line says what its call was, and the title the rule that decided.
    tab_to(page, ".tree .off > a[title*='sibling']")
    page.keyboard.press("c")
    ready(page, "/compare\\?")
    expect(page.locator(".fork")).to_contain_text("identical")
    page.go_back()
    ready(page, forked)
    tab_to(page, ".tabs a[href*='/requests']")
    page.keyboard.press("Enter")
    ready(page, "/requests$")
    tab_to(page, "main table a[href*='/requests/']")
    page.keyboard.press("Enter")
    ready(page, "/requests/.+")
    expect(page.locator("main")).to_contain_text("by rule")
    tab_to(page, "a.verdict")
    page.keyboard.press("Enter")
    ready(page, "/findings$")
    expect(page.locator("aside .note").first).to_be_visible()
    expect(page.locator("main table")).to_contain_text("discarded")


def test_escape_closes_menus_and_the_sheet(site: Watched) -> None:
    page = site.visit("/rollouts", size=WIDE)
    tab_to(page, "details.menu > summary")
    page.keyboard.press("Enter")
    assert page.locator("details.menu[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("details.menu[open]").count() == 0
    # The focus stays where it was, not on what has gone.
    assert page.evaluate("document.activeElement.matches('details.menu > summary')")


def test_every_address_is_walked_or_checked() -> None:
    assert {path.split("?")[0] for path in WALKED} <= {
        re.split("[?#]", path)[0] for path in EVERY
    }
