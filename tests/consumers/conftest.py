"""A real server with the shipped tiny engine, and rollouts that were captured through it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from explorer.demo.group import Outcome, run_group
from explorer.engine.tiny import TinyEngine
from explorer.integrations.blocking import ExplorerServer
from tests.live import Live, serving


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(TinyEngine(), tmp_path_factory.mktemp("consumers") / "s.duckdb") as made:
        yield made


@pytest.fixture(scope="session")
def server(live: Live) -> ExplorerServer:
    return ExplorerServer(live.url, live.token)


@pytest.fixture(scope="session")
def demo(live: Live) -> dict[str, Outcome]:
    """The demo's rollouts, with titles, retries, forks, failures and compactions."""
    outcomes = asyncio.run(run_group(live.url, live.token))
    return {outcome.rollout_id: outcome for outcome in outcomes}


@pytest.fixture(scope="session")
def weights() -> Path:
    import explorer.engine.tiny

    return Path(explorer.engine.tiny.__file__).parent / "weights"
