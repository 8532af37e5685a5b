"""Continue CLI, real, on chat."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import CONTINUE
from tests.harnesses.live_harness import call

TOOLS = Tools(
    write=lambda path, text: call("Write", filepath=path, content=text),
    read=lambda path: call("Read", filepath=path),
    shell=lambda command: call("Bash", command=command),
)
# It drops reasoning from what it sends back.
CASE = Case(CONTINUE, ("cn", "--auto", "-p", TASK), TOOLS, thinks=False)


@checks(CONTINUE, LOOP, "chat")
def test_a_tool_loop(tmp_path: Path) -> None:
    basic_loop(CASE, tmp_path, "chat")
