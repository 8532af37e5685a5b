"""OpenCode, real, on its three wires: its loop, its title, its subagents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harnesses.heavy.basics import LOOP, Case, Tools, basic_loop, checks
from tests.harnesses.installed import OPENCODE
from tests.harnesses.live_harness import (
    DONE,
    Script,
    assert_nothing_lost,
    call,
    chain,
    stage,
)

every_wire = pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
TITLE = {"when": {"tools": False}, "text": "A title"}
RUN = ("opencode", "run")
TOOLS = Tools(
    write=lambda path, text: call("write", content=text, filePath=path),
    read=lambda path: call("read", filePath=path),
    shell=lambda command: call("bash", command=command),
)
CASE = Case(OPENCODE, (*RUN, "Write hello.txt"), TOOLS, beside=(TITLE,))


@checks(OPENCODE, LOOP + "; its title is auxiliary")
@every_wire
def test_a_tool_loop(tmp_path: Path, wire: str) -> None:
    ended = basic_loop(CASE, tmp_path, wire)
    assert ended.roles.count("auxiliary") == 1
    assert len({claims["x-session-id"] for claims in ended.claims}) == 1


@checks(OPENCODE, "a subagent, known by the parent that it names", "chat")
def test_a_subagent(tmp_path: Path) -> None:
    child = "Count the files here and report."
    spawn = call("task", description="count", prompt=child, subagent_type="general")
    script: Script = [
        TITLE,
        {"when": {"contains": child}, "tool_calls": [call("bash", command="echo by-child")]},
        {"when": {"contains": "by-child"}, "text": "There are none."},
        {"tool_calls": [spawn]},
        DONE,
    ]
    with stage(OPENCODE, tmp_path, script) as here:
        ended = here.run(*RUN, "Delegate.", wire="chat")
        assert DONE["text"] in ended.out
        record = ended.record
        inner = [each for each in record.calls if each["role"] == "subagent"]
        assert [record.details(each)["claims"]["x-parent-session-id"] for each in inner]
        assert chain(record, inner) == [None, inner[0]["call_id"]]
        assert_nothing_lost(record)


FULL = {"usage": {"prompt_tokens": 31_000, "completion_tokens": 60, "total_tokens": 31_060}}


@checks(OPENCODE, "compaction: auxiliary, then a new root that says so", "chat")
def test_compaction(tmp_path: Path) -> None:
    read = {"tool_calls": [call("read", filePath=str(tmp_path / "work" / "a.txt"))]}
    script: Script = [
        {"when": {"tools": False, "anywhere": "title"}, "text": "A title"},
        {"when": {"tools": False}, "text": "SUMMARY: a.txt was read."},
        read,
        read | {"patch": FULL},
        read,
        DONE,
    ]
    with stage(OPENCODE, tmp_path, script) as here:
        (here.work / "a.txt").write_text("a\n")
        ended = here.run(*RUN, "Read a.txt", wire="chat")
        assert DONE["text"] in ended.out
        record = ended.record
        assert_nothing_lost(record)
        roles = [each["role"] for each in record.calls]
        assert roles.count("auxiliary") == 2
        root = record.calls[len(roles) - roles[::-1].index("auxiliary")]
        node = record.node(root)
        assert (node["parent_id"], node["break"]["cause"]) == (None, "compaction")
