"""Asks a harness for its version before it runs.

Owns: how that is asked and what counts as an answer.
Must not know: rollouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from explorer.harness.prepare import Target, clean
from explorer.harness.profile import Profile, fill, program_at

_WAIT_S = 10.0
_NUMBER = re.compile(r"\d+\.\d+[\w.+-]*")
_PYTHON = re.compile(r"(?:pypy|python)[\d.]*")


async def harness_version(
    profile: Profile, command: tuple[str, ...], home: Path, inherited: Mapping[str, str]
) -> str | None:
    """The version, or None where it cannot be had.

    The harness is asked with its own folder `home` and with no address to call.
    """
    asked = _question(profile, command)
    if asked is None:
        return None
    nowhere = Target("", "none", "", *("http://127.0.0.1:9",) * 3, model="none")
    values = nowhere.values(profile.wires[0], home)
    environment = clean(inherited, profile) | {
        name: fill(text, values) for name, text in profile.env.items()
    }
    answer = await asyncio.to_thread(_ask, asked, environment)
    found = _NUMBER.search(answer)
    return found[0][:100] if found else None


def _question(profile: Profile, command: tuple[str, ...]) -> list[str] | None:
    program = command[: program_at(command) + 1]
    if profile.package:
        interpreter = list(program)
        if profile.runs(command):
            interpreter = _interpreter(program[-1])
        if interpreter and _PYTHON.fullmatch(Path(interpreter[-1]).name):
            code = f"import importlib.metadata as m; print(m.version({profile.package!r}))"
            return [*interpreter, "-c", code]
    if not profile.version or not profile.runs(command):
        return None
    asked: list[str] = []
    for word in profile.version:
        asked += program if word == "{program}" else (word,)
    return asked


def _interpreter(program: str) -> list[str]:
    """What an installed Python script names in its first line."""
    path = shutil.which(program)
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            first = file.readline(500)
    except OSError:
        return []
    return first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []


def _ask(asked: list[str], environment: Mapping[str, str]) -> str:
    try:
        process = subprocess.Popen(  # noqa: S603 - the person's own program
            asked,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            process_group=0,
        )
    except (OSError, ValueError):
        return ""
    with process:
        try:
            answer, _ = process.communicate(timeout=_WAIT_S)
        except subprocess.TimeoutExpired:
            answer = b""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    return answer.decode("utf-8", "replace") if process.returncode == 0 else ""
