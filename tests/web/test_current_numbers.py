"""Lists and grids show the verdict as soon as there is one, and keep up with events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving
from tests.web.parsing import read


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("current") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        yield running


def page(live: Live, path: str) -> httpx.Response:
    """A page as the operator sees it."""
    found = httpx.get(live.url + path, headers={"authorization": f"Bearer {live.token}"})
    assert found.status_code == 200, found.text[:300]
    return found


def listed(live: Live, run: str) -> dict[str, Any]:
    """The only rollout of a run, from the list."""
    (row,) = page(live, f"/rollouts.json?run={run}").json()["rows"]
    assert isinstance(row, dict)
    return row


def test_closing_judges_so_that_lists_know(live: Live) -> None:
    rollout, key = live.create(run="closed", task="t")
    live.chat(key, messages=[{"role": "user", "content": "Say only: ok"}], max_tokens=20)
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    row = listed(live, "closed")
    assert row["trainable"] is True
    assert row["supervised_tokens"] == row["generated_tokens"] > 0
    assert "100 % trainable" in read(page(live, "/runs/closed").text).text


def test_a_reward_after_the_close_shows_everywhere(live: Live) -> None:
    rollout, key = live.create(run="late", task="t", group="g")
    live.chat(key, messages=[{"role": "user", "content": "Say only: ok"}], max_tokens=20)
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    before = listed(live, "late")
    assert before["reward"] is None
    for reward in (1.0, 0.25):
        live.api("POST", f"/api/v1/rollouts/{rollout}/reward", {"reward": reward})
        row = listed(live, "late")
        assert row["reward"] == reward
        assert row["trainable"] is True
        assert row["supervised_tokens"] == before["supervised_tokens"]
        run = page(live, "/runs/late.json").json()
        assert run["summary"]["reward_mean"] == reward
        assert run["summary"]["n_trainable"] == 1
        assert run["groups"][0]["samples"][0]["reward"] == reward
        header = page(live, f"/rollouts/{rollout}/tokens.json").json()["header"]
        assert header["reward"] == reward
        assert header["verdict"]["trainable"] is True
