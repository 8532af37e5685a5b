"""The commands `rollouts …`: list, show, create, reward, override, close. Wiring only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from explorer import options, runfile
from explorer.settings import Settings, load

T = TypeVar("T")


def on_server(settings: Settings, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Runs `work` against the server that has the store open, or a short-lived one."""
    from explorer.reach import reach

    return asyncio.run(reach(settings, work))


def print_json(value: Any) -> None:
    """A value for people and programs alike: what a terminal would obey is escaped."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    click.echo(
        "".join(
            letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]
            for letter in text
        )
    )


@click.group()
def rollouts() -> None:
    """List, show, create, reward, decide about and close rollouts."""


@rollouts.command("list")
@options.store
@click.option(
    "--query", default="", help="Filters as in the page's address: run=…&trainable=yes"
)
@click.option("--json", "as_json", is_flag=True)
def list_rollouts(query: str, as_json: bool, **flags: Any) -> None:
    """Newest rollouts first."""
    page = on_server(load(**flags), lambda client: client.list(query))
    if as_json:
        print_json(page)
        return
    for row in page["rollouts"]:
        reward = "-" if row["reward"] is None else f"{row['reward']:g}"
        judged = row["judgement"] or {}
        verdict = "not judged"
        if judged:
            verdict = "trainable" if judged["trainable"] else "not trainable"
        line = (
            f"{row['rollout_id']}  {row['run']:<12} {row['task'] or '-':<14} "
            f"{row['status']:<7} reward {reward:<5} {row['n_calls']:>3} calls  {verdict}"
        )
        # A name may hold what a terminal would obey.
        click.echo("".join(letter if letter.isprintable() else "?" for letter in line))
    click.echo(f"{len(page['rollouts'])} of {page['total']}")


@rollouts.command("show")
@click.argument("rollout_id")
@options.store
def show_rollout(rollout_id: str, **flags: Any) -> None:
    """Status, counts and the verdict with its reasons."""
    print_json(on_server(load(**flags), lambda client: client.show(rollout_id)))


@rollouts.command("create")
@options.store
@click.option("--run", help="Name of the run it belongs to.")
@click.option("--task", help="What is attempted.")
@click.option("--group", help="Rollouts compared with each other.")
@click.option("--purpose", type=click.Choice(["train", "eval"]), default="train")
@click.option("--meta", multiple=True, metavar="K=V", help="Metadata; may be repeated.")
@options.budget
@options.streaming
@options.token_in
def create_rollout(meta: tuple[str, ...], budget: tuple[str, ...], **flags: Any) -> None:
    """A new rollout; prints its id, secret key and base addresses (shown this once).

    Needs a running server: a rollout carries the certificate of the engine that samples.
    """
    settings = load(store=flags.pop("store"))
    if runfile.read(settings.store) is None:
        raise click.UsageError(
            f"no server has {settings.store} open; start one with `rollout-explorer serve "
            f"--store {settings.store}`"
        )
    wanted = {name: value for name, value in flags.items() if value is not None}
    wanted["metadata"] = dict(options.pair(text) for text in meta)
    wanted["budgets"] = options.budgets(budget)
    print_json(on_server(settings, lambda client: client.create_rollout(**wanted)))


@rollouts.command("reward")
@click.argument("rollout_id")
@click.argument("value", type=float)
@options.store
def reward_rollout(rollout_id: str, value: float, **flags: Any) -> None:
    """Record a reward; the latest counts."""
    on_server(load(**flags), lambda client: client.reward(rollout_id, value))
    click.echo(f"{rollout_id} reward {value:g}")


@rollouts.command("close")
@click.argument("rollout_id")
@options.store
@click.option("--ok/--failed", default=None, help="Did the attempt end as it should?")
@click.option("--reason", help="Why it ended.")
@options.trajectory
def close_rollout(
    rollout_id: str, ok: bool | None, reason: str | None, trajectory: Path | None, **flags: Any
) -> None:
    """Seal a rollout: later calls are refused."""
    from explorer.harness.trajectory import read_document

    document = None if trajectory is None else read_document(trajectory)
    wanted = {"ok": ok, "reason": reason, "trajectory": document}
    how = {name: value for name, value in wanted.items() if value is not None}
    answer = on_server(load(**flags), lambda client: client.close_rollout(rollout_id, **how))
    if trajectory is not None:
        click.echo(f"trajectory: {answer['trajectory']}", err=True)
    print_json(answer["verdict"])


@rollouts.command("override")
@click.argument("rollout_id")
@click.argument(
    "kind",
    type=click.Choice(
        ["exclude_call", "exclude_span", "role", "accept_versions", "accept_logprobs"]
    ),
)
@click.option("--reason", required=True, help="Why; it is kept and shown.")
@click.option("--who", help="Who decides (default: operator).")
@click.option("--call", "call_id", help="The call it is about.")
@click.option("--role", help="For `role`: agent, subagent, auxiliary, discarded or failed.")
@click.option(
    "--start", type=int, help="For `exclude_span`: first token of prompt + completion."
)
@click.option("--end", type=int, help="For `exclude_span`: the token after the last.")
@options.store
def override_rollout(rollout_id: str, **flags: Any) -> None:
    """Record a decision; it may remove tokens, change a role or accept logprobs or versions."""
    settings = load(store=flags.pop("store"))
    wanted = {name: value for name, value in flags.items() if value is not None}
    path = f"/api/v1/rollouts/{rollout_id}/overrides"
    answer = on_server(settings, lambda client: client.request("POST", path, wanted))
    print_json(answer["verdict"])
