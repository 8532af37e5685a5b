"""ATIF, Harbor's trajectory format (read up to 1.8): steps of a conversation.

Owns: its fields and which steps are model calls. Must not know: other formats.

It has no loss mask: ids in it are for reading, whatever else they come with.
"""

from __future__ import annotations

from typing import Any

from explorer.export.readers import values
from explorer.export.readers.neutral import ImportedCall, ImportedRollout

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def read(data: bytes) -> tuple[ImportedRollout, ...]:
    """One rollout per trajectory: the main one, then those of its subagents."""
    return from_document(values.mapping(values.parse(data, "$"), "$"), "$")


def from_document(document: dict[str, Any], path: str) -> tuple[ImportedRollout, ...]:
    """The trajectories of a document that has been parsed."""
    if not str(document.get("schema_version", "")).startswith("ATIF"):
        values.refuse(f"{path}.schema_version", "names no version of ATIF")
    budget = values.Budget()
    found = [_one(document, path, budget)]
    inner = values.sequence(
        document.get("subagent_trajectories"), f"{path}.subagent_trajectories"
    )
    for index, item in enumerate(inner):
        place = f"{path}.subagent_trajectories[{index}]"
        found.append(_one(values.mapping(item, place), place, budget))
    return tuple(found)


def _one(document: dict[str, Any], path: str, budget: values.Budget) -> ImportedRollout:
    agent = values.mapping(document.get("agent") or {}, f"{path}.agent")
    tools = values.sequence(agent.get("tool_definitions"), f"{path}.agent.tool_definitions")
    said: list[dict[str, Any]] = []
    size = values.written_size(tools, f"{path}.agent.tool_definitions")
    calls: list[ImportedCall] = []
    for index, item in enumerate(values.sequence(document.get("steps"), f"{path}.steps")):
        place = f"{path}.steps[{index}]"
        step = values.mapping(item, place)
        role = _ROLES.get(str(step.get("source")))
        if role is None:
            values.refuse(f"{place}.source", "must be system, user or agent")
        spoken = _spoken(step, role, place)
        sampled = step.get("llm_call_count") != 0 and step.get("is_copied_context") is not True
        if role == "assistant" and sampled:
            budget.spend(size, place)
            calls.append(_call(step, tuple(said), spoken, tuple(tools), place))
        new = [spoken, *_results(step, place)]
        size += values.written_size(new, place)
        said += new
    session = values.name(document.get("trajectory_id") or document.get("session_id"))
    return ImportedRollout(
        source=session or path,
        calls=tuple(calls),
        harness=values.name(agent.get("name")),
        harness_version=values.name(agent.get("version")),
        model=values.name(agent.get("model_name")),
        notes={"atif": values.name(document.get("schema_version")) or ""},
    )


def _spoken(step: dict[str, Any], role: str, path: str) -> dict[str, Any]:
    made: dict[str, Any] = {"role": role, "content": step.get("message")}
    if isinstance(step.get("reasoning_content"), str):
        made["reasoning_content"] = step["reasoning_content"]
    calls = values.sequence(step.get("tool_calls"), f"{path}.tool_calls")
    if calls:
        made["tool_calls"] = [values.tool_call(call) for call in calls]
    return made


def _results(step: dict[str, Any], path: str) -> list[dict[str, Any]]:
    observation = step.get("observation")
    if observation is None:
        return []
    whole = values.mapping(observation, f"{path}.observation")
    found = []
    for index, item in enumerate(
        values.sequence(whole.get("results"), f"{path}.observation.results")
    ):
        result = values.mapping(item, f"{path}.observation.results[{index}]")
        call = result.get("source_call_id")
        if isinstance(call, str):
            found.append(
                {"role": "tool", "tool_call_id": call, "content": result.get("content")}
            )
        else:
            found.append({"role": "user", "content": result.get("content")})
    return found


def _call(
    step: dict[str, Any],
    said: tuple[dict[str, Any], ...],
    spoken: dict[str, Any],
    tools: tuple[Any, ...],
    path: str,
) -> ImportedCall:
    metrics = values.mapping(step.get("metrics") or {}, f"{path}.metrics")
    prompt = values.ids(metrics.get("prompt_token_ids"), f"{path}.metrics.prompt_token_ids")
    place = f"{path}.metrics.completion_token_ids"
    sampled = values.ids(metrics.get("completion_token_ids"), place)
    told = None
    if sampled is not None:
        told = values.logprobs(
            metrics.get("logprobs"), len(sampled), f"{path}.metrics.logprobs"
        )
    return ImportedCall(
        messages=said,
        reply=spoken,
        tools=tools,
        prompt_ids=prompt,
        completion_ids=sampled,
        logprobs=told,
        model=values.name(step.get("model_name")),
        time_us=values.clock(step.get("timestamp")),
        source=f"step {step.get('step_id')}" if type(step.get("step_id")) is int else "",
    )
