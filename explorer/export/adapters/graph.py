"""The conversations of a rollout: who said what after what, each message once.

Owns: which messages of a call are new, and where a conversation parts.
Must not know: any format, which tokens train.

A call goes on from another where both agree: its prompt's ids begin with the other's whole
sequence, and its messages with the other's messages and an answer. Where they do not (a
harness wrote its history anew, say) it begins a conversation of its own, with all of its
messages and ids. So the ids along a path are always exactly what the engine read and sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from explorer.export.adapters.kept import Trained
from explorer.export.adapters.spoken import Message, Reader, Spoken, digest_of
from explorer.export.dataset.adapter import Subject
from explorer.records import Call, CallId, Role
from explorer.trace.jsontext import dump


@dataclass(slots=True)
class Said:
    """One message in its place.

    Attributes:
        parent: number of the message before it, None where a conversation begins.
        call: the call whose reply it is; None for what the harness said.
        start: where the ids begin in the call's sequence that no earlier call of the path has.
        tools: of the request, where a conversation begins.
    """

    parent: int | None
    message: Message
    call: Call | None = None
    start: int = 0
    time_us: int = 0
    tools: tuple[Mapping[str, Any], ...] = ()
    children: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A call that stands in the graph; `keys` are of its messages."""

    node: int
    keys: tuple[bytes, ...]


class Graph:
    """Every call of a rollout whose texts can be read.

    Attributes:
        said: a parent before its children; conversations in the order of the turn tree.
        unread: calls that are not in it.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.said: list[Said] = []
        self.unread: list[CallId] = []
        self._placed: dict[CallId, _Placed] = {}
        self._known: dict[tuple[int | None, bytes], int] = {}
        reader = Reader(subject.record, subject.texts)
        calls = {call.call_id: call for call in subject.record.calls}
        for node in subject.judgement.tree.walk():
            spoken = reader.read(calls[node.call_id])
            if spoken is None:
                self.unread.append(node.call_id)
            else:
                self._place(calls[node.call_id], node.parent_id, spoken)

    def _place(self, call: Call, parent_id: CallId | None, spoken: Spoken) -> None:
        keys = tuple(hashlib.sha256(digest_of(item)).digest() for item in spoken.messages)
        tools = hashlib.sha256(dump(spoken.tools)).digest()
        parent = self._placed.get(parent_id) if parent_id is not None else None
        at: int | None = None
        first = start = 0
        if parent is not None and parent_id is not None and _goes_on(parent, keys, spoken):
            at, first = parent.node, len(parent.keys) + 1
            start = self._length(parent_id)
        for message, key in zip(spoken.messages[first:], keys[first:], strict=True):
            known = key if at is not None else key + tools
            place = self._known.get((at, known))
            if place is None:
                place = self._add(Said(at, message, time_us=call.ended_us))
                self._known[at, known] = place
                if at is None:
                    self.said[place].tools = spoken.tools
            at = place
        place = self._add(Said(at, spoken.reply, call, start, call.ended_us))
        self._placed[call.call_id] = _Placed(place, keys)

    def _add(self, said: Said) -> int:
        self.said.append(said)
        if said.parent is not None:
            self.said[said.parent].children.append(len(self.said) - 1)
        return len(self.said) - 1

    def _length(self, call_id: CallId) -> int:
        node = self.subject.judgement.tree.nodes[call_id]
        return node.prompt_len + node.completion_len if node.has_ids else 0

    def paths(self) -> Iterator[tuple[int, ...]]:
        """Every conversation from its beginning to its last reply."""
        for place, said in enumerate(self.said):
            if not said.children:
                line = [place]
                while (parent := self.said[line[-1]].parent) is not None:
                    line.append(parent)
                yield tuple(reversed(line))

    def main_path(self, trained: Trained) -> tuple[int, ...] | None:
        """The one that stands for the rollout where a reader takes only one: an agent's, the
        one with the most tokens that train, then the longest, then the last."""
        roles = self.subject.judgement.roles

        def rank(path: tuple[int, ...]) -> tuple[bool, int, int, int]:
            calls = self.calls_of(path)
            agents = [call for call in calls if roles[call.call_id].role is Role.AGENT]
            main = all(roles[call.call_id].role is not Role.SUBAGENT for call in calls)
            names = [call.call_id for call in calls]
            return main, trained.count(names), len(agents), calls[-1].sequence

        return max(self.paths(), key=rank, default=None)

    def calls_of(self, path: Sequence[int]) -> list[Call]:
        """The calls on a path."""
        return [call for place in path if (call := self.said[place].call) is not None]


def _goes_on(parent: _Placed, keys: tuple[bytes, ...], spoken: Spoken) -> bool:
    size = len(parent.keys)
    return (
        len(keys) > size
        and keys[:size] == parent.keys
        and spoken.messages[size].role == "assistant"
    )
