"""The lesson's tasks and the agent that attempts them: sums, by calculator, for a trainer.

Owns: which sums are trained on, which are held out, and how one attempt goes.
Must not know: TRL, torch, the server's insides; it is given an endpoint like any harness.

The shipped model copies numbers carelessly: sampled as it is, it gets about four of ten
such sums right. Nothing in the rewards says how; a wrong digit costs the whole reward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from openai import DefaultHttpxClient, OpenAI

from explorer.demo.tasks import SYSTEM, TOOLS, Task, run_tool, sum_task, verify
from explorer.integrations.attempts import Endpoint

MAX_TURNS = 4
# A right turn needs sixty at most. What goes on after its tool call is cut, and a turn that was
# cut earns nothing: without that the policy learns to babble, since nothing it says there
# reaches the next prompt.
TURN_TOKENS = 64
DIGITS = (2, 3)
_HELD_OUT_SEED = 2026
# The calculator alone: the price list is what the model has hardly learnt.
_TOOLS: list[Any] = TOOLS[:1]


def _sums(dice: random.Random) -> Iterator[Task]:
    while True:
        a, b = (_number(dice, dice.choice(DIGITS)) for _ in range(2))
        yield sum_task(a, dice.choice("+-*"), b)


def _number(dice: random.Random, digits: int) -> int:
    return dice.randint(10 ** (digits - 1), 10**digits - 1)


def held_out_tasks(count: int = 48) -> list[Task]:
    """Tasks that are never trained on, the same in every lesson."""
    found: dict[str, Task] = {}
    for task in _sums(random.Random(_HELD_OUT_SEED)):  # noqa: S311 - no secret
        found.setdefault(task.name, task)
        if len(found) == count:
            break
    return list(found.values())


def training_tasks(seed: int, count: int, held_out: list[Task]) -> list[Task]:
    """Tasks to train on, each once, none of them held out."""
    kept_away = {task.name for task in held_out}
    found: dict[str, Task] = {}
    for task in _sums(random.Random(seed)):  # noqa: S311 - no secret
        if task.name not in kept_away:
            found.setdefault(task.name, task)
        if len(found) == count:
            break
    return list(found.values())


class LessonAgent:
    """A plain tool loop on the official openai client, for many threads.

    Args:
        tasks: every task that it may be asked, by question.
    """

    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = {task.question: task for task in tasks}
        # One pool of connections: a client of its own for each attempt takes longer to make
        # than the model takes to answer.
        self._http = DefaultHttpxClient(timeout=120)

    def close(self) -> None:
        """Ends the connections."""
        self._http.close()

    def __call__(self, question: str, endpoint: Endpoint) -> float:
        """One attempt; its reward."""
        client = OpenAI(
            base_url=endpoint.openai,
            api_key=endpoint.key,
            http_client=self._http,
            max_retries=2,
        )
        messages: list[Any] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ]
        for _ in range(MAX_TURNS):
            reply = client.chat.completions.create(
                model=endpoint.model, messages=messages, tools=_TOOLS, max_tokens=TURN_TOKENS
            )
            if reply.choices[0].finish_reason == "length":
                return 0.0
            said = reply.choices[0].message
            # With its reasoning, so that the next prompt continues the sampled tokens.
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return verify(self._tasks[question], said.content)
            for call in said.tool_calls:
                assert call.type == "function"
                result = run_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return 0.0
