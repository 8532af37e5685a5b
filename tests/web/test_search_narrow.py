"""What somebody may not see neither shows in a ranked search nor crowds out what they may."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from explorer.access.people import Caller, How, Role
from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.engine.scripted import ScriptedEngine
from explorer.records import RolloutId
from explorer.web import searching
from tests.live import Live, serving

OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)


def made(live: Live, text: str, level: Level) -> str:
    rollout_id, key = live.create()
    live.chat(key, messages=[{"role": "user", "content": text}])
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {})
    live.application.access.visibility.set(
        OPERATOR, Target.ROLLOUT, rollout_id, level, "to test"
    )
    return rollout_id


def test_hidden_rollouts_neither_count_nor_crowd_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_RANKED", 3)
    monkeypatch.setattr(searching, "MOST_CANDIDATES", 2)
    engine = ScriptedEngine([{"text": "an answer"}])
    names = ("demo.example",)
    with serving(engine, tmp_path / "s.duckdb", allowed_hosts=names, rate_per_minute=0) as live:
        padding = "and many more words than that, of which none is asked for " * 5
        open_one = made(live, f"a walrus {padding}", Level.PUBLIC)
        hidden = [made(live, "walrus walrus narwhal", Level.PRIVATE) for _ in range(6)]
        for _ in range(300):
            if live.application.index.indexed().keys() >= {
                RolloutId(each) for each in (open_one, *hidden)
            }:
                break
            time.sleep(0.1)

        def search(word: str, **headers: str) -> dict[str, object]:
            found: dict[str, object] = httpx.get(
                f"{live.url}/search.json?q={word}",
                headers={"host": "demo.example", **headers},
                timeout=30,
            ).json()
            return found

        found = search("walrus")
        rows = found["results"]
        assert isinstance(rows, list)
        assert [row["row"]["rollout_id"] for row in rows] == [open_one]
        assert (found["total"], found["more"]) == (1, False)
        # A word of hidden ones alone is answered as one that nobody said.
        known, unknown = search("narwhal"), search("unicorn")
        assert (known["total"], known["more"]) == (unknown["total"], unknown["more"])
        assert search("narwhal", authorization=f"Bearer {live.token}")["more"] is True
