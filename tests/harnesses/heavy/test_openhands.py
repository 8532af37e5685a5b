"""OpenHands, real, on chat: unary, arguments written anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harnesses.heavy.basics import LOOP, TASK, checks
from tests.harnesses.live_harness import (
    DONE,
    assert_ids_came_back,
    assert_nothing_lost,
    chain,
    stage,
)
from tests.harnesses.pythons import OPENHANDS

COMMAND = ("openhands", "--headless", "-t", TASK)


def call(name: str, **arguments: Any) -> dict[str, str]:
    """A tool call as it writes its echo: Python's blanks and ASCII escapes."""
    return {"name": name, "arguments": json.dumps(arguments)}


@checks(OPENHANDS, LOOP, "chat")
def test_a_tool_loop(tmp_path: Path) -> None:
    work = tmp_path / "work"
    create = call(
        "file_editor",
        command="create",
        path=str(work / "hello.txt"),
        file_text="héllo\n",
        security_risk="LOW",
        summary="Write",
    )
    shell = call(
        "terminal", command=f"echo two > {work}/two.txt", security_risk="LOW", summary="Two"
    )
    script: list[Any] = [
        {"text": "Writing.", "tool_calls": [create]},
        {"tool_calls": [shell]},
        DONE,
    ]
    with stage(OPENHANDS, tmp_path, script) as here:
        ended = here.run(*COMMAND, wire="chat")
        assert (work / "hello.txt").read_text() == "héllo\n"
        assert (work / "two.txt").read_text() == "two\n"
        record = ended.record
        agent = [each for each in record.calls if each["role"] == "agent"]
        assert len(agent) == 3
        assert {each["stream"] for each in agent} == {False}
        parents = [None, *(each["call_id"] for each in agent[:-1])]
        assert chain(record, agent) == parents
        assert_ids_came_back(record, agent[0], 1)
        assert_ids_came_back(record, agent[1], 1)
        assert record.details(agent[0])["claims"]["prompt_cache_key"]
        assert record.shown["harness_version"] == OPENHANDS.version()
        assert_nothing_lost(record)


@checks(OPENHANDS, "its own retry after a cut reply, and a spent budget stops it", "chat")
def test_faults(tmp_path: Path) -> None:
    cut = {"fault": "cut", "text": "lost"}
    shell = call("terminal", command="echo hi", security_risk="LOW", summary="Hi")
    with stage(OPENHANDS, tmp_path, [cut, {"tool_calls": [shell]}, DONE]) as here:
        started = here.start_with(*COMMAND, wire="chat", budgets={"calls": 1})
        ended = started.finish()
        assert ended.statuses == ["failed", "committed", "refused"]
        failed, again, _ = ended.record.calls
        assert ended.record.submitted(failed) == ended.record.submitted(again)
        assert "lost" not in ended.out
