"""The command `trainer-logprobs`: a trainer's file to the store's server. Wiring only.

Owns: what is sent together, what is printed, the exit status.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from explorer import options
from explorer.errors import ConfigurationError
from explorer.export.trainer_files import FORMATS, Line, read_lines
from explorer.integrations.client import ApiError, ExplorerClient
from explorer.settings import Settings, load

# Bytes of rows that are sent in one request; the server takes 64 MiB unless told otherwise.
_AT_ONCE = 8 * 1024 * 1024


@click.command("trainer-logprobs")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="jsonl",
    show_default=True,
    help="Whose file it is; a row without ids of ours is matched by its tokens.",
)
@click.option("--run", help="Run whose calls the rows are about; needed for such rows.")
@click.option(
    "--weight-version", type=click.IntRange(min=0), help="Weights that computed them."
)
@click.option("--source", help="Who computed them, such as `trl`. Default: the format's name.")
@click.option(
    "--kind",
    type=click.Choice(["trainer", "trainer_repeat", "reference"]),
    default="trainer",
    show_default=True,
    help="`trainer_repeat`: the same tokens computed again, for the noise floor.",
)
@options.store
def trainer_logprobs(path: Path, format_: str, **flags: Any) -> None:
    """Send a trainer's logprobs of sampled tokens, to compare them with the engine's.

    PATH is a file of JSON lines: ours, TRL's batches, prime-rl's token_exports or NeMo RL's
    train_data_step files. Nothing is stored of a file that cannot be read whole. Exit status:
    0 when every line told of a call, 1 otherwise.
    """
    head = {
        "source": flags.pop("source") or ("file" if format_ == "jsonl" else format_),
        "weight_version": flags.pop("weight_version"),
        "kind": flags.pop("kind"),
    }
    run = flags.pop("run")
    sys.exit(send(load(**flags), path, (format_, run), head))


def send(
    settings: Settings, path: Path, how: tuple[str, str | None], head: dict[str, Any]
) -> int:
    """Sends a file.

    Args:
        how: the format, and the run that rows are about.
        head: source, version and kind, where a line does not say.

    Returns:
        The exit status.
    """
    # They load the whole server, which most commands do without.
    from explorer.reach import reach
    from explorer.running import say
    from explorer.server import run_loop

    format_, run = how
    try:
        lines = list(read_lines(path.read_bytes(), format_))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    rows = [line for line in lines if line.rollout_id is None]
    if not lines:
        raise ConfigurationError(f"{path} holds no line")
    if rows and run is None:
        raise ConfigurationError(
            f"line {rows[0].number} has no `rollout_id`: name the run with --run, so that the "
            "calls can be found by their tokens"
        )

    async def work(client: ExplorerClient) -> int:
        failed = 0
        for address, body, numbers in _requests(lines, run, head):
            try:
                # As text, so that an infinity arrives as one.
                answer = await client.send(address, json.dumps(body).encode())
            except ApiError as error:
                failed += 1
                told = error.message
                if not told.startswith("line "):
                    told = f"{_said(numbers)}: {told}"
                say(f"refused  {told}")
                continue
            lost = answer.get("unmatched", [])
            failed += len(lost)
            told = ", ".join(f"{answer[name]} {name}" for name in ("stored", "replaced"))
            if answer["stored"]:
                say(f"sent     {_said(numbers)}: {told} calls")
            if lost:
                shown = ", ".join(map(str, lost[:20])) + (", …" if len(lost) > 20 else "")
                say(f"no call  has the tokens of line {shown}")
        return failed

    return 1 if run_loop(reach(settings, work)) else 0


def _requests(
    lines: list[Line], run: str | None, head: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], list[int]]]:
    """Address, body and line numbers of each request."""
    rows: list[Line] = []
    size = 0
    for line in lines:
        if line.rollout_id is not None:
            address = f"/api/v1/rollouts/{quote(line.rollout_id, safe='')}/trainer-logprobs"
            given = {key: value for key, value in head.items() if value is not None}
            yield address, {**given, **line.posting}, [line.number]
            continue
        rows.append(line)
        size += len(json.dumps(line.row))
        if size >= _AT_ONCE:
            yield _of_rows(rows, run, head)
            rows, size = [], 0
    if rows:
        yield _of_rows(rows, run, head)


def _of_rows(
    rows: list[Line], run: str | None, head: dict[str, Any]
) -> tuple[str, dict[str, Any], list[int]]:
    address = f"/api/v1/runs/{quote(run or '', safe='')}/trainer-logprobs"
    body = {**head, "rows": [dict(line.row) for line in rows]}
    return address, body, [line.number for line in rows]


def _said(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    return f"lines {numbers[0]} to {numbers[-1]}"
