"""What each call was for, decided from structure over every attempted call.

Owns: `assign_roles` and its rules, in the order in which they are tried.
Must not know: tokens, masks, prompt texts.

1. `override`: a person said so.
2. `failed_status`: the call failed, was aborted or never ended.
3. `sibling_continued`: nobody continued this answer, and the harness went on from
   another answer to exactly the same prompt: its tokens, or its turn as it was echoed.
4. `claimed_auxiliary`: the harness itself calls the call a compaction, a title or the like.
5. `no_tools_on_path`: some calls of the rollout have tools, none on this path has.
6. `claimed_parent`, `prompt_from_argument` and `nested_in_tool_call`: a tool-bearing
   conversation of its own that names a parent, that begins with an argument of another's
   tool call, or that ran while another one waited for its tools.
7. `tool_bearing_path`, or `tools_do_not_discriminate` when no call has tools at all.

A different prompt under the same parent is a fork, never a retry: it is not discarded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from explorer.records import Admission, Call, CallId, CallStatus, Override, Role
from explorer.trace.checks import cut_by_engine
from explorer.trace.claims import claimed_side_work
from explorer.trace.subagents import find_subagents
from explorer.trace.tree import Node, Tree

_FAILED = frozenset({CallStatus.FAILED, CallStatus.ABORTED, CallStatus.OPEN})


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """A call's role, the rule that gave it, and the evidence in words.

    `ambiguous` marks an agent call that is one of several unanswered answers to the
    same prompt: nobody can say which one the harness used.
    """

    role: Role
    rule: str
    why: str
    ambiguous: bool = False


def assign_roles(
    tree: Tree,
    calls: Sequence[Call],
    overrides: Sequence[Override] = (),
    open_calls: Sequence[Admission] = (),
    *,
    train_aborted: bool = False,
) -> dict[CallId, RoleDecision]:
    """One decision per node of the tree.

    Args:
        train_aborted: a call that the engine itself cut short has the role of its work.
        calls: every attempted call, refused ones too: they say whether tools
            discriminate, though they have no role themselves.
        open_calls: calls still in flight; evidence of the same kind.
    """
    by_id = {call.call_id: call for call in calls}
    forced = {
        override.call_id: override
        for override in overrides
        if override.kind == "role" and override.role is not None
    }
    with_tools = any(call.n_tools > 0 for call in calls) or any(
        admission.n_tools > 0 for admission in open_calls
    )
    discarded, ambiguous = _siblings(tree, by_id, train_aborted)
    subagents = find_subagents(tree, by_id)
    on_path = _tools_on_path(tree, by_id)
    decisions: dict[CallId, RoleDecision] = {}
    for call_id, node in tree.nodes.items():
        call = by_id[call_id]
        if call_id in forced:
            override = forced[call_id]
            assert override.role is not None
            why = f"{override.who}: {override.reason}"
            decisions[call_id] = RoleDecision(override.role, "override", why)
        elif not answered(call, train_aborted=train_aborted):
            kind = call.failure_kind or "no failure kind"
            why = f"the call ended as {call.status} ({kind})"
            decisions[call_id] = RoleDecision(Role.FAILED, "failed_status", why)
        elif call_id in discarded:
            why = f"call {discarded[call_id]} answered the same prompt and was continued"
            decisions[call_id] = RoleDecision(Role.DISCARDED, "sibling_continued", why)
        elif (claimed := claimed_side_work(call)) is not None:
            why = f"the harness says {claimed[0]} {claimed[1]}"
            decisions[call_id] = RoleDecision(Role.AUXILIARY, "claimed_auxiliary", why)
        elif with_tools and call_id not in on_path:
            why = "other calls of the rollout have tools, none on this path has"
            decisions[call_id] = RoleDecision(Role.AUXILIARY, "no_tools_on_path", why)
        elif call_id in subagents:
            rule, why = subagents[call_id]
            decisions[call_id] = RoleDecision(Role.SUBAGENT, rule, why)
        else:
            decisions[call_id] = _agent(node, with_tools, ambiguous)
    return decisions


def _agent(node: Node, with_tools: bool, ambiguous: Mapping[CallId, int]) -> RoleDecision:
    if node.call_id in ambiguous:
        why = f"{ambiguous[node.call_id]} answers to the same prompt, none continued"
        return RoleDecision(Role.AGENT, "unanswered_siblings", why, ambiguous=True)
    if with_tools:
        return RoleDecision(Role.AGENT, "tool_bearing_path", "its path has a call with tools")
    return RoleDecision(Role.AGENT, "tools_do_not_discriminate", "no call has tools")


def live(call: Call) -> bool:
    """Whether the call ended with a reply."""
    return call.status not in _FAILED


def answered(call: Call, *, train_aborted: bool) -> bool:
    """Whether there is an answer to judge: a whole one, or, where the policy lets such tokens
    train, one that the engine itself cut short."""
    return live(call) or (train_aborted and cut_by_engine(call))


def sibling_groups(tree: Tree) -> Iterable[list[Node]]:
    """Nodes with the same parent (or none) and exactly the same prompt, two at least."""
    groups: dict[tuple[CallId | None, bytes], list[Node]] = defaultdict(list)
    for node in tree.nodes.values():
        groups[node.parent_id, node.prompt_key].append(node)
    return (group for group in groups.values() if len(group) > 1)


def _siblings(
    tree: Tree, by_id: Mapping[CallId, Call], train_aborted: bool
) -> tuple[dict[CallId, CallId], dict[CallId, int]]:
    """Discarded calls with the one that was continued; ambiguous ones with their number."""
    groups = [
        [
            node.call_id
            for node in group
            if answered(by_id[node.call_id], train_aborted=train_aborted)
        ]
        for group in sibling_groups(tree)
    ]
    groups = [alive for alive in groups if len(alive) > 1]
    proved = _repeated(groups, by_id, set(tree.meant.values()))
    went_on = _continued(tree, groups, proved) | proved
    discarded: dict[CallId, CallId] = {}
    ambiguous: dict[CallId, int] = {}
    for alive in groups:
        continued = [call_id for call_id in alive if call_id in went_on]
        for call_id in alive:
            if call_id in went_on:
                continue
            if continued:
                discarded[call_id] = continued[0]
            else:
                ambiguous[call_id] = len(alive)
    return discarded, ambiguous


def _continued(tree: Tree, groups: list[list[CallId]], proved: set[CallId]) -> set[CallId]:
    """Calls that another one continues by its tokens. Where the harness went on from a
    sibling's answer, as its echo proves, tokens that could be either's prove nothing: two
    answers with the same ids, or one that begins the other."""
    group_of = {call_id: place for place, alive in enumerate(groups) for call_id in alive}
    found: set[CallId] = set()
    for node in tree.nodes.values():
        own = group_of.get(node.call_id)
        for child in node.children:
            meant = tree.meant.get(child)
            siblings = own is not None and meant is not None and group_of.get(meant) == own
            if not siblings or meant == node.call_id or meant not in proved:
                found.add(node.call_id)
                break
    return found


def _repeated(
    groups: list[list[CallId]], by_id: Mapping[CallId, Call], used: set[CallId]
) -> set[CallId]:
    """Siblings whose own answer, and no other's of the group, stands in a later request
    behind the very messages that it answered. Most harnesses write calls anew, so that no
    tokens continue; the ids that we minted still tell which answer was used."""
    found: set[CallId] = set()
    for alive in groups:
        answers = [by_id[call_id].reply_digest for call_id in alive]
        found.update(
            call_id
            for call_id, answer in zip(alive, answers, strict=True)
            if call_id in used and answers.count(answer) == 1
        )
    return found


def _tools_on_path(tree: Tree, by_id: Mapping[CallId, Call]) -> set[CallId]:
    """Calls with a tool-bearing call among their ancestors, descendants or themselves."""
    order = list(tree.walk())
    below: set[CallId] = set()
    for node in reversed(order):
        if by_id[node.call_id].n_tools > 0 or any(child in below for child in node.children):
            below.add(node.call_id)
    above: set[CallId] = set()
    for node in order:
        if by_id[node.call_id].n_tools > 0 or node.parent_id in above:
            above.add(node.call_id)
    return above | below
