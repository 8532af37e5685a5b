"""A real Chromium on a real server; anything that the pages must not do fails the test.

Every page opened through `visit` is watched: a console error, an uncaught error, a
violation of the content policy, a dialog or a request to anywhere else fails the test
that caused it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

from tests.browser.chromium import EXECUTABLE, launch
from tests.web import seeds
from tests.web.granted import granted
from tests.web.seeds import Maker
from tests.web.serving import Served, serving

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
WIDE = {"width": 1440, "height": 860}
NARROW = {"width": 390, "height": 844}


@dataclass
class Watched:
    """Opens pages and remembers what went wrong in them."""

    browser: Browser
    url: str
    made: dict[str, Maker]
    grants: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def address(self, path: str) -> str:
        """A path with `{seed}` replaced by its id, `{call}` by a call of `{forked}` and
        `{waiting}` or `{standing}` by a grant."""
        ids: dict[str, str] = {
            name: made.rollout.rollout_id for name, made in self.made.items()
        }
        ids |= self.grants
        if "forked" in self.made:
            ids["call"] = self.made["forked"].calls[2].call_id
        return self.url + path.format(**ids)

    def open(self, *, size: dict[str, int] | None = None, **options: Any) -> Page:
        """A page in a fresh profile."""
        window = size or WIDE
        context = self.browser.new_context(
            viewport={"width": window["width"], "height": window["height"]}, **options
        )
        self.contexts.append(context)
        context.route("**/*", self._same_origin)
        page = context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        return page

    def visit(self, path: str, *, size: dict[str, int] | None = None, **options: Any) -> Page:
        """Open a path; `size` is the window, `options` those of a browser context."""
        page = self.open(size=size, **options)
        page.goto(self.address(path))
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]")
        return page

    def _same_origin(self, route: Route) -> None:
        if not route.request.url.startswith(self.url):
            self.problems.append(f"request to {route.request.url}")
            route.abort()
        else:
            route.continue_()

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and "404" not in message.text:
            self.problems.append(f"console {message.type}: {message.text}")

    def close(self) -> None:
        """Close every window."""
        for context in self.contexts:
            context.close()
        self.contexts.clear()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser process; every test has its own profile."""
    if not Path(EXECUTABLE).exists():
        pytest.skip(f"no Chromium at {EXECUTABLE}")
    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Served, dict[str, Maker]]]:
    """The seeds and two long rollouts, served."""
    with serving(tmp_path_factory.mktemp("browser")) as running:
        store = running.store
        made = running.call(partial(seeds.fill, store))
        made["large"] = seeds.large(20_000)
        made["long"] = seeds.long_conversation(40)
        made["folded"] = seeds.very_long()
        for name in ("large", "long", "folded"):
            running.call(partial(seeds.write, store, made[name], 1.0, True, close=True))
        yield running, made


@pytest.fixture
def site(browser: Browser, served: tuple[Served, dict[str, Maker]]) -> Iterator[Watched]:
    """Opens pages; at the end nothing may have gone wrong in any of them."""
    watched = Watched(browser, served[0].url, served[1], granted(served[0], served[1]))
    yield watched
    watched.close()
    assert watched.problems == []


def until(page: Page, expression: str) -> None:
    """Wait until the expression holds.

    The browser tool's own waiting evaluates text inside the page, which the content
    policy forbids; asking from outside does not.
    """
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never true: {expression}")


def violations(page: Page, without: tuple[str, ...] = ()) -> list[str]:
    """What axe finds, one line per rule and element; rules in `without` are left out."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(AXE.read_text())
    # Of the rules beyond WCAG, those about order and regions: a reader of headings finds a way.
    more = page.evaluate(
        "axe.getRules().map((rule) => rule.ruleId)"
        ".filter((id) => /^(landmark-|heading-order$|region$|page-has-heading-one$)/.test(id))"
    )
    options = json.dumps(
        {
            "runOnly": {"type": "tag", "values": list(RULES)},
            "rules": {
                **{rule: {"enabled": True} for rule in more},
                **{rule: {"enabled": False} for rule in without},
            },
        }
    )
    found = page.evaluate(f"axe.run(document, {options}).then((result) => result.violations)")
    return [
        f"{rule['id']}: {node['html'][:120]} | {node['failureSummary'][:160]}"
        for rule in found
        for node in rule["nodes"]
    ]
