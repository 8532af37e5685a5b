"""Somebody signs in at a real OpenID provider, lets the server publish for them, and their
own token of that sign-in publishes: no other ever reaches the Hub."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from explorer.engine.scripted import ScriptedEngine
from tests.hub.people import Person, Token
from tests.hub.server import LocalHub
from tests.live import serving
from tests.oidc.provider import free_port, provider

pytestmark = pytest.mark.browser


def test_ones_own_sign_in_publishes(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_tokenOfTheServer")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        LocalHub() as hub,
        provider([f"{url}/sign-in/huggingface/callback"]) as real,
        serving(
            ScriptedEngine([{"text": "ok"}]),
            tmp_path / "s.duckdb",
            listen_port=port,
            public_url=url,
            hub_endpoint=hub.url,
            curators=("huggingface:u-ana",),
            providers=(real.settings(name="huggingface", title="Hugging Face"),),
        ) as live,
    ):
        rollout, key = live.create(run="good")
        live.chat(key)
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
        page = browser.new_context().new_page()
        page.goto(f"{url}/sign-in/huggingface?next=/datasets/publish?run=good")
        page.click("button[value=u-ana]")
        page.wait_for_url(f"{url}/datasets/publish?run=good")
        page.fill("input[name=title]", "Mine")
        page.fill("input[name=target]", "ana/mine")
        page.select_option("select[name=licence]", "mit")
        page.get_by_role("button", name="Dry run").click()
        expect(page.locator("pre.card")).to_be_visible(timeout=20_000)
        job = page.url
        # Signed in is not enough: leave to publish is asked for when it is needed.
        expect(page.locator("input[name=token]")).to_be_visible()
        page.get_by_role("link", name="let this server publish for you").click()
        page.wait_for_url(job)
        expect(page.locator("aside")).to_contain_text("Your own token of the Hub is used")
        expect(page.locator("input[name=token]")).to_have_count(0)
        (session,) = live.application.sign_in.sessions.of("huggingface:u-ana")
        given = live.application.sign_in.sessions.provider_token(session.session_hash)
        assert given is not None
        hub.people.tokens[given.access_token] = Token(
            given.access_token, Person("ana"), "contribute-repos"
        )
        page.get_by_role("button", name="Publish 1 rollout").click()
        expect(page.locator("a[data-published]")).to_be_visible(timeout=20_000)
        assert ("dataset", "ana/mine") in hub.shelf.repos
        assert hub.faults.tokens <= {given.access_token, None}
        page.context.close()
        # What was kept names nobody's token.
        told = httpx.get(
            f"{url}/api/v1/datasets", headers={"authorization": f"Bearer {live.token}"}
        )
        assert given.access_token not in told.text
        rows = list(live.application.access.audit.every())
        assert given.access_token not in str(rows)
        begun = [row for row in rows if row["event"] == "dataset_begun"]
        assert [row["who"] for row in begun] == ["huggingface:u-ana"]
