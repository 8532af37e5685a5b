"""Journey 2: a data engineer turns a filter into a dataset on the Hub, with and without
script, on a whole server around a real small model; the Hub is the local one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from explorer.engine.tiny import TinyEngine
from explorer.export.dataset.manifest import parse_manifest
from tests.browser.conftest import NARROW, Watched
from tests.browser.test_whole_journeys import recorded
from tests.hub.server import LocalHub
from tests.live import Live, serving

pytestmark = pytest.mark.browser
SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with LocalHub() as made:
        yield made


@pytest.fixture(scope="module")
def live(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A whole server around a real small model, whose Hub is the local one."""
    store = tmp_path_factory.mktemp("datasets") / "s.duckdb"
    with serving(TinyEngine(), store, hub_endpoint=hub.url) as found:
        recorded(found, "wanted")
        recorded(found, "wanted")
        rollout, key = found.create(run="wanted", task="greet")
        found.chat(key, messages=[{"role": "user", "content": f"my key: {SECRET}"}])
        found.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
        recorded(found, "other")
        # The scan runs in the background, when a closed rollout has been quiet for a while.
        deadline = time.monotonic() + 60
        while not found.application.store.secrets_undecided():
            assert time.monotonic() < deadline, "nothing was scanned"
            time.sleep(0.1)
        yield found


@pytest.fixture
def whole(browser: Browser, live: Live) -> Iterator[Watched]:
    """Opens pages of the whole server; nothing may go wrong in any of them."""
    watched = Watched(browser, live.url, {})
    yield watched
    watched.close()
    assert watched.problems == []


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_data_engineer_publishes_a_filter(
    whole: Watched, live: Live, hub: LocalHub, script: bool
) -> None:
    token = hub.people.add("ada")
    name = f"ada/journey-{'script' if script else 'plain'}"
    # Builds a filter.
    page = whole.visit("/rollouts?run=wanted", java_script_enabled=script)
    expect(page.locator("h1")).to_contain_text("3 rollouts match")
    page.get_by_role("link", name="Publish…").click()
    # Sees counts, what is excluded and why, before anything is written.
    facts = page.locator("dl.counts")
    for line in ("Rollouts", "Trainable", "Tokens that train", "Undecided secrets"):
        expect(facts).to_contain_text(line)
    shown = page.locator("data[data-k='supervised_tokens']").get_attribute("value")
    assert int(shown or 0) > 0
    expect(page.locator("data[data-k='undecided']")).to_have_text("1")
    # Licence, gate, visibility: private unless said otherwise.
    assert page.locator("input[name=visibility][value=private]").is_checked()
    page.fill("input[name=title]", "Greetings")
    page.fill("input[name=target]", name)
    page.select_option("select[name=licence]", "cc-by-4.0")
    page.check("input[name=gated][value=auto]")
    page.fill("textarea[name=gate_prompt]", "Do not train on the test set.")
    page.check("input[name=formats][value=sft]")
    page.get_by_role("button", name="Dry run").click()
    page.wait_for_url(re.compile("/datasets/d[0-9a-f]+$"))
    job_id = page.url.rpartition("/")[2]
    # The dry run ends by itself on the page (by a reload without script).
    card = page.locator("pre.card")
    expect(card).to_be_visible(timeout=20_000)
    expect(card).to_contain_text("license: cc-by-4.0")
    expect(card).to_contain_text("Do not train on the test set.")
    assert (
        page.locator("data[data-k='written.supervised_tokens']").get_attribute("value") == shown
    )
    expect(page.locator("data[data-k='written.rollouts']")).to_have_text("2")
    expect(page.locator("data[data-k='written.excluded']")).to_have_text("1")
    expect(page.locator("#secrets .finding")).to_have_count(1)
    expect(page.locator("#secrets .around")).to_contain_text("my key:█████")
    expect(page.locator("#secrets a[href*='/tokens?branch=']").first).to_be_attached()
    assert SECRET not in page.content()
    folder = live.application.publishing.desk.folder(job_id)
    manifest = parse_manifest((folder / "manifest.json").read_bytes())
    assert manifest.supervised_tokens == int(shown or 0)
    assert ("dataset", name) not in hub.shelf.repos
    # Then push.
    page.fill("input[name=token]", token)
    page.get_by_role("button", name=re.compile("^Publish 2 rollouts")).click()
    link = page.locator("a[data-published]")
    expect(link).to_be_visible(timeout=20_000)
    assert link.get_attribute("href") == f"{hub.url}/datasets/{name}"
    repo = hub.shelf.repos["dataset", name]
    assert repo.private
    assert repo.gated == "auto"
    assert {"README.md", "manifest.json"} <= set(repo.head.files)
    assert token not in page.content()
    # A job outlives its page: the list tells it, and so does a reload.
    page.goto(f"{live.url}/datasets")
    expect(page.locator("tbody tr").first).to_contain_text("published, private")
    page.locator("tbody tr a").first.click()
    expect(page.locator("#going")).to_contain_text("Published, private")


def test_the_public_is_named_twice_and_a_mistake_is_told(whole: Watched, hub: LocalHub) -> None:
    page = whole.visit("/datasets/publish?run=wanted", size=NARROW)
    page.fill("input[name=title]", "Open")
    page.fill("input[name=target]", "ada/open")
    page.select_option("select[name=licence]", "mit")
    page.check("input[name=visibility][value=public]")
    with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        page.get_by_role("button", name="Dry run").click()
    assert answered.value.status == 422
    expect(page.locator("main")).to_contain_text("again")
    # The browser says in its console that the answer was 422.
    whole.problems[:] = [each for each in whole.problems if "422" not in each]
    page.go_back()
    # As it was filled, but what must be typed on purpose.
    assert page.input_value("input[name=title]") == "Open"
    assert page.input_value("input[name=confirm]") == ""
    assert page.is_checked("input[name=visibility][value=public]")
    page.fill("input[name=confirm]", "ada/open")
    page.get_by_role("button", name="Dry run").click()
    page.wait_for_url(re.compile("/datasets/d[0-9a-f]+$"))
    expect(page.locator("pre.card")).to_be_visible(timeout=20_000)
    assert ("dataset", "ada/open") not in hub.shelf.repos


def test_a_view_publishes_itself(whole: Watched, live: Live, hub: LocalHub) -> None:
    token = hub.people.add("ada")
    page = whole.visit("/rollouts?run=other")
    page.locator("summary", has_text="Views").click()
    page.fill("form.lined input[name=name]", "others")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(re.compile("run=other"))
    page.get_by_role("link", name="Publish…").click()
    assert "view=others" in page.url
    page.fill("input[name=title]", "Others")
    page.fill("input[name=target]", "ada/others")
    page.select_option("select[name=licence]", "mit")
    page.locator("#by-itself summary").click()
    page.fill("#by-itself input[name=token]", token)
    page.get_by_role("button", name="Let it publish itself").click()
    page.wait_for_url(re.compile("/datasets#schedules$"))
    expect(page.locator(".schedule")).to_contain_text("others")
    expect(page.locator(".schedule")).to_contain_text("runs")
    for _ in range(100):
        if ("dataset", "ada/others") in hub.shelf.repos:
            break
        page.wait_for_timeout(100)
    page.reload()
    page.get_by_role("button", name="Pause others").click()
    expect(page.locator(".schedule")).to_contain_text("Paused")
