"""External custody by the command: what is said at start, and refused before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from explorer.engine.scripted import ScriptedEngine
from tests.custody.fronts import EngineApp, served

ROOT = Path(__file__).parents[2]
VARIABLE = "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN"
SERVE = [sys.executable, "-m", "explorer", "serve", "--port", "0"]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLOUT", VARIABLE))}
    return kept | {"ROLLOUT_EXPLORER_CUSTODY": "external"} | more


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (["--engine", "http://127.0.0.1:9"], {}, f"set {VARIABLE} to"),
        (["--engine", "tiny"], {VARIABLE: "x" * 32}, "needs a worker"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    tmp_path: Path, words: list[str], more: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [*SERVE, *words, "--store", str(tmp_path / "s.duckdb")],
        env=environment(**more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_it_says_who_keeps_the_tokens_and_never_the_token(tmp_path: Path) -> None:
    token = "secret-" + "y" * 32
    script = {"replies": [{"text": "Hello."}], "repeat": True}
    with served(EngineApp(ScriptedEngine(script))) as engine:
        process = subprocess.Popen(
            [*SERVE, "--engine", engine, "--store", str(tmp_path / "s.duckdb")],
            env=environment(**{VARIABLE: token}, PYTHONUNBUFFERED="1"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            lines.append(process.stdout.readline())
            if "stop " in lines[-1] or not lines[-1]:
                break
        process.send_signal(signal.SIGINT)
        lines.append(process.communicate(timeout=60)[0])
    said = "".join(lines)
    assert "custody   external" in said, said
    assert f"${VARIABLE}" in said
    assert token not in said
    for path in tmp_path.iterdir():
        assert token.encode() not in path.read_bytes(), path
