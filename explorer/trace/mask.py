"""Which tokens of a call may train, and the reason for every one that may not.

Owns: the order of the mask rules, spans and the mask of a call's row.
Must not know: how a role was decided or a fault was found.

A row is a call's prompt followed by its completion. Only sampled tokens of the call
itself can train in it: what an ancestor sampled trains in the ancestor's row. The rules
are tried in this order, and the first that holds masks the whole completion:

excluded by a person, failed or aborted, injected, role, ambiguous sibling, a fault of
the data (see `findings`), uncertified engine, constrained, greedy, version crossed,
truncated, unparsed. Then single tokens: excluded spans, sentinels, the stop token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from explorer.errors import RecordInconsistent
from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    Finding,
    LogprobKind,
    MaskReason,
    Override,
    Role,
)
from explorer.trace.checks import crossed_versions, cut_by_engine, sentinel_logprobs
from explorer.trace.findings import FINDINGS, PRECEDENCE
from explorer.trace.policy import Crossing, Policy
from explorer.trace.roles import RoleDecision, answered


@dataclass(frozen=True, slots=True)
class Span:
    """Token positions ``[start, end)`` of a row that share one reason."""

    start: int
    end: int
    reason: MaskReason


@dataclass(frozen=True, slots=True)
class CallMask:
    """The mask of one call's row.

    Attributes:
        prompt_len, length: of the row, in tokens; 0 and the completion's length when
            the prompt's ids are not known.
        own: spans over the tokens that no ancestor has: ``[own_start, length)``.
        reason: of the whole completion; None when its tokens differ or all train.
        parent: the mask of the call whose whole row this row begins with.
        supervised: how many tokens train.
    """

    call_id: CallId
    prompt_len: int
    length: int
    own: tuple[Span, ...]
    reason: MaskReason | None
    parent: CallMask | None
    supervised: int

    @property
    def own_start(self) -> int:
        """Where the tokens begin that no ancestor has."""
        return 0 if self.parent is None else self.parent.length

    @property
    def spans(self) -> tuple[Span, ...]:
        """Maximal, ordered spans that cover the row exactly; costs the depth."""
        line: list[CallMask] = []
        mask = self.parent
        while mask is not None:
            line.append(mask)
            mask = mask.parent
        inherited: list[Span] = []
        for ancestor in reversed(line):
            inherited += [span for span in ancestor.own if span.start < ancestor.prompt_len]
            inherited.append(
                Span(ancestor.prompt_len, ancestor.length, MaskReason.OWNED_BY_OTHER_ROW)
            )
        return merge([*inherited, *self.own])

    @property
    def completion(self) -> tuple[Span, ...]:
        """The spans over the call's own sampled tokens."""
        return tuple(span for span in self.own if span.start >= self.prompt_len)

    def completion_bits(self) -> NDArray[np.int8]:
        """1 where a sampled token trains; one entry per token of the completion.

        Raises:
            RecordInconsistent: a span says that a prompt token was sampled.
        """
        bits = np.zeros(self.length - self.prompt_len, dtype=np.int8)
        for span in self.own:
            if span.reason is MaskReason.SAMPLED:
                if span.start < self.prompt_len:
                    raise RecordInconsistent(f"call {self.call_id}: a prompt token is sampled")
                bits[span.start - self.prompt_len : span.end - self.prompt_len] = 1
        return bits

    def bits(self) -> NDArray[np.int8]:
        """1 where a token trains; one entry per token of the row."""
        return np.concatenate((np.zeros(self.prompt_len, np.int8), self.completion_bits()))

    def reasons(self) -> tuple[MaskReason, ...]:
        """The reason of every token of the row, in order."""
        return tuple(span.reason for span in self.spans for _ in range(span.end - span.start))


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a call's row begins: the prompt's length (0 when its ids are not known) and
    the mask of the parent whose row it continues."""

    prompt_len: int
    parent: CallMask | None = None


def merge(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same cover with empty spans dropped and equal neighbours joined."""
    merged: list[Span] = []
    for span in spans:
        if span.start >= span.end:
            continue
        if merged and merged[-1].reason is span.reason and merged[-1].end == span.start:
            merged[-1] = Span(merged[-1].start, span.end, span.reason)
        else:
            merged.append(span)
    return tuple(merged)


def mask_call(
    call: Call,
    decision: RoleDecision,
    policy: Policy,
    overrides: Sequence[Override],
    certificate: Certificate | None,
    findings: Sequence[Finding],
    lineage: Lineage,
) -> CallMask:
    """The mask of one call's row.

    Args:
        overrides: those of the rollout, or only the ones that name this call or none.
        findings: what `check_call` said about this very call.
    """
    mine = [item for item in overrides if item.call_id in (None, call.call_id)]
    sampled = 0 if call.completion is None else int(call.completion.size)
    start = lineage.prompt_len
    reason = _whole_call(call, decision, policy, mine, certificate, findings)
    if reason is not None:
        completion: tuple[Span, ...] = (Span(start, start + sampled, reason),)
    else:
        completion = _per_token(call, mine, start, policy)
    before = 0 if lineage.parent is None else lineage.parent.length
    kind = MaskReason.PROMPT if lineage.parent is None else MaskReason.ENVIRONMENT
    own = merge([Span(before, start, kind), *completion])
    return CallMask(
        call_id=call.call_id,
        prompt_len=start,
        length=start + sampled,
        own=own,
        reason=reason,
        parent=lineage.parent,
        supervised=sum(
            span.end - span.start for span in own if span.reason is MaskReason.SAMPLED
        ),
    )


def excluded(call: Call, overrides: Iterable[Override]) -> bool:
    """Whether a person dropped this call."""
    return any(
        item.kind == "exclude_call" and item.call_id == call.call_id for item in overrides
    )


# What a request must have said explicitly for raw and processed logprobs to coincide.
PLAIN: dict[str, tuple[float, ...]] = {
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
}


def sampled_plainly(call: Call) -> bool:
    """Whether the call was drawn from the network's own distribution: temperature 1, no
    truncation, penalty or constraint, each stated in what was submitted."""
    sent = call.submitted_sampling
    return not call.constraints and all(
        key in sent and sent[key] in allowed for key, allowed in PLAIN.items()
    )


def raw_coincides(call: Call, certificate: Certificate | None) -> bool:
    """Whether raw logprobs, proved to be raw, are the processed ones for this call."""
    return (
        certificate is not None
        and certificate.certifiable
        and certificate.capture_level is CaptureLevel.TOKENS
        and certificate.logprob_kind is LogprobKind.RAW
        and sampled_plainly(call)
    )


def acceptable(certificate: Certificate | None) -> bool:
    """Whether anybody may accept the engine's logprobs without proof: not where they are
    made up, nor where they were proved to be no logprobs at all."""
    return certificate is None or (
        certificate.certifiable and certificate.logprob_kind is not LogprobKind.LOGITS
    )


def logprobs_accepted(
    policy: Policy, overrides: Iterable[Override], certificate: Certificate | None
) -> bool:
    """Whether the engine's logprobs count as what training needs, whatever the call."""
    if not acceptable(certificate):
        return False
    if certificate is not None:
        if certificate.passing:
            return True
        if certificate.logprob_kind is LogprobKind.RAW and policy.accept_raw:
            return True
    return policy.allow_uncertified or any(item.kind == "accept_logprobs" for item in overrides)


def _whole_call(
    call: Call,
    decision: RoleDecision,
    policy: Policy,
    mine: Sequence[Override],
    certificate: Certificate | None,
    findings: Sequence[Finding],
) -> MaskReason | None:
    if excluded(call, mine):
        return MaskReason.EXCLUDED_BY_USER
    cut = policy.train_aborted and cut_by_engine(call)
    if not answered(call, train_aborted=policy.train_aborted):
        failed = call.status is CallStatus.FAILED
        return MaskReason.FAILED_CALL if failed else MaskReason.ABORTED
    if call.injected:
        return MaskReason.INJECTED_BY_PROXY
    by_role = _by_role(decision, policy)
    if by_role is not None:
        return by_role
    by_data = _by_data([item for item in findings if not (cut and item.code == _CUT)])
    if by_data is not None:
        return by_data
    same = policy.accept_raw_at_one and raw_coincides(call, certificate)
    proved = same or logprobs_accepted(policy, mine, certificate)
    if not proved:
        return MaskReason.UNCERTIFIED
    return _by_sampling(call, policy, mine) or _by_ending(call, policy, findings)


# Says that the engine cut the generation short, and nothing about its data.
_CUT = "engine_aborted"


def _by_role(decision: RoleDecision, policy: Policy) -> MaskReason | None:
    if decision.ambiguous:
        return MaskReason.AMBIGUOUS_SIBLING
    if decision.role is Role.SUBAGENT and policy.include_subagents:
        return None
    return {
        Role.AGENT: None,
        Role.SUBAGENT: MaskReason.SUBAGENT,
        Role.AUXILIARY: MaskReason.AUXILIARY,
        Role.DISCARDED: MaskReason.DISCARDED,
        Role.FAILED: MaskReason.FAILED_CALL,
    }[decision.role]


def _by_data(findings: Sequence[Finding]) -> MaskReason | None:
    codes = [
        finding.code
        for finding in findings
        if FINDINGS[finding.code].mask_reason and not FINDINGS[finding.code].per_token
    ]
    return FINDINGS[min(codes, key=PRECEDENCE.__getitem__)].mask_reason if codes else None


def _by_sampling(call: Call, policy: Policy, mine: Sequence[Override]) -> MaskReason | None:
    if call.constraints and not policy.train_constrained:
        return MaskReason.CONSTRAINED
    if call.greedy and not policy.train_greedy:
        return MaskReason.GREEDY
    accepted = policy.version_crossed is Crossing.TRAIN or any(
        item.kind == "accept_versions" for item in mine
    )
    if crossed_versions(call) and not accepted:
        return MaskReason.VERSION_CROSSED
    return None


def _by_ending(call: Call, policy: Policy, findings: Sequence[Finding]) -> MaskReason | None:
    if call.finish_reason == "length" and not policy.train_truncated:
        return MaskReason.TRUNCATED_POLICY
    unparsed = any(item.code == "unparsed_tool_call" for item in findings)
    if unparsed and not policy.train_unparsed:
        return MaskReason.UNPARSED_POLICY
    return None


# How a turn ends that the model itself ended, so that its last id is the one that did it.
_ENDED_BY_MODEL = ("stop", "tool_calls", "function_call")


def _stop_token(call: Call) -> bool:
    """Whether the last sampled id ended the turn. Told by the engine's words, never by
    comparing ids: a stop text is named in `stop_reason`, a stop token is not or by its id."""
    if call.completion is None or not call.completion.size:
        return False
    if call.finish_reason not in _ENDED_BY_MODEL:
        return False
    return call.stop_reason in (None, "", str(int(call.completion[-1])))


def _per_token(
    call: Call, mine: Sequence[Override], start: int, policy: Policy
) -> tuple[Span, ...]:
    """Spans over the completion of a call that trains, single tokens taken out."""
    if call.completion is None or not call.completion.size or call.logprobs is None:
        return ()
    sampled = int(call.completion.size)
    excluded_here = np.zeros(sampled, dtype=np.bool_)
    for item in mine:
        if item.kind == "exclude_span" and item.call_id == call.call_id:
            first = 0 if item.start is None else max(item.start - start, 0)
            last = sampled if item.end is None else max(item.end - start, 0)
            excluded_here[first:last] = True
    # A value that is no number never trains, whatever the findings said.
    without_value = sentinel_logprobs(call.logprobs) | ~np.isfinite(call.logprobs)
    labels = np.where(excluded_here, 2, np.where(without_value, 1, 0))
    if not policy.train_stop_token and _stop_token(call) and labels[-1] == 0:
        labels[-1] = 3
    names = (
        MaskReason.SAMPLED,
        MaskReason.LOGPROB_NOT_FINITE,
        MaskReason.EXCLUDED_BY_USER,
        MaskReason.STOP_POLICY,
    )
    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), sampled]
    return tuple(
        Span(start + first, start + last, names[int(labels[first])])
        for first, last in pairwise(edges)
    )
