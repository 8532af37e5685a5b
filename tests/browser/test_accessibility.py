"""axe finds no WCAG A or AA violation, in both schemes and at both widths."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import NARROW, WIDE, Watched, violations

pytestmark = pytest.mark.browser

PAGES = (
    "/",
    "/runs",
    "/runs/grpo-tiny%20%23412",
    "/rollouts",
    "/rollouts?q=nothing-like-this&state=asleep",
    "/rollouts?state=closed&sort=-share&cols=task,group,purpose,tokens,created",
    "/runs?sort=-share",
    "/engine",
    "/sql?sql=SELECT%20%27a%E2%80%AEb%27",
    "/help/keys",
    "/nothing-here",
    "/rollouts/{forked}/tokens?t=140#t140",
    "/rollouts/{refused}/tokens?m=mask",
    "/rollouts/{ranked}/tokens?m=rank&ids=1&t=60",
    "/rollouts/{hostile}/tokens",
    "/rollouts/{forked}/conversation",
    "/rollouts/{forked}/timing",
    "/rollouts/{forked}/requests",
    "/rollouts/{forked}/group",
    "/rollouts/{forked}/provenance",
    "/rollouts/{refused}/findings",
    "/rollouts/{forked}/custody",
    "/rollouts/{small}/tokens/inspect?t=40",
    "/rollouts/{forked}/compare",
    "/compare?id={small}&id={forked}&id={refused}",
)


def open_all(page: Page) -> None:
    """Menus and folds count, too."""
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_violation(site: Watched, scheme: str, size: dict[str, int]) -> None:
    page = site.open(size=size, color_scheme=scheme)
    found = {}
    for path in PAGES:
        page.goto(site.address(path))
        page.wait_for_selector("html[data-ready]")
        open_all(page)
        wrong = violations(page)
        if wrong:
            found[path] = wrong
    assert found == {}


def test_no_page_is_wider_than_a_narrow_window(site: Watched) -> None:
    page = site.open(size=NARROW)
    call = site.made["forked"].calls[2].call_id
    wide = []
    for path in (*PAGES, f"/rollouts/{{forked}}/requests/{call}"):
        page.goto(site.address(path))
        page.wait_for_selector("html[data-ready]")
        open_all(page)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path)
    assert wide == []


def test_a_long_verdict_is_read_whole_in_a_narrow_window(site: Watched) -> None:
    page = site.visit("/rollouts/{refused}/conversation", size=NARROW)
    sentence = "Not trainable: No passing certificate says what this engine's logprobs are."
    page.locator(".verdict .clip").evaluate("(e, text) => { e.textContent = text; }", sentence)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    clip = page.locator(".verdict .clip")
    assert clip.evaluate("e => 0 < e.scrollWidth && e.scrollWidth <= e.clientWidth")


def test_a_request_page_and_the_open_sheet(site: Watched) -> None:
    call = site.made["small"].calls[0].call_id
    page = site.visit(f"/rollouts/{{small}}/requests/{call}")
    open_all(page)
    assert violations(page) == []
    page = site.visit("/rollouts/{small}/tokens", size=NARROW)
    page.locator(".agent .k i").nth(5).click()
    page.wait_for_selector("#inspect dl")
    assert violations(page) == []


def test_keys_dialog(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    assert violations(page) == []


def test_forced_colours_and_reduced_motion(site: Watched) -> None:
    page = site.visit(
        "/rollouts/{forked}/tokens", forced_colors="active", reduced_motion="reduce"
    )
    fill = "getComputedStyle(document.querySelector('.k .b3')).backgroundColor"
    assert page.evaluate(fill) == "rgb(235, 192, 137)"


CONTRAST = """() => {
  const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    probe.clearRect(0, 0, 1, 1); probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const pane = document.querySelector(".agent .k");
  const names = "b0 b1 b2 b3 b4 b5 b6 b7 mt mr mq mp".split(" ");
  return names.map((name) => {
    const token = document.createElement("i");
    token.className = name; token.textContent = "x"; pane.append(token);
    const style = getComputedStyle(token);
    const [a, b] = [light(rgb(style.color)), light(rgb(style.backgroundColor))];
    const fill = rgb(style.backgroundColor);
    token.remove();
    return {name, fill, ratio: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)};
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_bin_is_readable_and_ordered(site: Watched, scheme: str) -> None:
    page = site.visit("/rollouts/{small}/tokens", color_scheme=scheme)
    bins = page.evaluate(CONTRAST)
    assert {item["name"]: item["ratio"] for item in bins if item["ratio"] < 4.5} == {}
    fills = [item["fill"] for item in bins[:8]]
    steps = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue, _ in fills]
    assert steps == sorted(steps, reverse=scheme == "light")
