"""verifiers: `traces.jsonl`, one episode a line; a trace is a graph of messages.

Owns: its fields, and which tokens of a node were sampled.
Must not know: other formats.

A node's ids are what its message adds to the sequence: for an answer the scaffold before it,
then what was sampled (mask true), then perhaps more scaffold. Logprobs are written with four
decimals: the file is no lossless record of them.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from explorer.export.readers import values
from explorer.export.readers.neutral import ImportedCall, ImportedRollout


def read(data: bytes) -> tuple[ImportedRollout, ...]:
    """One rollout per trace of each episode."""
    found: list[ImportedRollout] = []
    budget = values.Budget()
    for index, line in enumerate(data.splitlines()):
        if not line.strip():
            continue
        path = f"line {index + 1}"
        episode = values.mapping(values.parse(line, path), path)
        if "nodes" in episode:
            found.append(_trace(episode, path, {}, budget))
            continue
        if "traces" not in episode:
            values.refuse(path, "has neither `traces` nor `nodes`: no episode of verifiers")
        for number, trace in enumerate(values.sequence(episode["traces"], f"{path} traces")):
            place = f"{path} traces[{number}]"
            found.append(_trace(values.mapping(trace, place), place, episode, budget))
    return tuple(found)


def _trace(
    trace: dict[str, Any], path: str, episode: dict[str, Any], budget: values.Budget
) -> ImportedRollout:
    nodes = [
        values.mapping(node, f"{path}.nodes[{index}]")
        for index, node in enumerate(values.sequence(trace.get("nodes"), f"{path}.nodes"))
    ]
    agent = trace.get("agent")
    config = agent.get("config") if isinstance(agent, dict) else None
    config = config if isinstance(config, dict) else {}
    rewards: dict[str, float | None] = {}
    total: float | None = None
    given = trace.get("rewards")
    for key, value in values.mapping(
        given if given is not None else {}, f"{path}.rewards"
    ).items():
        score = value.get("score") if isinstance(value, dict) else value
        told = values.number(score, f"{path}.rewards.{key}")
        weight = value.get("weight", 1.0) if isinstance(value, dict) else 1.0
        rewards[values.name(key) or "reward"] = told
        if told is not None:
            total = (total or 0.0) + told * (
                values.number(weight, f"{path}.rewards.{key}") or 0.0
            )
    calls = _calls(nodes, trace, path, budget)
    data = trace.get("task") or episode.get("task")
    task = data.get("data") if isinstance(data, dict) else None
    fields = task if isinstance(task, dict) else {}
    group = episode.get("group")
    return ImportedRollout(
        source=values.name(trace.get("id")) or path,
        calls=calls,
        task=values.name(fields.get("name") or fields.get("task_id") or fields.get("idx")),
        group=values.name(group.get("id")) if isinstance(group, dict) else None,
        harness=_harness(config) or "verifiers",
        harness_version=values.name((trace.get("verifiers") or {}).get("version"))
        if isinstance(trace.get("verifiers"), dict)
        else None,
        model=next((call.model for call in calls if call.model), None),
        reward=total,
        rewards=rewards,
        ok=values.flag(trace.get("ok")) if trace.get("is_completed") else None,
        reason=values.name(trace.get("stop_condition")),
        notes={"episode": values.name(episode.get("id")) or ""} if episode else {},
    )


def _harness(config: dict[str, Any]) -> str | None:
    """Its id; a run's own file has the whole settings of the harness there."""
    told = config.get("harness")
    if isinstance(told, dict):
        told = told.get("id")
    return values.name(told or config.get("name"))


def _calls(
    nodes: list[dict[str, Any]], trace: dict[str, Any], path: str, budget: values.Budget
) -> tuple[ImportedCall, ...]:
    facts: dict[int, dict[str, Any]] = {
        call["node"]: call
        for call in values.sequence(trace.get("calls"), f"{path}.calls")
        if isinstance(call, dict) and type(call.get("node")) is int
    }
    tools = tuple(values.sequence(trace.get("tools"), f"{path}.tools"))
    spoken = _Spoken(nodes, path)
    fixed = values.written_size(tools, f"{path}.tools")
    made = []
    for index, node in enumerate(nodes):
        if node.get("sampled") is not True:
            continue
        line = _ancestors(nodes, index, path)
        place = f"{path}.nodes[{index}]"
        budget.spend(fixed + sum(spoken.size(each) for each in line), place)
        said = tuple(spoken.message(each) for each in line)
        prompt = tuple(chain.from_iterable(spoken.ids(each) for each in line))
        fact = facts.get(index, {})
        sampling = fact.get("sampling")
        made.append(
            ImportedCall(
                messages=said,
                reply=spoken.message(index),
                tools=tools,
                **_sampled(node, prompt, place),
                finish_reason=values.name(fact.get("finish_reason")),
                model=values.name(fact.get("model")),
                time_us=values.clock(node.get("timestamp")),
                sampling=sampling if isinstance(sampling, dict) else {},
                source=f"node {index}",
            )
        )
    return tuple(made)


class _Spoken:
    """What each node says, read once however many calls go on from it."""

    def __init__(self, nodes: list[dict[str, Any]], path: str) -> None:
        self._nodes = nodes
        self._path = path
        self._messages: dict[int, dict[str, Any]] = {}
        self._ids: dict[int, tuple[int, ...]] = {}
        self._sizes: dict[int, int] = {}

    def message(self, index: int) -> dict[str, Any]:
        if index not in self._messages:
            place = f"{self._path}.nodes[{index}].message"
            self._messages[index] = values.message(self._nodes[index].get("message"), place)
        return self._messages[index]

    def ids(self, index: int) -> tuple[int, ...]:
        if index not in self._ids:
            place = f"{self._path}.nodes[{index}]"
            self._ids[index] = values.ids(self._nodes[index].get("token_ids"), place) or ()
        return self._ids[index]

    def size(self, index: int) -> int:
        if index not in self._sizes:
            place = f"{self._path}.nodes[{index}].message"
            self._sizes[index] = values.written_size(self.message(index), place) + 8 * len(
                self.ids(index)
            )
        return self._sizes[index]


def _ancestors(nodes: list[dict[str, Any]], index: int, path: str) -> list[int]:
    """From the root to the parent; a parent stands before its child."""
    line = []
    at = nodes[index].get("parent")
    last = index
    while at is not None:
        if type(at) is not int or not 0 <= at < last:
            values.refuse(
                f"{path}.nodes[{last}].parent", "must be the number of an earlier node"
            )
        line.append(at)
        last, at = at, nodes[at].get("parent")
    return line[::-1]


def _sampled(node: dict[str, Any], before: tuple[int, ...], path: str) -> dict[str, Any]:
    """Prompt, sampled ids, their logprobs and mask; nothing where the node has no ids."""
    found = values.ids(node.get("token_ids"), f"{path}.token_ids") or ()
    mask = values.bits(node.get("mask"), f"{path}.mask") or ()
    if not found:
        return {}
    if len(mask) != len(found):
        values.refuse(f"{path}.mask", f"has {len(mask)} entries for {len(found)} ids")
    if 1 not in mask:
        return {"prompt_ids": (*before, *found), "completion_ids": (), "mask": ()}
    start, end = mask.index(1), len(mask) - mask[::-1].index(1)
    told = values.logprobs(node.get("logprobs"), sum(mask), f"{path}.logprobs")
    each = None
    if told is not None:
        rest = iter(told)
        each = tuple(next(rest) if bit else None for bit in mask[start:end])
    return {
        "prompt_ids": (*before, *found[:start]),
        "completion_ids": found[start:end],
        "logprobs": each,
        "mask": mask[start:end],
    }
