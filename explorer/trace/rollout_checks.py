"""What is true of a rollout as a whole, as graded findings.

Owns: `check_rollout`: turns, roots, forks, siblings, the engine, overrides.
Must not know: why a single call is at fault (`checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    Certificate,
    FailureKind,
    Finding,
    Grade,
    LogprobKind,
    MaskReason,
    Role,
    RolloutRecord,
    Where,
)
from explorer.trace.atif import check_trajectory
from explorer.trace.breaks import PrefixBreak
from explorer.trace.causes import BreakCause
from explorer.trace.findings import make_finding
from explorer.trace.mask import PLAIN, CallMask, logprobs_accepted, raw_coincides
from explorer.trace.policy import Policy
from explorer.trace.roles import RoleDecision, answered, sibling_groups
from explorer.trace.state import RolloutState
from explorer.trace.token_in import counted, in_words
from explorer.trace.tree import Node, Tree

_SILENT_CAUSES = frozenset({BreakCause.UNRELATED, BreakCause.SAME_PROMPT})


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """A rollout with everything decided about its calls."""

    record: RolloutRecord
    policy: Policy
    state: RolloutState
    tree: Tree
    roles: Mapping[CallId, RoleDecision]
    masks: Mapping[CallId, CallMask]

    @property
    def by_id(self) -> dict[CallId, Call]:
        return {call.call_id: call for call in self.record.calls}

    def where(self, call_id: CallId | None = None) -> Where:
        return Where(self.record.rollout.rollout_id, call_id)

    def ended_with_reply(self, call: Call) -> bool:
        """Whether there is an answer to judge."""
        return answered(call, train_aborted=self.policy.train_aborted)

    def agent_calls(self) -> list[Node]:
        """Calls of the agent that ended with a reply, in admission order."""
        by_id = self.by_id
        return [
            node
            for call_id, node in self.tree.nodes.items()
            if self.roles[call_id].role is Role.AGENT and self.ended_with_reply(by_id[call_id])
        ]


def check_rollout(decided: Decided) -> tuple[Finding, ...]:
    """Every fact about the rollout as a whole."""
    return (
        *_turns(decided),
        *_engine(decided),
        *_shape(decided),
        *_siblings(decided),
        *_sampling(decided),
        *_ends(decided),
        *_overrides(decided),
        *check_trajectory(decided.record, decided.tree.sequences, decided.roles, decided.masks),
    )


def _turns(decided: Decided) -> Iterator[Finding]:
    where = decided.where()
    by_id = decided.by_id
    if not any(decided.ended_with_reply(by_id[name]) for name in decided.tree.nodes):
        yield make_finding("no_turns", where)
    elif not any(mask.supervised for mask in decided.masks.values()):
        reasons: dict[MaskReason, None] = {}
        for mask in decided.masks.values():
            reasons.update((span.reason, None) for span in mask.completion)
        detail = f"Masked as: {', '.join(reasons)}." if reasons else "Nothing was sampled."
        yield make_finding("nothing_trainable", where, detail)
    agent = decided.agent_calls()
    if len(agent) == 1:
        yield make_finding("degenerate_rollout", decided.where(agent[0].call_id))


def _engine(decided: Decided) -> Iterator[Finding]:
    """What the engine's certificates leave unproved: one finding for each of them."""
    record = decided.record
    general = []
    for item in record.overrides:
        if item.kind == "accept_logprobs":
            detail = f"By {item.who}: {item.reason}"
            yield make_finding("logprobs_accepted", decided.where(item.call_id), detail)
            general += [item] if item.call_id is None else []
    agent = decided.agent_calls()
    by_id = {call.call_id: call for call in record.calls}
    groups: dict[str, tuple[Certificate | None, list[Call]]] = {}
    for node in agent:
        call = by_id[node.call_id]
        certificate = record.certificate_of(call)
        name = certificate.certificate_id if certificate is not None else ""
        groups.setdefault(name, (certificate, []))[1].append(call)
    if not groups:
        groups[""] = (record.certificate, [])
    for certificate, calls in groups.values():
        if certificate is not None and certificate.passing:
            continue
        plain = [call for call in calls if raw_coincides(call, certificate)]
        if plain:
            yield make_finding("raw_coincides", decided.where(), f"{len(plain)} calls")
            if decided.policy.accept_raw_at_one and len(plain) == len(calls):
                continue
        masked = [
            call
            for call in calls
            if decided.masks[call.call_id].reason is MaskReason.UNCERTIFIED
        ]
        accepted = logprobs_accepted(decided.policy, general, certificate)
        code = engine_code(certificate)
        # What was imported is refused whatever else masks its calls.
        refused = bool(masked) or (not calls and not accepted) or code == "imported"
        detail = "" if certificate is None else "; ".join(certificate.failures)
        whole = len(groups) == 1
        where = decided.where(None if whole or not masked else masked[0].call_id)
        grade = Grade.FATAL if refused else Grade.WARN
        yield make_finding(code, where, detail, grade)


def engine_code(certificate: Certificate | None) -> str:
    """The finding that names what a certificate lacks."""
    if certificate is None:
        return "uncertified_engine"
    if certificate.engine_kind == "imported":
        return "imported"
    if not certificate.certifiable:
        return "scripted_engine"
    if certificate.logprob_kind is LogprobKind.RAW:
        return "raw_logprobs"
    return "uncertified_engine"


def _shape(decided: Decided) -> Iterator[Finding]:
    tree, roles = decided.tree, decided.roles
    agent_roots = [root for root in tree.roots if roles[root].role is Role.AGENT]
    if len(agent_roots) > 1:
        yield make_finding("multiple_roots", decided.where(), f"{len(agent_roots)} roots.")
        agent = [node for node in decided.agent_calls() if node.has_ids]
        if len(agent) > 1 and all(node.parent_id is None for node in agent):
            yield make_finding("per_turn_capture_only", decided.where(), f"{len(agent)} calls.")
    forks = 0
    for node in tree.nodes.values():
        forks += len(node.children) > 1
        broke = node.break_
        # Below a root, going another way is a fork; only a turn that the template rendered
        # anew is history that should have been kept and was not.
        if broke is not None and (node.parent_id is None or broke.rendered_anew):
            is_agent = roles[node.call_id].role is Role.AGENT
            silent = broke.cause in _SILENT_CAUSES or not is_agent
            grade = Grade.INFO if silent else Grade.WARN
            detail = _break_in_words(broke)
            yield make_finding("prefix_break", decided.where(node.call_id), detail, grade)
    if forks:
        calls = "call was" if forks == 1 else "calls were"
        yield make_finding("forks", decided.where(), f"{forks} {calls}.")


def _break_in_words(broke: PrefixBreak) -> str:
    """Where and why, for people; the page shows the two ids decoded."""
    why = broke.cause.value.replace("_", " ")
    if broke.cause is BreakCause.UNKNOWN:
        why = "no cause can be named"
        if broke.rendered_anew:
            why = f"the messages are the same, their tokens are not, and {why}"
    expected = "the end" if broke.expected_id is None else str(broke.expected_id)
    actual = "the end" if broke.actual_id is None else str(broke.actual_id)
    ids = f"at {broke.offset}: expected {expected} got {actual}"
    return f"It left call {broke.nearest_call_id} {ids}; {why}."


def _siblings(decided: Decided) -> Iterator[Finding]:
    roles, by_id = decided.roles, decided.by_id
    discarded = [name for name, item in roles.items() if item.role is Role.DISCARDED]
    if discarded:
        detail = f"Calls: {', '.join(discarded[:10])}."
        yield make_finding("discarded_turns", decided.where(), detail)
    for group in sibling_groups(decided.tree):
        alive = [node for node in group if decided.ended_with_reply(by_id[node.call_id])]
        unsure = [node.call_id for node in alive if roles[node.call_id].ambiguous]
        if unsure:
            detail = f"Calls: {', '.join(unsure)}."
            yield make_finding("ambiguous_siblings", decided.where(unsure[0]), detail)
        for node in alive:
            twin = _twin_of_continued(node, alive, by_id)
            if twin is not None:
                detail = f"Call {twin} has the same prompt and sampled the same ids."
                yield make_finding("ambiguous_parent", decided.where(node.call_id), detail)


def _twin_of_continued(
    node: Node, group: list[Node], by_id: Mapping[CallId, Call]
) -> CallId | None:
    """Another call of the group that could as well be the parent of this one's children."""
    mine = by_id[node.call_id].completion
    if not node.children or mine is None:
        return None
    for other in group:
        theirs = by_id[other.call_id].completion
        if other.call_id == node.call_id or theirs is None or not other.has_ids:
            continue
        if np.array_equal(mine, theirs):
            return other.call_id
    return None


def _sampling(decided: Decided) -> Iterator[Finding]:
    by_id = decided.by_id
    certain = trained = 0
    for call_id, mask in decided.masks.items():
        logprobs = by_id[call_id].logprobs
        if mask.supervised and logprobs is not None:
            bits = mask.completion_bits().astype(np.bool_)
            trained += mask.supervised
            certain += int(np.count_nonzero(logprobs[bits] == 0.0))
    if certain:
        detail = f"{certain} of {trained} tokens."
        yield make_finding("certain_tokens", decided.where(), detail)
    neutral = [call for call in decided.record.calls if _neutralised(call)]
    if neutral:
        names = sorted({name for call in neutral for name in _neutralised(call)})
        detail = f"{len(neutral)} calls: {', '.join(names)}."
        yield make_finding("sampling_neutralised", decided.where(), detail)
    if decided.record.rollout.token_in:
        words = in_words(counted(decided.record.calls))
        yield make_finding("token_in", decided.where(), words)
    full = [c for c in decided.record.calls if c.failure_kind is FailureKind.CONTEXT]
    if full:
        where = decided.where(full[0].call_id if full[0].call_id in decided.masks else None)
        yield make_finding("context_budget_exhausted", where, f"{len(full)} calls.")


def _neutralised(call: Call) -> list[str]:
    """What the call asked for and did not get."""
    asked, sent = call.requested_sampling, call.submitted_sampling
    return [
        name
        for name, nothing in PLAIN.items()
        if name != "temperature"
        if asked.get(name) is not None and asked[name] not in nothing and name in sent
        if sent[name] in nothing
    ]


def _ends(decided: Decided) -> Iterator[Finding]:
    refused = [call for call in decided.record.calls if call.status is CallStatus.REFUSED]
    if refused:
        kinds = sorted({str(call.failure_kind or "refused") for call in refused})
        detail = f"{len(refused)} refused ({', '.join(kinds)})."
        yield make_finding("calls_refused", decided.where(), detail)
    tried = [call for call in decided.record.calls if call.status is not CallStatus.REFUSED]
    if tried and tried[-1].status is CallStatus.FAILED:
        yield make_finding("ended_on_failure", decided.where(tried[-1].call_id))
    for call in tried:
        if call.failure_kind is FailureKind.CLIENT_GONE and _near_a_time_out(call):
            yield make_finding("edge_timeout_suspected", decided.where(call.call_id))
    if decided.state.closed:
        for admission in decided.record.open_calls:
            yield make_finding("open_at_close", decided.where(admission.call_id))
    if decided.state.exit_code:
        detail = f"Exit code {decided.state.exit_code}."
        yield make_finding("harness_exit", decided.where(), detail)


# Time-outs that proxies and gateways come with (seconds).
_TIME_OUTS = (30, 60, 90, 100, 120, 180, 240, 300, 600, 900)


def _near_a_time_out(call: Call) -> bool:
    took = (call.ended_us - call.started_us) / 1_000_000
    return any(0 <= took - limit <= 1.0 for limit in _TIME_OUTS)


def _overrides(decided: Decided) -> Iterator[Finding]:
    needs_call = ("role", "exclude_call", "exclude_span")
    known = (*needs_call, "accept_logprobs", "accept_versions")
    for item in decided.record.overrides:
        mask = None if item.call_id is None else decided.masks.get(item.call_id)
        ignored = item.kind not in known
        ignored = ignored or (item.call_id is not None and mask is None)
        ignored = ignored or (item.call_id is None and item.kind in needs_call)
        ignored = ignored or (item.kind == "role" and item.role is None)
        if item.kind == "exclude_span" and mask is not None:
            first = 0 if item.start is None else item.start
            last = mask.length if item.end is None else item.end
            ignored = min(last, mask.length) <= max(first, mask.prompt_len)
        if ignored:
            detail = f"{item.kind} by {item.who}."
            yield make_finding("override_ignored", decided.where(item.call_id), detail)
