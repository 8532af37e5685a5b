"""A training as a person follows it: the run's page grows, and what is open stays open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving

pytestmark = pytest.mark.browser

WAIT = 30_000


def step(live: Live, number: int, rewards: tuple[float, ...]) -> list[str]:
    """One step of a training: weights are announced, a group samples, rewards come."""
    live.api("POST", "/api/v1/weights", {"state": "ready", "weight_version": number})
    made = []
    for attempt, reward in enumerate(rewards):
        rollout_id, key = live.create(
            run="lesson", group=f"g{number}", attempt=attempt, metadata={"global_step": number}
        )
        messages = [{"role": "user", "content": "What is 4 + 5?"}]
        assert live.chat(key, messages=messages, seed=attempt).status_code == 200
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": reward})
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
        made.append(rollout_id)
    return made


def test_a_run_is_followed_step_by_step(browser: Browser, tmp_path: Path) -> None:
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        (first, _) = step(live, 7, (0.0, 0.0))
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda said: problems.append(said.text) if said.type == "error" else None
        )
        page.goto(f"{live.url}/runs/lesson")
        reward = page.locator(".chart.over", has_text="Reward").first
        reward.locator("summary").click()
        expect(reward.locator("tbody tr")).to_have_count(1)
        step(live, 8, (0.0, 1.0))
        # Nobody reloads: the table that was opened has a second step.
        expect(reward.locator("tbody tr")).to_have_count(2, timeout=WAIT)
        expect(reward.locator("tbody")).to_be_visible()
        expect(reward.locator("summary")).to_be_focused()
        expect(reward.locator("figcaption")).to_contain_text("step 8: mean 0.5")
        variance = page.locator(".chart.over", has_text="Groups without variance")
        expect(variance.locator("figcaption")).to_contain_text("step 8: 0 of 1")
        versions = page.locator(".chart.over", has_text="Weight versions")
        expect(versions.locator("figcaption")).to_contain_text("version 8: 100 %")
        # What it grew to is what a reload and the twin say.
        twin: Any = live.api("GET", "/runs/lesson.json")
        assert [row["reward"]["mean"] for row in twin["charts"]["rows"]] == [0.0, 0.5]
        assert [row["n_zero_variance"] for row in twin["charts"]["rows"]] == [1, 0]
        # The rollout of the step before is one version behind, in its head and in the list.
        page.goto(f"{live.url}/rollouts/{first}/tokens?m=version")
        expect(page.locator("[data-live-swap=facts]")).to_contain_text(
            "weights 7 · oldest token 1 behind"
        )
        found = live.api("GET", "/api/v1/rollouts?stale=1&version=7")
        assert len(found["rollouts"]) == 2
        assert live.api("GET", "/api/v1/rollouts?stale=>1")["rollouts"] == []
        assert problems == []
