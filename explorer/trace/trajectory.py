"""What is kept of a harness's own trajectory file: counts by step, and ids where it has any.

Owns: `Trajectory`, and its form in the payload of the event that closed the rollout.
Must not know: the file it was read from, how it is compared with the calls.

Prompts repeat each other, so a step's prompt ids are kept as the number of leading ids that
it has of the step before (prompt and completion) and the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer.records import EventKind, IdArray, RolloutEvent
from explorer.trace.prefix import shared_length

PAYLOAD_KEY = "trajectory"
PROBLEM_KEY = "trajectory_problem"
MAX_ID = 2**31 - 1
# More tokens than any call has: a count that no JSON reader rounds.
MAX_COUNT = 2**53
# Ids of all prompts put together again; a crafted payload could name each of them cheaply.
_MAX_PUT_TOGETHER = 8_000_000
_NO_IDS: IdArray = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class TrajectoryStep:
    """One step of the agent that stands for at least one model call.

    Attributes:
        number: its place among all steps of its file, from 1.
        completion, prompt: token counts as told, None when not told.
        calls: model calls that the step stands for, None when not told.
        completion_ids, prompt_ids: the ids themselves, None when not told.
    """

    number: int
    completion: int | None = None
    prompt: int | None = None
    calls: int | None = None
    completion_ids: IdArray | None = None
    prompt_ids: IdArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Subagent:
    """A trajectory inside the trajectory."""

    name: str
    steps: tuple[TrajectoryStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """The reduced document.

    Attributes:
        sha256: of the document in canonical JSON.
        version, agent: as told, empty when not told.
        copied: agent steps that repeat an earlier trajectory.
        dispatched: agent steps that asked no model.
        api_errors: agent steps that a harness wrote for a failed request.
        subagent_files: references to subagents' trajectories in other files.
        continued: it goes on in another file.
        ids_left_out: it had more ids than are kept.
    """

    sha256: str
    version: str
    agent: str
    steps: tuple[TrajectoryStep, ...]
    subagents: tuple[Subagent, ...] = ()
    copied: int = 0
    dispatched: int = 0
    api_errors: int = 0
    subagent_files: int = 0
    continued: bool = False
    ids_left_out: bool = False

    def payload(self) -> dict[str, Any]:
        """As JSON values; what is absent or zero is left out."""
        made: dict[str, Any] = {
            "sha256": self.sha256,
            "version": self.version,
            "agent": self.agent,
            "steps": _steps_out(self.steps),
            "subagents": [
                {"name": sub.name, "steps": _steps_out(sub.steps)} for sub in self.subagents
            ],
            "copied": self.copied,
            "dispatched": self.dispatched,
            "api_errors": self.api_errors,
            "subagent_files": self.subagent_files,
            "continued": self.continued,
            "ids_left_out": self.ids_left_out,
        }
        return {key: value for key, value in made.items() if value or key == "steps"}


def trajectory_of(events: Iterable[RolloutEvent]) -> Trajectory | None:
    """The trajectory given when the rollout was closed; the last one counts."""
    for event in sorted(events, key=lambda event: event.sequence, reverse=True):
        kept = event.payload.get(PAYLOAD_KEY)
        if event.kind is EventKind.CLOSED and isinstance(kept, Mapping):
            return _read(kept)
    return None


def problem_of(events: Iterable[RolloutEvent]) -> str | None:
    """Why the trajectory that was expected is not there, as told at close."""
    for event in events:
        told = event.payload.get(PROBLEM_KEY)
        if event.kind is EventKind.CLOSED and isinstance(told, str):
            return told
    return None


def count(value: Any) -> int | None:
    """A whole number of tokens or calls; anything else is not told."""
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


def ids_of(value: Any) -> IdArray | None:
    """Token ids; a list with anything else in it is not told."""
    if not isinstance(value, list):
        return None
    if not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
        return None
    return np.array(value, np.int32)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _steps_out(steps: tuple[TrajectoryStep, ...]) -> list[dict[str, Any]]:
    found = []
    before = _NO_IDS
    for step in steps:
        sampled = step.completion_ids
        made: dict[str, Any] = {
            "step": step.number,
            "completion": step.completion,
            "prompt": step.prompt,
            "calls": step.calls,
            "completion_ids": None if sampled is None else sampled.tolist(),
        }
        if step.prompt_ids is not None:
            shared = shared_length(before, step.prompt_ids)
            made["prompt_shared"] = shared
            made["prompt_rest"] = step.prompt_ids[shared:].tolist()
            before = _joined(step.prompt_ids, sampled)
        found.append({key: value for key, value in made.items() if value is not None})
    return found


def _joined(one: IdArray, other: IdArray | None) -> IdArray:
    return one if other is None else np.concatenate([one, other])


def _read(kept: Mapping[str, Any]) -> Trajectory:
    """The payload read back; it may come from a file, so any value may be anything."""
    subagents = kept.get("subagents")
    return Trajectory(
        sha256=_text(kept.get("sha256")),
        version=_text(kept.get("version")),
        agent=_text(kept.get("agent")),
        steps=_steps_in(kept.get("steps")),
        subagents=tuple(
            Subagent(_text(sub.get("name")), _steps_in(sub.get("steps")))
            for sub in (subagents if isinstance(subagents, list) else ())
            if isinstance(sub, Mapping)
        ),
        copied=count(kept.get("copied")) or 0,
        dispatched=count(kept.get("dispatched")) or 0,
        api_errors=count(kept.get("api_errors")) or 0,
        subagent_files=count(kept.get("subagent_files")) or 0,
        continued=kept.get("continued") is True,
        ids_left_out=kept.get("ids_left_out") is True,
    )


def _steps_in(value: Any) -> tuple[TrajectoryStep, ...]:
    found = []
    before, room = _NO_IDS, _MAX_PUT_TOGETHER
    for place, item in enumerate(value if isinstance(value, list) else (), 1):
        facts = item if isinstance(item, Mapping) else {}
        sampled = ids_of(facts.get("completion_ids"))
        rest, shared = ids_of(facts.get("prompt_rest")), count(facts.get("prompt_shared"))
        prompt = None
        if rest is not None and shared is not None and shared <= before.size:
            room -= shared + rest.size
            if room >= 0:
                prompt = np.concatenate([before[:shared], rest])
                before = _joined(prompt, sampled)
        found.append(
            TrajectoryStep(
                number=count(facts.get("step")) or place,
                completion=count(facts.get("completion")),
                prompt=count(facts.get("prompt")),
                calls=count(facts.get("calls")),
                completion_ids=sampled,
                prompt_ids=prompt,
            )
        )
    return tuple(found)
