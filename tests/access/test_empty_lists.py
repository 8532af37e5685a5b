"""An empty list says to a visitor that nothing is open to them, not that nothing is there."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from explorer.engine.scripted import ScriptedEngine
from tests.live import serving

HOST = "demo.example"


@pytest.mark.parametrize(
    ("path", "visitor", "operator"),
    [
        ("/rollouts", "No rollout is open to you", "No rollouts yet."),
        ("/runs", "No run is open to you", "No run has a rollout yet."),
    ],
)
def test_an_empty_list_speaks_to_its_reader(
    path: str, visitor: str, operator: str, tmp_path: Path
) -> None:
    engine = ScriptedEngine([{"text": "an answer"}])
    with serving(engine, tmp_path / "s.duckdb", allowed_hosts=(HOST,)) as live:
        seen = httpx.get(live.url + path, headers={"host": HOST}, timeout=30).text
        operates = {"authorization": f"Bearer {live.token}"}
        own = httpx.get(live.url + path, headers=operates, timeout=30).text
    assert visitor in seen
    assert operator not in seen
    assert operator in own
    assert visitor not in own
