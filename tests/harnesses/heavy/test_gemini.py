"""Gemini CLI, real, on Google's wire."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import GEMINI
from tests.harnesses.live_harness import call

TOOLS = Tools(
    write=lambda path, text: call("write_file", file_path=path, content=text),
    read=lambda path: call("read_file", file_path=path),
    shell=lambda command: call("run_shell_command", command=command),
)
CASE = Case(GEMINI, ("gemini", "--skip-trust", "--yolo", "-p", TASK), TOOLS)


@checks(GEMINI, LOOP, "google")
def test_a_tool_loop(tmp_path: Path) -> None:
    basic_loop(CASE, tmp_path, "google")
