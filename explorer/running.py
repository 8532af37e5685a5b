"""The command `run`: a harness under a fresh rollout, on the store's server or our own.

Owns: that choice, what is printed where, and the exit status. Wiring only.

Our own words go to standard error, so that the harness's standard output can be piped.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import click

from explorer import runfile, server
from explorer.errors import ConfigurationError
from explorer.harness.attempt import Report, Wanted, attempt
from explorer.harness.launch import Limits, Signals, catch_signals
from explorer.harness.profile import Profile, choose, shipped
from explorer.integrations.client import ExplorerClient
from explorer.settings import Settings, load


@dataclass(frozen=True, slots=True)
class Ending:
    """What a finished run leaves for the command to say: its status and its report."""

    exit_code: int
    report: Report


def request(flags: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[Settings, Wanted]:
    """The settings and the run that the flags of the command ask for.

    Raises:
        ConfigurationError, UsageError: they cannot be used.
    """
    command = tuple(flags["command"])
    if not command or not command[0]:
        raise click.UsageError("give the command to run behind --, or --list")
    own = ("store", "engine", "model", "host", "port", "public_url")
    settings = load(**{name: flags[name] for name in own})
    profile = choose(command, flags["harness"])
    create = {
        name: flags[name]
        for name in ("run", "task", "group", "purpose", "streaming", "budgets")
    }
    create |= {"metadata": dict(metadata)}
    token_in = {} if flags["token_in"] is None else {"token_in": flags["token_in"]}
    return settings, Wanted(
        command=command,
        profile=profile,
        wire=profile.wire_or_default(flags["wire"]),
        create={name: value for name, value in create.items() if value} | token_in,
        limits=Limits(flags["timeout"], flags["grace"]),
        ok_from_exit=flags["ok_from_exit"],
        keep_config=flags["keep_config"],
        public_url=settings.public_url,
        trajectory=flags["trajectory"],
    )


def say(text: str) -> None:
    """One line to the person, without what a terminal would obey: some of it was written by
    a harness or an engine."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    click.echo(f"[rollout-explorer] {plain}", err=True)


def private_settings(settings: Settings) -> Settings:
    """For a server of our own that nobody was told to expect: a free port, few words."""
    changed: dict[str, Any] = {}
    if "port" not in settings.model_fields_set and not settings.public_url:
        changed["port"] = 0
    if "log_level" not in settings.model_fields_set:
        changed["log_level"] = "error"
    # A harness in a container has a name for this machine that leads nowhere from here.
    changed["public_url_probe_s"] = 0.0
    return settings.model_copy(update=changed)


def run_harness(settings: Settings, wanted: Wanted, *, as_json: bool) -> int:
    """Runs, and answers with the exit status of the command.

    Raises:
        ExplorerError: nothing was run.
    """
    running = runfile.read(settings.store)
    if running is not None:
        if "engine" in settings.model_fields_set:
            say(f"engine   that of the server which has {settings.store} open is used")
        ending = server.run_loop(_on(running, wanted))
    else:
        say(f"server   nobody has {settings.store} open; one runs as long as the command")
        ending = _on_our_own(settings, wanted)
        store = shlex.quote(str(settings.store))
        say(f"look     rollout-explorer serve --store {store}")
    if as_json:
        if not str(ending.report.closing.get("stdout_tail", "\n")).endswith("\n"):
            click.echo()
        click.echo(json.dumps(ending.report.as_json(), ensure_ascii=False))
    return ending.exit_code


async def _on(
    running: runfile.RunFile, wanted: Wanted, signals: Signals | None = None
) -> Ending:
    signals = signals or catch_signals()
    async with ExplorerClient(running.url, running.token) as client:
        try:
            report = await attempt(client, wanted, signals, say)
        except aiohttp.ClientConnectionError as error:
            raise ConfigurationError(
                f"the server at {running.url} (process {running.pid}) does not answer: {error}"
            ) from error
    return Ending(report.exit_code, report)


def _on_our_own(settings: Settings, wanted: Wanted) -> Ending:
    """Serves for as long as the command runs."""
    # The store is this person's only; the command's files are its own business.
    theirs = os.umask(0o077)
    found: list[Ending] = []

    async def ready(_application: Any, _url: str) -> bool:
        # The server has its own handlers by now; ours take their place until the end.
        signals = catch_signals()
        running = runfile.read(settings.store)
        if running is None:
            raise ConfigurationError(f"the run-file of {settings.store} has disappeared")
        found.append(await _on(running, replace(wanted, umask=theirs), signals))
        return False

    server.run_loop(server.run(private_settings(settings), ready))
    return found[0]


def list_profiles(*, as_json: bool) -> None:
    """Prints every profile."""
    profiles = shipped().values()
    if as_json:
        click.echo(json.dumps([profile_json(profile) for profile in profiles], indent=1))
        return
    for profile in profiles:
        click.echo(f"{profile.name:<15} {', '.join(profile.wires)}")
        for line in (
            profile.title,
            "points: " + pointed(profile),
            f"e.g.:   {profile.example}",
        ):
            click.echo(f"{'':<15} {line}")


def pointed(profile: Profile) -> str:
    """How the harness is told where to go, in one line."""
    names = [*profile.env, *(name for env in profile.wire_env.values() for name in env)]
    parts = [" ".join(dict.fromkeys(names))]
    parts += [f"file {file.path}" for file in profile.files]
    parts += ["arguments " + " ".join(item.add) for item in profile.arguments]
    return "; ".join(part for part in parts if part)


def profile_json(profile: Profile) -> dict[str, Any]:
    """A profile for programs."""
    return {
        "name": profile.name,
        "title": profile.title,
        "wires": list(profile.wires),
        "commands": list(profile.commands),
        "environment": {wire: profile.environment(wire) for wire in profile.wires},
        "unset": list(profile.unset),
        "files": {
            wire: [file.path for file in profile.files_for(wire)] for wire in profile.wires
        },
        "arguments": [list(item.add) for item in profile.arguments],
        "example": profile.example,
        "needs": profile.needs,
        "notes": profile.notes,
        "terminal_response": (
            profile.terminal_response.pattern if profile.terminal_response else None
        ),
        "trajectory": profile.trajectory,
    }
