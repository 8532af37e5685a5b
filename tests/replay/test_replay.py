"""Every recorded harness through the proxy: its calls hang where reading the traffic says.

The expectations beside each recording were written by reading it. `continues`: the call whose
messages and reply the request begins with. `tokens`: the parent by token ids, which is another
wherever a harness writes a turn anew and the template then renders other tokens; `cause` says
why it broke. Failed calls have no ids and are placed by their messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.records import CallId, CallStatus
from explorer.trace.causes import BreakCause
from explorer.trace.verdict import Judgement, judge
from tests.live import serving
from tests.replay.meaning import continued
from tests.replay.recording import DATA, SUFFIX, Recorded, Said, read
from tests.replay.replaying import Replay, replay, script_of

NAMES = sorted(
    f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}" for path in DATA.glob(f"*/*{SUFFIX}")
)


class Done:
    """One recording, replayed and judged, with what was expected of it."""

    def __init__(self, name: str, folder: Path, *, claims: bool = True, **wanted: Any) -> None:
        self.meta, self.recorded = read(DATA / f"{name}{SUFFIX}")
        if not claims:
            for call in self.recorded:
                call.headers = {"content-type": "application/json"}
                for key in ("metadata", "client_metadata", "prompt_cache_key"):
                    call.body.pop(key, None)
        with serving(ScriptedEngine(script_of(self.recorded)), folder / "s.duckdb") as live:
            self.replay: Replay = replay(live, self.recorded, self.meta["wire"], **wanted)
        self.judged: Judgement = judge(self.replay.record)
        expected = orjson.loads((DATA / f"{name}.expected.json").read_bytes())
        self.expected: dict[int, dict[str, Any]] = {entry["n"]: entry for entry in expected}
        self.numbers: dict[CallId | None, int | None] = {None: None}
        self.numbers |= {call.call_id: n for n, call in self.replay.calls.items()}

    def told(self, key: str) -> dict[int, Any]:
        return {n: entry[key] for n, entry in self.expected.items()}

    def seen(self) -> Iterator[tuple[int, Any]]:
        for n, call in self.replay.calls.items():
            yield n, self.judged.tree.nodes[call.call_id]


@pytest.fixture(scope="module", params=NAMES)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return Done(request.param, tmp_path_factory.mktemp("replay"))


def test_there_are_recordings_of_every_harness() -> None:
    assert len(NAMES) == 40
    assert len({name.partition("/")[0] for name in NAMES}) == 22
    assert not [name for name in NAMES if name.startswith("claude/")]


def test_every_request_is_answered_as_the_recording_says(done: Done) -> None:
    assert list(done.expected) == list(done.replay.calls)
    for call in done.recorded:
        status = done.replay.statuses[call.n]
        if call.broke_off is not None:
            assert status == 502, call.n
        else:
            assert status == call.status, call.n
        if call.generates and call.said is not None:
            served = done.replay.served[call.n]
            assert served is not None
            assert_same_reply(call, served)


def assert_same_reply(call: Recorded, served: Said) -> None:
    """The harness was told what the recorded model told it, under our ids."""
    said = call.said
    assert said is not None
    thinking = call.body.get("thinking")
    hidden = isinstance(thinking, dict) and thinking.get("display") == "omitted"
    assert served.text == said.text
    assert served.reasoning == ("" if hidden else said.reasoning)
    assert served.finish == said.finish
    assert [(made.name, made.arguments) for made in served.calls] == [
        (made.name, made.arguments) for made in said.calls
    ]
    assert not {made.id for made in served.calls} & {made.id for made in said.calls}


def test_what_each_call_continues_by_meaning(done: Done) -> None:
    assert continued(done.replay.calls) == done.told("continues")


def test_what_each_call_continues_by_tokens(done: Done) -> None:
    assert {n: done.numbers[node.parent_id] for n, node in done.seen()} == done.told("tokens")


def test_why_each_prompt_left_the_ones_before(done: Done) -> None:
    found = {n: node.break_ and node.break_.cause.value for n, node in done.seen()}
    assert found == done.told("cause")
    for _, node in done.seen():
        if node.break_ is not None and node.break_.cause is BreakCause.UNKNOWN:
            # Only where the messages say nothing, and the ids prove nothing.
            assert node.break_.rendered_anew


def test_what_each_call_was_for(done: Done) -> None:
    found = {n: done.judged.roles[node.call_id].role.value for n, node in done.seen()}
    assert found == done.told("role")


def test_every_call_that_was_answered_has_its_tokens(done: Done) -> None:
    for n, call in done.replay.calls.items():
        failed = done.expected[n]["role"] == "failed"
        assert (call.status is CallStatus.COMMITTED) is not failed
        if not failed:
            assert call.prompt_delta is not None
            assert call.completion is not None
            assert call.completion.size
            assert call.reply_digest is not None


@pytest.mark.parametrize(
    "name", ["opencode/subagent", "claude-shape/subagent", "codex/subagent"]
)
def test_subagents_are_found_without_any_word_of_the_harness(name: str, tmp_path: Path) -> None:
    """As of Qwen, Cline and OpenHands, which name no parent and no agent."""
    said_nothing = Done(name, tmp_path, claims=False)
    for n, node in said_nothing.seen():
        decision = said_nothing.judged.roles[node.call_id]
        assert decision.role.value == said_nothing.expected[n]["role"], n
        if decision.role.value == "subagent":
            assert decision.rule in ("prompt_from_argument", "nested_in_tool_call")
    assert not any(
        "session" in claim or "agent_id" in claim or "agent-id" in claim
        for call in said_nothing.replay.calls.values()
        for claim in call.claims
    )


@pytest.mark.parametrize(
    "name",
    [
        "pi/basic",
        "opencode/compact",
        "qwen/length",
        "codex/subagent",
        "claude-shape/basic",
        "claude-shape/badtool",
        "gemini/basic",
    ],
)
def test_streams_passed_on_as_they_come_give_the_same_tree(name: str, tmp_path: Path) -> None:
    done = Done(name, tmp_path, streaming="passthrough")
    for call in done.recorded:
        served = done.replay.served[call.n]
        assert served is not None
        assert_same_reply(call, served)
    assert continued(done.replay.calls) == done.told("continues")
    for n, node in done.seen():
        expected = done.expected[n]
        assert done.numbers[node.parent_id] == expected["tokens"], n
        assert (node.break_ and node.break_.cause.value) == expected["cause"], n
        assert done.judged.roles[node.call_id].role.value == expected["role"], n
