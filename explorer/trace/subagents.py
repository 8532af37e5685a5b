"""Which conversations belong to a subagent, by claim or by the shape of the tree.

Owns: the two subagent rules. Both are careful: what is not shown to be a subagent stays
with the agent, and a claim can only take tokens out of training, never put them in.
Must not know: texts; a harness's claims are never authority for anything else.

`claimed_parent`: the harness named a parent session, or an agent inside the session,
that is not its own. `nested_in_tool_call`: a new tool-bearing root with its own system
prompt began after another conversation asked for tools and before that conversation
went on. The first tool-bearing root is the main agent and is never a subagent; a root that
the harness calls side work is neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from explorer.records import Call, CallId
from explorer.trace.claims import (
    AGENT,
    OWN,
    PARENT,
    claimed_side_work,
    claims_of,
    first_of,
)
from explorer.trace.tree import Tree

Evidence = tuple[str, str]


class Wait(NamedTuple):
    """Admission order in which a conversation asked for tools and in which it went on."""

    asked: int
    went_on: int
    call_id: CallId


def find_subagents(tree: Tree, by_id: Mapping[CallId, Call]) -> dict[CallId, Evidence]:
    """Subagent calls with ``(rule, why)``; descendants of one are subagents too."""
    tool_roots = [
        root
        for root in tree.roots
        if claimed_side_work(by_id[root]) is None and _has_tools(tree, by_id, root)
    ]
    if len(tool_roots) < 2:
        return {}
    main = tool_roots[0]
    own_roots = {
        root: evidence
        for root in tool_roots[1:]
        if (evidence := _claim(by_id[root], by_id[main])) is not None
    }
    waits = _waits(tree, by_id)
    asked = 0
    active: list[Wait] = []
    for root in tool_roots[1:]:
        start = by_id[root].sequence
        while asked < len(waits) and waits[asked].asked < start:
            active.append(waits[asked])
            asked += 1
        # A subagent that waits proves nothing about the others: the main agent may
        # begin anew beside it.
        active = [
            wait
            for wait in active
            if wait.went_on > start and tree.nodes[wait.call_id].root_id not in own_roots
        ]
        nested = _nested(by_id[root], by_id, active)
        if root not in own_roots and nested is not None:
            own_roots[root] = nested
    return {
        node.call_id: own_roots[node.root_id]
        for node in tree.nodes.values()
        if node.root_id in own_roots
    }


def _has_tools(tree: Tree, by_id: Mapping[CallId, Call], root: CallId) -> bool:
    stack = [root]
    while stack:
        call_id = stack.pop()
        if by_id[call_id].n_tools > 0:
            return True
        stack.extend(tree.nodes[call_id].children)
    return False


def _claim(call: Call, main: Call) -> Evidence | None:
    claims, main_claims = claims_of(call), claims_of(main)
    parent = first_of(claims, PARENT)
    own = first_of(claims, OWN)
    if parent is not None and parent != own and parent != first_of(main_claims, PARENT):
        return "claimed_parent", f"the harness names {parent} as the parent conversation"
    agent = first_of(claims, AGENT)
    if agent is not None and agent != first_of(main_claims, AGENT):
        return "claimed_parent", f"the harness names agent {agent} inside the session"
    return None


def _waits(tree: Tree, by_id: Mapping[CallId, Call]) -> list[Wait]:
    spans = []
    for node in tree.nodes.values():
        if node.children and _asked_tools(by_id[node.call_id]):
            went_on = min(tree.nodes[child].sequence for child in node.children)
            spans.append(Wait(node.sequence, went_on, node.call_id))
    return sorted(spans)


def _asked_tools(call: Call) -> bool:
    return call.finish_reason == "tool_calls" or any(
        note.code == "tool_calls_with_stop" for note in call.notes
    )


def _nested(call: Call, by_id: Mapping[CallId, Call], active: list[Wait]) -> Evidence | None:
    for wait in active:
        waiting = by_id[wait.call_id]
        known = None not in (waiting.system_digest, call.system_digest)
        if (
            known
            and waiting.system_digest != call.system_digest
            and waiting.ended_us <= call.started_us
        ):
            return (
                "nested_in_tool_call",
                f"began with its own system prompt while call {wait.call_id} "
                "waited for its tools",
            )
    return None
