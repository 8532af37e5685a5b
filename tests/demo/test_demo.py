"""The demo: a real agent through the real proxy, and an example of every state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.demo.agent import Habit
from explorer.demo.group import ATTEMPTS, Outcome, habits_of, run_group
from explorer.demo.tasks import Task, make_tasks, run_tool, sum_task, verify
from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, list[Outcome]]]:
    store: Path = tmp_path_factory.mktemp("demo") / "store.duckdb"
    with serving(TinyEngine(), store) as live:
        yield live, asyncio.run(run_group(live.url, live.token))


def trees(recorded: tuple[Live, list[Outcome]]) -> list[dict[str, Any]]:
    live, outcomes = recorded
    return [
        live.api("GET", f"/api/v1/rollouts/{outcome.rollout_id}/tree") for outcome in outcomes
    ]


def test_at_least_24_rollouts_end_with_a_reward_and_rewards_differ(
    recorded: tuple[Live, list[Outcome]],
) -> None:
    _, outcomes = recorded
    assert len(outcomes) >= 24
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    rewards = Counter(outcome.reward for outcome in outcomes)
    # Not a measure of the model, only that a page of them has something to show.
    assert rewards[1.0] >= 3
    assert rewards[0.0] >= 3
    by_task: dict[str, set[float | None]] = {}
    for outcome in outcomes:
        by_task.setdefault(outcome.task, set()).add(outcome.reward)
    assert any(len(found) > 1 for found in by_task.values())


def test_every_state_of_the_tree_has_a_real_example(
    recorded: tuple[Live, list[Outcome]],
) -> None:
    nodes = [node for tree in trees(recorded) for node in tree["nodes"]]
    roles = Counter(node["role"] for node in nodes)
    assert {"agent", "auxiliary", "discarded", "failed"} <= set(roles)
    continued = [node for node in nodes if len(node["children"]) > 1]
    assert continued, "no fork"
    causes = {node["break"]["cause"] for node in nodes if node["break"]}
    assert "compaction" in causes
    assert "reasoning_dropped" in causes


def test_failed_cut_and_aborted_turns_are_real(recorded: tuple[Live, list[Outcome]]) -> None:
    live, outcomes = recorded
    calls = [call for outcome in outcomes for call in live.calls(outcome.rollout_id)]
    failed = [call for call in calls if call["status"] == "failed"]
    assert failed
    assert all(call["upstream_status"] == 400 for call in failed)
    assert any(call["finish_reason"] == "length" for call in calls)
    assert all(
        call["capture_level"] == "tokens" for call in calls if call["status"] == "committed"
    )


def test_most_rollouts_train_and_their_traces_hold_what_the_engine_sampled(
    recorded: tuple[Live, list[Outcome]],
) -> None:
    live, outcomes = recorded
    trainable = 0
    for outcome in outcomes:
        shown = live.api("GET", f"/api/v1/rollouts/{outcome.rollout_id}")
        if not shown["verdict"]["trainable"]:
            assert shown["verdict"]["reasons"]
            continue
        trainable += 1
        trace = live.api("GET", f"/api/v1/rollouts/{outcome.rollout_id}/training-trace")
        ones = sum(sum(turn["loss_mask"]) for turn in trace["turns"])
        assert ones == shown["verdict"]["supervised_tokens"] > 0
    assert len(outcomes) // 2 <= trainable < len(outcomes)


def test_a_greedy_rollout_is_shown_with_the_reason_why_it_cannot_train(
    recorded: tuple[Live, list[Outcome]],
) -> None:
    live, outcomes = recorded
    shown = [live.api("GET", f"/api/v1/rollouts/{outcome.rollout_id}") for outcome in outcomes]
    greedy = [item for item in shown if "greedy" in item["metadata"]["habits"]]
    assert greedy
    for item in greedy:
        codes = [reason["code"] for reason in item["verdict"]["reasons"]]
        assert codes == ["nothing_trainable"]
        assert "greedy" in item["verdict"]["reasons"][0]["message"]


def test_every_page_of_every_rollout_opens(recorded: tuple[Live, list[Outcome]]) -> None:
    live, outcomes = recorded
    tabs = ("tokens", "conversation", "timing", "requests", "group", "provenance")
    for outcome in outcomes[:8]:
        for tab in (*tabs, "findings", "custody"):
            page = httpx.get(f"{live.url}/rollouts/{outcome.rollout_id}/{tab}", timeout=30)
            assert page.status_code == 200, (tab, outcome)


def test_every_habit_is_shown_within_the_default_group() -> None:
    tasks = make_tasks(7)
    shown = {
        habit
        for number in range(len(tasks))
        for attempt in range(ATTEMPTS)
        for habit in habits_of(number, attempt)
    }
    assert shown == set(Habit)


def test_tasks_are_the_same_for_one_seed_and_verified_by_arithmetic() -> None:
    assert make_tasks(7) == make_tasks(7)
    assert make_tasks(7) != make_tasks(8)
    assert sum_task(7, "*", 6) == Task("7*6", "What is 7 * 6? Use the calculator.", 42)
    assert verify(sum_task(7, "*", 6), "\n\nThe answer is 42.") == 1.0
    assert verify(sum_task(7, "*", 6), "The answer is 421.") == 0.0
    assert verify(sum_task(7, "-", 9), "The answer is -2.") == 1.0
    assert verify(sum_task(7, "*", 6), None) == 0.0


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculator", '{"a": 3, "b": 4, "op": "multiply"}', "12"),
        ("calculator", '{"a": 3, "b": "4", "op": "add"}', "error"),
        ("calculator", '{"a": 3', "error"),
        ("calculator", "[]", "error"),
        ("lookup", "{}", "apple 12"),
        ("rm", "{}", "error: there is no tool rm"),
    ],
)
def test_tools_answer_mistakes_in_words(name: str, arguments: str, result: str) -> None:
    assert run_tool(name, arguments).startswith(result)
