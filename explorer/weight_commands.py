"""The command `weights`: how the weight fence stands, or a word of the trainer. Wiring only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from explorer import options, runfile
from explorer.commands import print_json
from explorer.settings import load


@click.command()
@options.store
@click.option("--version", type=int, help="Weight version: the coming one, or the one loaded.")
@click.option("--state", type=click.Choice(["syncing", "ready"]), help="What the trainer says.")
@click.option("--lease", "lease_s", type=float, help="With `syncing`: seconds until it lapses.")
@click.option("--drain", type=click.Choice(["wait", "pause", "none"]), help="With `syncing`.")
@click.option(
    "--weights",
    "weights_path",
    type=click.Path(path_type=Path, exists=True),
    help="With `ready`: a file or folder for the built-in tiny engine.",
)
@click.option("--label", "engine_weight_label", help="With `ready`: the engine's own name.")
def weights(version: int | None, state: str | None, **flags: Any) -> None:
    """Show the weight fence of a running server, or announce a version to it."""
    names = ("lease_s", "drain", "weights_path", "engine_weight_label")
    more = {name: found for name in names if (found := flags.pop(name)) is not None}
    if (version is None) != (state is None) or (state is None and more):
        raise click.UsageError("an announcement needs both --version and --state")
    run = runfile.read(load(**flags).store)
    if run is None:
        raise click.UsageError("no server has this store open; weights belong to a running one")
    if "weights_path" in more:
        more["weights_path"] = str(more["weights_path"].absolute())
    told = {"state": state, "weight_version": version, **more} if state else None
    print_json(asyncio.run(_ask(run, told)))


async def _ask(run: runfile.RunFile, told: dict[str, Any] | None) -> Any:
    from explorer.integrations.client import ExplorerClient

    async with ExplorerClient(run.url, run.token) as client:
        return await client.request("POST" if told else "GET", "/api/v1/weights", told)
