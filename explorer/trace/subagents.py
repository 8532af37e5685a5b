"""Which conversations belong to a subagent, by claim or by the shape of the tree.

Owns: the subagent rules. All are careful: what is not shown to be a subagent stays
with the agent, and a claim can only take tokens out of training, never put them in.
Must not know: texts; a harness's claims are never authority for anything else.

`claimed_parent`: the harness named a parent session, or an agent inside the session,
that is not its own. `prompt_from_argument`: a conversation with another system prompt or
other tools, whose first user turn holds word for word an argument of another's tool call.
`nested_in_tool_call`: a new tool-bearing root with its own system
prompt, or with other tools and a conversation of its own, began after another conversation
asked for tools and before that conversation went on. What goes on from a subagent's messages,
or asks again what its first call asked, is the subagent's too. The first tool-bearing root is
the main agent and is never a subagent.
For claims, a root that the harness calls side work is neither; for the shape it is one like
any other, or a claim about it would put others in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# What a call asked: messages, system prompt and tools, by their digests.
Request = tuple[tuple[str, ...], str | None, str | None]
# The note that capture leaves, and the rule that reads it.
_SPAWNED = "prompt_from_argument"


class Wait(NamedTuple):
    """Admission order in which a conversation asked for tools and in which it went on."""

    asked: int
    went_on: int
    call_id: CallId


def find_subagents(tree: Tree, by_id: Mapping[CallId, Call]) -> dict[CallId, Evidence]:
    """Subagent calls with ``(rule, why)``; descendants of one are subagents too.

    The shape is looked at first as if nobody had claimed anything: what it shows stands,
    whatever is claimed of the calls that show it. Claims then add to it.
    """
    tool_roots = [root for root in tree.roots if _has_tools(tree, by_id, root)]
    own_roots = _by_shape(tree, by_id, tool_roots, {})
    working = [root for root in tool_roots if claimed_side_work(by_id[root]) is None]
    if working:
        main = by_id[working[0]]
        claimed = {
            root: evidence
            for root in working[1:]
            if (evidence := _claim(by_id[root], main)) is not None
        }
        own_roots = own_roots | _by_shape(tree, by_id, working, claimed)
    return {
        node.call_id: own_roots[node.root_id]
        for node in tree.nodes.values()
        if node.root_id in own_roots
    }


def _by_shape(
    tree: Tree,
    by_id: Mapping[CallId, Call],
    tool_roots: Sequence[CallId],
    claimed: Mapping[CallId, Evidence],
) -> dict[CallId, Evidence]:
    """Roots of subagents: those `claimed`, and those that ran while another one waited."""
    own_roots = dict(claimed)
    for root in tool_roots[1:]:
        spawned = _spawned(by_id[root], by_id)
        if spawned is not None:
            own_roots.setdefault(root, spawned)
    waits = _waits(tree, by_id) if len(tool_roots) > 1 else []
    asked = 0
    active: list[Wait] = []
    begun: dict[Request, CallId] = {}
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
        request = _request(by_id[root])
        evidence = (
            _inherited(tree, tree.meant.get(root), own_roots)
            or _asked_again(begun.get(request), own_roots)
            or _nested(
                by_id[root],
                by_id,
                _against(by_id[root], by_id[tool_roots[0]], active, by_id),
                goes_on=root in tree.meant,
            )
        )
        if evidence is not None:
            own_roots.setdefault(root, evidence)
            if by_id[root].message_digests:
                begun.setdefault(request, root)
    return own_roots


def _against(
    call: Call, main: Call, active: list[Wait], by_id: Mapping[CallId, Call]
) -> list[Wait]:
    """The waits that may show a root to be a subagent. One with the very system prompt and
    tools of the main agent is the main agent that began anew (after a compaction, say),
    unless one of its own kind is waiting."""
    if _kind(call) != _kind(main):
        return active
    return [wait for wait in active if _kind(by_id[wait.call_id]) == _kind(main)]


def _kind(call: Call) -> tuple[str | None, str | None]:
    return call.system_digest, call.tools_digest


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


def _spawned(call: Call, by_id: Mapping[CallId, Call]) -> Evidence | None:
    """A conversation of its own that begins with an argument of another's tool call. An
    agent that begins anew from a summary may quote one too, and is still the same agent."""
    for note in call.notes:
        spawner = by_id.get(CallId(note.detail)) if note.code == _SPAWNED else None
        if spawner is None:
            continue
        same = (spawner.system_digest, spawner.tools_digest) == (
            call.system_digest,
            call.tools_digest,
        )
        if not same:
            return _SPAWNED, f"its first user turn is an argument of call {spawner.call_id}"
    return None


def _waits(tree: Tree, by_id: Mapping[CallId, Call]) -> list[Wait]:
    """A conversation goes on where its tokens do, or, of a harness that writes its turns
    anew, where its messages do."""
    went_on = {
        node.call_id: min(tree.nodes[child].sequence for child in node.children)
        for node in tree.nodes.values()
        if node.children
    }
    for call_id, earlier in tree.meant.items():
        sequence = tree.nodes[call_id].sequence
        went_on[earlier] = min(went_on.get(earlier, sequence), sequence)
    return sorted(
        Wait(tree.nodes[call_id].sequence, sequence, call_id)
        for call_id, sequence in went_on.items()
        if _asked_tools(by_id[call_id])
    )


def _asked_tools(call: Call) -> bool:
    return call.finish_reason == "tool_calls" or any(
        note.code == "tool_calls_with_stop" for note in call.notes
    )


def _inherited(
    tree: Tree, earlier: CallId | None, own_roots: Mapping[CallId, Evidence]
) -> Evidence | None:
    """That of the subagent whose conversation a root goes on with by its messages."""
    found = None if earlier is None else own_roots.get(tree.nodes[earlier].root_id)
    return None if found is None else (found[0], f"goes on from call {earlier} of a subagent")


def _request(call: Call) -> Request:
    return call.message_digests, call.system_digest, call.tools_digest


def _asked_again(
    earlier: CallId | None, own_roots: Mapping[CallId, Evidence]
) -> Evidence | None:
    """That of a subagent whose very request a root repeats: its first attempt failed or was
    thrown away, and by the time of the next one nobody may be waiting any more."""
    if earlier is None:
        return None
    return own_roots[earlier][0], f"asks again what call {earlier} of a subagent asked"


def _nested(
    call: Call, by_id: Mapping[CallId, Call], active: list[Wait], *, goes_on: bool
) -> Evidence | None:
    """Another system prompt shows another agent; another tool manifest under the same one
    does so only where the call continues no messages, since an agent's own tools may grow."""
    for wait in active:
        waiting = by_id[wait.call_id]
        if (
            None in (waiting.system_digest, call.system_digest)
            or waiting.ended_us > call.started_us
        ):
            continue
        other_system = waiting.system_digest != call.system_digest
        other_tools = waiting.tools_digest != call.tools_digest and not goes_on
        if other_system or other_tools:
            own = "system prompt" if other_system else "tools"
            return (
                "nested_in_tool_call",
                f"began with its own {own} while call {wait.call_id} waited for its tools",
            )
    return None
