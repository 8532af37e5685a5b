"""The commands `publish` and `withdraw`. Wiring only: flags to what is wanted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from explorer import options
from explorer.export.card.choice import CardChoice
from explorer.settings import load

_GATES = click.Choice(["auto", "manual"])
_where = click.option(
    "--repo",
    "--to",
    "where",
    metavar="WHERE",
    help="namespace/name on the Hub, hf://buckets/namespace/name, or file:PATH.",
)
_token = click.option(
    "--token", help="Token of the Hub (default: HF_TOKEN, or `hf auth login`)."
)
_token_file = click.option(
    "--token-file",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    help="The same from a file, which no list of processes shows; - is standard input.",
)
_confirm = click.option(
    "--confirm", metavar="NAME", help="The name again, where it would be asked for."
)


@click.command()
@_where
@click.option("--dry-run", is_flag=True, help="Write the files and the card; upload nothing.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the files (default: one beside the store, removed when it is done).",
)
@click.option(
    "--view",
    "--query",
    metavar="QUERY",
    help="Every rollout of a list: its filters (run=nightly&trainable=yes), or a saved view.",
)
@click.option("--title", help="What people call it (default: its name).")
@click.option(
    "--licence", "--license", required=True, help="Licence id that the Hub knows, or other."
)
@click.option("--licence-name", default="", help="With --licence other.")
@click.option("--licence-link", default="", help="With --licence other.")
@click.option("--description", default="", help="Your own words, at the head of the card.")
@click.option("--link-base", default="", help="Address of the explorer, for links.")
@click.option(
    "--public", is_flag=True, help="Readable by everybody; the name is asked for again."
)
@click.option("--gated", type=_GATES, help="Readers ask for access.")
@click.option("--gate-prompt", default="", help="What they read when they ask.")
@options.formats
@click.option("--bodies", is_flag=True, help="With requests and replies as text.")
@click.option("--anew", is_flag=True, help="Also where a dataset was withdrawn.")
@_confirm
@_token
@_token_file
@options.store
@options.policy
@click.argument("rollout_ids", nargs=-1, metavar="ID…")
def publish(where: str | None, **flags: Any) -> None:
    """Publish a dataset: files, manifest and a card from evidence; private unless you say so.

    Run again after it was cut short, it goes on. Run again later, it adds what is new; what
    is published never changes. Exit status: 0 when every rollout was published.
    """
    from explorer import exporting, publishing

    dry, out, public = flags["dry_run"], flags["out"], flags["public"]
    if where is None and not dry:
        raise click.UsageError("say where with --repo, or only write files: --dry-run --out")
    if dry and out is None:
        raise click.UsageError("--dry-run writes files: say where with --out")
    if not flags["rollout_ids"] and flags["view"] is None:
        raise click.UsageError("name rollouts, or give --view QUERY|NAME (an empty one: all)")
    order = exporting.Order(flags["rollout_ids"], flags["view"], exporting.DATASET, Path())
    place = None
    if where is not None and not dry:
        if public:
            _typed_again(where, flags["confirm"], "It will be readable by everybody.")
        place = publishing.Place(
            where, _the_token(flags), public, flags["gated"] or "", _endpoint()
        )
    wish = publishing.Wish(
        exporting.wanted_by(order),
        CardChoice(
            title=flags["title"] or (where or str(out)).rpartition("/")[2],
            licence=flags["licence"],
            licence_name=flags["licence_name"],
            licence_link=flags["licence_link"],
            gated=flags["gated"] is not None,
            gate_prompt=flags["gate_prompt"],
            description=flags["description"],
            link_base=flags["link_base"],
        ),
        flags["formats"] or None,
        flags["bodies"],
        place,
        out,
        flags["anew"],
    )
    sys.exit(publishing.run_publish(load(store=flags["store"], policy=flags["policy"]), wish))


@click.command()
@_where
@click.option("--reason", required=True, help="Why; readers are told.")
@click.option("--whole", is_flag=True, help="Delete the place itself, with its history.")
@_confirm
@_token
@_token_file
def withdraw(where: str | None, reason: str, whole: bool, **flags: Any) -> None:
    """Take a published dataset away: its files, or with --whole the place.

    Its name is asked for again.
    """
    from explorer import publishing

    if where is None:
        raise click.UsageError("say what with --repo")
    words = "It will be deleted with its history." if whole else "Its files will be taken away."
    _typed_again(where, flags["confirm"], words)
    place = publishing.Place(where, _the_token(flags), endpoint=_endpoint())
    sys.exit(publishing.withdraw(place, reason, whole=whole))


def _typed_again(where: str, typed: str | None, words: str) -> None:
    """Whoever does what cannot be taken back says the name twice."""
    name = where.removeprefix("hf://datasets/")
    if typed is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"{words} Say the name again: --confirm {name}")
        typed = click.prompt(f"{words} Type {name} to go on", default="", show_default=False)
    if typed != name:
        raise click.UsageError(f"{typed!r} is not {name!r}; nothing was done")


def _the_token(flags: dict[str, Any]) -> str | None:
    from explorer.publishing import read_token

    if flags["token"] and flags["token_file"]:
        raise click.UsageError("give --token or --token-file")
    given: str | None = flags["token"]
    return given or read_token(flags["token_file"])


def _endpoint() -> str:
    """Of the Hub: our own setting, or the one that the Hub's programs know."""
    settings = load()
    if "hub_endpoint" in settings.model_fields_set:
        return settings.hub_endpoint
    return os.environ.get("HF_ENDPOINT") or settings.hub_endpoint
