"""The command `import`: files and folders to the store's server. Wiring only.

Owns: which files of a folder are meant, what is printed, the exit status.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from explorer.errors import ConfigurationError
from explorer.export.readers.harbor import FILES, KIND
from explorer.integrations.client import ApiError, ExplorerClient
from explorer.reach import reach
from explorer.running import say
from explorer.server import run_loop
from explorer.settings import Settings


def import_path(
    settings: Settings, path: Path, run: str, format_: str, *, as_json: bool
) -> int:
    """Imports every capture at `path`.

    Returns:
        The exit status: 0 when all of them could be read.
    """
    found = captures(path)

    async def work(client: ExplorerClient) -> int:
        failed, answers = 0, []
        for name, data in found:
            query = urlencode({"format": format_, "run": run, "file": name}, errors="replace")
            try:
                answer = await client.send("/api/v1/imports?" + query, data)
            except ApiError as error:
                failed += 1
                say(f"refused  {name}: {error.message}")
                continue
            answers.append({"file": name, **answer})
            count = len(answer["imported"])
            said = f"{count} rollout{'' if count == 1 else 's'} imported as {answer['format']}"
            if answer["known"]:
                said += f", {len(answer['known'])} were imported before"
            say(f"read     {name}: {said}")
            for rollout_id in answer["imported"]:
                if not as_json:
                    click.echo(rollout_id)
        if as_json:
            click.echo(json.dumps(answers, indent=1))
        return failed

    return 1 if run_loop(reach(settings, work)) else 0


def captures(path: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of each capture: of a file, of a trial folder, of a folder of either.

    Raises:
        ConfigurationError: there is none, or it cannot be read.
    """
    try:
        if path.is_file():
            return [(path.name, path.read_bytes())]
        if any((path / name).is_file() for name in FILES):
            return [(path.name, _trial(path))]
        found = [
            (f"{each.parent.name}/{each.name}", each.read_bytes())
            for pattern in ("traces.jsonl", "*.parquet", "completions/*.parquet")
            for each in sorted(path.glob(pattern))
        ]
        found += [
            (each.name, _trial(each))
            for each in sorted(path.iterdir())
            if each.is_dir() and any((each / name).is_file() for name in FILES)
        ]
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigurationError(
            f"{path} holds no capture: no traces.jsonl, no *.parquet, no trial of Harbor "
            "(result.json, agent/trajectory.json)"
        )
    return found


def _trial(folder: Path) -> bytes:
    files: dict[str, Any] = {
        name: (folder / name).read_bytes().decode("utf-8", "surrogateescape")
        for name in FILES
        if (folder / name).is_file()
    }
    return json.dumps({"kind": KIND, "files": files}).encode()
