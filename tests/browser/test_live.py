"""A rollout that is still running, as a person reads it: nothing that is read moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving

pytestmark = pytest.mark.browser

WAIT = 20_000
SEED = 3  # with it the tiny model ends every turn, so that the next one continues it
TOP = '(key) => document.querySelector(`[data-key="${key}"]`).getBoundingClientRect().top'
SHOWN = (
    "() => [...document.querySelectorAll('[data-live-append] > [data-key]')]"
    ".find((e) => e.getBoundingClientRect().bottom > 200).dataset.key"
)


class Talk:
    """A conversation that grows by one turn at a time."""

    def __init__(self, live: Live, **wanted: Any) -> None:
        self.live = live
        self.rollout_id, self.key = live.create(run="live", **wanted)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 4 + 5?"}]

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            reply = self.live.chat(self.key, messages=self.messages, seed=SEED)
            assert reply.status_code == 200, reply.text
            said = reply.json()["choices"][0]["message"]
            said = {name: value for name, value in said.items() if value is not None}
            asked = {"role": "tool", "tool_call_id": "c", "content": "4 + 5 = 9. " * 20}
            self.messages = [*self.messages, said, asked]

    def close(self) -> None:
        self.live.api("POST", f"/api/v1/rollouts/{self.rollout_id}/close", {"ok": True})


def opened(browser: Browser, live: Live, talk: Talk, tab: str) -> Page:
    context = browser.new_context(viewport={"width": 1440, "height": 500})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.problems = problems  # type: ignore[attr-defined]
    page.goto(f"{live.url}/rollouts/{talk.rollout_id}/{tab}")
    page.wait_for_selector("html[data-tail=on]", timeout=WAIT)
    return page


@pytest.mark.parametrize("tab", ["conversation", "tokens"])
def test_what_the_reader_looks_at_never_moves(
    browser: Browser, tmp_path: Path, tab: str
) -> None:
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        talk = Talk(live, budgets={"calls": 40})
        talk.turn(5)
        page = opened(browser, live, talk, tab)
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight / 2)")
        page.wait_for_timeout(300)
        key = page.evaluate(SHOWN)
        before = page.evaluate(TOP, key)
        sections = page.locator("[data-live-append] > [data-key]").count()
        talk.turn(4)
        grown = sections + (4 if tab == "conversation" else 8)
        expect(page.locator("[data-live-append] > [data-key]")).to_have_count(
            grown, timeout=WAIT
        )
        assert abs(page.evaluate(TOP, key) - before) <= 1
        expect(page.locator(".newpill")).to_be_visible()
        assert "new ↓" in page.locator(".newpill").inner_text()
        expect(page.locator(".livebar")).to_contain_text("model calls 9 of 40")
        # The pill leads to the first that is new, and goes once it was seen.
        page.click(".newpill")
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        expect(page.locator("html")).not_to_have_attribute("data-unseen", str(grown - sections))
        if tab == "tokens":
            # The pane works on what came in: ids, columns and the cursor reach the last token.
            total = int(page.locator(".pane").get_attribute("data-total") or 0)
            page.evaluate(f"location.hash = 't{total - 1}'")
            expect(page.locator("#inspect")).to_contain_text(f"{total - 1:,}")
            twin = page.evaluate(
                "() => fetch(location.pathname + '.json').then((r) => r.json())"
                ".then((d) => d.total_tokens)"
            )
            assert twin == total
        talk.close()
        page.wait_for_selector("html[data-tail=ended]", timeout=WAIT)
        expect(page.locator(".livebar")).to_have_count(0, timeout=WAIT)
        expect(page.locator(".chips").first).to_contain_text("finished")
        # What stands there is what a reload shows.
        words = "() => document.querySelector('#main').innerText.replace(/\\s+/g, ' ')"
        shown = page.evaluate(words)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate(words) == shown
        assert page.problems == []  # type: ignore[attr-defined]
        page.context.close()


def test_it_goes_on_after_a_restart_without_a_gap(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    with serving(TinyEngine(), path) as live:
        talk = Talk(live)
        talk.turn(2)
        port = int(live.url.rsplit(":", 1)[1])
        page = opened(browser, live, talk, "requests")
        expect(page.locator("[data-live-append] > [data-key]")).to_have_count(2)
    page.wait_for_selector("html[data-tail=lost]", timeout=WAIT)
    expect(page.locator(".livedot")).to_be_visible()
    with serving(TinyEngine(), path, listen_port=port) as live:
        talk.live = live
        talk.turn(2)
        expect(page.locator("[data-live-append] > [data-key]")).to_have_count(4, timeout=WAIT)
        names = page.locator("[data-live-append] > [data-key] td:nth-child(3) a").evaluate_all(
            "(all) => all.map((a) => a.title)"
        )
        assert names == [call["call_id"] for call in live.calls(talk.rollout_id)]
        page.context.close()
