"""`python -m explorer.integrations.nemo_gym`: runs the reference worker.

Owns: its options, which sink they name, the weight version that a trainer writes to a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import uvicorn

from explorer.custody.protocols import WeightVersionProvider
from explorer.custody.worker import install_capture
from explorer.integrations.nemo_gym.checked import CheckedVllmAdapter
from explorer.integrations.nemo_gym.directory import DirectorySink
from explorer.integrations.nemo_gym.duckdb_sink import DuckDBSink
from explorer.integrations.nemo_gym.worker_front import WorkerFront


@click.command(
    help="Runs the reference worker: it stands before vLLM, stages the tokens of captured "
    "calls and acknowledges them to a server with external custody."
)
@click.option("--engine", required=True, help="Base address of the engine (vLLM).")
@click.option(
    "--sink",
    required=True,
    help="Where tokens are staged: directory:PATH, duckdb:FILE or transferqueue:PARTITION.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8100, show_default=True)
@click.option(
    "--weight-version",
    required=True,
    help="The trainer's weight version: a number, or file:PATH, read at every call.",
)
@click.option(
    "--sends-prefix",
    is_flag=True,
    help="The engine takes required_prefix_token_ids. Stock vLLM does not.",
)
@click.option("--timeout", "timeout_s", default=900.0, show_default=True, help="Seconds.")
def main(
    engine: str,
    sink: str,
    host: str,
    port: int,
    weight_version: str,
    sends_prefix: bool,
    timeout_s: float,
) -> None:
    """Serves until it is stopped."""
    front = front_of(
        engine,
        sink_of(sink),
        version_of(weight_version),
        sends_prefix=sends_prefix,
        timeout_s=timeout_s,
    )
    uvicorn.run(front, host=host, port=port, access_log=False, lifespan="on", ws="none")


def front_of(
    engine: str,
    storage: Any,
    weight_version: WeightVersionProvider,
    *,
    sends_prefix: bool = False,
    timeout_s: float = 900.0,
) -> WorkerFront:
    """A worker that stages into `storage` and fetches from it.

    Raises:
        ConformanceError: the digests of this code are not the frozen ones.
    """
    front = WorkerFront(engine, storage, sends_prefix=sends_prefix, timeout_s=timeout_s)
    install_capture(
        front, sink=storage, weight_version=weight_version, adapter=CheckedVllmAdapter()
    )
    return front


def sink_of(name: str) -> Any:
    """The sink that an option names.

    Raises:
        click.UsageError: it names none.
    """
    kind, _, rest = name.partition(":")
    if rest and kind == "directory":
        return DirectorySink(rest)
    if rest and kind == "duckdb":
        return DuckDBSink(rest)
    if rest and kind == "transferqueue":
        from explorer.integrations.nemo_gym.transfer_queue import TransferQueueSink

        return TransferQueueSink(rest)
    raise click.UsageError(
        f"--sink {name!r}: write directory:PATH, duckdb:FILE or transferqueue:PARTITION"
    )


def version_of(named: str) -> WeightVersionProvider:
    """Gives the version that the option names.

    Raises:
        click.UsageError: it names none.
    """
    if named.startswith("file:"):
        file = Path(named.removeprefix("file:"))
        return lambda: int(file.read_text())
    if not named.isdecimal():
        raise click.UsageError(f"--weight-version {named!r}: write a number or file:PATH")
    number = int(named)
    return lambda: number


if __name__ == "__main__":
    main()
