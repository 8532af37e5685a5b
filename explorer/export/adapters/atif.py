"""ATIF 1.8, Harbor's trajectory format: one file a path of a rollout.

Owns: its fields, and which ids may stand in it.
Must not know: which call goes on from which.

ATIF has no loss mask and no tree. So ids and logprobs stand only with a reply all of whose
tokens train; and each path from a beginning to a last reply is a trajectory, of which the
steps that an earlier one has too are marked as copied, which readers must not train on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from explorer.export.adapters.graph import Graph, Said
from explorer.export.adapters.kept import Trained, policy_sha256, stem_of
from explorer.export.adapters.moments import iso
from explorer.export.adapters.spoken import Message, ToolCall
from explorer.export.dataset.adapter import Adapter, File, Layout, Subject
from explorer.records import Call
from explorer.trace.assemble import wide
from explorer.trace.jsontext import dump

_PICTURE = re.compile(r"data:(image/(?:jpeg|png|gif|webp))[;,]")


class Atif(Adapter):
    """One trajectory a path."""

    name = "atif"
    layout = Layout.FILES
    suffix = "json"
    needs_texts = True
    about = (
        "ATIF 1.8, for Harbor and viewers: one trajectory a conversation, several to a rollout "
        "where it parts or has side calls (they share `session_id`; a step that an earlier one "
        "has is marked as copied). As ATIF has no mask, ids and logprobs stand only with "
        "replies all of whose tokens train; the others are text. Reward, verdict and ids of "
        "calls are in `extra`. Not in it: calls whose texts are not there. Prompts' ids repeat "
        "themselves: its size grows with the square of a conversation's length."
    )

    def add(self, subject: Subject) -> Iterable[File]:
        """Its trajectories, the one that stands for the rollout first."""
        graph = Graph(subject)
        trained = Trained(subject.record, subject.judgement)
        main = graph.main_path(trained)
        paths = sorted(graph.paths(), key=lambda path: path != main)
        copied: set[int] = set()
        for number, path in enumerate(paths, 1):
            stem = stem_of(subject.record, number)
            steps = _Steps(subject, trained, frozenset(copied))
            for place in path:
                steps.add(place, graph.said[place])
            document = _document(subject, graph, path, stem, steps.made)
            copied.update(path)
            yield File(stem, dump(document))


def _document(
    subject: Subject,
    graph: Graph,
    path: tuple[int, ...],
    stem: str,
    steps: list[dict[str, Any]],
) -> dict[str, Any]:
    record, judgement = subject.record, subject.judgement
    rollout, state = record.rollout, judgement.state
    tools = [tool for tool in graph.said[path[0]].tools if isinstance(tool, Mapping)]
    agent: dict[str, Any] = {
        # Both must be there; empty where nobody said.
        "name": rollout.harness or "",
        "version": rollout.harness_version or "",
        "model_name": rollout.model,
    }
    if tools:
        agent["tool_definitions"] = tools
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": rollout.rollout_id,
        "trajectory_id": stem,
        "agent": agent,
        "steps": steps,
        "extra": {
            "rollout_id": rollout.rollout_id,
            "run": rollout.run,
            "task": rollout.task,
            "group": rollout.group,
            "attempt": rollout.attempt,
            "reward": state.reward,
            "ok": state.ok,
            "trainable": judgement.trainable,
            "reasons": [reason.code for reason in judgement.reasons],
            "policy_sha256": policy_sha256(judgement.policy),
            "inputs_sha256": judgement.inputs_sha256,
            "calls_left_out": list(graph.unread),
        },
    }


@dataclass(slots=True)
class _Steps:
    """The steps of one path; `asked` are the tool calls of the last reply."""

    subject: Subject
    trained: Trained
    copied: frozenset[int]
    made: list[dict[str, Any]] = field(default_factory=list)
    asked: frozenset[str] = frozenset()

    def add(self, place: int, said: Said) -> None:
        message = said.message
        if message.role == "tool" and self._result(message):
            return
        step: dict[str, Any] = {"step_id": len(self.made) + 1}
        extra: dict[str, Any] = {}
        if message.role == "assistant":
            step |= self._spoken(said, place in self.copied, extra)
        else:
            # A result that answers no call of the step before it was said by somebody.
            step["source"] = "user" if message.role == "tool" else message.role
            if message.role == "tool":
                extra |= {"role": "tool", "tool_call_id": message.tool_call_id}
        step["message"] = _content(message, extra)
        if place in self.copied:
            step["is_copied_context"] = True
        if extra:
            step["extra"] = extra
        self.made.append(step)
        self.asked = frozenset(call.id for call in message.tool_calls)

    def _result(self, message: Message) -> bool:
        """Puts a tool's result to the step that called it; false where there is none."""
        if message.tool_call_id not in self.asked:
            return False
        extra: dict[str, Any] = {}
        result = {
            "source_call_id": message.tool_call_id,
            "content": _content(message, extra),
        }
        if extra:
            result["extra"] = extra
        observation = self.made[-1].setdefault("observation", {"results": []})
        observation["results"].append(result)
        return True

    def _spoken(self, said: Said, copied: bool, extra: dict[str, Any]) -> dict[str, Any]:
        message, call = said.message, said.call
        step: dict[str, Any] = {"source": "agent"}
        sampled = call is None or not call.injected
        if message.reasoning is not None and sampled:
            step["reasoning_content"] = message.reasoning
        if message.tool_calls:
            step["tool_calls"] = [_tool_call(each) for each in message.tool_calls]
        if call is None:
            # Said by the harness in an assistant's name: no call of this rollout made it.
            step["is_copied_context"] = True
            return step
        # What the proxy said itself is a step that no model made.
        step |= {"timestamp": iso(call.ended_us), "llm_call_count": int(sampled)}
        if sampled:
            step |= {
                "model_name": call.model_served,
                "metrics": self._metrics(call, copied),
            }
        judgement = self.subject.judgement
        mask = judgement.masks[call.call_id]
        extra |= {
            "call_id": call.call_id,
            "role": judgement.roles[call.call_id].role,
            "supervised_tokens": self.trained.count([call.call_id]),
            "mask_reason": mask.reason,
            "finish_reason": call.finish_reason,
        }
        return {key: value for key, value in step.items() if value is not None}

    def _metrics(self, call: Call, copied: bool) -> dict[str, Any]:
        counts = {
            "prompt_tokens": call.prompt_len,
            "completion_tokens": call.completion_len,
            "cached_tokens": call.usage_cached,
        }
        made: dict[str, Any] = {
            key: value for key, value in counts.items() if value is not None
        }
        bits = self.trained.bits(call)
        if not copied and bits.size and bits.all() and call.logprobs is not None:
            made["prompt_token_ids"] = self.subject.judgement.tree.sequences.prompt(
                call.call_id
            )
            made["completion_token_ids"] = call.completion
            made["logprobs"] = wide(call.logprobs)
        return made


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Arguments are an object in ATIF; the text that was sampled stands beside it."""
    try:
        found = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        found = None
    arguments = found if isinstance(found, dict) else {}
    return {
        "tool_call_id": call.id,
        "function_name": call.name,
        "arguments": arguments,
        "extra": {"arguments": call.arguments},
    }


def _content(message: Message, extra: dict[str, Any]) -> Any:
    """Text, or texts and pictures; kinds of parts that ATIF has no form for go to `extra`."""
    if message.parts is None:
        return message.text or ""
    kept: list[dict[str, Any]] = []
    left = []
    for part in message.parts:
        picture = part.get("image_url")
        url = picture.get("url") if isinstance(picture, Mapping) else None
        known = _PICTURE.match(url) if isinstance(url, str) else None
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            kept.append({"type": "text", "text": part["text"]})
        elif known is not None:
            source = {"media_type": known[1], "path": url}
            kept.append({"type": "image", "source": source})
        else:
            left.append(dict(part))
    if left:
        extra["parts"] = left
    return kept
