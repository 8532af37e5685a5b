"""Journeys end to end: from the list to the reason, and through a long conversation.

Of the five journeys, the researcher's is here and, by keys alone, in `test_keyboard.py`; those
of the harness developer and the trainer engineer are in `test_whole_journeys.py`.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_researcher_finds_why_a_rollout_does_not_train(site: Watched) -> None:
    page = site.visit("/")
    page.get_by_role("link", name="Rollouts", exact=True).click()
    page.locator("input[name=reward]").fill("..0")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url(re.compile(r"reward=\.\.0"))
    page.get_by_role("link", name="Reward", exact=True).click()
    page.wait_for_url(re.compile("sort=-reward"))
    refused = site.made["refused"].rollout.rollout_id
    page.locator(f"a[href*='{refused}']").first.click()
    page.locator("a.verdict").click()
    page.wait_for_url(re.compile("/findings"))
    expect(page.locator(".finding").first).to_contain_text("no logprob")
    page.locator(".finding").first.get_by_role("link", name="token").click()
    expect(page.locator("#inspect")).to_contain_text("logprob_missing")
    expect(page.locator("#inspect")).to_contain_text("never read as 0.0")
    expect(page.locator(".k .c")).to_be_in_viewport()
    page.reload()
    expect(page.locator("#inspect")).to_contain_text("logprob_missing")


def test_developer_sees_which_rule_decided(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens")
    row = page.locator(".tree a", has_text="discarded").first
    expect(row).to_contain_text("sibling continued")
    expect(row).to_have_attribute("title", re.compile("answered the same prompt"))
    expect(page.locator(".tree .break")).to_contain_text("Prefix broke at token")
    row.click()
    page.wait_for_url(re.compile("branch="))
    expect(page.locator(".turn.discarded")).to_contain_text("not trained: discarded")
    page.locator(".turn.discarded .rail a").first.click()
    expect(page.locator("main")).to_contain_text("sibling_continued")
    expect(page.locator("main")).to_contain_text("Request, as sent to the engine")


def test_group_is_walked(site: Watched) -> None:
    page = site.visit("/runs/grpo-tiny%20%23412")
    small = site.made["small"].rollout.rollout_id
    page.locator(f"a[href*='{small}']").first.click()
    page.get_by_role("link", name="next ›").click()
    page.wait_for_url(re.compile(site.made["forked"].rollout.rollout_id))
    expect(page.locator(".verdict")).to_be_visible()
    page.go_back()
    page.wait_for_url(re.compile(small))


def test_downloads_are_refused_in_words(site: Watched) -> None:
    page = site.visit("/rollouts/{refused}/tokens")
    page.get_by_text("Download").click()
    expect(page.locator("details[open] > .pop")).to_contain_text("Refused:")
    assert (
        page.locator("details[open] .pop a[aria-disabled=true]").get_attribute("href") is None
    )


def test_long_conversation_loads_on_demand(site: Watched) -> None:
    page = site.visit("/rollouts/{long}/conversation")
    turns = page.locator("section[data-turn]")
    before = turns.count()
    assert before < 40
    for _ in range(12):
        page.keyboard.press("End")
        page.wait_for_timeout(150)
        if turns.count() == 40:
            break
    expect(turns).to_have_count(40)
    numbers = [item.get_attribute("data-turn") for item in turns.all()]
    assert numbers == [str(number) for number in range(1, 41)]
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("scrollY") > 0


def test_hostile_text_stays_text(site: Watched) -> None:
    for tab in ("tokens?t=200#t200", "conversation", "requests", "findings", "provenance"):
        page = site.visit(f"/rollouts/{{hostile}}/{tab}")
        assert page.locator("img").count() == 0
        assert page.evaluate("document.scripts.length") <= 3
    call = site.made["hostile"].calls[0].call_id
    page = site.visit(f"/rollouts/{{hostile}}/requests/{call}")
    expect(page.locator("#request pre")).to_contain_text("<img src=x onerror=alert(1)>")


def test_theme_is_kept(site: Watched) -> None:
    page = site.visit("/", color_scheme="light")
    page.locator("[data-theme-toggle]").click()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.goto(site.address("/rollouts"))
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate(background) == dark


def test_nothing_is_kept_in_the_browser_but_the_theme(site: Watched) -> None:
    page = site.visit("/rollouts/{small}/tokens#t40")
    page.keyboard.press("5")
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert page.evaluate("document.cookie") == ""


def test_the_chart_of_the_runs_has_a_point_for_each(site: Watched) -> None:
    page = site.visit("/runs")
    page.wait_for_selector(".chartbox[data-ready]")
    rows = page.locator("#run-table tbody tr").count()
    assert rows > 1
    assert page.locator(".chartbox").get_attribute("data-ready") == str(rows)
    expect(page.locator(".chartbox canvas")).to_be_visible()
