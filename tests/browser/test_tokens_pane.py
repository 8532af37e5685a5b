"""The token pane as people use it: keyboard, links, colours, and the narrow screen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from explorer.web.keys import KEYS
from tests.browser.conftest import NARROW, Watched, until

pytestmark = pytest.mark.browser

CURSOR = "() => Number((location.hash.match(/^#t(\\d+)$/) || [])[1] ?? -1)"
BROWSER_NAMES = {"→": "ArrowRight", "←": "ArrowLeft", "Esc": "Escape"}


def at(page: Page) -> int:
    """The token that the address names."""
    return int(page.evaluate(CURSOR))


def metric_of(page: Page) -> str:
    """The metric in force."""
    return str(page.evaluate("document.documentElement.dataset.m"))


def test_help_lists_exactly_the_registered_keys(site: Watched) -> None:
    registered: set[str] = set()
    for path in ("/help/keys", "/rollouts", "/rollouts/{small}/tokens"):
        page = site.visit(path)
        registered |= set(page.evaluate("document.documentElement.dataset.keys").split(" "))
    listed = [BROWSER_NAMES.get(key, key) for item in KEYS for key in item.keys]
    assert sorted(listed) == sorted(registered)


def test_keyboard_only(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens")
    page.keyboard.press("j")
    first = at(page)
    assert first > 0
    page.keyboard.press("ArrowRight")
    assert at(page) == first + 1
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert at(page) == first - 1
    expect(page.locator("#inspect")).to_contain_text(f"{first - 1}")
    page.keyboard.press("k")
    assert at(page) < first - 1
    page.keyboard.press("2")
    assert "m=rank" in page.url
    page.keyboard.press("m")
    assert "mask=0" in page.url
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("g")
    page.wait_for_url(re.compile("/group$"))


def test_outliers_are_walked(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens")
    column = page.request.get(site.address("/rollouts/{forked}/columns/logprob")).body()
    outliers = [index for index, code in enumerate(column) if 7 <= code < 9]
    assert len(outliers) > 2
    for wanted in outliers[:3]:
        page.keyboard.press("n")
        until(page, f"location.hash === '#t{wanted}'")
    page.keyboard.press("N")
    until(page, f"location.hash === '#t{outliers[1]}'")
    expect(page.locator("#inspect")).to_contain_text("logprob")


def test_branches_are_walked(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens")
    before = page.locator(".pane").get_attribute("data-branch")
    page.keyboard.press("[")
    page.wait_for_url(re.compile("branch="))
    page.wait_for_selector("html[data-ready]")
    assert page.locator(".pane").get_attribute("data-branch") != before
    page.go_back()
    page.wait_for_selector("html[data-ready]")
    assert page.locator(".pane").get_attribute("data-branch") == before


def test_keys_are_ignored_in_inputs(site: Watched) -> None:
    page = site.visit("/rollouts?q=x")
    page.locator("input[name=q][type=search]").fill("")
    page.locator("input[name=q][type=search]").press_sequentially("jg?m1")
    assert page.locator("input[name=q][type=search]").input_value() == "jg?m1"
    assert page.locator("#keys").is_hidden()


def test_the_pane_is_one_tab_stop(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens")
    assert page.locator(".k [tabindex]").count() == 0
    page.locator(".pane").focus()
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(ring) != "none"
    assert page.locator(".pane").get_attribute("aria-activedescendant") == f"t{at(page)}"


def test_a_link_restores_everything(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens")
    page.keyboard.press("5")
    page.keyboard.press("m")
    page.get_by_label("ids").check()
    page.locator(".agent .k i").nth(40).click()
    expect(page.locator("#inspect dl")).to_be_visible()
    link = page.url
    other = site.open()
    other.goto(link)
    other.wait_for_selector("html[data-ready]")
    assert metric_of(other) == "mask"
    assert other.evaluate("document.documentElement.dataset.mask") == "0"
    assert other.get_by_label("ids").is_checked()
    assert at(other) == at(page)
    expect(other.locator("#inspect dl")).to_be_visible()
    assert other.locator(".k .c").count() == 1
    assert other.locator("#inspect").inner_text() == page.locator("#inspect").inner_text()


def test_back_undoes_a_metric(site: Watched) -> None:
    page = site.visit("/rollouts/{ranked}/tokens")
    page.locator("select[name=m]").select_option("rank")
    assert metric_of(page) == "rank"
    page.go_back()
    until(page, "document.documentElement.dataset.m === 'logprob'")
    assert page.locator("select[name=m]").input_value() == "logprob"


def test_switched_colours_equal_the_servers(site: Watched) -> None:
    classes = "[...document.querySelectorAll('.k > i')].map((e) => e.className).join('|')"
    for metric in ("mask", "rank", "entropy", "version"):
        page = site.visit("/rollouts/{ranked}/tokens")
        page.locator("select[name=m]").select_option(metric)
        until(
            page,
            f"[...document.querySelectorAll('.k')].every((b) => b.dataset.m === '{metric}')",
        )
        rendered = site.visit(f"/rollouts/{{ranked}}/tokens?m={metric}")
        assert page.evaluate(classes) == rendered.evaluate(classes)


def test_deep_link_far_down_is_exact(site: Watched) -> None:
    page = site.visit("/rollouts/{large}/tokens#t15012")
    token = page.locator(".k .c")
    expect(token).to_have_attribute("id", "t15012")
    expect(token).to_be_in_viewport()
    expect(page.locator("#inspect")).to_contain_text("15,012")


def test_only_visible_blocks_are_painted_again(site: Watched) -> None:
    page = site.visit("/rollouts/{large}/tokens")
    page.keyboard.press("5")
    until(page, "document.querySelector('.k').dataset.m === 'mask'")
    left = page.locator(".k[data-m=logprob]").count()
    assert left > 10
    page.keyboard.press("End")
    until(page, "[...document.querySelectorAll('.k')].at(-1).dataset.m === 'mask'")


def test_minimap_jumps(site: Watched) -> None:
    page = site.visit("/rollouts/{large}/tokens")
    box = page.locator(".minimap").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 8)
    total = int(page.locator(".pane").get_attribute("data-total") or 0)
    assert abs(at(page) - total / 2) < total * 0.01
    expect(page.locator(".k .c")).to_be_in_viewport()


def test_copied_text_is_the_tokens_text(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens")
    shown = page.evaluate("document.querySelector('.agent .toks').textContent")
    assert "a fox 🦊, 漢字 and a family" in shown
    assert "·" not in shown
    assert "▪" not in shown


def test_narrow_screen_shows_tokens_first(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens", size=NARROW)
    expect(page.locator(".side.right")).to_be_hidden()
    expect(page.locator(".side.left .tree").first).to_be_hidden()
    first = page.locator(".k i").first.bounding_box()
    assert first is not None
    assert first["y"] < 480
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".agent .k i").nth(3).click()
    expect(page.locator(".side.right")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".side.right")).to_be_hidden()


def test_without_script_everything_can_be_read(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens?t=60", java_script_enabled=False)
    expect(page.locator(".agent .toks").first).to_contain_text("The test fails because")
    expect(page.locator("#inspect dl")).to_be_visible()
    page.locator("select[name=m]").select_option("mask")
    page.get_by_role("button", name="Apply").click()
    assert "m=mask" in page.url
    expect(page.locator("html")).to_have_attribute("data-m", "mask")


def test_print_keeps_the_legend(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens")
    page.emulate_media(media="print")
    expect(page.locator(".legend.logprob")).to_be_visible()
    expect(page.locator(".side.left")).to_be_hidden()


def test_folded_prompt_opens_in_place(site: Watched) -> None:
    page = site.visit("/rollouts/{folded}/tokens")
    fold = page.locator(".fold a").first
    expect(fold).to_contain_text("more tokens")
    before = page.locator(".k").count()
    fold.click()
    expect(page.locator("section.turn").first.locator(".toks")).to_have_count(2)
    assert page.locator(".k").count() > before
    # What was loaded takes part in everything: the cursor, and the colours.
    page.locator("section.turn").first.locator(".toks").nth(1).locator("i").nth(5).click()
    last = page.locator("section.turn").first.locator(".k").last
    first = int(last.get_attribute("data-s") or 0)
    assert 768 < at(page) < first + 800
    expect(page.locator("#inspect")).to_contain_text(f"{at(page):,}")
    page.keyboard.press("5")
    until(page, "document.querySelector('.k .c').parentElement.dataset.m === 'mask'")


def test_a_token_that_is_not_loaded_is_fetched(site: Watched) -> None:
    page = site.visit("/rollouts/{folded}/tokens#t30000")
    expect(page.locator(".k .c")).to_be_in_viewport()
    expect(page.locator("#inspect")).to_contain_text("30,000")


def test_the_worst_token_is_two_keystrokes_from_the_list(site: Watched) -> None:
    page = site.visit("/rollouts/{large}/tokens")
    page.keyboard.press("w")
    worst = page.locator("[data-worst]").first
    assert at(page) == int(worst.get_attribute("data-worst") or -1)
    expect(page.locator(".k .c")).to_be_in_viewport()
    page.locator("[data-worst]").nth(1).click()
    assert at(page) == int(
        page.locator("[data-worst]").nth(1).get_attribute("data-worst") or -1
    )


def test_the_chart_draws_what_was_sampled_and_leads_to_a_token(site: Watched) -> None:
    page = site.visit("/rollouts/{ranked}/tokens")
    page.locator("details.chartbox summary").click()
    page.wait_for_selector("details.chartbox[data-ready]")
    sampled = page.evaluate(
        "() => fetch(location.pathname + '.json').then((r) => r.json())"
        ".then((d) => d.sampled_tokens)"
    )
    assert page.locator("details.chartbox").get_attribute("data-ready") == str(sampled)
    expect(page.locator("details.chartbox canvas")).to_be_visible()
    over = page.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 60)
    until(page, "location.hash.startsWith('#t')")
    assert page.locator(".k .c").count() == 1
    # Colours are read again when the theme changes.
    page.keyboard.press("Escape")
    page.locator("[data-theme-toggle]").first.click()
    expect(page.locator("details.chartbox canvas")).to_have_count(1)
