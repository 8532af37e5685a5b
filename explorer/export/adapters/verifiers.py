"""verifiers' `traces.jsonl`: an episode a line, its trace a graph of messages.

Owns: its fields.
Must not know: which call goes on from which, which tokens train.

A node holds the ids that its message adds to the sequence. Nobody recorded which message of a
prompt made which of its ids, so all new ones of a prompt stand before the reply to it, as the
scaffold of a reply does, and the messages of a prompt hold none: the ids along a path are what
the engine read and sampled, and `mask` is the verdict's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from explorer.export.adapters.graph import Graph, Said
from explorer.export.adapters.kept import Trained, policy_sha256, sampling_of
from explorer.export.adapters.spoken import Message
from explorer.export.dataset.adapter import Adapter, Layout, Line, Subject
from explorer.records import Call, RolloutRecord
from explorer.trace.assemble import wide
from explorer.trace.jsontext import dump
from explorer.trace.versions import version_spans

_FINISHES = ("stop", "length", "tool_calls")


class Verifiers(Adapter):
    """One episode a rollout."""

    name = "verifiers"
    layout = Layout.LINES
    suffix = "jsonl"
    needs_texts = True
    about = (
        "verifiers 0.4 (`traces.jsonl`, and prime-rl through it): one episode a line with one "
        "trace, a graph of messages with ids, `mask` and logprobs as the engine gave them. "
        "Every rollout is in it; where the verdict forbids training, `agent.trainable` is "
        "false and every mask too. Which message of a prompt made which ids nobody recorded: "
        "they stand before the reply. Not in it: logprobs of tokens that do not train, parts "
        "of messages that are neither text nor picture, calls whose texts are not there "
        "(listed in `info`)."
    )

    def add(self, subject: Subject) -> Iterable[Line]:
        """Its episode; none where no call can be read."""
        graph = Graph(subject)
        if graph.said:
            trained = Trained(subject.record, subject.judgement)
            yield Line(dump(_episode(subject, graph, trained)))


def _episode(subject: Subject, graph: Graph, trained: Trained) -> dict[str, Any]:
    record, ok = subject.record, subject.judgement.state.ok
    rollout = record.rollout
    # A name where there is one; nobody told the class and the row of the task.
    task = {"type": "", "data": {} if rollout.task is None else {"name": rollout.task}}
    made: dict[str, Any] = {"id": rollout.rollout_id, "env": {"id": ""}, "task": task}
    if rollout.group is not None:
        made["group"] = {"id": rollout.group}
    if ok is not None:
        made["ok"] = ok
    return made | {"traces": [_trace(subject, graph, trained, task)]}


def _trace(
    subject: Subject, graph: Graph, trained: Trained, task: Mapping[str, Any]
) -> dict[str, Any]:
    record, judgement = subject.record, subject.judgement
    rollout, state = record.rollout, judgement.state
    config: dict[str, Any] = {"model": rollout.model}
    if rollout.harness is not None:
        config["harness"] = {"id": rollout.harness}
    score = None if state.reward is None else {"score": state.reward, "weight": 1.0}
    tools = {str(tool["name"]): tool for said in graph.said for tool in _tools(said.tools)}
    made: dict[str, Any] = {
        "version": 1,
        "id": rollout.rollout_id,
        "task": task,
        "agent": {"config": config, "trainable": judgement.trainable},
        "tools": list(tools.values()),
        "nodes": [_node(subject, said, trained) for said in graph.said],
        "calls": _calls(record, graph),
        "rewards": {"reward": score},
        "info": {"rollout_explorer": _info(subject, graph)},
        "is_completed": True,
        "timing": {"start": rollout.created_us / 1e6},
    }
    if state.ok is not None:
        made["ok"] = state.ok
    if state.reason is not None:
        made["stop_condition"] = state.reason
    return made


def _node(subject: Subject, said: Said, trained: Trained) -> dict[str, Any]:
    made: dict[str, Any] = {
        "parent": said.parent,
        "message": _message(said.message),
        "sampled": said.call is not None and not said.call.injected,
        "timestamp": said.time_us / 1e6,
    }
    if said.parent is None and said.tools:
        made["tools"] = _tools(said.tools)
    return made if said.call is None else made | _tokens(subject, said.call, said, trained)


def _tokens(subject: Subject, call: Call, said: Said, trained: Trained) -> dict[str, Any]:
    tree = subject.judgement.tree
    node = tree.nodes[call.call_id]
    if not node.has_ids or call.completion is None:
        return {}
    ids = tree.sequences.slice(call.call_id, said.start, node.prompt_len + node.completion_len)
    bits = trained.bits(call)
    before = np.zeros(node.prompt_len - said.start, np.int8)
    mask = np.concatenate((before, bits)).astype(np.bool_)
    logprobs = np.zeros(0, np.float32) if call.logprobs is None else call.logprobs
    told = logprobs[bits == 1] if bits.any() else np.zeros(0, np.float32)
    return {"token_ids": ids, "mask": mask, "logprobs": wide(told)}


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role}
    if message.role == "assistant":
        made["content"] = message.words if message.parts is not None else message.text
        if message.reasoning is not None:
            made["reasoning_content"] = message.reasoning
        if message.tool_calls:
            made["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in message.tool_calls
            ]
        return made
    made["content"] = _content(message)
    if message.role == "tool":
        # It must name one; empty where the harness named none.
        made["tool_call_id"] = message.tool_call_id or ""
    return made


def _content(message: Message) -> Any:
    """Text, or its parts of the two kinds that verifiers has."""
    if message.parts is None:
        return message.text or ""
    kept = []
    for part in message.parts:
        picture = part.get("image_url")
        url = picture.get("url") if isinstance(picture, Mapping) else None
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            kept.append({"type": "text", "text": part["text"]})
        elif part.get("type") == "image_url" and isinstance(url, str):
            kept.append({"type": "image_url", "image_url": {"url": url}})
    return kept


def _tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Functions; whatever else a harness offered has another form in every dialect."""
    found = []
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            made: dict[str, Any] = {"type": "function", "name": function["name"]}
            kinds: dict[str, type] = {"description": str, "parameters": dict, "strict": bool}
            for key, kind in kinds.items():
                if isinstance(function.get(key), kind):
                    made[key] = function[key]
            found.append(made)
    return found


def _calls(record: RolloutRecord, graph: Graph) -> list[dict[str, Any]]:
    """Every call that reached the engine, with the number of its reply's node."""
    nodes = {said.call.call_id: at for at, said in enumerate(graph.said) if said.call}
    made = []
    for call in sorted(record.calls, key=lambda call: (call.sequence, call.call_id)):
        told: dict[str, Any] = {
            "node": nodes.get(call.call_id),
            "model": call.model_requested,
            "sampling": _sampling(sampling_of(call)),
            "finish_reason": call.finish_reason if call.finish_reason in _FINISHES else None,
            "time": {"start": call.started_us / 1e6, "end": call.ended_us / 1e6},
        }
        if call.usage_prompt is not None and call.usage_completion is not None:
            told["usage"] = {
                "prompt_tokens": call.usage_prompt - (call.usage_cached or 0),
                "completion_tokens": call.usage_completion,
                "cached_input_tokens": call.usage_cached,
                "reasoning_tokens": call.usage_reasoning,
            }
        if call.failure_kind is not None:
            told["error"] = {
                "type": call.failure_kind,
                "message": call.failure_detail or "",
                "status_code": call.upstream_status,
            }
        made.append(told)
    return made


def _sampling(sent: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine was asked for; what verifiers knows by name has its type there."""
    made = {key: value for key, value in sent.items() if key not in ("extra_body",)}
    for key in ("temperature", "top_p", "max_tokens", "reasoning_effort"):
        value = made.get(key)
        text = key == "reasoning_effort" and isinstance(value, str)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        whole = key != "max_tokens" or isinstance(value, int)
        fits = text or (key != "reasoning_effort" and number and whole)
        if key in made and not fits:
            del made[key]
    return made


def _info(subject: Subject, graph: Graph) -> dict[str, Any]:
    """What has no field of its own."""
    record, judgement = subject.record, subject.judgement
    rollout = record.rollout
    wordless = {
        str(at): said.message.wordless
        for at, said in enumerate(graph.said)
        if any(kind != "image_url" for kind in said.message.wordless)
    }
    return {
        "rollout_id": rollout.rollout_id,
        "run": rollout.run,
        "group": rollout.group,
        "attempt": rollout.attempt,
        "purpose": rollout.purpose,
        "harness_version": rollout.harness_version,
        "tokenizer_id": rollout.tokenizer_id,
        "chat_template_sha256": rollout.chat_template_sha256,
        "trainable": judgement.trainable,
        "reasons": [reason.code for reason in judgement.reasons],
        "policy_sha256": policy_sha256(judgement.policy),
        "inputs_sha256": judgement.inputs_sha256,
        "calls": [
            {
                "node": at,
                "call_id": said.call.call_id,
                "role": judgement.roles[said.call.call_id].role,
                "mask_reason": judgement.masks[said.call.call_id].reason,
                "weight_version_start": said.call.weight_version_start,
                "weight_version_end": said.call.weight_version_end,
                "weight_version_spans": [list(span) for span in version_spans(said.call)],
            }
            for at, said in enumerate(graph.said)
            if said.call is not None
        ],
        "calls_left_out": list(graph.unread),
        "parts_left_out": wordless,
    }
