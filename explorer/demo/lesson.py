"""A policy that really learns, as one command: `python -m explorer.demo.lesson`.

Owns: the lesson's server, its options, and what stands at the end.
Must not know: the server's insides; it is a process like any other.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from explorer.demo.lesson_training import LEARNING_RATE, RUN, STEPS, Wanted, teach
from explorer.errors import ConfigurationError, ExplorerError
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.client import ApiError

_START_S = 60.0
_NEEDED = ("torch", "trl", "datasets")


@contextmanager
def lesson_server(folder: Path, port: int) -> Iterator[tuple[ExplorerServer, Any]]:
    """A server with the tiny engine on a fresh store, in a process of its own.

    Its log is `server.log` in the folder.

    Raises:
        ConfigurationError: it did not start; says where its log is.
    """
    token = secrets.token_urlsafe(24)
    log = folder / "server.log"
    command = [
        *(sys.executable, "-m", "explorer", "serve", "--engine", "tiny"),
        *("--store", str(folder / "rollouts.duckdb"), "--port", str(port)),
    ]
    environment = os.environ | {"ROLLOUT_EXPLORER_ADMIN_TOKEN": token}
    with log.open("wb") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)  # noqa: S603
    server = ExplorerServer(f"http://127.0.0.1:{port}", token)
    try:
        until = time.monotonic() + _START_S
        while not _answers(server):
            if process.poll() is not None or time.monotonic() > until:
                raise ConfigurationError(f"the server did not start; {log} says why")
            time.sleep(0.2)
        yield server, process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _answers(server: ExplorerServer) -> bool:
    # `/readyz` would do, but another server on this port would answer it, too.
    with suppress(OSError, ApiError):
        return server.request("GET", "/api/v1/weights")["weight_version"] is None
    return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--folder", type=click.Path(path_type=Path), help="For store, weights and log.")
@click.option("--port", default=7860, show_default=True, help="Of the server; 0: a free one.")
@click.option("--seed", default=7, show_default=True, help="Of tasks and trainer.")
@click.option("--steps", default=STEPS, show_default=True, help="Optimiser steps.")
@click.option("--learning-rate", default=LEARNING_RATE, show_default=True)
@click.option("--serve/--no-serve", default=True, help="Leave the server up at the end.")
def main(
    folder: Path | None, port: int, seed: int, steps: int, learning_rate: float, serve: bool
) -> None:
    """Improve the shipped tiny model by GRPO through the proxy, and look at every token."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"{', '.join(missing)} is not installed here: `make train-demo` installs it"
        )
    # A kill ends the server, too, which runs in a process of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _lesson(folder, port or _free_port(), (seed, steps, learning_rate), serve)
    except ExplorerError as error:
        raise click.ClickException(str(error)) from error


def _lesson(folder: Path | None, port: int, how: tuple[int, int, float], serve: bool) -> None:
    where = folder or Path("demo-store") / f"lesson-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if (where / "rollouts.duckdb").exists():
        raise ConfigurationError(f"{where} has the store of another lesson; name a new folder")
    where.mkdir(parents=True, exist_ok=True)
    seed, steps, learning_rate = how
    wanted = Wanted(
        model=Path(str(files("explorer.engine.tiny"))) / "weights",
        folder=where / "weights",
        seed=seed,
        steps=steps,
        learning_rate=learning_rate,
    )
    with lesson_server(where, port) as (server, process):
        click.echo(f"watch it  {server.url}/runs/{RUN}")
        result = teach(server, wanted, click.echo)
        click.secho(result.told(), bold=True)
        click.echo(f"weights   {wanted.folder}")
        if serve:
            click.secho(f"Open {server.url}/runs/{RUN}  (Ctrl-C stops the server)", bold=True)
            with suppress(KeyboardInterrupt):
                process.wait()


if __name__ == "__main__":
    main()
