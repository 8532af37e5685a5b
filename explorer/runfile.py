"""The run-file beside a store: how a command finds the server that has it open.

Owns: the file's place, form and rights.
Must not know: what is asked of the server.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFile:
    """A running server: its address, the operator's token and its process id."""

    url: str
    token: str
    pid: int


def path_of(store: Path) -> Path:
    """The run-file of a store."""
    return store.with_name(store.name + ".run.json")


def write(store: Path, run: RunFile) -> Path:
    """Writes the run-file, readable by this person only."""
    path = path_of(store)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        # The file may have been there with wider rights.
        os.fchmod(file.fileno(), 0o600)
        json.dump(asdict(run), file)
    return path


def read(store: Path) -> RunFile | None:
    """The running server of a store, or None when there is none (any more)."""
    try:
        run = RunFile(**json.loads(path_of(store).read_text(encoding="utf-8")))
        os.kill(run.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    return run


def remove(store: Path) -> None:
    """Removes the run-file if it is this process's."""
    run = read(store)
    if run is not None and run.pid == os.getpid():
        with contextlib.suppress(OSError):
            path_of(store).unlink()
