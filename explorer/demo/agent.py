"""The demo's agent: a plain tool loop on the official openai client.

Owns: how an episode runs, including the habits of real harnesses that make a turn tree
interesting: a title call, a retried turn, two attempts side by side, a failed call, a
turn cut by its length, a compacted context, reasoning that is not sent back, greedy
sampling (of which nothing can be trained).
Must not know: the proxy; it is given a base address and a key like any harness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import openai
from openai import AsyncOpenAI

from explorer.demo.tasks import SYSTEM, TOOLS, Task, run_tool

MAX_TURNS = 6
# Long enough for every trained answer, short enough that a babbling turn ends.
TURN_TOKENS = 160


class Habit(StrEnum):
    """What a harness does beside the plain loop."""

    PLAIN = "plain"
    TITLE = "title"
    RETRY = "retry"
    FORK = "fork"
    FAILURE = "failure"
    CUT = "cut"
    COMPACT = "compact"
    FORGETFUL = "forgetful"
    GREEDY = "greedy"


@dataclass(slots=True)
class Episode:
    """One attempt at one task."""

    task: Task
    habits: tuple[Habit, ...] = ()
    messages: list[dict[str, Any]] = field(default_factory=list)
    content: str | None = None
    last_id: str | None = None

    def has(self, habit: Habit) -> bool:
        """Whether this attempt shows a habit."""
        return habit in self.habits


class DemoAgent:
    """Runs episodes against a chat-completions address.

    Args:
        client: an `openai` client that already has address and key.
        model: name to send.
    """

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self._client = client
        self._model = model

    async def run(self, episode: Episode) -> Episode:
        """The whole attempt; the final answer is in `content`."""
        episode.messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": episode.task.question},
        ]
        if episode.has(Habit.TITLE):
            await self._title(episode)
        if episode.has(Habit.FAILURE):
            await self._overflow(episode)
        for turn in range(MAX_TURNS):
            if episode.has(Habit.RETRY) and turn == 0:
                # The harness throws this answer away and asks again.
                await self._say(episode)
            # A limit that is too low for the answer: the turn ends in mid-sentence.
            cut = episode.has(Habit.CUT) and turn == 1
            message = await self._say(episode, **({"max_tokens": 10} if cut else {}))
            if episode.has(Habit.FORK) and turn == 0:
                await self._other_branch(episode, message)
            if self._take(episode, message):
                break
            if episode.has(Habit.COMPACT) and turn == 0:
                await self._compact(episode)
        return episode

    async def _say(self, episode: Episode, **more: Any) -> Any:
        """One agent turn; the reply's message."""
        if episode.has(Habit.GREEDY):
            more = {"temperature": 0} | more
        reply = await self._client.chat.completions.create(
            model=self._model,
            messages=episode.messages,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            **({"max_tokens": TURN_TOKENS} | more),
        )
        episode.last_id = reply.id
        return reply.choices[0].message

    def _take(self, episode: Episode, message: Any) -> bool:
        """Adds a reply and the results of its tools; True when it is the final answer."""
        echoed: dict[str, Any] = {"role": "assistant", "content": message.content}
        reasoning = getattr(message, "reasoning", None)
        if reasoning and not episode.has(Habit.FORGETFUL):
            echoed["reasoning"] = reasoning
        calls = message.tool_calls or []
        if calls:
            echoed["tool_calls"] = [call.model_dump(exclude_none=True) for call in calls]
        episode.messages.append(echoed)
        if not calls:
            episode.content = message.content
            return True
        for call in calls:
            result = run_tool(call.function.name, call.function.arguments)
            episode.messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": result}
            )
        return False

    async def _title(self, episode: Episode) -> None:
        """What a harness asks on the side to name the session; no tools."""
        await self._client.chat.completions.create(
            model=self._model,
            messages=[
                {"role": "system", "content": SYSTEM},
                {
                    "role": "user",
                    "content": f"Write a short title for: {episode.task.question}",
                },
            ],
            max_tokens=40,
        )

    async def _overflow(self, episode: Episode) -> None:
        """A harness that pastes a whole log: the engine refuses, the harness takes it back."""
        episode.messages.append({"role": "user", "content": PASTED_LOG})
        try:
            await self._say(episode)
        except openai.APIStatusError:
            episode.messages.pop()

    async def _other_branch(self, episode: Episode, message: Any) -> None:
        """Follows the same reply with a tool result that failed once, to its own end."""
        branch = Episode(episode.task, episode.habits, list(episode.messages))
        if self._take(branch, message):
            return
        branch.messages[-1] = branch.messages[-1] | {"content": "error: try again"}
        for _ in range(2):
            if self._take(branch, await self._say(branch)):
                return

    async def _compact(self, episode: Episode) -> None:
        """Replaces the history by the model's own summary of it."""
        asked = [*episode.messages, {"role": "user", "content": COMPACT_REQUEST}]
        reply = await self._client.chat.completions.create(
            model=self._model,
            messages=asked,  # type: ignore[arg-type]
            max_tokens=80,
        )
        summary = (reply.choices[0].message.content or "").strip()
        episode.messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{summary}\nContinue."},
        ]


# More tokens than the tiny model's context.
PASTED_LOG = "".join(f"[{n:06d}] worker {n % 7}: heartbeat ok\n" for n in range(6000))
COMPACT_REQUEST = "Summarise the conversation so far."
