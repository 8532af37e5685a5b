"""After another policy was chosen, listings say what it says, though nobody opens anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from explorer.engine.tiny import TinyEngine
from explorer.export.judged import rules_of
from explorer.trace.policy import DEFAULT_POLICY, SHIPPED
from tests.live import Live, serving
from tests.web.test_exports import rollout


def summary(live: Live, name: str) -> Any:
    rows = live.api("GET", "/api/v1/rollouts")["rollouts"]
    return next(row for row in rows if row["rollout_id"] == name)["judgement"]


def settled(live: Live, name: str, policy: str) -> Any:
    for _ in range(100):
        found = summary(live, name)
        if found and found["policy"] == policy:
            return found
        time.sleep(0.1)
    raise AssertionError(f"still judged by {found and found['policy']}")


def test_listings_follow_the_policy(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    default, strict = rules_of(DEFAULT_POLICY), rules_of(SHIPPED["strict"])
    assert default != strict
    with serving(TinyEngine(), store) as live:
        name = rollout(live)  # every turn of it is cut by the output cap
        before = settled(live, name, default)
        assert before["trainable"] is True
    with serving(TinyEngine(), store, policy="strict") as live:
        after = settled(live, name, strict)
        assert (after["trainable"], after["supervised_tokens"]) == (False, 0)
        assert live.api("GET", "/api/v1/rollouts?trainable=yes")["rollouts"] == []
    # And back again, although the store has a summary of that policy already.
    with serving(TinyEngine(), store) as live:
        assert settled(live, name, default)["trainable"] is True
