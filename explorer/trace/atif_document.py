"""Reads a harness's trajectory file (ATIF, the Agent Trajectory Interchange Format).

Owns: names and limits of the document, and what of it is kept.
Must not know: our calls.

The document was written by a harness: any value may be of any type. What cannot be read is
"not told"; only a document that is none, or one beyond the limits, is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from explorer.errors import InvalidValue
from explorer.trace.trajectory import Subagent, Trajectory, TrajectoryStep, count, ids_of

# Of the file; a run of a hundred long turns with all its ids is half of it.
MAX_BYTES = 32 * 1024 * 1024
MAX_STEPS = 10_000
MAX_SUBAGENTS = 1_000
# Ids kept of all steps together, each prompt counted from where it leaves the step before.
MAX_IDS = 500_000
_NAME_LIMIT = 100
_SYNTHETIC = "<synthetic>"


def read_trajectory(document: Any) -> Trajectory:
    """What is kept of the document.

    Raises:
        InvalidValue: it is no trajectory, or beyond a limit.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("steps"), list):
        raise InvalidValue(
            "`trajectory` must be an ATIF document: an object with a list of `steps`",
            path="$.trajectory",
        )
    nested = list(_subagents(document))
    if sum(len(inner["steps"]) for inner in (document, *nested)) > MAX_STEPS:
        raise InvalidValue(
            f"`trajectory` may have at most {MAX_STEPS} steps", path="$.trajectory"
        )
    main = _Reader()
    steps = main.steps(document)
    subagents = tuple(
        Subagent(_name(inner), main.steps(inner, counted=False)) for inner in nested
    )
    found = Trajectory(
        sha256=hashlib.sha256(_canonical(document)).hexdigest(),
        version=_short(document.get("schema_version")),
        agent=_name(document),
        steps=steps,
        subagents=subagents,
        copied=main.copied,
        dispatched=main.dispatched,
        api_errors=main.api_errors,
        subagent_files=main.files,
        continued=isinstance(document.get("continued_trajectory_ref"), str),
    )
    return _without_ids(found) if _kept_ids(found) > MAX_IDS else found


def _canonical(document: Any) -> bytes:
    """Sorted keys and no blanks; what only Python reads (numbers beyond 64 bits, lone
    surrogates) in Python's own spelling."""
    try:
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidValue(
            f"`trajectory` is no JSON that can be kept: {error}", path="$.trajectory"
        ) from error


def _subagents(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every trajectory inside the trajectory, at any depth."""
    found = 0
    waiting = [document]
    while waiting:
        inner = waiting.pop(0).get("subagent_trajectories")
        for item in inner if isinstance(inner, list) else ():
            found += 1
            if found > MAX_SUBAGENTS:
                raise InvalidValue(
                    f"`trajectory` may have at most {MAX_SUBAGENTS} subagents",
                    path="$.trajectory",
                )
            made = item if isinstance(item, Mapping) else {}
            whole = made if isinstance(made.get("steps"), list) else {**made, "steps": []}
            waiting.append(whole)
            yield whole


class _Reader:
    """Reads the steps, and counts those that stand for no call of their own."""

    def __init__(self) -> None:
        self.copied = self.dispatched = self.api_errors = self.files = 0

    def steps(
        self, document: Mapping[str, Any], *, counted: bool = True
    ) -> tuple[TrajectoryStep, ...]:
        """The agent's steps that stand for model calls."""
        found = []
        for number, item in enumerate(document["steps"], 1):
            step = item if isinstance(item, Mapping) else {}
            self.files += _files(step)
            if step.get("source") != "agent":
                continue
            metrics = step.get("metrics")
            told = metrics if isinstance(metrics, Mapping) else {}
            if step.get("is_copied_context") is True:
                self.copied += counted
            elif count(step.get("llm_call_count")) == 0 and not told:
                self.dispatched += counted
            elif _is_api_error(step, told):
                self.api_errors += counted
            else:
                found.append(_step(number, step, told))
        return tuple(found)


def _step(number: int, step: Mapping[str, Any], told: Mapping[str, Any]) -> TrajectoryStep:
    return TrajectoryStep(
        number=number,
        completion=count(told.get("completion_tokens")),
        prompt=count(told.get("prompt_tokens")),
        calls=count(step.get("llm_call_count")),
        completion_ids=ids_of(told.get("completion_token_ids")),
        prompt_ids=ids_of(told.get("prompt_token_ids")),
    )


def _is_api_error(step: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Claude Code writes a failed request as a turn of a model that does not exist."""
    message = step.get("message")
    return (
        step.get("model_name") == _SYNTHETIC
        and isinstance(message, str)
        and message.startswith("API Error: ")
        and not step.get("tool_calls")
        and all(not told.get(f"{kind}_tokens") for kind in ("completion", "prompt", "cached"))
    )


def _files(step: Mapping[str, Any]) -> int:
    """Subagents whose trajectory lies in a file of its own."""
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, Mapping) else None
    found = 0
    for result in results if isinstance(results, list) else ():
        refs = result.get("subagent_trajectory_ref") if isinstance(result, Mapping) else None
        for ref in refs if isinstance(refs, list) else ():
            found += isinstance(ref, Mapping) and isinstance(ref.get("trajectory_path"), str)
    return found


def _name(document: Mapping[str, Any]) -> str:
    agent = document.get("agent")
    return _short(agent.get("name")) if isinstance(agent, Mapping) else ""


def _short(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in value)[:_NAME_LIMIT]


def _kept_ids(found: Trajectory) -> int:
    kept = found.payload()
    lists = (kept["steps"], *(sub["steps"] for sub in kept.get("subagents", ())))
    return sum(
        len(step.get("prompt_rest", ())) + len(step.get("completion_ids", ()))
        for steps in lists
        for step in steps
    )


def _without_ids(found: Trajectory) -> Trajectory:
    def plain(steps: tuple[TrajectoryStep, ...]) -> tuple[TrajectoryStep, ...]:
        return tuple(replace(step, completion_ids=None, prompt_ids=None) for step in steps)

    return replace(
        found,
        steps=plain(found.steps),
        subagents=tuple(Subagent(sub.name, plain(sub.steps)) for sub in found.subagents),
        ids_left_out=True,
    )
