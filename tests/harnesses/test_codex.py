"""Codex, real, on responses: its loop, its retries, its compaction and its subagents."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.installed import CODEX
from tests.harnesses.live_harness import (
    DONE,
    FAULTS,
    Ended,
    Script,
    assert_finished,
    assert_ids_came_back,
    assert_nothing_lost,
    call,
    chain,
    stage,
)
from tests.harnesses.relay import counting

WIRE = "responses"
EXEC = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
TASK = (*EXEC, "Write hello.txt")


def checks(what: str) -> pytest.MarkDecorator:
    """What the test proves, for the results."""
    return pytest.mark.harness(CODEX.profile, check=what, wire=WIRE)


def shell(command: str) -> dict[str, str]:
    """A command that the model wants run."""
    return call("exec_command", cmd=command)


WRITE = shell("printf 'héllo\\n' > hello.txt")
ODD = '{ "cmd" : "printf \'h\\u00e9llo\' > odd.txt" }'
BROKEN = '{"cmd": '
SESSION: Script = [
    {"reasoning": "First I write.", "text": " Writing. ", "tool_calls": [WRITE]},
    {"tool_calls": [shell("cat hello.txt"), shell("echo two > two.txt"), shell("echo 3")]},
    {"tool_calls": [{"name": "exec_command", "arguments": BROKEN}]},
    {"text": "Again.", "tool_calls": [{"name": "exec_command", "arguments": ODD}]},
    DONE,
]


@dataclass
class Session:
    """A whole run."""

    work: Path
    ended: Ended

    def asked(self, number: int) -> list[str]:
        """The arguments that the model wrote in its reply to a call, as stored."""
        reply = json.loads(self.ended.record.raw(self.ended.record.calls[number], "reply"))
        calls = reply["choices"][0]["message"]["tool_calls"]
        return [each["function"]["arguments"] for each in calls]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with stage(CODEX, tmp_path_factory.mktemp("codex"), SESSION) as here:
        yield Session(here.work, here.run(*TASK, wire=WIRE))


@checks("tool loop, on record whole")
def test_a_tool_loop(session: Session) -> None:
    assert_finished(session.ended)
    assert (session.work / "hello.txt").read_text() == "héllo\n"
    record = session.ended.record
    assert_nothing_lost(record)
    assert session.ended.statuses == ["committed"] * 5
    assert {each["role"] for each in record.calls} == {"agent"}
    assert {each["dialect"] for each in record.calls} == {WIRE}
    assert {each["stream"] for each in record.calls} == {True}
    claims = [record.details(each)["claims"] for each in record.calls]
    assert {each["request_kind"] for each in claims} == {"turn"}
    assert {each["thread_source"] for each in claims} == {"user"}
    assert len({each["session_id"] for each in claims}) == 1
    shown = record.shown
    assert (shown["harness"], shown["harness_version"]) == ("codex", CODEX.version())


@checks("its echo extends token by token: reasoning, broken and odd arguments too")
def test_its_exact_echo_extends_token_by_token(session: Session) -> None:
    record = session.ended.record
    calls = record.calls
    parents = [None, *(each["call_id"] for each in calls[:-1])]
    assert chain(record, calls) == parents
    said = record.submitted(calls[-1])["messages"]
    assert [m["reasoning"] for m in said if m.get("reasoning")] == ["First I write."]


@checks("parallel tool calls")
def test_parallel_tool_calls(session: Session) -> None:
    assert (session.work / "two.txt").read_text() == "two\n"
    assert_ids_came_back(session.ended.record, session.ended.record.calls[1], 3)


@checks("arguments that are no JSON stay on record")
def test_a_malformed_tool_call(session: Session) -> None:
    assert session.asked(2) == [BROKEN]
    assert_ids_came_back(session.ended.record, session.ended.record.calls[2], 1)
    assert (session.work / "odd.txt").read_text() == "héllo"
    assert session.asked(3) == [ODD]


@checks("its own retry after 429, an engine that is gone, a stream that breaks")
@pytest.mark.parametrize("streaming", ["synthesised", "passthrough"])
def test_its_own_retries_succeed(tmp_path: Path, streaming: str) -> None:
    script: Script = [{"tool_calls": [WRITE]}, *FAULTS.values(), DONE]
    with stage(CODEX, tmp_path, script) as here:
        ended = here.run_with(*TASK, wire=WIRE, streaming=streaming)
        assert_finished(ended)
        assert ended.statuses == ["committed", *["failed"] * 3, "committed"]
        first, *failed, last = ended.record.calls
        assert {each["role"] for each in failed} == {"failed"}
        assert chain(ended.record, [last]) == [first["call_id"]]
        asked = [ended.record.submitted(each)["messages"] for each in (*failed, last)]
        assert all(each == asked[0] for each in asked)
        assert_nothing_lost(ended.record)


@checks("live text")
def test_live_text(tmp_path: Path) -> None:
    live: dict[str, Any] = {"reasoning": "Think.", "text": "Writing.", "tool_calls": [WRITE]}
    with stage(CODEX, tmp_path, [live | {"chunk_ms": 20}, DONE]) as here:
        ended = here.run_with(*TASK, wire=WIRE, streaming="passthrough")
        assert_finished(ended)
        assert (here.work / "hello.txt").read_text() == "héllo\n"
        first, second = ended.record.calls
        assert chain(ended.record, [second]) == [first["call_id"]]
        assert_ids_came_back(ended.record, first, 1)
        assert_nothing_lost(ended.record)


@checks("a spent budget stops it within one more request")
def test_a_spent_budget(tmp_path: Path) -> None:
    script: Script = [{"tool_calls": [WRITE]}, {"tool_calls": [shell("cat hello.txt")]}, DONE]
    with stage(CODEX, tmp_path, script) as here:
        ended = here.run_with(*TASK, wire=WIRE, budgets={"calls": 1})
        assert ended.statuses == ["committed", "refused"]
        assert ended.record.calls[1]["failure_kind"] == "budget"
        assert_nothing_lost(ended.record)


@checks("a sealed rollout stops it within one more request")
def test_a_sealed_rollout(tmp_path: Path) -> None:
    script: Script = [{"tool_calls": [shell("sleep 1.5")]}, DONE]
    with stage(CODEX, tmp_path, script) as here, counting(here.live.url) as relay:
        started = here.start_with(*TASK, wire=WIRE, at=relay.url)
        rollout = here.rollout_with_calls(1)
        here.live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
        ended = started.finish(30)
        assert relay.posts == 2
        assert ended.statuses == ["committed"]
        assert_nothing_lost(ended.record)


@checks("Ctrl-C while the model answers")
def test_ctrl_c(tmp_path: Path) -> None:
    with stage(CODEX, tmp_path, [{"text": "Never heard.", "delay_ms": 20_000}]) as here:
        started = here.start(*TASK, wire=WIRE)
        here.open_rollout()
        started.process.send_signal(signal.SIGINT)
        ended = started.finish()
        assert ended.seconds < 20
        here.wait_for(lambda: bool(ended.record.calls))
        (only,) = ended.record.calls
        assert (only["status"], only["failure_kind"]) == ("aborted", "client_gone")
        assert only["role"] == "failed"


# More than Codex lets a context of this size fill.
FULL = {"usage": {"prompt_tokens": 31_500, "completion_tokens": 60, "total_tokens": 31_560}}
SUMMARY = "SUMMARY: hello.txt was written and read."


@checks("compaction: auxiliary, then a new root that says so")
def test_compaction(tmp_path: Path) -> None:
    script: Script = [
        {"when": {"tools": False}, "text": SUMMARY},
        {"tool_calls": [WRITE]},
        {"tool_calls": [shell("cat hello.txt")]},
        {"tool_calls": [shell("cat hello.txt")], "patch": FULL},
        {"tool_calls": [shell("cat hello.txt")]},
        DONE,
    ]
    with stage(CODEX, tmp_path, script) as here:
        ended = here.run_with(*TASK, wire=WIRE)
        assert_finished(ended)
        record = ended.record
        *_, summed, root, last = record.calls
        assert summed["role"] == "auxiliary"
        assert record.details(summed)["claims"]["request_kind"] == "compaction"
        node = record.node(root)
        assert (node["parent_id"], node["break"]["cause"]) == (None, "compaction")
        assert SUMMARY in str(record.submitted(root)["messages"])
        assert chain(record, [last]) == [root["call_id"]]
        assert_nothing_lost(record)


CHILD = "Count the files here and report."


@checks("subagents, known by what they claim")
def test_subagents(tmp_path: Path) -> None:
    script: Script = [
        {"when": {"contains": "by-the-child"}, "text": "There are none."},
        {"when": {"contains": CHILD}, "tool_calls": [shell("echo counted-by-the-child")]},
        {"tool_calls": [call("multi_agent_v1__spawn_agent", message=CHILD)]},
        # Long enough for the child, which Codex does not wait for.
        {"tool_calls": [shell("sleep 4")]},
        DONE,
    ]
    with stage(CODEX, tmp_path, script) as here:
        ended = here.run_with(*TASK, wire=WIRE)
        assert_finished(ended)
        record = ended.record
        calls = record.calls
        claims = {each["call_id"]: record.details(each)["claims"] for each in calls}
        own = [each for each in calls if each["role"] == "agent"]
        child = [each for each in calls if each["role"] == "subagent"]
        assert (len(own), len(child)) == (3, 2)
        assert {each["rule"] for each in child} == {"claimed_parent"}
        assert {claims[each["call_id"]]["x-openai-subagent"] for each in child} == {
            "collab_spawn"
        }
        assert chain(record, own) == [None, own[0]["call_id"], own[1]["call_id"]]
        assert chain(record, child) == [None, child[0]["call_id"]]
        assert_ids_came_back(record, own[0], 1)
        assert_nothing_lost(record)
