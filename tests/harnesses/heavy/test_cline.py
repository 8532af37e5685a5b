"""Cline CLI, real, on chat."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import CLINE
from tests.harnesses.live_harness import (
    DONE,
    Script,
    assert_nothing_lost,
    call,
    chain,
    stage,
)

TOOLS = Tools(
    write=lambda path, text: call("editor", path=path, new_text=text),
    read=lambda path: call("read_files", files=[{"path": path}]),
    shell=lambda command: call("run_commands", commands=[command]),
)
CASE = Case(CLINE, ("cline", "--auto-approve", "true", TASK), TOOLS)


@checks(CLINE, LOOP, "chat")
def test_a_tool_loop(tmp_path: Path) -> None:
    basic_loop(CASE, tmp_path, "chat")


@checks(CLINE, "a subagent, known by running inside a tool call", "chat")
def test_a_subagent(tmp_path: Path) -> None:
    child = "Count the files here and report."
    script: Script = [
        {"when": {"contains": "by-child"}, "text": "There are none."},
        {"when": {"contains": child}, "tool_calls": [TOOLS.shell("echo by-child")]},
        {"tool_calls": [call("spawn_agent", systemPrompt="You count.", task=child)]},
        DONE,
    ]
    with stage(CLINE, tmp_path, script) as here:
        # A task of one word would be taken for a command.
        ended = here.run("cline", "--auto-approve", "true", "Delegate it.", wire="chat")
        assert DONE["text"] in ended.out
        record = ended.record
        inner = [each for each in record.calls if each["role"] == "subagent"]
        assert {each["rule"] for each in inner} == {"nested_in_tool_call"}
        assert chain(record, inner) == [None, inner[0]["call_id"]]
        assert_nothing_lost(record)
