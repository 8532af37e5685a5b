"""The raw trace: every recorded call in the form of OpenEnv's `TraceEntry`.

Owns: that form, and that a failed call says that it failed.
Must not know: sessions, trainers. Nothing here is checked for training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.contract import Trace


def proxy_trace(server: ExplorerServer, rollout_id: str) -> list[dict[str, Any]]:
    """Every call of a rollout in arrival order; what a call lacks, its entry lacks."""
    return [_entry(server, rollout_id, call) for call in server.calls(rollout_id)]


def _entry(server: ExplorerServer, rollout_id: str, listed: dict[str, Any]) -> dict[str, Any]:
    call_id = str(listed["call_id"])
    call = server.call(rollout_id, call_id)
    entry: dict[str, Any] = {
        "request": _request(server, rollout_id, call_id),
        "response": _response(server, rollout_id, call),
    }
    prompt, completion = call["prompt_token_ids"], call["completion_token_ids"]
    if prompt is not None:
        entry["prompt_token_ids"] = prompt
    if completion is not None:
        entry["completion_token_ids"] = completion
    if call["per_token_logps"] is not None:
        entry["per_token_logps"] = call["per_token_logps"]
    if prompt is not None and completion is not None and call["mask_spans"]:
        entry["loss_mask"] = _mask(call["mask_spans"], len(prompt) + len(completion))
    entry["metadata"] = {
        "node_id": call_id,
        "rollout_id": rollout_id,
        **{
            name: call[name]
            for name in (
                *("sequence", "parent_id", "role", "rule", "status", "failure_kind"),
                *("dialect", "http_status", "upstream_status", "finish_reason", "n_tools"),
            )
        },
    }
    return entry


def with_messages(server: ExplorerServer, rollout_id: str, trace: Trace) -> Trace:
    """The trace with each call's messages, tools and answer, for logs and for reward functions
    that read text. Tokens, logprobs and masks stay what they are."""
    turns = []
    for turn in trace.turns:
        sent = _request(server, rollout_id, turn.node_id)
        answer = _object(server.body(rollout_id, turn.node_id, "reply"))
        request = {name: sent[name] for name in ("messages", "tools") if _objects(sent, name)}
        message = message_of(answer)
        response = {"choices": [{"message": message}]} if message else {}
        turns.append(
            replace(
                turn,
                request={**turn.request, **request},
                response={**turn.response, **response},
            )
        )
    return replace(trace, turns=tuple(turns))


def _objects(body: dict[str, Any], name: str) -> bool:
    found = body.get(name)
    return isinstance(found, list) and all(isinstance(item, dict) for item in found)


def message_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer's message, where it has the form that readers expect."""
    if not _objects(answer, "choices") or not answer["choices"]:
        return {}
    message = answer["choices"][0].get("message")
    if not isinstance(message, dict):
        return {}
    kept = {name: message.get(name) for name in ("role", "content", "reasoning")}
    if _objects(message, "tool_calls"):
        kept["tool_calls"] = message["tool_calls"]
    return kept


def _mask(spans: list[dict[str, Any]], length: int) -> list[int]:
    mask = [0] * length
    for span in spans:
        if span["reason"] == "sampled":
            mask[span["start"] : span["end"]] = [1] * (span["end"] - span["start"])
    return mask


def _request(server: ExplorerServer, rollout_id: str, call_id: str) -> dict[str, Any]:
    """What was sent to the engine, else what the harness sent."""
    for kind in ("submitted", "request"):
        found = _object(server.body(rollout_id, call_id, kind))
        if found:
            return found
    return {}


def _response(server: ExplorerServer, rollout_id: str, call: dict[str, Any]) -> dict[str, Any]:
    """The engine's answer; one without choices where there was none, with the reason."""
    found = _object(server.body(rollout_id, str(call["call_id"]), "reply"))
    if isinstance(found.get("choices"), list):
        return found
    return {
        "choices": [],
        "upstream_status": call["upstream_status"],
        "upstream_error": call["failure_detail"] or call["failure_kind"] or call["status"],
    }


def _object(raw: bytes | None) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
