"""The command `rollout-explorer`. Wiring only: flags to settings, answers to text."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from explorer import __version__, options, runfile
from explorer.access_commands import audit, grants, roles, visibility
from explorer.commands import on_server, print_json, rollouts
from explorer.errors import ExplorerError
from explorer.publish_commands import publish, withdraw
from explorer.settings import load
from explorer.trainer_commands import trainer_logprobs
from explorer.weight_commands import weights


class _Group(click.Group):
    """Shows our own errors as one sentence instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ExplorerError as error:
            click.secho(f"rollout-explorer: {error.message}", fg="red", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rollout-explorer")
def cli() -> None:
    """See, token by token, what an agent was really trained on.

    Settings are environment variables ROLLOUT_EXPLORER_<NAME> or keys of the TOML file
    that ROLLOUT_EXPLORER_CONFIG names; a flag wins over both.
    """


for _group in (
    *(rollouts, grants, visibility, roles, audit, publish, withdraw),
    *(weights, trainer_logprobs),
):
    cli.add_command(_group)


def main() -> NoReturn:
    """The console script."""
    cli()
    sys.exit(0)


def _private() -> None:
    """New files are this person's only: they hold prompts, replies and a token."""
    os.umask(0o077)


@cli.command()
@options.engine
@options.model
@options.store
@options.host
@options.port
@click.option("--tokenizer", help="Tokenizer (path or Hub id) that decodes ids for people.")
@click.option("--top-logprobs", type=int, help="Alternatives recorded per token (0 to 20).")
@click.option(
    "--allow-uncertified",
    is_flag=True,
    default=None,
    help="Count an engine without a passing certificate as trainable; exports say so.",
)
@options.policy
@options.sql_console
def serve(**flags: Any) -> None:
    """Serve the proxy and the pages."""
    from explorer import server
    from explorer.announcing import announce

    settings = load(**flags)
    _private()
    server.run_loop(server.run(settings, announce(settings)))


@cli.command()
@options.port
@options.host
@options.store
@options.policy
@options.sql_console
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of the tasks.")
@click.option("--attempts", type=int, default=4, show_default=True, help="Rollouts a task.")
@click.option("--exit", "leave", is_flag=True, help="Record, then exit instead of serving.")
@click.option(
    "--public",
    is_flag=True,
    help="Show a read-only store to anybody: the profile `public`. It is recorded first "
    "where there is none.",
)
@click.option("--reseed", is_flag=True, help="With --public: record the store again.")
def demo(
    seed: int, attempts: int, leave: bool, public: bool, reseed: bool, **flags: Any
) -> None:
    """Everything on one machine: record real rollouts with the built-in engine, and serve."""
    from explorer import demoing

    if flags["store"] is None and not os.environ.get("ROLLOUT_EXPLORER_STORE"):
        flags["store"] = Path("demo-store") / "rollouts.duckdb"
    if public:
        flags["profile"] = "public"
    flags["sql_console"] = bool(flags["sql_console"])
    settings = load(**flags, engine="tiny")
    wanted = demoing.Wanted(seed, attempts, leave)
    _private()
    if settings.profile == "public":
        demoing.run_public(settings, wanted, reseed=reseed)
    elif reseed:
        raise click.UsageError("--reseed goes with --public")
    else:
        demoing.run_local(settings, wanted)


@cli.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
@click.option("--harness", metavar="PROFILE", help="Profile, or a TOML file with one.")
@click.option("--wire", metavar="DIALECT", help="What it shall speak (default: its first).")
@options.store
@options.engine
@options.model
@options.host
@options.port
@click.option("--public-url", help="Address that the harness reaches the server by.")
@click.option("--run", help="Name of the run it belongs to.")
@click.option("--task", help="What is attempted.")
@click.option("--group", help="Rollouts compared with each other.")
@click.option("--purpose", type=click.Choice(["train", "eval"]), default="train")
@click.option("--meta", multiple=True, metavar="K=V", help="Metadata; may be repeated.")
@click.option("--ok-from-exit", is_flag=True, help="Exit code 0: succeeded; other: failed.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), help="Longest run (seconds)."
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="From a signal or the time-out to SIGKILL for all it started (seconds).",
)
@options.trajectory
@click.option("--keep-config", is_flag=True, help="Do not remove the written files.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
@click.option("--list", "listing", is_flag=True, help="Print the profiles and exit.")
@options.budget
@options.streaming
@options.token_in
def run(**flags: Any) -> None:
    """Run a harness under a fresh rollout, and close it when the harness ends.

    The harness is pointed at the server that has the store open, or at one that is started
    for as long as the command runs. Exit status: that of CMD, 128 + n after signal n; 124
    when it timed out and still ended with 0; 127 when there is no such command.
    """
    from explorer.running import list_profiles, request, run_harness

    if flags.pop("listing"):
        list_profiles(as_json=flags["as_json"])
        return
    flags["budgets"] = options.budgets(flags.pop("budget"))
    settings, wanted = request(flags, dict(options.pair(text) for text in flags.pop("meta")))
    sys.exit(run_harness(settings, wanted, as_json=flags["as_json"]))


@cli.command()
@options.engine
@options.model
@click.option("--calibrate", is_flag=True, help="Also draw 200 tokens and test them (E).")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def doctor(calibrate: bool, as_json: bool, **flags: Any) -> None:
    """What this engine returns, and what is therefore trainable."""
    from explorer.doctor import examine, in_words

    settings = load(**flags)
    report = asyncio.run(examine(settings, calibrate=calibrate))
    click.echo(json.dumps(report, indent=1) if as_json else in_words(report))
    sys.exit(0 if report["passing"] else 1)


@cli.command()
@click.option(
    "--format",
    "format_",
    type=click.Choice(["training-trace", "capture-audit", "contract", "parquet", "zip"]),
    default="training-trace",
    show_default=True,
    help="A document a rollout, or one dataset of all of them: `parquet` a folder, `zip` a "
    "file.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="A file; a folder for several rollouts and for a dataset.",
)
@click.option("--needs", default="", help="What the reader cannot do without: reward.")
@click.option(
    "--notes", is_flag=True, help="Capture audit: with the labels and notes of people."
)
@click.option(
    "--view",
    "--query",
    metavar="QUERY",
    help="Every rollout of a list: its filters (run=nightly&trainable=yes), or a saved view.",
)
@click.option("--bodies", is_flag=True, help="Dataset: with requests and replies as text.")
@options.formats
@click.option(
    "--row-group-mb",
    type=click.FloatRange(min=0, min_open=True, max=1000),
    default=40.0,
    show_default=True,
    help="Dataset: size of a row group before it is compressed.",
)
@click.option(
    "--shard-mb",
    type=click.FloatRange(min=0, min_open=True, max=100_000),
    default=256.0,
    show_default=True,
    help="Dataset: size of a file.",
)
@click.argument("rollout_ids", nargs=-1, metavar="ID…")
@options.store
@options.policy
def export(view: str | None, **flags: Any) -> None:
    """Write the documents of rollouts to files, or a dataset; what may not leave says why.

    Exit status: 0 when every one was written.
    """
    from explorer import exporting

    how = {name: flags.pop(name) for name in ("bodies", "row_group_mb", "shard_mb", "formats")}
    named = flags.pop("rollout_ids")
    if not named and view is None:
        raise click.UsageError("name rollouts, or give --view QUERY|NAME (an empty one: all)")
    order = exporting.Order(
        named,
        view,
        flags.pop("format_"),
        flags.pop("out"),
        flags.pop("needs"),
        flags.pop("notes"),
    )
    if order.format not in (exporting.DATASET, exporting.ARCHIVE):
        if how["formats"] or how["bodies"]:
            raise click.UsageError("--with and --bodies go with --format parquet or zip")
        sys.exit(exporting.export(load(**flags), order))
    if order.needs or order.notes:
        raise click.UsageError("--needs and --notes go with documents, not with a dataset")
    sys.exit(exporting.export_parquet(load(**flags), order, how))


@cli.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--run", default="imported", show_default=True, help="Run they shall belong to.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["auto", "openenv", "verifiers", "atif", "harbor", "trl"]),
    default="auto",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print the answers as JSON.")
@options.store
def import_(path: Path, run: str, format_: str, as_json: bool, **flags: Any) -> None:
    """Read captures of other systems: OpenEnv, verifiers, ATIF, Harbor trials, TRL completions.

    They become rollouts to look at and never train. PATH is a file, a trial folder, or a folder
    of either. Exit status: 0 when everything could be read.
    """
    from explorer.importing import import_path

    sys.exit(import_path(load(**flags), path, run, format_, as_json=as_json))


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="PATH|DIR|ID…")
@click.option(
    "--against",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The Capture audit of the same rollout, for a Training trace.",
)
@click.option(
    "--receipts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With a Capture audit: the receipts of its rollout, as the API gives them.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The key that signed the receipts: a public key in PEM, or the shared secret.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
@options.store
def verify(names: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Check exported files or datasets by themselves, or rollouts of the store by id.

    An audit and every rollout of a dataset are judged again, and must say what follows from
    their own contents; a trace must keep every rule of its contract. Exit status: 0 when all
    hold together, whatever the verdicts.
    """
    from explorer import exporting

    files = {name: flags.pop(name) for name in ("against", "receipts", "key")}
    if files["key"] is not None and files["receipts"] is None:
        raise click.UsageError("--key checks the signatures of --receipts")
    beside = exporting.Beside(**files)
    sys.exit(exporting.check(load(**flags), names, beside, as_json=as_json))


@cli.command()
@click.argument("rollout_id")
@options.store
@click.option("--tokenizer", help="Tokenizer with the chat template (path or Hub id).")
@click.option("--json", "as_json", is_flag=True)
def drift(rollout_id: str, as_json: bool, **flags: Any) -> None:
    """Would rendering its requests here give the prompts that the engine read?

    A server that has the store open uses its own tokenizer. For information only: the ids
    that train are always the engine's.
    """
    from explorer.drifting import in_words, whole

    found = on_server(load(**flags), lambda client: whole(client, rollout_id))
    print_json(found) if as_json else click.echo(in_words(found))


@cli.command()
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@options.store
def backup(target: Path, **flags: Any) -> None:
    """Copy the store, consistent, also while a server has it open."""
    from explorer.reach import backup_store

    print_json(asyncio.run(backup_store(load(**flags), target.absolute())))


@cli.command()
@options.store
def migrate(**flags: Any) -> None:
    """Bring the store's tables to this version (a copy is kept)."""
    from explorer.store import maintenance
    from explorer.web.api_shapes import plain

    settings = load(**flags)
    _must_exist(settings.store)
    print_json(plain(maintenance.migrate(settings.store, app_version=__version__)))


@cli.command()
@options.store
def compact(**flags: Any) -> None:
    """Copy the living rollouts to a fresh file and swap it in; deleted ones are gone."""
    from explorer.store import maintenance
    from explorer.web.api_shapes import plain

    settings = load(**flags)
    _must_exist(settings.store)
    print_json(plain(maintenance.compact(settings.store, app_version=__version__)))


def _must_exist(store: Path) -> None:
    if not store.is_file():
        raise click.UsageError(f"there is no store at {store}; name one with --store")
    run = runfile.read(store)
    if run is not None:
        raise click.UsageError(
            f"the server at {run.url} (process {run.pid}) has {store} open; stop it first"
        )
