"""Journeys 4 and 5 on a whole server: guard, proxy, engine, API and pages together.

Journey 1 is in `test_journeys.py` by mouse and in `test_keyboard.py` by keys, journey 2
(publish a dataset) in `test_datasets.py`, journey 3 (grants of a public demo) in
`test_grants.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from explorer.engine.tiny import TinyEngine
from tests.browser.conftest import Watched
from tests.live import Live, serving

pytestmark = pytest.mark.browser

FOREIGN = Path(__file__).parents[1] / "data" / "imports" / "atif-text.json"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A whole server around a real small model."""
    with serving(TinyEngine(), tmp_path_factory.mktemp("whole") / "s.duckdb") as found:
        yield found


@pytest.fixture
def whole(browser: Browser, live: Live) -> Iterator[Watched]:
    """Opens pages of the whole server; nothing may go wrong in any of them."""
    watched = Watched(browser, live.url, {})
    yield watched
    watched.close()
    assert watched.problems == []


def recorded(live: Live, run: str) -> str:
    """One rollout as a harness makes it: an answer thrown away, one kept, and an end."""
    rollout, key = live.create(run=run, task="greet", group="greet")
    first = [{"role": "user", "content": "Say only: ok"}]
    assert live.chat(key, messages=first, max_tokens=4, temperature=0).status_code == 200
    kept = live.chat(key, messages=first, max_tokens=12, temperature=0).json()
    answer = kept["choices"][0]["message"]["content"]
    after = [
        *first,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Again"},
    ]
    assert live.chat(key, messages=after, max_tokens=8).status_code == 200
    live.api("POST", f"/api/v1/rollouts/{rollout}/reward", {"reward": 0.5})
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    return rollout


def same_after_reload_and_back(page: Page) -> None:
    """Reload shows the same; so does Back after going elsewhere."""
    before, address = page.locator("main").inner_text(), page.url
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("main").inner_text() == before
    page.locator("nav.main a[href='/'], .crumbs a").first.click()
    page.wait_for_url(lambda url: url != address)
    page.go_back()
    page.wait_for_selector("html[data-ready]")
    assert page.url == address
    assert page.locator("main").inner_text() == before


def test_harness_developer_sees_what_trains_and_why(whole: Watched, live: Live) -> None:
    rollout = recorded(live, "harness")
    page = whole.visit("/rollouts?run=harness")
    page.locator(f"a[href*='{rollout}']").first.click()
    page.wait_for_selector("html[data-ready]")
    # Every line of the tree names its role; the rule that decided is told.
    lines = page.locator(".tree a[data-node]:not([data-node$='-prompt'])")
    for line in lines.all():
        assert re.search(r"\w", line.get_attribute("title") or "")
    expect(page.locator("ol.tree").first).to_contain_text("discarded")
    verdict = live.api("GET", f"/api/v1/rollouts/{rollout}")["verdict"]
    assert verdict["trainable"] is True
    expect(page.locator("a.verdict")).to_contain_text(f"{verdict['supervised_tokens']} of")
    # What was asked is not what was sent: the proxy's own keys are listed.
    page.locator(".tabs a[href*='/requests']").click()
    page.locator("main table a[href*='/requests/']").first.click()
    page.wait_for_url(re.compile("/requests/"))
    expect(page.locator("#sent")).to_contain_text("logprobs")
    same_after_reload_and_back(page)
    page.locator("a.verdict").click()
    page.wait_for_url(re.compile("/findings$"))
    # The counts of masks on the page are those of the record.
    masked = page.locator("main aside table tbody tr").all_inner_texts()
    tokens = sum(int(re.findall(r"\t([\d,]+)", row)[0].replace(",", "")) for row in masked)
    assert tokens == verdict["generated_tokens"]


def test_harness_developer_imports_a_rollout(whole: Watched, live: Live) -> None:
    reply = httpx.post(
        f"{live.url}/api/v1/imports?run=foreign&file=atif.json",
        content=FOREIGN.read_bytes(),
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert reply.status_code == 201, reply.text
    (rollout,) = reply.json()["imported"]
    page = whole.visit(f"/rollouts/{rollout}/findings")
    expect(page.locator("a.verdict")).to_contain_text("Not trainable")
    # A reason, and what to do about it.
    first = page.locator(".finding").first
    expect(first.locator(".grade")).to_have_text("FATAL")
    assert len(first.locator("p").all_inner_texts()) >= 3
    page.goto(f"{live.url}/rollouts/{rollout}/conversation")
    expect(page.locator(".msg").first).to_be_visible()
    same_after_reload_and_back(page)


def test_trainer_engineer_copies_commands_that_run(whole: Watched, live: Live) -> None:
    rollout = recorded(live, "trainer")
    recorded(live, "other")
    page = whole.open(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{live.url}/rollouts?run=trainer&reward=0.4..0.6")
    page.wait_for_selector("html[data-ready]")
    page.locator("summary", has_text="Take along").click()
    box = page.locator("details.menu[open]")
    said = []
    for number in range(2):
        box.locator("[data-copy]").nth(number).click()
        expect(page.locator(".toast")).to_have_text("copied")
        said.append(page.evaluate("navigator.clipboard.readText()"))
    wanted = live.api("GET", "/api/v1/rollouts?run=trainer&reward=0.4..0.6")["rollouts"]
    assert [each["rollout_id"] for each in wanted] == [rollout]
    curl = subprocess.run(
        ["bash", "-c", said[0]], capture_output=True, check=True, timeout=60
    ).stdout
    assert json.loads(curl)["rollouts"] == wanted
    python = subprocess.run(
        [sys.executable, "-c", said[1] + "\nprint(json.dumps(rollouts))"],
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    assert json.loads(python) == wanted


def test_every_page_is_had_by_a_program(whole: Watched, live: Live) -> None:
    rollout = recorded(live, "pages")
    for path in (f"/rollouts/{rollout}/tokens?m=mask", "/runs", f"/rollouts/{rollout}/timing"):
        page = whole.visit(path)
        page.locator("summary", has_text="JSON").click()
        said = page.locator("details.menu[open] pre.cmd").all_inner_texts()
        twin = page.locator("link[rel=alternate]").get_attribute("href")
        wanted = httpx.get(f"{live.url}{twin}").content
        curl = subprocess.run(
            ["bash", "-c", said[0]], capture_output=True, check=True, timeout=60
        )
        if path != "/runs":  # Ages are said there, which pass.
            assert curl.stdout == wanted
        python = subprocess.run(
            [sys.executable, "-c", said[1] + "\nprint(sorted(page))"],
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        )
        assert python.stdout.strip() == str(sorted(json.loads(wanted)))


def test_trainer_engineer_downloads_what_the_api_gives(whole: Watched, live: Live) -> None:
    rollout = recorded(live, "bytes")
    page = whole.visit(f"/rollouts/{rollout}/tokens")
    page.locator("summary", has_text="Download").click()
    with page.expect_download() as waiting:
        page.locator("details.menu[open] a[href*='training-trace']").click()
    got = Path(waiting.value.path()).read_bytes()
    reply = httpx.get(
        f"{live.url}/api/v1/rollouts/{rollout}/training-trace",
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert reply.content == got
    assert hashlib.sha256(got).hexdigest() in reply.headers["etag"]
    # One that does not train is refused there with the reasons that the page tells.
    _, key = live.create(run="bytes", task="empty")
    empty = live.api("GET", "/api/v1/rollouts?run=bytes")["rollouts"]
    other = next(each["rollout_id"] for each in empty if each["rollout_id"] != rollout)
    assert key
    live.api("POST", f"/api/v1/rollouts/{other}/close", {"ok": True})
    refused = live.api("GET", f"/api/v1/rollouts/{other}/training-trace", status=409)
    page.goto(f"{live.url}/rollouts/{other}/findings")
    text = page.locator("main").inner_text()
    reasons = refused["error"]["details"]["reasons"]
    assert reasons
    assert all(each["message"] in text for each in reasons)


def test_a_note_is_written_without_script(whole: Watched, live: Live) -> None:
    rollout = recorded(live, "notes")
    page = whole.visit(f"/rollouts/{rollout}/notes", java_script_enabled=False)
    form = page.locator("main form").last
    form.locator("textarea").fill("odd <b>answer</b>")
    form.locator("input[name=who]").fill("Ada")
    form.get_by_role("button", name="Add").click()
    page.wait_for_url(re.compile("/notes"))
    expect(page.locator("main")).to_contain_text("odd <b>answer</b>")
    page.reload()
    expect(page.locator("main")).to_contain_text("odd <b>answer</b>")
    written = live.api("GET", f"/api/v1/rollouts/{rollout}/annotations")["annotations"]
    assert [each["note"] for each in written] == ["odd <b>answer</b>"]


def test_the_console_keeps_the_policy(whole: Watched, live: Live) -> None:
    recorded(live, "console")
    page = whole.visit("/sql")
    page.locator("textarea[name=sql]").fill(
        "SELECT '<img src=x onerror=alert(1)>' AS odd, 1 AS n"
    )
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#answer table")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
