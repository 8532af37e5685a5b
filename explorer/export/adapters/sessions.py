"""The Session Traces Format, which the Hub's own viewer shows.

Owns: its lines.
Must not know: tokens, masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from explorer.export.adapters.graph import Graph, Said
from explorer.export.adapters.kept import Trained, stem_of
from explorer.export.dataset.adapter import Adapter, File, Layout, Subject
from explorer.trace.jsontext import dump


class Sessions(Adapter):
    """One session a rollout."""

    name = "sessions"
    layout = Layout.FILES
    suffix = "jsonl"
    needs_texts = True
    about = (
        "The Hub's Session Traces Format, one file a rollout, for its trace viewer: a view to "
        "read and to link to, never to train on. It is the conversation on which most tokens "
        "train (an agent's; where none does, the longest). Not in it: ids, masks, logprobs, "
        "rewards, pictures, other branches and conversations, and rollouts of which no call's "
        "texts are there. `load_dataset` takes such files for agent traces and asks for the "
        "package teich: pass `parse_agent_traces=False`."
    )

    def add(self, subject: Subject) -> Iterable[File]:
        """Its session; none where no call can be read."""
        graph = Graph(subject)
        path = graph.main_path(Trained(subject.record, subject.judgement))
        if path is None:
            return
        lines = [_header(subject, graph, path)]
        lines += [_line(graph.said[place]) for place in path]
        yield File(stem_of(subject.record), b"".join(dump(line) + b"\n" for line in lines))


def _header(subject: Subject, graph: Graph, path: tuple[int, ...]) -> dict[str, Any]:
    rollout = subject.record.rollout
    made: dict[str, Any] = {
        "type": "session",
        # It must be there; the Hub shows names that it does not know as they are.
        "harness": rollout.harness or "unknown",
        "id": rollout.rollout_id,
    }
    if rollout.task is not None:
        made["name"] = rollout.task
    shown = len(graph.calls_of(path))
    return made | {"calls": shown, "calls_left_out": len(subject.record.calls) - shown}


def _line(said: Said) -> dict[str, Any]:
    message, call = said.message, said.call
    made: dict[str, Any] = {"role": message.role, "content": message.words}
    if message.reasoning is not None:
        made["reasoningContent"] = message.reasoning
    if message.tool_calls:
        made["toolCalls"] = [
            {"id": each.id, "function": {"name": each.name, "arguments": each.arguments}}
            for each in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["toolCallId"] = message.tool_call_id
    if call is not None:
        made["timestamp"] = call.ended_us // 1000
        if call.model_served is not None:
            made["model"] = call.model_served
    return {"type": "message", "message": made}
