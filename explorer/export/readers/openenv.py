"""OpenEnv: `TrainingTrace` documents and `trace_entries`.

Owns: their fields. Must not know: other formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.export.readers import values
from explorer.export.readers.neutral import ImportedCall, ImportedRollout


def read(data: bytes) -> tuple[ImportedRollout, ...]:
    """One rollout: the turns, or entries, in order."""
    whole = values.parse(data, "$")
    if isinstance(whole, list):
        return (_rollout(whole, "$", {}),)
    top = values.mapping(whole, "$")
    for key in ("turns", "entries", "trace_entries"):
        if key in top:
            return (_rollout(values.sequence(top[key], f"$.{key}"), f"$.{key}", top),)
    values.refuse("$", "has neither `turns` nor `entries`: not a trace of OpenEnv")


def _rollout(found: list[Any], path: str, top: Mapping[str, Any]) -> ImportedRollout:
    calls, reward = [], values.number(top.get("reward"), "$.reward")
    for index, item in enumerate(found):
        place = f"{path}[{index}]"
        entry = values.mapping(item, place)
        calls.append(_call(entry, place))
        told = values.number(entry.get("reward"), f"{place}.reward")
        reward = told if told is not None else reward
    notes = {}
    session = values.name(top.get("session_id"))
    if session:
        notes["session_id"] = session
    return ImportedRollout(
        source=session or "trace",
        calls=tuple(calls),
        task=values.name(top.get("task_name") or top.get("task_id")),
        harness=values.name(top.get("harness")),
        model=next((call.model for call in calls if call.model), None),
        reward=reward,
        notes=notes,
    )


def _call(entry: dict[str, Any], path: str) -> ImportedCall:
    prompt = values.ids(entry.get("prompt_token_ids"), f"{path}.prompt_token_ids")
    sampled = values.ids(entry.get("completion_token_ids"), f"{path}.completion_token_ids")
    request = values.mapping(entry.get("request") or {}, f"{path}.request")
    response = values.mapping(entry.get("response") or {}, f"{path}.response")
    metadata = values.mapping(entry.get("metadata") or {}, f"{path}.metadata")
    count = len(sampled or ())
    mask = values.bits(entry.get("loss_mask"), f"{path}.loss_mask")
    reply, finish = _reply(response, f"{path}.response")
    sampling = metadata.get("requested_sampling_params") or metadata.get("sampling_params")
    return ImportedCall(
        messages=values.messages(request.get("messages"), f"{path}.request.messages"),
        reply=reply,
        tools=tuple(values.sequence(request.get("tools"), f"{path}.request.tools")),
        prompt_ids=prompt,
        completion_ids=sampled,
        logprobs=values.logprobs(
            entry.get("per_token_logps"), count, f"{path}.per_token_logps"
        ),
        mask=values.own_mask(mask, len(prompt or ()), count, f"{path}.loss_mask"),
        finish_reason=finish or values.name(metadata.get("finish_reason")),
        model=values.name(
            response.get("model") or metadata.get("model") or request.get("model")
        ),
        sampling=sampling if isinstance(sampling, dict) else {},
        source=values.name(entry.get("node_id") or metadata.get("node_id")) or "",
    )


def _reply(response: dict[str, Any], path: str) -> tuple[dict[str, Any], str | None]:
    """The message, from a chat completion or from the message itself."""
    choices = response.get("choices")
    if isinstance(choices, list) and choices:
        first = values.mapping(choices[0], f"{path}.choices[0]")
        finish = values.name(first.get("finish_reason"))
        if first.get("message") is not None:
            return values.message(first["message"], f"{path}.choices[0].message"), finish
        return {"role": "assistant", "content": first.get("text")}, finish
    if isinstance(response.get("role"), str):
        return values.message(response, path), None
    return {"role": "assistant", "content": None}, None
