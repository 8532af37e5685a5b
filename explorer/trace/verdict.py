"""The one verdict: what a rollout is, what of it may train, and why not.

Owns: `judge` and `Judgement`. The badge, the button, the API status and every exporter
read this and nothing else; a format may add refusals, never take one away.
Must not know: the clock, the store, any format.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from explorer.records import (
    Call,
    CallId,
    Finding,
    Grade,
    MaskReason,
    Override,
    Purpose,
    Role,
    RolloutId,
    RolloutRecord,
)
from explorer.trace.checks import check_call
from explorer.trace.findings import FINDINGS, worst_first
from explorer.trace.inputs import hash_inputs
from explorer.trace.mask import (
    CallMask,
    Lineage,
    acceptable,
    excluded,
    logprobs_accepted,
    mask_call,
)
from explorer.trace.policy import DEFAULT_POLICY, Crossing, Policy
from explorer.trace.roles import RoleDecision, assign_roles
from explorer.trace.rollout_checks import Decided, check_rollout, engine_code
from explorer.trace.state import RolloutState, rollout_state
from explorer.trace.tree import Tree, build_tree


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rollout is not trainable; `call_ids` are the calls concerned, if any."""

    code: str
    message: str
    call_ids: tuple[CallId, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Everything decided about one rollout.

    Attributes:
        roles, masks: one entry per node of the tree, in admission order.
        findings: worst first.
        trainable: exactly when `reasons` is empty.
        reasons: why not, one per code.
        notices: what a reader of any export must be told, in words.
        supervised_tokens, generated_tokens: over all calls, each token once.
        n_agent_calls: committed calls with the role agent.
        mask_counts: tokens per reason, each stored token once.
        inputs_sha256: hash of all inputs; equal inputs give an equal judgement.
    """

    rollout_id: RolloutId
    policy: Policy
    state: RolloutState
    tree: Tree
    roles: Mapping[CallId, RoleDecision]
    masks: Mapping[CallId, CallMask]
    findings: tuple[Finding, ...]
    trainable: bool
    reasons: tuple[Reason, ...]
    notices: tuple[str, ...]
    supervised_tokens: int
    generated_tokens: int
    n_agent_calls: int
    mask_counts: Mapping[MaskReason, int]
    inputs_sha256: str

    def findings_of(self, call_id: CallId) -> tuple[Finding, ...]:
        """The findings that name this call."""
        return tuple(item for item in self.findings if item.where.call_id == call_id)


def judge(record: RolloutRecord, policy: Policy = DEFAULT_POLICY) -> Judgement:
    """Decides everything about one rollout; pure, and linear in what is stored."""
    state = rollout_state(record.events)
    tree = build_tree(record.calls)
    roles = assign_roles(
        tree,
        record.calls,
        record.overrides,
        record.open_calls,
        train_aborted=policy.train_aborted,
    )
    found = _call_findings(record, policy, tree, roles)
    masks = _masks(record, policy, tree, roles, found)
    if policy.version_crossed is Crossing.REFUSE:
        found = _refuse_crossings(found, masks)
    decided = Decided(record, policy, state, tree, roles, masks)
    findings = worst_first(
        [*check_rollout(decided), *(item for items in found.values() for item in items)]
    )
    reasons = (*_state_reasons(record, state), *_finding_reasons(findings))
    counts: Counter[MaskReason] = Counter()
    for mask in masks.values():
        for span in mask.own:
            counts[span.reason] += span.end - span.start
    return Judgement(
        rollout_id=record.rollout.rollout_id,
        policy=policy,
        state=state,
        tree=tree,
        roles=roles,
        masks=masks,
        findings=findings,
        trainable=not reasons,
        reasons=reasons,
        notices=_notices(record, policy),
        supervised_tokens=sum(mask.supervised for mask in masks.values()),
        generated_tokens=sum(mask.length - mask.prompt_len for mask in masks.values()),
        n_agent_calls=len(decided.agent_calls()),
        mask_counts=dict(counts),
        inputs_sha256=hash_inputs(record, policy),
    )


def _blocks(
    call: Call, decision: RoleDecision, policy: Policy, overrides: tuple[Override, ...]
) -> bool:
    """Whether a fault of this call's data forbids training on the rollout.

    Only of calls that would train: what is masked by role or by a person anyway, or was
    never sampled, is left out of an export instead.
    """
    if call.injected or decision.ambiguous or excluded(call, overrides):
        return False
    included = decision.role is Role.SUBAGENT and policy.include_subagents
    return decision.role is Role.AGENT or included


def _call_findings(
    record: RolloutRecord,
    policy: Policy,
    tree: Tree,
    roles: Mapping[CallId, RoleDecision],
) -> dict[CallId, tuple[Finding, ...]]:
    by_id = {call.call_id: call for call in record.calls}
    dropped = tuple(item for item in record.overrides if item.kind == "exclude_call")
    found = {}
    for call_id in tree.nodes:
        call = by_id[call_id]
        parent = None if call.stored_parent_id is None else by_id.get(call.stored_parent_id)
        blocking = _blocks(call, roles[call_id], policy, dropped)
        found[call_id] = check_call(
            call,
            sequences=tree.sequences,
            parent=parent,
            blocking=blocking,
            contradicted=record.contradicted.get(call_id),
        )
    return found


def _refuse_crossings(
    found: Mapping[CallId, tuple[Finding, ...]], masks: Mapping[CallId, CallMask]
) -> dict[CallId, tuple[Finding, ...]]:
    """The findings, a crossing graded FATAL where nothing but it masks a call: what would
    have trained is gone, and only a person or the policy may say that this is well."""
    return {
        call_id: tuple(
            replace(item, grade=Grade.FATAL)
            if item.code == "version_crossed"
            and masks[call_id].reason is MaskReason.VERSION_CROSSED
            else item
            for item in items
        )
        for call_id, items in found.items()
    }


def _masks(
    record: RolloutRecord,
    policy: Policy,
    tree: Tree,
    roles: Mapping[CallId, RoleDecision],
    found: Mapping[CallId, tuple[Finding, ...]],
) -> dict[CallId, CallMask]:
    by_id = {call.call_id: call for call in record.calls}
    per_call: dict[CallId | None, list[Override]] = defaultdict(list)
    for item in record.overrides:
        per_call[item.call_id].append(item)
    masks: dict[CallId, CallMask] = {}
    for node in tree.walk():
        parent = masks[node.parent_id] if node.has_ids and node.parent_id else None
        masks[node.call_id] = mask_call(
            by_id[node.call_id],
            roles[node.call_id],
            policy,
            [*per_call[None], *per_call[node.call_id]],
            record.certificate_of(by_id[node.call_id]),
            found[node.call_id],
            Lineage(node.prompt_len, parent),
        )
    return {call_id: masks[call_id] for call_id in tree.nodes}


def _state_reasons(record: RolloutRecord, state: RolloutState) -> list[Reason]:
    reasons = []
    if state.deleted:
        reasons.append(Reason("rollout_deleted", "The rollout was deleted."))
    if not state.closed:
        reasons.append(Reason("rollout_open", "The rollout is still open."))
    if state.ok is False:
        said = f": {state.reason}" if state.reason else "."
        reasons.append(Reason("rollout_failed", f"The rollout failed{said}"))
    if record.rollout.purpose is Purpose.EVAL:
        reasons.append(Reason("eval_purpose", "The rollout was made for an evaluation."))
    return reasons


def _finding_reasons(findings: tuple[Finding, ...]) -> list[Reason]:
    """One reason per code of a FATAL finding, with the calls it names."""
    by_code: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.grade is Grade.FATAL:
            by_code[finding.code].append(finding)
    reasons = []
    for code, items in by_code.items():
        calls = tuple(item.where.call_id for item in items if item.where.call_id is not None)
        more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
        reasons.append(Reason(code, items[0].message + more, calls))
    # The causes first: that nothing is left to train follows from them.
    return sorted(reasons, key=lambda reason: reason.code == "nothing_trainable")


def _notices(record: RolloutRecord, policy: Policy) -> tuple[str, ...]:
    found = {
        engine_code(certificate): certificate
        for certificate in map(record.certificate_of, record.calls or ())
        if certificate is None or not certificate.passing
    }
    if not record.calls and (record.certificate is None or not record.certificate.passing):
        found[engine_code(record.certificate)] = record.certificate
    notices = []
    for code, certificate in found.items():
        what = FINDINGS[code].meaning
        if logprobs_accepted(policy, (), certificate):
            raw = "accept_raw" if not policy.allow_uncertified else "allow_uncertified"
            notices.append(f"Uncertified engine accepted by the operator ({raw}): {what}")
        for item in record.overrides if acceptable(certificate) else ():
            if item.kind == "accept_logprobs":
                whom = "all calls" if item.call_id is None else f"call {item.call_id}"
                notices.append(
                    f"Logprobs of {whom} accepted by {item.who}: {item.reason}. {what}"
                )
    return tuple(notices)
