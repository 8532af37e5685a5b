"""The harness's own trajectory against our record: the check that shares no code with it.

Owns: `check_trajectory` and `Agreement`; how steps and calls are paired.
Must not know: the file's format, how tokens are masked.

Steps and calls are paired in order by the number of sampled tokens, and by the ids where the
file has them. What the file says can forbid training, never allow it: a call that it does
not list, or that cannot be told from one that it does not list, must not train as the
agent's; a call that we mask stays masked though the file lists it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from explorer.records import (
    Call,
    CallId,
    Finding,
    Grade,
    IdArray,
    Purpose,
    Role,
    RolloutRecord,
    Where,
)
from explorer.trace.findings import make_finding
from explorer.trace.mask import CallMask
from explorer.trace.pairing import Fits, Pairs, by_count, by_ids, is_within, pair, sampled
from explorer.trace.prefix import shared_length
from explorer.trace.roles import RoleDecision, live
from explorer.trace.sequences import Sequences
from explorer.trace.trajectory import Trajectory, TrajectoryStep, problem_of, trajectory_of

KNOWN_VERSIONS = frozenset(f"ATIF-v1.{minor}" for minor in range(9))
# Fewer steps than this share of the calls fit in by chance.
_COVERAGE = 0.5
_SHOWN = 20


class Agreement(StrEnum):
    """The result in one word, spelled as OpenEnv does."""

    MATCH = "match"
    MISMATCH = "MISMATCH"
    NONE = "none"


_MISMATCHES = frozenset(
    (
        *("no_agent_sequence", "turn_mismatch", "atif_coverage_too_low"),
        *("atif_calls_missing", "atif_ids_differ"),
    )
)
_MATCHES = frozenset(
    ("turns_match", "atif_aux_calls", "atif_extra_calls", "atif_partial_usage")
)


def agreement(findings: Iterable[Finding]) -> Agreement:
    """What the findings of a rollout say about its trajectory."""
    found = {(finding.code, finding.grade) for finding in findings}
    codes = {code for code, _ in found}
    refused = {("atif_aux_calls", Grade.FATAL), ("atif_subagents", Grade.FATAL)}
    if codes & _MISMATCHES or found & refused:
        return Agreement.MISMATCH
    return Agreement.MATCH if codes & _MATCHES else Agreement.NONE


def check_trajectory(
    record: RolloutRecord,
    sequences: Sequences,
    roles: Mapping[CallId, RoleDecision],
    masks: Mapping[CallId, CallMask],
) -> Iterator[Finding]:
    """Whether the file given at close agrees with the calls; nothing if none was expected."""
    where = Where(record.rollout.rollout_id)
    told = trajectory_of(record.events)
    if told is None:
        problem = problem_of(record.events)
        if problem is not None:
            yield make_finding("no_atif", where, problem)
        return
    yield make_finding("atif_version", where, _described(told))
    if told.api_errors:
        yield make_finding("atif_synthetic_api_error", where, f"{told.api_errors} of them.")
    yield from _Check(record, sequences, roles, masks, told).findings()


def _described(told: Trajectory) -> str:
    known = told.version in KNOWN_VERSIONS
    version = told.version or "not told"
    return (
        f"Version {version}{'' if known else ', unknown here: read as far as it is known'}; "
        f"agent {told.agent or 'not told'}; {len(told.steps)} steps with a model call"
        + (f"; {told.copied} copied from an earlier one" if told.copied else "")
        + (f"; {told.dispatched} without a model call" if told.dispatched else "")
        + ("; it goes on in another file" if told.continued else "")
        + ("; its ids were too many to be kept" if told.ids_left_out else "")
        + "."
    )


@dataclass(frozen=True, eq=False)
class _Check:
    """One file and one record. The calls are those that ended with a reply, in order."""

    record: RolloutRecord
    sequences: Sequences
    roles: Mapping[CallId, RoleDecision]
    masks: Mapping[CallId, CallMask]
    told: Trajectory

    @property
    def where(self) -> Where:
        return Where(self.record.rollout.rollout_id)

    @cached_property
    def replied(self) -> list[Call]:
        ordered = sorted(self.record.calls, key=lambda call: (call.sequence, call.call_id))
        return [call for call in ordered if call.call_id in self.roles and live(call)]

    @cached_property
    def agents(self) -> list[Call]:
        """The agent's calls, with the answers that it did not use and the proxy's own."""
        listed = (Role.AGENT, Role.DISCARDED)
        return [
            call
            for call in self.replied
            if call.injected or self.roles[call.call_id].role in listed
        ]

    def findings(self) -> Iterator[Finding]:
        steps = self.told.steps
        yield from self._retries(steps)
        if not self.replied:
            yield make_finding("no_turns_upstream", self.where)
        elif not steps:
            detail = f"{len(self.replied)} calls stand unverified."
            yield make_finding("atif_no_agent_steps", self.where, detail)
        elif not self.agents:
            yield make_finding("no_agent_sequence", self.where, f"{len(steps)} steps.")
        elif not any(step.completion for step in steps):
            yield from self._by_number(steps)
        else:
            yield from self._paired(steps)
        yield from self._subagents()

    def _retries(self, steps: Sequence[TrajectoryStep]) -> Iterator[Finding]:
        several = [step for step in steps if (step.calls or 1) > 1]
        if several:
            yield make_finding("atif_retries", self.where, f"Steps: {_numbers(several)}.")

    def _by_number(self, steps: Sequence[TrajectoryStep]) -> Iterator[Finding]:
        """Without token counts only the number of calls can be compared."""
        if self.record.rollout.purpose is Purpose.EVAL:
            yield make_finding("eval_reconcile_counts_only", self.where)
        else:
            yield make_finding("atif_no_token_counts", self.where, f"{len(steps)} steps.")
        wanted = sum(max(step.calls or 1, 1) for step in steps)
        if wanted > len(self.replied):
            # Nothing but the number speaks for it: less than a count that disagrees.
            detail = f"{wanted} calls are told, {len(self.replied)} are on record."
            yield make_finding("atif_calls_missing", self.where, detail)

    def _paired(self, steps: Sequence[TrajectoryStep]) -> Iterator[Finding]:
        for fits in (by_ids, by_count):
            for calls in (self.agents, self.replied):
                pairs = pair(steps, calls, fits)
                if pairs is not None:
                    yield from self._agreeing(steps, calls, pairs, fits)
                    return
        yield from self._disagreeing(steps)

    def _agreeing(
        self, steps: Sequence[TrajectoryStep], calls: list[Call], pairs: Pairs, fits: Fits
    ) -> Iterator[Finding]:
        listed = {calls[place].call_id for _, places in pairs for place in places}
        extra = [
            call for call in self.replied if call.call_id not in listed and not call.injected
        ]
        agents = [call for call in extra if self.roles[call.call_id].role is Role.AGENT]
        known = sum(call.call_id in listed for call in self.agents)
        if agents and known < _COVERAGE * len(self.agents):
            detail = f"{known} of the agent's {len(self.agents)} calls are in it."
            yield make_finding("atif_coverage_too_low", self.where, detail)
            return
        yield from self._unlisted(steps, calls, pairs, fits, agents)
        others = [call for call in extra if call not in agents]
        if others:
            # Already masked by their role: no more than a note.
            yield make_finding("atif_extra_calls", self.where, f"{_names(others)}.")
        stops = [call for call in calls if call.injected and call.call_id in listed]
        if stops:
            yield make_finding("proxy_budget_stops", self.where, f"{_names(stops)}.")
        compared = list(self._compare(steps, calls, pairs))
        yield from compared
        if any(finding.code == "atif_ids_differ" for finding in compared):
            return
        unknown = [step for step in steps if step.completion is None]
        if unknown:
            yield make_finding("atif_partial_usage", self.where, f"Steps: {_numbers(unknown)}.")
        elif not agents:
            tokens = sum(sampled(call) or 0 for call in calls if call.call_id in listed)
            detail = f"{len(listed)} calls, {tokens} sampled tokens."
            yield make_finding("turns_match", self.where, detail)

    def _unlisted(
        self,
        steps: Sequence[TrajectoryStep],
        calls: list[Call],
        pairs: Pairs,
        fits: Fits,
        agents: list[Call],
    ) -> Iterator[Finding]:
        """The agent's calls that the file does not list. Where the counts fit in more than
        one way, every call that some way leaves out is one of them."""
        if not agents:
            return
        latest = dict(pair(steps, calls, fits, backwards=True) or ())
        certain = {
            calls[place].call_id
            for number, places in pairs
            if latest.get(number) == places
            for place in places
        }
        unsure = [
            call
            for call in calls
            if call.call_id not in certain
            and not call.injected
            and self.roles[call.call_id].role is Role.AGENT
        ]
        training = [call for call in unsure if self._trains(call)]
        where = Where(self.where.rollout_id, (training or unsure)[0].call_id)
        detail = f"{len(agents)} of {len(calls)} calls are not in it: {_names(unsure)}."
        if len(unsure) > len(agents):
            detail += " The counts do not tell which of these they are."
        grade = Grade.FATAL if training else Grade.WARN
        yield make_finding("atif_aux_calls", where, detail, grade)

    def _trains(self, call: Call) -> bool:
        mask = self.masks.get(call.call_id)
        return mask is not None and mask.supervised > 0

    def _disagreeing(self, steps: Sequence[TrajectoryStep]) -> Iterator[Finding]:
        theirs = [step.completion for step in steps]
        ours = [sampled(call) for call in self.agents]
        if len(steps) > len(self.agents) and is_within(ours, theirs):
            missing = len(steps) - len(self.agents)
            detail = f"{missing} of {len(steps)} steps have no call here."
            grade = Grade.WARN if self.record.rollout.purpose is Purpose.EVAL else Grade.FATAL
            yield make_finding("atif_calls_missing", self.where, detail, grade)
            return
        size = min(len(ours), len(theirs))
        place = next((i for i in range(size) if ours[i] != theirs[i]), size)
        call_id = self.agents[place].call_id if place < len(self.agents) else None
        detail = (
            f"From call {place + 1} on. Ours: {_listed(ours)}; the trajectory's: "
            f"{_listed(theirs)}."
        )
        yield make_finding("turn_mismatch", Where(self.where.rollout_id, call_id), detail)

    def _compare(
        self, steps: Sequence[TrajectoryStep], calls: list[Call], pairs: Pairs
    ) -> Iterator[Finding]:
        """Prompts, and ids, of the steps that stand for one call."""
        lengths: list[tuple[Call, int, int]] = []
        for number, places in pairs:
            step, call = steps[number], calls[places[0]]
            if len(places) > 1 or call.injected:
                continue
            ours = call.prompt_len if call.prompt_len is not None else call.usage_prompt
            if step.prompt and ours is not None and step.prompt != ours:
                lengths.append((call, ours, step.prompt))
            yield from self._compare_ids(step, call)
        if lengths:
            call, ours, theirs = lengths[0]
            more = f" (and of {len(lengths) - 1} more calls)" if len(lengths) > 1 else ""
            where = Where(self.where.rollout_id, call.call_id)
            detail = f"{ours} tokens here, {theirs} there{more}."
            yield make_finding("prompt_len_mismatch", where, detail)

    def _compare_ids(self, step: TrajectoryStep, call: Call) -> Iterator[Finding]:
        if self.sequences.problem(call.call_id) is not None:
            return
        length = self.sequences.prompt_length(call.call_id)
        parts: list[tuple[str, int, IdArray | None, IdArray | None]] = []
        if step.prompt_ids is not None:
            parts.append(("prompt", 0, self.sequences.prompt(call.call_id), step.prompt_ids))
        parts.append(("sampled", length, call.completion, step.completion_ids))
        for name, start, ours, theirs in parts:
            if ours is None or theirs is None or np.array_equal(ours, theirs):
                continue
            place = shared_length(ours, theirs)
            at = start + place
            where = Where(self.where.rollout_id, call.call_id, at, at + 1)
            detail = f"Step {step.number}, {name} token {place}: {_one(ours, theirs, place)}."
            grade = Grade.FATAL if self._trains(call) else Grade.WARN
            yield make_finding("atif_ids_differ", where, detail, grade)
            return

    def _subagents(self) -> Iterator[Finding]:
        """FATAL unless every call of theirs is one that we know for no agent's call."""
        if not self.told.subagents:
            return
        free = [call for call in self.replied if not self._trains_as_agent(call)]
        names = []
        for sub in self.told.subagents:
            names.append(sub.name or "unnamed")
            pairs = pair(sub.steps, free, by_ids)
            counted = all(step.completion is not None for step in sub.steps)
            if pairs is None or not sub.steps or not counted:
                detail = f"Its calls cannot be told from the agent's: {sub.name or 'unnamed'}."
                yield make_finding("atif_subagents", self.where, detail)
                return
            used = {place for _, places in pairs for place in places}
            free = [call for place, call in enumerate(free) if place not in used]
        detail = (
            f"All their calls are known and train as nobody's: {', '.join(names[:_SHOWN])}."
        )
        yield make_finding("atif_subagents", self.where, detail, Grade.WARN)

    def _trains_as_agent(self, call: Call) -> bool:
        return self.roles[call.call_id].role is Role.AGENT and self._trains(call)


def _one(ours: IdArray, theirs: IdArray, place: int) -> str:
    here = str(int(ours[place])) if place < ours.size else "none"
    there = str(int(theirs[place])) if place < theirs.size else "none"
    return f"{here} here, {there} there"


def _names(calls: Sequence[Call]) -> str:
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    return ", ".join(call.call_id for call in calls[:_SHOWN]) + more


def _numbers(steps: Sequence[TrajectoryStep]) -> str:
    more = f" and {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
    return ", ".join(str(step.number) for step in steps[:_SHOWN]) + more


def _listed(counts: Sequence[int | None]) -> str:
    more = ", …" if len(counts) > _SHOWN else ""
    shown = ("not told" if count is None else str(count) for count in counts[:_SHOWN])
    return "[" + ", ".join(shown) + more + "]"
