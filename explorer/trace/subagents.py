"""Which conversations belong to a subagent, by claim or by the shape of the tree.

Owns: the two subagent rules. Both are careful: what is not shown to be a subagent stays
with the agent, and a claim can only take tokens out of training, never put them in.
Must not know: texts; a harness's claims are never authority for anything else.

`claimed_parent`: the harness named a parent session, or an agent inside the session,
that is not its own. `nested_in_tool_call`: a new tool-bearing root with its own system
prompt began after another conversation asked for tools and before that conversation
went on. The first tool-bearing root is the main agent and is never a subagent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from explorer.records import Call, CallId
from explorer.trace.tree import Node, Tree

_PARENT_CLAIMS = (
    "parent_session_id",
    "parent_session",
    "codex_parent_thread_id",
    "parent_thread_id",
    "parent_id",
    "parent",
)
_OWN_CLAIMS = ("thread_id", "session_id", "session")
_AGENT_CLAIMS = ("claude_code_agent_id", "agent_id")

Evidence = tuple[str, str]


def find_subagents(tree: Tree, by_id: Mapping[CallId, Call]) -> dict[CallId, Evidence]:
    """Subagent calls with ``(rule, why)``; descendants of one are subagents too."""
    tool_roots = [root for root in tree.roots if _has_tools(tree, by_id, root)]
    if len(tool_roots) < 2:
        return {}
    main = tool_roots[0]
    own_roots = {
        root: evidence
        for root in tool_roots[1:]
        if (evidence := _claim(by_id[root], by_id[main])) is not None
    }
    waits = _waits(tree, by_id, set(own_roots))
    for root in tool_roots[1:]:
        if root not in own_roots:
            nested = _nested(by_id[root], by_id, waits)
            if nested is not None:
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


def _claims(call: Call) -> dict[str, str]:
    """Claims by header or field name, both spelt the same way."""
    return {
        key.lower().removeprefix("x-").replace("-", "_"): value
        for key, value in call.claims.items()
        if value
    }


def _first(claims: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((claims[name] for name in names if name in claims), None)


def _claim(call: Call, main: Call) -> Evidence | None:
    claims, main_claims = _claims(call), _claims(main)
    parent = _first(claims, _PARENT_CLAIMS)
    own = _first(claims, _OWN_CLAIMS)
    if parent is not None and parent != own and parent != _first(main_claims, _PARENT_CLAIMS):
        return "claimed_parent", f"the harness names {parent} as the parent conversation"
    agent = _first(claims, _AGENT_CLAIMS)
    if agent is not None and agent != _first(main_claims, _AGENT_CLAIMS):
        return "claimed_parent", f"the harness names agent {agent} inside the session"
    return None


def _waits(
    tree: Tree, by_id: Mapping[CallId, Call], excluded: set[CallId]
) -> list[tuple[int, int, CallId]]:
    """Spans of admission order in which a conversation waited for its tools:
    ``(asked, went on, asking call)``, by the first."""
    spans = []
    for node in tree.nodes.values():
        call = by_id[node.call_id]
        if node.root_id in excluded or not node.children or not _asked_tools(call):
            continue
        went_on = _next_call(tree, node)
        if went_on > call.sequence:
            spans.append((call.sequence, went_on, node.call_id))
    return sorted(spans)


def _asked_tools(call: Call) -> bool:
    return call.finish_reason == "tool_calls" or any(
        note.code == "tool_calls_with_stop" for note in call.notes
    )


def _next_call(tree: Tree, node: Node) -> int:
    return min(tree.nodes[child].sequence for child in node.children)


def _nested(
    call: Call, by_id: Mapping[CallId, Call], waits: list[tuple[int, int, CallId]]
) -> Evidence | None:
    """Looks at the latest wait that began before the root did."""
    place = bisect_left(waits, (call.sequence,)) - 1
    while place >= 0:
        asked, went_on, waiting_id = waits[place]
        waiting = by_id[waiting_id]
        if asked < call.sequence < went_on and waiting.ended_us <= call.started_us:
            differs = None not in (waiting.system_digest, call.system_digest) and (
                waiting.system_digest != call.system_digest
            )
            if differs:
                return (
                    "nested_in_tool_call",
                    f"began with its own system prompt while call {waiting_id} "
                    "waited for its tools",
                )
        place -= 1
    return None
