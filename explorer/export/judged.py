"""Judged rollouts: record and verdict together, kept while their inputs stay the same.

Owns: when a verdict is computed again, and that it is computed off the event loop.
Must not know: pages, HTTP.

Every surface (badge, button, API, exporter) asks here, so they cannot disagree.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

from explorer.errors import StoreReadOnly
from explorer.export.evidence import contradictions
from explorer.records import CallId, Certificate, Grade, RolloutId, RolloutRecord
from explorer.store.interface import JudgementRow, RolloutStatus, Store
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.policy import Policy
from explorer.trace.secret_hiding import Cover
from explorer.trace.sequences import Sequences
from explorer.trace.state import rollout_state
from explorer.trace.verdict import Judgement, judge

_KEPT = 64
_KEPT_TOKENS = 4_000_000
_EVIDENCE_KEPT = 20_000


class Content(NamedTuple):
    """What is known of a document once it was made: SHA-256 in hexadecimal, and bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One rollout with its verdict.

    Attributes:
        sequences: assembles its prompts.
        contents: by kind of document, what is known of those made from it so far.
        cover: what of it is hidden, None when it is whole. No document is made of one that
            is not.
    """

    record: RolloutRecord
    judgement: Judgement
    sequences: Sequences
    contents: dict[str, Content] = field(default_factory=dict)
    cover: Cover | None = None

    @property
    def stored_tokens(self) -> int:
        """Token ids held in memory by this record."""
        return sum(
            (call.prompt_delta.size if call.prompt_delta is not None else 0)
            + (call.completion.size if call.completion is not None else 0)
            for call in self.record.calls
        )


class JudgedSource(Protocol):
    """Where pages take judged rollouts from: all of them, or those somebody may see."""

    async def get(self, rollout_id: RolloutId) -> Judged | None:
        """The judged rollout, or None when there is none."""


class JudgedRollouts:
    """The one place that judges.

    Args:
        store: where records come from.
        policy: reads the policy in force.
        now_us: clock for the summary rows (microseconds).
        after: what else is kept of a verdict for listings, told of each new one.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        now_us: Callable[[], int],
        after: Callable[[Judged], Awaitable[None]] | None = None,
    ) -> None:
        self._after = after
        self._store = store
        self._policy = policy
        self._now_us = now_us
        self._kept: OrderedDict[RolloutId, tuple[object, Judged]] = OrderedDict()
        self._running: dict[RolloutId, asyncio.Task[Judged | None]] = {}
        self._written: dict[RolloutId, str] = {}
        self._evidence: OrderedDict[RolloutId, tuple[int, dict[CallId, str]]] = OrderedDict()

    async def get(self, rollout_id: RolloutId) -> Judged | None:
        """The judged rollout, or None when there is none (or it is deleted); it holds
        whatever was on record before the call."""
        begun = self._running.get(rollout_id)
        if begun is not None:
            # It may have read the record before what was written last.
            await asyncio.wait((begun,))
        task = self._running.get(rollout_id)
        if task is None or task is begun:
            task = asyncio.create_task(self._get(rollout_id))
            self._running[rollout_id] = task
            task.add_done_callback(partial(self._ended, rollout_id))
        return await asyncio.shield(task)

    def forget(self, rollout_id: RolloutId) -> None:
        """Holds nothing of a rollout any more: it was deleted."""
        for known in (self._kept, self._evidence, self._written):
            known.pop(rollout_id, None)

    def _ended(self, rollout_id: RolloutId, task: asyncio.Task[Judged | None]) -> None:
        if self._running.get(rollout_id) is task:
            del self._running[rollout_id]

    async def _get(self, rollout_id: RolloutId) -> Judged | None:
        stamp = await asyncio.to_thread(self._stamp, rollout_id)
        if stamp is None:
            self._kept.pop(rollout_id, None)
            return None
        kept = self._kept.get(rollout_id)
        if kept is not None and kept[0] == stamp:
            self._kept.move_to_end(rollout_id)
            return kept[1]
        judged = await asyncio.to_thread(self._judge, rollout_id)
        if judged is None:
            return None
        self._kept[rollout_id] = (stamp, judged)
        self._kept.move_to_end(rollout_id)
        self._shrink()
        await self._write_summary(judged)
        return judged

    def _stamp(self, rollout_id: RolloutId) -> object | None:
        """Cheap facts that change whenever the verdict's inputs do."""
        state = self._store.rollout_state(rollout_id)
        if state is None or state.status is RolloutStatus.DELETED:
            return None
        return (state, self._store.record_stamp(rollout_id), self._policy())

    def _judge(self, rollout_id: RolloutId) -> Judged | None:
        record = self._store.record(rollout_id)
        if record is None:
            return None
        record = self._with_evidence(record)
        return Judged(record, judge(record, self._policy()), Sequences(record.calls))

    def _with_evidence(self, record: RolloutRecord) -> RolloutRecord:
        """The record of a closed rollout, checked against the engine's own bytes: once for
        each call, since neither rows nor bytes change. While it is open nothing leaves."""
        if not rollout_state(record.events).closed:
            return record
        rollout_id = record.rollout.rollout_id
        n_calls, found = self._evidence.get(rollout_id, (-1, {}))
        if n_calls != len(record.calls):
            found = contradictions(record, self._store.replies(rollout_id))
            self._evidence[rollout_id] = (len(record.calls), found)
            while len(self._evidence) > _EVIDENCE_KEPT:
                self._evidence.popitem(last=False)
        return replace(record, contradicted=found)

    def _shrink(self) -> None:
        total = sum(judged.stored_tokens for _, judged in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > _KEPT or total > _KEPT_TOKENS):
            _, (_, dropped) = self._kept.popitem(last=False)
            total -= dropped.stored_tokens

    async def _write_summary(self, judged: Judged) -> None:
        """Keeps the verdict's summary for listings, once per set of inputs."""
        judgement, rollout_id = judged.judgement, judged.record.rollout.rollout_id
        if self._written.get(rollout_id) == judgement.inputs_sha256:
            return
        self._written[rollout_id] = judgement.inputs_sha256
        grades = [finding.grade for finding in judgement.findings]
        row = JudgementRow(
            rollout_id=rollout_id,
            inputs_sha256=judgement.inputs_sha256,
            policy=rules_of(judgement.policy),
            time_us=self._now_us(),
            trainable=judgement.trainable,
            supervised_tokens=judgement.supervised_tokens,
            generated_tokens=judgement.generated_tokens,
            n_calls=len(judged.record.calls),
            n_fatal=grades.count(Grade.FATAL),
            n_warn=grades.count(Grade.WARN),
            reasons=tuple(reason.code for reason in judgement.reasons),
        )
        # A store that is only shown keeps the summaries it has.
        with suppress(StoreReadOnly):
            await self._store.add_judgement(row)
        if self._after is not None:
            await self._after(judged)


def rules_of(policy: Policy) -> str:
    """What a summary was judged by: the policy, and the rules of this version."""
    return f"{policy.title}, rules {JUDGE_VERSION}"


def certificate_line(certificate: Certificate | None) -> str:
    """The certificate in one line, for people and headers."""
    if certificate is None:
        return "no certificate"
    return (
        f"{certificate.engine_name} {certificate.engine_version}: "
        f"{certificate.capture_level.value}, logprobs {certificate.logprob_kind.value}"
    )
