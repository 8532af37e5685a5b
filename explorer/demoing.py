"""The command `demo`: records real rollouts, and serves them; or shows them to the public.

Owns: when the curated store of a public demo is made, and how it takes its place.
Must not know: what the agent does, how anything is served.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from explorer import runfile, server
from explorer.access.database import access_path
from explorer.announcing import announce
from explorer.demo.group import Outcome, run_group
from explorer.errors import ConfigurationError
from explorer.settings import Settings
from explorer.store.search_index import index_path

INDEX_WAIT_S = 120.0
# Ranks and entropies need alternatives; in a demo nothing is saved by leaving them out.
TOP_LOGPROBS = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the demo's group is made of; `leave` ends it after recording."""

    seed: int
    attempts: int
    leave: bool = False


def with_alternatives(settings: Settings) -> Settings:
    """The settings with the alternatives of each token, unless somebody said otherwise."""
    if "top_logprobs" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"top_logprobs": TOP_LOGPROBS})


def run_local(settings: Settings, wanted: Wanted) -> None:
    """Records a group through the server's own proxy, and goes on serving."""
    settings = with_alternatives(settings)
    settings.store.parent.mkdir(parents=True, exist_ok=True)

    async def ready(application: Any, url: str) -> bool:
        await announce(settings)(application, url)
        await _record(application, url, wanted)
        if wanted.leave:
            click.secho(f"Recorded in {settings.store}", bold=True)
        else:
            click.secho(f"Open {url}/runs/demo", bold=True)
        return not wanted.leave

    server.run_loop(server.run(settings, ready))


def run_public(settings: Settings, wanted: Wanted, *, reseed: bool) -> None:
    """Shows a store to the public; it is made first where there is none, or when asked.

    Raises:
        ConfigurationError: the store that shall be made again is open.
    """
    assert settings.read_only
    if reseed or not settings.store.exists():
        running = runfile.read(settings.store)
        if running is not None:
            raise ConfigurationError(
                f"the server at {running.url} (process {running.pid}) shows {settings.store}; "
                "stop it before it is made again"
            )
        seed(settings, wanted)
    if not wanted.leave:
        server.run_loop(server.run(settings, announce(settings)))


def seed(settings: Settings, wanted: Wanted) -> None:
    """Makes the curated store, whole, in the place of the one that was there.

    A server of its own records it, on loopback and with an access database that is thrown
    away: nobody outside sees it before it is done.
    """
    place = settings.store
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".seeding-") as folder:
        made = Path(folder) / "store.duckdb"
        inner = with_alternatives(settings).model_copy(
            update={
                "store": made,
                "access_store": access_path(made),
                "engine": "tiny",
                "host": "127.0.0.1",
                "port": 0,
                "public_url": None,
                "allowed_hosts": (),
                "admin_token": None,
                "profile": "local",
                "read_only": False,
                "reset_every_hours": 0.0,
                "min_free_bytes": 0,
            }
        )

        async def ready(application: Any, url: str) -> bool:
            await _record(application, url, wanted)
            await _indexed(application)
            return False

        server.run_loop(server.run(inner, ready))
        os.replace(made, place)
        found = index_path(made)
        if found.exists():
            os.replace(found, index_path(place))


async def _record(application: Any, url: str, wanted: Wanted) -> None:
    click.echo("Recording rollouts through the proxy …")
    outcomes = await run_group(
        url,
        application.operator.token,
        seed=wanted.seed,
        attempts=wanted.attempts,
        report=_report,
    )
    scored = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    right = sum(1 for reward in scored if reward > 0)
    click.echo(f"{len(outcomes)} rollouts recorded, {right} of {len(scored)} right.")


async def _indexed(application: Any) -> None:
    """Waits until the ranked search has everything: later nothing is added any more."""
    loop = asyncio.get_running_loop()
    due = loop.time() + INDEX_WAIT_S

    def complete() -> bool:
        known = application.index.indexed()
        return all(
            each.rollout_id in known and known[each.rollout_id].stamp == each.text
            for each in application.store.record_stamps()
        )

    while application.index.usable and not await asyncio.to_thread(complete):
        if loop.time() > due:
            click.echo("The ranked search is not complete; exact text finds everything.")
            return
        await asyncio.sleep(0.2)


def _report(outcome: Outcome, done: int, total: int) -> None:
    shown = "failed" if outcome.reward is None else f"reward {outcome.reward:.0f}"
    click.echo(f"  {done:3d}/{total}  {outcome.task:<12} #{outcome.attempt}  {shown}")
