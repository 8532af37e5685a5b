"""A conversation that begins with an argument of an earlier tool call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.capture.spawning import spawned_by
from explorer.engine.scripted import ScriptedEngine
from explorer.records import Note
from explorer.wire.ids import tool_call_id
from tests.live import Live, serving

CALL = "01a22900-0000-7000-8000-00000000000a"
TASK = "Count the lines of every file and report the longest one."
KNOWN = {tool_call_id(CALL, 0): json.dumps({"agent": "explore", "prompt": TASK})}
TOOLS = [{"type": "function"}]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "messages",
    [
        [user(TASK)],
        [{"role": "system", "content": "s"}, user(f"<task>\n{TASK}\n</task> Go.")],
        [user([{"type": "text", "text": "reminder"}, {"type": "text", "text": TASK}])],
        [user("environment"), user(TASK)],
    ],
)
def test_the_parents_argument_is_found_word_for_word(messages: list[Any]) -> None:
    assert spawned_by(messages, TOOLS, KNOWN) == Note("prompt_from_argument", CALL)


@pytest.mark.parametrize(
    "messages",
    [
        [user(TASK.replace("longest", "shortest"))],
        [user(TASK), {"role": "assistant", "content": "done"}],
        [user("explore")],  # an argument, and too short to show anything
        [],
    ],
)
def test_what_is_not_so_gets_no_note(messages: list[Any]) -> None:
    assert spawned_by(messages, TOOLS, KNOWN) is None


def test_a_call_without_tools_is_no_child() -> None:
    assert spawned_by([user(TASK)], [], KNOWN) is None


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3), st.text(max_size=40))
def test_hostile_conversations_pass(messages: list[Any], arguments: str) -> None:
    known = {tool_call_id(CALL, 0): arguments, "foreign": "{}"}
    spawned_by([*messages, user("x" * 30)], TOOLS, known)


SCRIPT: list[dict[str, Any]] = [
    {
        "when": {"contains": "begin"},
        "tool_calls": [{"name": "task", "arguments": {"prompt": TASK}}],
    },
    {"when": {"contains": ""}, "text": "ok"},
]


@pytest.fixture
def live(tmp_path: Any) -> Iterator[Live]:
    with serving(ScriptedEngine(SCRIPT), tmp_path / "store.duckdb") as running:
        yield running


def test_an_asynchronous_child_that_claims_nothing_is_a_subagent(live: Live) -> None:
    rollout, key = live.create()
    agent_tools = [{"type": "function", "function": {"name": "task", "parameters": {}}}]
    child_tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
    said = [{"role": "system", "content": "You lead."}, user("begin")]
    reply = live.chat(key, messages=said, tools=agent_tools).json()["choices"][0]["message"]
    result = {
        "role": "tool",
        "tool_call_id": reply["tool_calls"][0]["id"],
        "content": "started",
    }
    live.chat(key, messages=[*said, reply, result], tools=agent_tools)
    child = [{"role": "system", "content": "You explore."}, user(TASK)]
    live.chat(key, messages=child, tools=child_tools)
    assert [call["role"] for call in live.calls(rollout)] == ["agent", "agent", "subagent"]
