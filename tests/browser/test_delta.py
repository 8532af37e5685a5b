"""δ in a browser: colours, the walk over outliers, the chart, and the tab that leads back."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import Watched


def test_the_token_furthest_from_the_trainer_is_two_keys_away(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/tokens")
    expect(page.locator(".legend.delta")).to_be_hidden()
    expect(page.locator(".worst.delta")).to_be_hidden()
    page.keyboard.press("6")
    expect(page.locator(".legend.delta")).to_contain_text("noise: 0.0 %")
    expect(page.locator(".worst:not(.delta)")).to_be_hidden()
    expect(page.locator(".k .d0").first).to_be_visible()
    page.keyboard.press("w")
    furthest = page.locator(".worst.delta [data-worst]")
    place = furthest.first.get_attribute("data-worst")
    expect(page).to_have_url(re.compile(rf"m=delta.*#t{place}$"))
    expect(page.locator("#inspect")).to_contain_text("δ −2.")
    expect(page.locator(".k .c")).to_have_class(re.compile(r"\bd0\b"))
    # `n` walks what is 0.7 nats off or more, whatever the engine thought of it.
    page.keyboard.press("n")
    expect(page).not_to_have_url(re.compile(rf"#t{place}$"))
    expect(page.locator(".k .c")).to_have_class(re.compile(r"\bd[06]\b"))
    page.keyboard.press("7")
    expect(page.locator(".legend.ratio")).to_be_visible()
    page.locator("details.chartbox summary").click()
    page.wait_for_selector("details.chartbox[data-off]")
    expect(page.locator(".plot.off canvas")).to_be_visible()
    page.keyboard.press("1")
    expect(page.locator(".plot.off")).to_be_hidden()
    expect(page.locator(".plot:not(.off) canvas")).to_be_visible()


def test_the_tab_names_the_worst_tokens_and_leads_to_them(site: Watched) -> None:
    page = site.visit("/rollouts/{forked}/delta?set=trainer.8.trl")
    expect(page.locator(".big")).to_contain_text("outside 0.9 to 1.1")
    expect(page.locator("table.spreads")).to_contain_text("the engine against itself")
    expect(page.locator("tr.here")).to_contain_text("8")
    # A mean is nowhere without its deviation.
    for text in page.locator("table.spreads td:last-child").all_inner_texts():
        assert re.fullmatch(r"−?[\d.]+(e−\d+)? \(sd [\d.]+(e−\d+)?\)", text), text
    first = page.locator("table.furthest tbody tr").first
    expect(first.locator("mark")).to_be_visible()
    place = first.locator("a").inner_text().replace(",", "")
    first.locator("a").click()
    expect(page).to_have_url(re.compile(rf"m=delta.*#t{place}$"))
    expect(page.locator(".k .c")).to_have_class(re.compile(r"\bd[06]\b"))
    page = site.visit("/rollouts/{small}/delta")
    expect(page.locator("main")).to_contain_text("No trainer has sent its logprobs")
    expect(page.locator("main pre.cmd").first).to_contain_text("/trainer-logprobs")
