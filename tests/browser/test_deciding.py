"""From a token to its exclusion, as a person does it, on the whole server."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from explorer.engine.tiny import TinyEngine
from tests.live import serving
from tests.web.test_deciding import calls_of
from tests.web.test_exports import rollout

pytestmark = pytest.mark.browser


def test_from_a_token_to_its_exclusion(browser: Browser, tmp_path: Path) -> None:
    with serving(TinyEngine(), tmp_path / "store.duckdb") as live:
        name = rollout(live)
        last = calls_of(live, name)[2]
        place = last["prompt_len"] + 3
        context = browser.new_context()
        page = context.new_page()
        page.goto(
            f"{live.url}/rollouts/{name}/tokens?branch={last['call_id']}&t={place}#t{place}"
        )
        page.click("text=leave out…")
        assert page.input_value("input[name=start]") == str(place)
        assert page.input_value("select[name=kind]") == "exclude_span"
        page.fill("input[name=reason]", "quotes the answer")
        page.click("text=Record the decision")
        page.wait_for_selector("text=quotes the answer")
        context.close()
        after = live.api("GET", f"/api/v1/rollouts/{name}/calls/{last['call_id']}")
        spans = [(s["start"], s["end"], s["reason"]) for s in after["mask_spans"]]
        assert (place, place + 1, "excluded_by_user") in spans
