"""smolagents, real: its echo is text, so every turn is a root, and the cause is on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.live_harness import Ended, Stage, assert_nothing_lost, chain, stage
from tests.harnesses.pythons import SMOLAGENTS, exact, program

ANSWER: dict[str, Any] = {"tool_calls": [exact("final_answer", answer="Finished: all done.")]}
TOOLS: list[dict[str, Any]] = [
    {
        "reasoning": "Two at once.",
        "text": " Looking. ",
        "tool_calls": [exact("look", q="one"), exact("look", q="two")],
    },
    {"tool_calls": [exact("add", a=1, b=2)]},
    ANSWER,
]
TASK = "Find out."


def checks(what: str) -> pytest.MarkDecorator:
    return pytest.mark.harness(SMOLAGENTS.profile, check=what, wire="chat")


def command(kind: str, way: str = "unary") -> tuple[str, ...]:
    return program("smolagents_agent", kind, way, TASK)


def run(here: Stage, kind: str, way: str = "unary") -> Ended:
    ended = here.run(*command(kind, way), wire="chat")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1].strip() == "Finished: all done."
    return ended


def statuses(ended: Ended) -> list[str]:
    return [each["status"] for each in ended.record.calls]


def causes(ended: Ended) -> list[str | None]:
    """Why each call is a root; None where it continues another or is the very first."""
    found = [ended.record.node(call)["break"] for call in ended.record.calls]
    return [each and each["cause"] for each in found]


@checks("tool loop: the echo is text, so each turn is a root of its own, and says why")
@pytest.mark.parametrize("way", ["unary", "stream"])
def test_tools_are_echoed_as_text(tmp_path: Path, way: str) -> None:
    with stage(SMOLAGENTS, tmp_path, TOOLS) as here:
        ended = run(here, "tools", way)
        assert "tool add 1 2" in ended.out
        record = ended.record
        first, second, third = record.calls
        assert statuses(ended) == ["committed"] * 3
        assert {each["stream"] for each in record.calls} == {way == "stream"}
        assert {each["role"] for each in record.calls} == {"agent"}
        assert chain(record, record.calls) == [None] * 3
        assert causes(ended) == [None, "history_rewritten", "history_rewritten"]
        assert record.node(third)["break"]["nearest_call_id"] == second["call_id"]
        # It forces tool calls, which constrains what is sampled.
        assert all(each["constraints"] for each in record.calls)
        echoed = str(record.submitted(second)["messages"][2]["content"])
        assert "Calling tools:" in echoed
        assert f"call_{first['call_id'].replace('-', '')}_1" in echoed
        assert_nothing_lost(record)


@checks("code agent: no tools at all, and still the agent's own work")
@pytest.mark.parametrize("way", ["unary", "stream"])
def test_code_without_tools(tmp_path: Path, way: str) -> None:
    script: list[Any] = [
        {"text": "Thought: look.\n<code>\nprint(look(q='one'))\n</code>"},
        {"text": "Thought: done.\n<code>\nfinal_answer('Finished: all done.')\n</code>"},
    ]
    with stage(SMOLAGENTS, tmp_path, script) as here:
        ended = run(here, "code", way)
        assert "tool look one" in ended.out
        assert [each["n_tools"] for each in ended.record.calls] == [0, 0]
        assert [each["role"] for each in ended.record.calls] == ["agent", "agent"]
        assert causes(ended) == [None, "history_rewritten"]
        assert_nothing_lost(ended.record)


@checks("planning calls are auxiliary")
def test_planning_is_auxiliary(tmp_path: Path) -> None:
    plan = {"when": {"tools": False}, "text": "1. Look.\n2. Answer.<end_plan>"}
    with stage(SMOLAGENTS, tmp_path, [plan, *TOOLS]) as here:
        ended = run(here, "planned")
        roles = [each["role"] for each in ended.record.calls]
        assert roles == ["auxiliary", "agent", "agent", "auxiliary", "agent"]
        assert "unknown" not in causes(ended)
        assert_nothing_lost(ended.record)


@checks("its own retry after {fault}")
@pytest.mark.parametrize("fault", ["429", "cut"])
def test_its_own_retry(tmp_path: Path, fault: str) -> None:
    faults: dict[str, dict[str, Any]] = {
        "429": {"status": 429, "headers": {"retry-after": "1"}},
        "cut": {"fault": "cut", "text": "lost"},
    }
    broken = faults[fault]
    with stage(SMOLAGENTS, tmp_path, [TOOLS[0], broken, *TOOLS[1:]]) as here:
        ended = run(here, "tools")
        assert statuses(ended) == ["committed", "failed", "committed", "committed"]
        _, failed, again, _ = ended.record.calls
        assert ended.record.submitted(failed) == ended.record.submitted(again)
        assert "lost" not in ended.out
        assert_nothing_lost(ended.record)


@checks("a spent budget stops it within one more request")
def test_a_spent_budget(tmp_path: Path) -> None:
    with stage(SMOLAGENTS, tmp_path, TOOLS) as here:
        ended = here.run_with(*command("tools"), wire="chat", budgets={"calls": 1})
        assert ended.code != 0
        assert statuses(ended) == ["committed", "refused"]
        assert ended.record.calls[1]["failure_kind"] == "budget"


@checks("live text and tool calls")
def test_live_text(tmp_path: Path) -> None:
    with stage(SMOLAGENTS, tmp_path, TOOLS) as here:
        ended = here.run_with(*command("tools", "stream"), wire="chat", streaming="passthrough")
        assert ended.code == 0, ended.err
        assert ended.out.rstrip().endswith("Finished: all done.")
        assert statuses(ended) == ["committed"] * 3
        assert_nothing_lost(ended.record)
