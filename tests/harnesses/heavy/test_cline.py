"""Cline CLI, real, on chat."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import CLINE
from tests.harnesses.live_harness import call

TOOLS = Tools(
    write=lambda path, text: call("editor", path=path, new_text=text),
    read=lambda path: call("read_files", files=[{"path": path}]),
    shell=lambda command: call("run_commands", commands=[command]),
)
CASE = Case(CLINE, ("cline", "--auto-approve", "true", TASK), TOOLS)


@checks(CLINE, LOOP, "chat")
def test_a_tool_loop(tmp_path: Path) -> None:
    basic_loop(CASE, tmp_path, "chat")
