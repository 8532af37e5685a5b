"""Harbor: a trial folder, as one JSON object of its files.

Owns: which files of a trial are read, and how ids and steps are brought together.
Must not know: other formats, folders.

The object is `{"kind": "harbor-trial", "files": {"result.json": "…", "agent/trajectory.json":
"…"}}`; the command `import` makes it of a folder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from explorer.export.readers import atif, values
from explorer.export.readers.neutral import ImportedCall, ImportedRollout

KIND = "harbor-trial"
FILES = ("result.json", "agent/trajectory.json")


def read(data: bytes) -> tuple[ImportedRollout, ...]:
    """The trial's rollout, then those of subagents in its trajectory."""
    whole = values.mapping(values.parse(data, "$"), "$")
    files = values.mapping(whole.get("files"), "$.files")
    parsed: dict[str, dict[str, Any]] = {}
    for name in FILES:
        if isinstance(files.get(name), str):
            raw = files[name].encode("utf-8", "surrogatepass")
            parsed[name] = values.mapping(values.parse(raw, name), name)
    result = parsed.get("result.json", {})
    document = parsed.get("agent/trajectory.json")
    if not parsed:
        values.refuse("$.files", "a trial has a result.json or an agent/trajectory.json")
    found = () if document is None else atif.from_document(document, "agent/trajectory.json")
    main = found[0] if found else ImportedRollout(source="trial", calls=())
    main = _told(_with_ids(main, result), result)
    return (main, *found[1:])


def _told(main: ImportedRollout, result: dict[str, Any]) -> ImportedRollout:
    """The trial's own facts: names, reward, how it ended."""
    agent = result.get("agent_info")
    agent = agent if isinstance(agent, dict) else {}
    model = agent.get("model_info")
    verdict = result.get("verifier_result")
    given = verdict.get("rewards") if isinstance(verdict, dict) else None
    rewards = {
        values.name(key) or "reward": values.number(value, f"result.json.rewards.{key}")
        for key, value in (given if isinstance(given, dict) else {}).items()
    }
    reward = rewards.get("reward")
    if reward is None and len(rewards) == 1:
        reward = next(iter(rewards.values()))
    failure = result.get("exception_info")
    failed = isinstance(failure, dict)
    return replace(
        main,
        source=values.name(result.get("trial_name")) or main.source,
        task=values.name(result.get("task_name")) or main.task,
        harness=values.name(agent.get("name")) or main.harness,
        harness_version=values.name(agent.get("version")) or main.harness_version,
        model=(values.name(model.get("name")) if isinstance(model, dict) else None)
        or main.model,
        reward=reward,
        rewards=rewards,
        ok=False if failed else None,
        reason=values.name(failure.get("exception_type"))
        if isinstance(failure, dict)
        else None,
    )


def _with_ids(main: ImportedRollout, result: dict[str, Any]) -> ImportedRollout:
    """Ids of `rollout_details`, where the steps have none; only if their numbers agree."""
    agent = result.get("agent_result")
    details = agent.get("rollout_details") if isinstance(agent, dict) else None
    if not isinstance(details, list) or not details:
        return main
    path = "result.json.agent_result.rollout_details[0]"
    first = values.mapping(details[0], path)
    calls = _turns(first, path)
    if not main.calls:
        return replace(main, calls=calls)
    if any(call.completion_ids for call in main.calls):
        return main
    if len(calls) != len(main.calls):
        said = f"{len(calls)} turns, {len(main.calls)} steps of the agent: ids left out"
        return replace(main, notes={**main.notes, "rollout_details": said})
    joined = tuple(
        replace(
            call,
            prompt_ids=ids.prompt_ids,
            completion_ids=ids.completion_ids,
            logprobs=ids.logprobs,
        )
        for call, ids in zip(main.calls, calls, strict=True)
    )
    return replace(main, calls=joined)


def _turns(first: dict[str, Any], path: str) -> tuple[ImportedCall, ...]:
    prompts = values.sequence(first.get("prompt_token_ids"), f"{path}.prompt_token_ids")
    sampled = values.sequence(first.get("completion_token_ids"), f"{path}.completion_token_ids")
    told = values.sequence(first.get("logprobs"), f"{path}.logprobs")
    if len(prompts) != len(sampled) or (told and len(told) != len(sampled)):
        values.refuse(path, "its lists have different numbers of turns")
    made = []
    for index, (prompt, ids) in enumerate(zip(prompts, sampled, strict=True)):
        completion = values.ids(ids, f"{path}.completion_token_ids[{index}]") or ()
        place = f"{path}.logprobs[{index}]"
        made.append(
            ImportedCall(
                messages=(),
                reply={"role": "assistant", "content": None},
                prompt_ids=values.ids(prompt, f"{path}.prompt_token_ids[{index}]"),
                completion_ids=completion,
                logprobs=values.logprobs(told[index] if told else None, len(completion), place),
                source=f"turn {index}",
            )
        )
    return tuple(made)
