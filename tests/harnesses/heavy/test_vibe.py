"""Mistral Vibe, real, on chat: an exact echo, live streams, retries and their end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.heavy.basics import LOOP, TASK, Case, Tools, basic_loop, checks
from tests.harnesses.live_harness import (
    DONE,
    assert_ids_came_back,
    assert_nothing_lost,
    chain,
    stage,
)
from tests.harnesses.pythons import VIBE, exact

TOOLS = Tools(
    write=lambda path, text: exact("write_file", path=path, content=text),
    read=lambda path: exact("read_file", path=path),
    shell=lambda command: exact("bash", command=command),
)
COMMAND = ("vibe", "--trust", "--auto-approve", "-p", TASK)
CASE = Case(VIBE, COMMAND, TOOLS)


@checks(VIBE, LOOP, "chat")
def test_a_tool_loop(tmp_path: Path) -> None:
    ended = basic_loop(CASE, tmp_path, "chat")
    assert {claims["x-affinity"] for claims in ended.claims} != {None}


def write(folder: Path) -> dict[str, Any]:
    path = str(folder / "work" / "hello.txt")
    return {
        "reasoning": "First I write.",
        "text": " Writing. ",
        "tool_calls": [TOOLS.write(path, "héllo\n")],
    }


@checks(VIBE, "the echo is byte-exact: odd blanks and escapes come back", "chat")
def test_an_exact_echo(tmp_path: Path) -> None:
    path = str(tmp_path / "work" / "hello.txt")
    odd = f'{{ "content" : "h\\u00e9llo" , "path": {json.dumps(path)} }}'
    script: list[Any] = [{"tool_calls": [{"name": "write_file", "arguments": odd}]}, DONE]
    with stage(VIBE, tmp_path, script) as here:
        ended = here.run(*COMMAND, wire="chat")
        assert (here.work / "hello.txt").read_text() == "héllo"
        first, second = ended.record.calls
        assert chain(ended.record, [second]) == [first["call_id"]]
        echoed = ended.record.submitted(second)["messages"][2]
        assert echoed["tool_calls"][0]["function"]["arguments"] == odd


@checks(VIBE, "its own retry after {fault}", "chat")
@pytest.mark.parametrize("fault", ["429", "cut"])
def test_its_own_retry(tmp_path: Path, fault: str) -> None:
    faults: dict[str, dict[str, Any]] = {
        "429": {"status": 429, "headers": {"retry-after": "1"}},
        "cut": {"fault": "cut", "text": "lost"},
    }
    broken = faults[fault]
    with stage(VIBE, tmp_path, [write(tmp_path), broken, DONE]) as here:
        ended = here.run(*COMMAND, wire="chat")
        assert DONE["text"] in ended.out, ended.err
        assert ended.statuses == ["committed", "failed", "committed"]
        first, failed, last = ended.record.calls
        assert ended.record.submitted(failed) == ended.record.submitted(last)
        assert chain(ended.record, [last]) == [first["call_id"]]
        assert_nothing_lost(ended.record)


@checks(VIBE, "live streaming", "chat")
def test_live_text(tmp_path: Path) -> None:
    script: list[Any] = [write(tmp_path) | {"chunks": 4, "chunk_ms": 20}, DONE]
    with stage(VIBE, tmp_path, script) as here:
        ended = here.run_with(*COMMAND, wire="chat", streaming="passthrough")
        assert DONE["text"] in ended.out, ended.err
        first, second = ended.record.calls
        assert chain(ended.record, [second]) == [first["call_id"]]
        assert_ids_came_back(ended.record, first, 1)
        assert_nothing_lost(ended.record)


@checks(VIBE, "a spent budget stops it within one more request", "chat")
def test_a_spent_budget(tmp_path: Path) -> None:
    with stage(VIBE, tmp_path, [write(tmp_path), DONE]) as here:
        ended = here.run_with(*COMMAND, wire="chat", budgets={"calls": 1})
        assert ended.statuses == ["committed", "refused"]
        assert ended.record.calls[1]["failure_kind"] == "budget"
        assert DONE["text"] not in ended.out


@checks(VIBE, "a turn cut at its limit is dropped, and stays on record as a leaf", "chat")
def test_a_cut_turn_is_dropped(tmp_path: Path) -> None:
    cut = write(tmp_path) | {"finish_reason": "length"}
    with stage(VIBE, tmp_path, [cut, write(tmp_path), DONE]) as here:
        ended = here.run(*COMMAND, wire="chat")
        record = ended.record
        assert ended.statuses == ["committed"] * 3
        first, second, third = record.calls
        assert record.details(first)["finish_reason"] == "length"
        assert chain(record, [third]) == [second["call_id"]]
        assert_nothing_lost(record)
