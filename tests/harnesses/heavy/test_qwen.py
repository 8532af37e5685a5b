"""Qwen Code, real, on chat."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import QWEN
from tests.harnesses.live_harness import call

TOOLS = Tools(
    write=lambda path, text: call("write_file", file_path=path, content=text),
    read=lambda path: call("read_file", file_path=path),
    shell=lambda command: call("run_shell_command", command=command, is_background=False),
)
# At the end it looks for things worth remembering, with a prompt and tools of its own.
MEMORY = {"when": {"anywhere": "memory extraction"}, "text": "Nothing to remember."}
CASE = Case(QWEN, ("qwen", "--yolo", "-p", TASK), TOOLS, beside=(MEMORY,))


@checks(QWEN, LOOP, "chat")
def test_a_tool_loop(tmp_path: Path) -> None:
    basic_loop(CASE, tmp_path, "chat")
