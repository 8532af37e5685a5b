"""Runs the demo's group of rollouts through a server: create, act, reward, close.

Owns: which attempt shows which habit, and what is reported while they run.
Must not know: the server's insides; it speaks the HTTP API and the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import openai
from openai import AsyncOpenAI

from explorer import __version__
from explorer.demo.agent import DemoAgent, Episode, Habit
from explorer.demo.tasks import Task, make_tasks, verify
from explorer.integrations.client import ExplorerClient

RUN = "demo"
ATTEMPTS = 4
AT_ONCE = 8

# By attempt: the first is plain in every task, so that each group has its yardstick.
_HABITS: tuple[tuple[Habit, ...], ...] = (
    (Habit.TITLE, Habit.RETRY),
    (Habit.FORK,),
    (Habit.COMPACT,),
    (Habit.FAILURE, Habit.TITLE),
    (Habit.CUT,),
    (Habit.FORGETFUL,),
    (Habit.GREEDY,),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one rollout ended; `error` is None when the episode ran to its end."""

    rollout_id: str
    task: str
    attempt: int
    reward: float | None
    error: str | None = None


def habits_of(task_number: int, attempt: int) -> tuple[Habit, ...]:
    """The habits that one attempt shows."""
    if attempt == 0:
        return (Habit.PLAIN,)
    return _HABITS[(task_number * (ATTEMPTS - 1) + attempt - 1) % len(_HABITS)]


async def run_group(
    url: str,
    token: str,
    *,
    seed: int = 7,
    attempts: int = ATTEMPTS,
    report: Callable[[Outcome, int, int], None] = lambda outcome, done, total: None,
) -> list[Outcome]:
    """Every task `attempts` times, eight rollouts at once.

    Args:
        url: the server.
        token: the operator's.
        seed: of the tasks (sampling itself is not seeded).
        report: called after each rollout with (outcome, done, total).
    """
    tasks = make_tasks(seed)
    jobs = [(n, task, attempt) for n, task in enumerate(tasks) for attempt in range(attempts)]
    gate = asyncio.Semaphore(AT_ONCE)
    outcomes: list[Outcome] = []

    async def one(number: int, task: Task, attempt: int) -> None:
        async with gate:
            outcome = await _attempt(client, task, attempt, habits_of(number, attempt))
        outcomes.append(outcome)
        report(outcome, len(outcomes), len(jobs))

    async with ExplorerClient(url, token) as client, asyncio.TaskGroup() as group:
        for number, task, attempt in jobs:
            group.create_task(one(number, task, attempt))
    return outcomes


async def _attempt(
    client: ExplorerClient, task: Task, attempt: int, habits: tuple[Habit, ...]
) -> Outcome:
    made = await client.create_rollout(
        run=RUN,
        task=task.name,
        group=task.name,
        attempt=attempt,
        harness="demo-agent",
        harness_version=__version__,
        metadata={"question": task.question, "habits": [habit.value for habit in habits]},
    )
    rollout_id = str(made["rollout_id"])
    episode = Episode(task, habits)
    async with AsyncOpenAI(
        base_url=f"{client.url}/v1", api_key=made["capture_key"], max_retries=1
    ) as wire:
        try:
            await DemoAgent(wire, "tiny").run(episode)
        except openai.OpenAIError as error:
            await client.close_rollout(rollout_id, ok=False, reason=type(error).__name__)
            return Outcome(rollout_id, task.name, attempt, None, str(error)[:200])
    reward = verify(task, episode.content)
    await client.reward(rollout_id, reward)
    await client.close_rollout(rollout_id, ok=True, terminal_response_id=episode.last_id)
    return Outcome(rollout_id, task.name, attempt, reward)
