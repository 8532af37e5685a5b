"""LangGraph, Pydantic AI and the OpenAI Agents SDK, real, on each wire they speak."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.installed import Python
from tests.harnesses.live_harness import (
    Ended,
    Stage,
    assert_ids_came_back,
    assert_nothing_lost,
    chain,
    stage,
)
from tests.harnesses.pythons import (
    LANGGRAPH,
    OPENAI_AGENTS,
    PYDANTIC_AI,
    compact,
    exact,
    program,
)

DONE = {"text": "Finished: all done."}
TASK = "Find out."


@dataclass(frozen=True)
class Case:
    """A framework on one wire.

    Attributes:
        rewrites: it writes arguments anew, without blanks.
        loses: the cause on record where an earlier turn comes back without its reasoning.
        agent: what its requests call themselves.
    """

    harness: Python
    program: str
    wire: str
    rewrites: bool = False
    loses: str | None = None
    agent: str = "OpenAI/Python"

    def __str__(self) -> str:
        return f"{self.harness.profile}-{self.wire}"

    def command(self, way: str) -> tuple[str, ...]:
        return program(self.program, self.wire, way, TASK)

    def call(self, name: str, **arguments: Any) -> dict[str, str]:
        return (compact if self.rewrites else exact)(name, **arguments)

    def script(self) -> list[dict[str, Any]]:
        """Two tools at once, with reasoning and text; then one; then the answer."""
        two = [self.call("look", q="one"), self.call("look", q="two")]
        return [
            {"reasoning": "Two at once.", "text": "Looking.", "tool_calls": two},
            {"tool_calls": [self.call("add", a=1, b=2)]},
            DONE,
        ]


DROPPED, REWRITTEN = "reasoning_dropped", "history_rewritten"
_GRAPH, _PYDANTIC = (LANGGRAPH, "langgraph_agent"), (PYDANTIC_AI, "pydantic_agent")
_AGENTS = (OPENAI_AGENTS, "openai_agents_agent")
CASES = (
    Case(*_GRAPH, "chat", loses=DROPPED, agent="AsyncOpenAI/Python"),
    Case(*_GRAPH, "responses", agent="AsyncOpenAI/Python"),
    Case(*_GRAPH, "messages", rewrites=True, agent="langchain-anthropic"),
    Case(*_PYDANTIC, "chat", rewrites=True, agent="pydantic-ai/"),
    Case(*_PYDANTIC, "responses", rewrites=True, loses=REWRITTEN, agent="pydantic-ai/"),
    Case(*_PYDANTIC, "messages", rewrites=True, agent="pydantic-ai/"),
    Case(*_PYDANTIC, "google", rewrites=True, agent="pydantic-ai/"),
    Case(*_AGENTS, "chat", agent="Agents/Python"),
    Case(*_AGENTS, "responses", agent="Agents/Python"),
)


def named(*names: str) -> tuple[Case, ...]:
    """Those of `CASES` with these names."""
    found = tuple(case for case in CASES if str(case) in names)
    assert len(found) == len(names)
    return found


def over(cases: tuple[Case, ...], check: str) -> pytest.MarkDecorator:
    """One test for each case, recorded as proving `check`."""
    marked = [
        pytest.param(case, marks=pytest.mark.harness(case.harness.profile, check=check))
        for case in cases
    ]
    return pytest.mark.parametrize("case", marked, ids=str)


def assert_finished(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "Finished: all done.", ended.out


def statuses(ended: Ended) -> list[str]:
    return [each["status"] for each in ended.record.calls]


def pieces(ended: Ended) -> int:
    (found,) = re.findall(r"^pieces (\d+): Looking\.Finished: all done\.$", ended.out, re.M)
    return int(found)


@pytest.mark.parametrize("way", ["unary", "stream"])
@over(CASES, "tool loop with parallel calls: parents, ids and reasoning, everything stored")
def test_a_tool_loop(tmp_path: Path, case: Case, way: str) -> None:
    with stage(case.harness, tmp_path, case.script()) as here:
        ended = here.run(*case.command(way), wire=case.wire)
        assert_finished(ended)
        ran = sorted(line for line in ended.out.splitlines() if line.startswith("tool "))
        assert ran == ["tool add 1 2", "tool look one", "tool look two"]
        if way == "stream":
            pieces(ended)
        record = ended.record
        first, second, third = record.calls
        assert_nothing_lost(record)
        assert statuses(ended) == ["committed"] * 3
        assert {each["dialect"] for each in record.calls} == {case.wire}
        assert {each["stream"] for each in record.calls} == {way == "stream"}
        assert {each["role"] for each in record.calls} == {"agent"}
        assert {each["n_tools"] for each in record.calls} == {2}
        assert_ids_came_back(record, first, 2)
        assert_ids_came_back(record, second, 1)
        # What the tools found went to the engine as tool turns, each under its own id.
        answers = [m for m in record.submitted(third)["messages"] if m["role"] == "tool"]
        assert ["one means one" in str(answer["content"]) for answer in answers] == [
            True,
            False,
            False,
        ]
        assert_parents(ended, case)
        assert record.shown["harness"] == case.harness.profile
        assert record.shown["harness_version"] == case.harness.version()
        assert record.shown["status"] == "closed"


def assert_parents(ended: Ended, case: Case) -> None:
    """An unbroken line of tokens, but where the framework loses the reasoning."""
    record = ended.record
    first, second, third = record.calls
    broken = record.node(second)["break"]
    if case.loses is None:
        assert broken is None
        assert chain(record, [first, second]) == [None, first["call_id"]]
    else:
        assert broken["cause"] == case.loses
        assert broken["nearest_call_id"] == first["call_id"]
    assert chain(record, [third]) == [second["call_id"]]


@over(
    named(
        "langgraph-chat", "langgraph-messages", "pydantic-ai-responses", "openai-agents-chat"
    ),
    "its own retry after 429",
)
def test_a_busy_engine_is_asked_again(tmp_path: Path, case: Case) -> None:
    first, second, third = case.script()
    busy = {"status": 429, "headers": {"retry-after": "1"}}
    with stage(case.harness, tmp_path, [first, busy, second, third]) as here:
        ended = here.run(*case.command("unary"), wire=case.wire)
        assert_retried(ended)
        assert ended.record.calls[1]["upstream_status"] == 429


@over(
    named(
        "langgraph-responses",
        "pydantic-ai-chat",
        "pydantic-ai-messages",
        "openai-agents-responses",
    ),
    "its own retry after a stream that broke off upstream",
)
def test_a_cut_reply_is_asked_for_again(tmp_path: Path, case: Case) -> None:
    first, second, third = case.script()
    cut = {"fault": "cut", "text": "Half a sentence that nobody ever hears"}
    with stage(case.harness, tmp_path, [first, cut, second, third]) as here:
        ended = here.run(*case.command("stream"), wire=case.wire)
        assert_retried(ended)
        assert "Half" not in ended.out


def assert_retried(ended: Ended) -> None:
    assert_finished(ended)
    assert statuses(ended) == ["committed", "failed", "committed", "committed"]
    _, failed, again, last = ended.record.calls
    assert failed["role"] == "failed"
    assert ended.record.submitted(failed) == ended.record.submitted(again)
    assert chain(ended.record, [last]) == [again["call_id"]]
    assert_nothing_lost(ended.record)


@over(
    named(
        "langgraph-responses",
        "langgraph-messages",
        "pydantic-ai-chat",
        "pydantic-ai-google",
        "openai-agents-responses",
    ),
    "a spent budget stops it within one more request",
)
def test_a_spent_budget(tmp_path: Path, case: Case) -> None:
    with stage(case.harness, tmp_path, case.script()) as here:
        ended = here.run_with(*case.command("unary"), wire=case.wire, budgets={"calls": 1})
        assert ended.code != 0
        assert "Finished" not in ended.out
        assert statuses(ended) == ["committed", "refused"]
        assert ended.record.calls[1]["failure_kind"] == "budget"
        assert_nothing_lost(ended.record)


@over(
    named(
        "langgraph-chat",
        "langgraph-responses",
        "langgraph-messages",
        "pydantic-ai-google",
        "openai-agents-responses",
    ),
    "live text, in more than one piece",
)
def test_live_text(tmp_path: Path, case: Case) -> None:
    first, second, third = (entry | {"chunks": 4, "chunk_ms": 20} for entry in case.script())
    with stage(case.harness, tmp_path, [first, second, third]) as here:
        ended = run_live(here, case)
        assert_finished(ended)
        assert pieces(ended) > 2
        record = ended.record
        assert statuses(ended) == ["committed"] * 3
        assert_ids_came_back(record, record.calls[0], 2)
        assert_parents(ended, case)
        assert_nothing_lost(record)


def run_live(here: Stage, case: Case) -> Ended:
    return here.run_with(*case.command("stream"), wire=case.wire, streaming="passthrough")


BROKEN: Mapping[str, Any] = {"fault": "cut", "text": "Half of it. " * 20, "chunks": 8}


@over(
    named(
        "langgraph-chat",
        "pydantic-ai-messages",
        "pydantic-ai-google",
        "openai-agents-responses",
    ),
    "a live stream that breaks off is an error to it, and on record as one",
)
def test_a_live_stream_that_breaks_off(tmp_path: Path, case: Case) -> None:
    script: list[Any] = [case.script()[0], BROKEN, DONE]
    with stage(case.harness, tmp_path, script) as here:
        ended = run_live(here, case)
        record = ended.record
        assert statuses(ended) == ["committed", "failed"]
        assert record.calls[1]["failure_kind"] == "incomplete"
        assert record.calls[1]["role"] == "failed"
        # Half an answer is never taken for the final one; none of these asks again.
        assert ended.code == 1
        assert "try again" in ended.err or "overloaded" in ended.err
        assert "Finished" not in ended.out
        assert_nothing_lost(record)


@pytest.mark.harness("openai-agents", check="a handoff is a root of its own")
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_a_handoff_is_a_root_of_its_own(tmp_path: Path, wire: str) -> None:
    script: list[Any] = [
        {"text": "Over to you.", "tool_calls": [exact("transfer_to_finder")]},
        {"tool_calls": [exact("look", q="one")]},
        DONE,
    ]
    with stage(OPENAI_AGENTS, tmp_path, script) as here:
        ended = here.run(*program("openai_agents_agent", wire, "handoff", TASK), wire=wire)
        assert_finished(ended)
        record = ended.record
        first, second, third = record.calls
        assert chain(record, record.calls) == [None, None, second["call_id"]]
        assert record.node(second)["break"]["cause"] == "system_changed"
        assert {each["role"] for each in record.calls} == {"agent"}
        assert_ids_came_back(record, first, 1)
        assert_nothing_lost(record)
        if wire == "responses":
            # The program names its final response; chat replies have no id there.
            assert third["response_id"] in ended.out
