"""mini-swe-agent, real: a task in a git repository, turns that it drops, errors it retries."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.live_harness import (
    Ended,
    Stage,
    Started,
    assert_ids_came_back,
    assert_nothing_lost,
    chain,
    stage,
)
from tests.harnesses.pythons import MINI, exact

TASK = ("mini", "-t", "Write hello.txt", "-y", "--exit-immediately")
TEXT = ("-c", "mini_textbased.yaml", "--model-class", "litellm_textbased")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def checks(what: str) -> pytest.MarkDecorator:
    return pytest.mark.harness(MINI.profile, check=what, wire="chat")


def bash(command: str) -> dict[str, str]:
    return exact("bash", command=command)


def spoken(command: str) -> dict[str, str]:
    """A command as the text protocol wants it."""
    return {"text": f"THOUGHT: now\n\n```mswea_bash_command\n{command}\n```"}


WRITE = {
    "reasoning": "First I write.",
    "text": "Writing.",
    "tool_calls": [bash("printf 'a\\nb\\n' > hello.txt")],
}
DONE = {"text": "Done.", "tool_calls": [bash(SUBMIT)]}


def statuses(ended: Ended) -> list[str]:
    return [each["status"] for each in ended.record.calls]


def said(ended: Ended, number: int) -> list[dict[str, Any]]:
    """The messages of a call's request."""
    found: list[dict[str, Any]] = ended.record.submitted(ended.record.calls[number])["messages"]
    return found


@checks("a task with two commands: parents by tokens, ids and reasoning come back")
def test_a_task_in_a_repository(tmp_path: Path) -> None:
    two = {
        "text": "Looking.",
        "tool_calls": [bash("cat hello.txt"), bash("git status --short")],
    }
    with stage(MINI, tmp_path, [WRITE, two, DONE]) as here:
        ended = here.run(*TASK, wire="chat")
        assert ended.code == 0, ended.err
        assert (here.work / "hello.txt").read_text() == "a\nb\n"
        record = ended.record
        first, second, _ = record.calls
        assert statuses(ended) == ["committed"] * 3
        assert chain(record, record.calls) == [None, first["call_id"], second["call_id"]]
        assert {each["role"] for each in record.calls} == {"agent"}
        assert {each["stream"] for each in record.calls} == {False}
        assert_ids_came_back(record, first, 1)
        assert_ids_came_back(record, second, 2)
        found = [json.loads(m["content"]) for m in said(ended, 2) if m["role"] == "tool"]
        assert [each["output"] for each in found] == ["", "a\nb\n", "?? hello.txt\n"]
        assert record.shown["harness_version"] == MINI.version()
        assert record.shown["status"] == "closed"
        assert_nothing_lost(record)


@checks("a turn that it drops stays on record as a leaf, and the next root says why")
def test_dropped_turns_are_leaves(tmp_path: Path) -> None:
    unknown = {"text": "x", "tool_calls": [exact("no_such_tool", a=1)]}
    broken = {
        "text": "y",
        "tool_calls": [{"name": "bash", "arguments": '{"command": "ls'}],
    }
    with stage(MINI, tmp_path, [unknown, broken, WRITE, DONE]) as here:
        ended = here.run(*TASK, wire="chat")
        assert ended.code == 0, ended.err
        record = ended.record
        dropped, malformed, third, fourth = record.calls
        assert statuses(ended) == ["committed"] * 4
        assert [m["role"] for m in said(ended, 2)] == ["system", "user", "user", "user"]
        for call in (dropped, malformed):
            assert record.node(call)["children"] == []
            assert record.details(call)["completion_token_ids"]
        assert chain(record, [malformed, third, fourth]) == [None, None, third["call_id"]]
        for call, before in ((malformed, dropped), (third, malformed)):
            broke = record.node(call)["break"]
            assert broke["nearest_call_id"] == before["call_id"]
            assert broke["cause"] == "history_rewritten"
        reply = json.loads(record.raw(malformed, "reply"))
        asked = reply["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
        assert asked == '{"command": "ls'
        assert_nothing_lost(record)


@checks("text mode: no tools, still one unbroken line of agent work")
def test_text_mode(tmp_path: Path) -> None:
    script: list[Any] = [
        spoken("printf a > hello.txt"),
        spoken("cat hello.txt"),
        spoken(SUBMIT),
    ]
    with stage(MINI, tmp_path, script) as here:
        ended = here.run(*TASK, *TEXT, wire="chat")
        assert ended.code == 0, ended.err
        assert (here.work / "hello.txt").read_text() == "a"
        record = ended.record
        first, second, _ = record.calls
        assert chain(record, record.calls) == [None, first["call_id"], second["call_id"]]
        assert {each["n_tools"] for each in record.calls} == {0}
        assert {each["role"] for each in record.calls} == {"agent"}
        assert_nothing_lost(record)


@checks("text mode: a turn without a command is dropped, and is a leaf")
def test_a_dropped_turn_in_text_mode(tmp_path: Path) -> None:
    script: list[Any] = [
        spoken("printf a > hello.txt"),
        {"text": "No command."},
        spoken(SUBMIT),
    ]
    with stage(MINI, tmp_path, script) as here:
        ended = here.run(*TASK, *TEXT, wire="chat")
        record = ended.record
        first, dropped, last = record.calls
        # Both go on from the first: the second's own words are never sent again.
        assert chain(record, [dropped, last]) == [first["call_id"]] * 2
        assert record.node(dropped)["children"] == []
        assert record.node(last)["break"]["nearest_call_id"] == dropped["call_id"]
        assert "No command." not in str(said(ended, 2))
        assert_nothing_lost(record)


@checks("its own retry after {fault}")
@pytest.mark.parametrize("fault", ["429", "cut"])
def test_its_own_retry(tmp_path: Path, fault: str) -> None:
    faults: dict[str, dict[str, Any]] = {
        "429": {"status": 429, "headers": {"retry-after": "1"}},
        "cut": {"fault": "cut", "text": "lost"},
    }
    broken = faults[fault]
    with stage(MINI, tmp_path, [WRITE, broken, DONE]) as here:
        ended = here.run(*TASK, wire="chat")
        assert ended.code == 0, ended.err
        assert statuses(ended) == ["committed", "failed", "committed"]
        first, failed, last = ended.record.calls
        assert ended.record.submitted(failed) == ended.record.submitted(last)
        assert chain(ended.record, [last]) == [first["call_id"]]
        assert_nothing_lost(ended.record)


def start_with_timeout(here: Stage, seconds: int) -> Started:
    """`rollout-explorer run --timeout`, which this harness needs."""
    words = [sys.executable, "-m", "explorer", "run", "--store", str(here.store)]
    words += ["--timeout", str(seconds), "--grace", "3", "--json", "--", *TASK]
    return Started(here, words, here.environment)


@checks("it retries for ever on a sealed rollout, until the run's time-out ends it")
def test_a_sealed_rollout_is_ended_by_the_time_out(tmp_path: Path) -> None:
    slow = {"tool_calls": [bash("sleep 3")]}
    with stage(MINI, tmp_path, [slow, DONE]) as here:
        began = time.monotonic()
        started = start_with_timeout(here, 25)
        rollout = here.rollout_with_calls(1)
        here.live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
        ended = started.finish()
        assert 25 <= time.monotonic() - began < 45
        assert ended.code in (124, 128 + 9, 128 + 15), ended.err
        assert "timed out after 25 s" in ended.err
        assert "Saved trajectory" not in ended.out
        assert statuses(ended)[0] == "committed"
        assert "committed" not in statuses(ended)[1:]
        assert_nothing_lost(ended.record)


@checks("a spent budget that ends in a plain turn, and one that ends in errors")
def test_a_spent_budget(tmp_path: Path) -> None:
    with stage(MINI, tmp_path, [WRITE, DONE]) as here:
        started = here.start_with(*TASK, wire="chat", budgets={"calls": 1})
        try:
            here.rollout_with_calls(3)
        finally:
            # It would go on for ever: whoever runs it without `run` ends it.
            started.process.terminate()
        ended = started.finish()
        assert statuses(ended)[:3] == ["committed", "refused", "refused"]
        assert {each["failure_kind"] for each in ended.record.calls[1:]} == {"budget"}
