"""Options that several commands share, and texts of theirs that need reading.

Owns: their names, defaults and help. Must not know: what a command does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

store = click.option(
    "--store", type=click.Path(path_type=Path, dir_okay=False), help="DuckDB file."
)
host = click.option("--host", help="Address to listen on (default 127.0.0.1).")
port = click.option("--port", type=int, help="Port to listen on (default 7860; 0: a free one).")
engine = click.option(
    "--engine",
    help="tiny | URL | vllm:MODEL | local:PATH_OR_HUB_ID | scripted:FILE (default tiny).",
)
model = click.option("--model", help="Model name to ask the engine for.")

budget = click.option(
    "--budget",
    multiple=True,
    metavar="NAME=VALUE",
    help=(
        "Limit of the rollout: calls, output_tokens, total_tokens, wall_s, context_tokens; "
        "or on_spent=refuse|final_turn. May be repeated."
    ),
)
streaming = click.option(
    "--streaming",
    type=click.Choice(["synthesised", "passthrough"]),
    help="Whether streams are made from the whole reply (default) or passed on.",
)

token_in = click.option(
    "--token-in/--no-token-in",
    default=None,
    help="Begin each prompt with the exact ids of the call that it continues.",
)

policy = click.option(
    "--policy", help="What may train: default, strict, async, or a TOML file of your own."
)

sql_console = click.option(
    "--sql-console/--no-sql-console",
    default=None,
    help="Let the operator run SQL (default: on loopback, and not in demo).",
)

trajectory = click.option(
    "--trajectory",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The harness's own trajectory (an ATIF file), compared with the calls.",
)

formats = click.option(
    "--with",
    "formats",
    multiple=True,
    metavar="FORMAT",
    help="Dataset: the same rollouts in one more format (sft, grpo, …); may be repeated.",
)


def pair(text: str, hint: str = "--meta") -> tuple[str, str]:
    """Name and value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not K=V", param_hint=hint)
    return name, value


def budgets(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Budgets from NAME=VALUE; the server checks names and values."""
    found: dict[str, Any] = {}
    for each in pairs:
        name, value = pair(each, "--budget")
        try:
            found[name] = value if name == "on_spent" else json.loads(value)
        except ValueError as error:
            raise click.BadParameter(
                f"{each!r}: the value must be a number", param_hint="--budget"
            ) from error
    return found
