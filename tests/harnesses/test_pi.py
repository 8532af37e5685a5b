"""Pi, real, on its three wires: what it does with our replies, and what is on record."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.installed import PI
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

WIRES = ("chat", "responses", "messages")
every_wire = pytest.mark.parametrize("wire", WIRES)
TASK = ("pi", "-p", "Write hello.txt")


def checks(what: str, wire: str | None = None) -> pytest.MarkDecorator:
    """What the test proves, for the results; without `wire` a parameter says it."""
    return pytest.mark.harness(PI.profile, check=what, wire=wire)


WRITE = call("write", path="hello.txt", content="héllo\nline two\n")


ODD = '{ "content" : "h\\u00e9llo" , "path": "odd.txt" }'
BROKEN = '{"path": "never.txt", "content": '
NAMES = ("one", "two", "three")
# One run of each wire shows all of this; several tests look at it.
SESSION: Script = [
    {"reasoning": "First I write.", "text": " Writing. ", "tool_calls": [WRITE]},
    {"text": "Reading.", "tool_calls": [call("read", path="hello.txt")]},
    {"tool_calls": [call("write", path=f"{name}.txt", content=name) for name in NAMES]},
    {"tool_calls": [{"name": "write", "arguments": BROKEN}]},
    {"text": "Again.", "tool_calls": [{"name": "write", "arguments": ODD}]},
    DONE,
]


@dataclass
class Session:
    """A whole run on one wire."""

    wire: str
    work: Path
    ended: Ended

    def asked(self, number: int) -> list[str]:
        """The arguments that the model wrote in its reply to a call, as stored."""
        reply = json.loads(self.ended.record.raw(self.ended.record.calls[number], "reply"))
        calls = reply["choices"][0]["message"]["tool_calls"]
        return [each["function"]["arguments"] for each in calls]


@pytest.fixture(scope="module", params=WIRES)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp(f"pi-{request.param}")
    with stage(PI, folder, SESSION) as here:
        yield Session(request.param, here.work, here.run(*TASK, wire=request.param))


@checks("tool loop, on record whole")
def test_a_tool_loop(session: Session) -> None:
    assert_finished(session.ended)
    assert (session.work / "hello.txt").read_text() == "héllo\nline two\n"
    record = session.ended.record
    assert_nothing_lost(record)
    assert session.ended.statuses == ["committed"] * 6
    assert {each["role"] for each in record.calls} == {"agent"}
    assert {each["dialect"] for each in record.calls} == {session.wire}
    assert {each["stream"] for each in record.calls} == {True}
    assert "line two" in record.submitted(record.calls[2])["messages"][-1]["content"]
    assert "pi/" in record.details(record.calls[0])["claims"]["user-agent"]
    shown = record.shown
    assert (shown["harness"], shown["harness_version"]) == ("pi", PI.version())
    assert shown["status"] == "closed"


@checks("an exact echo extends token by token, reasoning too")
def test_exact_echoes_extend_token_by_token(session: Session) -> None:
    calls = session.ended.record.calls
    parents = [None, *(each["call_id"] for each in calls[:3])]
    assert chain(session.ended.record, calls[:4]) == parents
    said = session.ended.record.submitted(calls[1])["messages"][-2]
    assert (said["content"], said["reasoning"]) == (" Writing. ", "First I write.")


@checks("parallel tool calls")
def test_parallel_tool_calls(session: Session) -> None:
    assert [(session.work / f"{name}.txt").read_text() for name in NAMES] == list(NAMES)
    assert_ids_came_back(session.ended.record, session.ended.record.calls[2], 3)


@checks("arguments that are no JSON stay on record")
def test_a_malformed_tool_call(session: Session) -> None:
    assert not (session.work / "never.txt").exists()
    assert session.asked(3) == [BROKEN]
    assert_ids_came_back(session.ended.record, session.ended.record.calls[3], 1)


@checks("rewritten arguments are known by the call's id; a break of the tokens is on record")
def test_rewritten_arguments_keep_the_id(session: Session) -> None:
    assert (session.work / "odd.txt").read_text() == "héllo"
    assert session.asked(4) == [ODD]
    record = session.ended.record
    asked, last = record.calls[4:]
    assert_ids_came_back(record, asked, 1)
    # Broken arguments come back as `{}`: it goes on from the last turn that came back whole.
    assert chain(record, [asked]) == [record.calls[2]["call_id"]]
    node = record.node(last)
    if session.wire == "messages":
        # Arguments are an object there: one of the same value stands for what was sampled.
        assert (node["parent_id"], node["break"]) == (asked["call_id"], None)
        return
    assert node["parent_id"] == record.calls[2]["call_id"]
    assert node["break"]["cause"] == "reserialised_arguments"
    assert node["break"]["nearest_call_id"] == asked["call_id"]


@checks("the one command, with a server of its own", "chat")
def test_with_a_server_of_its_own(tmp_path: Path) -> None:
    with stage(PI, tmp_path, [DONE]) as here:
        code, out = here.run_alone(*TASK, wire="chat", script=[{"tool_calls": [WRITE]}, DONE])
        assert code == 0
        assert (here.work / "hello.txt").read_text() == "héllo\nline two\n"
        said, report = out.strip().split("\n")
        assert said == DONE["text"]
        told = json.loads(report)
        assert told["counts"]["by_status"] == {"committed": 2}
        assert (told["status"], told["harness"], told["wire"]) == ("closed", "pi", "chat")


@checks("its own retry after {fault}")
@pytest.mark.parametrize(
    ("fault", "wire"), [("429", "messages"), ("unreachable", "responses"), ("cut", "chat")]
)
def test_its_own_retry_succeeds(tmp_path: Path, fault: str, wire: str) -> None:
    with stage(PI, tmp_path, [{"tool_calls": [WRITE]}, FAULTS[fault], DONE]) as here:
        ended = here.run_with(*TASK, wire=wire)
        assert_finished(ended)
        assert ended.statuses == ["committed", "failed", "committed"]
        first, failed, last = ended.record.calls
        assert (failed["role"], last["role"]) == ("failed", "agent")
        assert chain(ended.record, [last]) == [first["call_id"]]
        assert ended.record.submitted(failed) == ended.record.submitted(last)
        assert_nothing_lost(ended.record)


@checks("live text; its own retry after a live stream that breaks")
@every_wire
def test_live_text_and_a_live_stream_that_breaks(tmp_path: Path, wire: str) -> None:
    live: dict[str, Any] = {
        "reasoning": "Think.",
        "text": "Writing.",
        "tool_calls": [WRITE],
        "chunk_ms": 20,
    }
    cut: dict[str, Any] = {
        "fault": "cut",
        "text": "Half of a sentence that never ends.",
        "chunks": 8,
    }
    with stage(PI, tmp_path, [live, cut, DONE]) as here:
        ended = here.run_with(*TASK, wire=wire, streaming="passthrough")
        assert_finished(ended)
        assert (here.work / "hello.txt").read_text() == "héllo\nline two\n"
        assert ended.statuses == ["committed", "failed", "committed"]
        first, failed, last = ended.record.calls
        assert_ids_came_back(ended.record, first, 1)
        assert failed["failure_kind"] == "incomplete"
        asked = [ended.record.submitted(each)["messages"] for each in (failed, last)]
        assert asked[0] == asked[1]
        assert chain(ended.record, [last]) == [first["call_id"]]
        assert_nothing_lost(ended.record)


@checks("a spent budget stops it within one more request")
@every_wire
def test_a_spent_budget(tmp_path: Path, wire: str) -> None:
    script: Script = [
        {"tool_calls": [WRITE]},
        {"tool_calls": [call("read", path="hello.txt")]},
        DONE,
    ]
    with stage(PI, tmp_path, script) as here:
        ended = here.run_with(*TASK, wire=wire, budgets={"calls": 1})
        assert ended.statuses == ["committed", "refused"]
        assert ended.record.calls[1]["failure_kind"] == "budget"
        assert_nothing_lost(ended.record)


@checks("a sealed rollout stops it within one more request")
@every_wire
def test_a_sealed_rollout(tmp_path: Path, wire: str) -> None:
    script: Script = [{"tool_calls": [call("bash", command="sleep 1.5")]}, DONE]
    with stage(PI, tmp_path, script) as here, counting(here.live.url) as relay:
        started = here.start_with(*TASK, wire=wire, at=relay.url)
        rollout = here.rollout_with_calls(1)
        here.live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
        ended = started.finish(30)
        assert relay.posts == 2
        assert ended.statuses == ["committed"]
        assert_nothing_lost(ended.record)


@checks("Ctrl-C while the model answers", "chat")
@pytest.mark.parametrize("streaming", ["synthesised", "passthrough"])
def test_ctrl_c(tmp_path: Path, streaming: str) -> None:
    slow: dict[str, Any] = {
        "text": "Never heard. " * 40,
        "delay_ms": 20_000,
        "chunks": 40,
        "chunk_ms": 500,
    }
    if streaming == "passthrough":
        slow.pop("delay_ms")
    with stage(PI, tmp_path, [slow]) as here:
        if streaming == "passthrough":
            started = here.start_with(*TASK, wire="chat", streaming=streaming)
        else:
            started = here.start(*TASK, wire="chat")
        here.open_rollout()
        started.process.send_signal(signal.SIGINT)
        ended = started.finish()
        assert ended.seconds < 20
        here.wait_for(lambda: bool(ended.record.calls))
        (only,) = ended.record.calls
        assert (only["status"], only["failure_kind"]) == ("aborted", "client_gone")
        assert only["role"] == "failed"


# More than Pi lets a context of this size fill: it sums up once the turn is over.
FULL = {"usage": {"prompt_tokens": 20_000, "completion_tokens": 60, "total_tokens": 20_060}}
SUMMARY = "SUMMARY: hello.txt was written and read."


@checks("compaction: auxiliary, then a new root that says so")
@every_wire
def test_compaction(tmp_path: Path, wire: str) -> None:
    read: dict[str, Any] = {"tool_calls": [call("read", path="hello.txt")]}
    script: Script = [
        {"when": {"tools": False}, "text": SUMMARY},
        {"tool_calls": [WRITE]},
        read,
        read,
        {"text": "The first is done.", "patch": FULL},
        read,
        DONE,
    ]
    with stage(PI, tmp_path, script) as here:
        settings = {"compaction": {"keepRecentTokens": 12}}
        (here.work / ".pi").mkdir()
        (here.work / ".pi" / "settings.json").write_text(json.dumps(settings))
        ended = here.run_with("pi", "--approve", "-p", "Write it.", "Read it.", wire=wire)
        assert_finished(ended)
        record = ended.record
        *_, summed, root, last = record.calls
        assert (summed["role"], summed["rule"]) == ("auxiliary", "no_tools_on_path")
        assert [each["role"] for each in record.calls].count("agent") == len(script) - 1
        node = record.node(root)
        assert (node["parent_id"], node["break"]["cause"]) == (None, "compaction")
        assert SUMMARY in str(record.submitted(root)["messages"])
        assert chain(record, [last]) == [root["call_id"]]
        assert_nothing_lost(record)
