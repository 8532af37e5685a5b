"""Qwen Code, real, on chat."""

from __future__ import annotations

from pathlib import Path

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.installed import QWEN
from tests.harnesses.live_harness import (
    DONE,
    Script,
    assert_nothing_lost,
    call,
    chain,
    stage,
)

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


@checks(QWEN, "a background subagent is on record as a conversation of its own", "chat")
def test_a_background_subagent(tmp_path: Path) -> None:
    child = "Count the files here and report."
    spawn = call("agent", description="count", prompt=child, subagent_type="general-purpose")
    script: Script = [
        MEMORY,
        {"when": {"contains": "by-child"}, "text": "There are none."},
        {"when": {"contains": child}, "tool_calls": [TOOLS.shell("echo by-child")]},
        {"tool_calls": [spawn]},
        # It does not wait for the child; a notice of its end makes a turn of its own.
        DONE,
        DONE,
    ]
    with stage(QWEN, tmp_path, script) as here:
        ended = here.run("qwen", "--yolo", "-p", "Delegate it.", wire="chat")
        assert DONE["text"] in ended.out
        record = ended.record
        # Nothing that it sends names the parent, and the parent does not wait.
        inner = [
            each
            for each in record.calls
            if "general-purpose subagent" in str(record.submitted(each)["messages"][0])
        ]
        assert chain(record, inner) == [None, inner[0]["call_id"]]
        assert_nothing_lost(record)
