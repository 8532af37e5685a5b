"""Which rollouts go into a dataset, and why others do not.

Owns: where rollouts come from, the decision about each, and their order.
Must not know: files, pages, HTTP, the command line.

What is in a dataset: sealed rollouts, whole. One with something undecided or withheld in it
is left out whole. One that may not train is in `rollouts` and `calls` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from explorer.errors import SecretsUndecided
from explorer.export.dataset.manifest import Excluded, Manifest
from explorer.export.dataset.proof import Vocabulary
from explorer.export.judged import JudgedSource
from explorer.export.secret_review import Review
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId, TokenizerId
from explorer.store.interface import RolloutState, RolloutStatus, Store
from explorer.store.secret_marks import SecretDecision


@dataclass(frozen=True, slots=True)
class Source:
    """Where rollouts come from.

    Attributes:
        judged: the one place that judges.
        secrets: says what may leave.
        vocabulary: bytes of ids, for the proof.
    """

    store: Store
    judged: JudgedSource
    secrets: SecretScans
    vocabulary: Callable[[TokenizerId | None], Vocabulary]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Why a rollout may leave; a scan costs more than writing its rows, so it is kept.

    Attributes:
        review: what was found, and what people decided about it.
        free: what looks like a secret and may leave, because a person said so.
        decisions: what `free` rests on.
    """

    review: Review | None
    free: frozenset[bytes]
    decisions: tuple[SecretDecision, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be written.

    Attributes:
        rollouts: in the order of their seals.
        excluded: in the order they were asked for.
        cleared: by rollout, as far as it was looked at.
    """

    rollouts: tuple[RolloutId, ...]
    excluded: tuple[Excluded, ...]
    cleared: Mapping[RolloutId, Cleared] = field(default_factory=dict)

    def clearance(self, source: Source, rollout_id: RolloutId) -> Cleared:
        """What stands about a rollout's secrets now; scans again only where somebody
        decided something since."""
        found = self.cleared.get(rollout_id)
        if found is not None and found.decisions == _decisions(source, rollout_id):
            return found
        return cleared_of(source, rollout_id)

    def beyond(self, old: Manifest) -> Plan:
        """The plan without what a dataset has already."""
        there = {entry.rollout_id for entry in old.rollouts}
        return Plan(
            tuple(name for name in self.rollouts if name not in there),
            tuple(item for item in self.excluded if item.rollout_id not in there),
            self.cleared,
        )

    def without(self, some: Iterable[RolloutId], code: str, reason: str) -> Plan:
        """The plan without some of its rollouts."""
        gone = frozenset(some)
        return Plan(
            tuple(name for name in self.rollouts if name not in gone),
            (*self.excluded, *(Excluded(name, code, reason) for name in sorted(gone))),
            self.cleared,
        )


async def plan(source: Source, rollout_ids: Iterable[RolloutId]) -> Plan:
    """Decides about each rollout that was asked for."""
    kept: dict[RolloutId, int] = {}
    excluded: dict[RolloutId, Excluded] = {}
    cleared: dict[RolloutId, Cleared] = {}
    for rollout_id in rollout_ids:
        if rollout_id in kept or rollout_id in excluded:
            continue
        state = await asyncio.to_thread(source.store.rollout_state, rollout_id)
        found = await asyncio.to_thread(_decided, source, rollout_id, state)
        if isinstance(found, Excluded):
            excluded[rollout_id] = found
        elif state is not None:
            kept[rollout_id] = state.closed_us or 0
            cleared[rollout_id] = found
    ordered = sorted(kept, key=lambda name: (kept[name], name))
    return Plan(tuple(ordered), tuple(excluded.values()), cleared)


def _decided(
    source: Source, rollout_id: RolloutId, state: RolloutState | None
) -> Excluded | Cleared:
    if state is None or state.status is RolloutStatus.DELETED:
        return Excluded(rollout_id, "not_found", "There is no such rollout, or no longer.")
    if state.closed_us is None:
        return Excluded(rollout_id, "rollout_open", "The rollout is still open.")
    try:
        source.secrets.require_released(rollout_id)
    except SecretsUndecided as error:
        return Excluded(rollout_id, error.code, error.message)
    return cleared_of(source, rollout_id)


def taken_back(source: Source, rollout_ids: Iterable[RolloutId]) -> RolloutId | None:
    """The first rollout that may not leave any more: deleted, or a secret of it withheld."""
    for rollout_id in rollout_ids:
        state = source.store.rollout_state(rollout_id)
        gone = state is None or state.status is RolloutStatus.DELETED
        if gone or source.secrets.export_refusal(rollout_id) is not None:
            return rollout_id
    return None


def cleared_of(source: Source, rollout_id: RolloutId) -> Cleared:
    """Scans a rollout, or reads the scan that was kept."""
    decisions = _decisions(source, rollout_id)
    return Cleared(
        source.secrets.review(rollout_id), source.secrets.let_go(rollout_id), decisions
    )


def _decisions(source: Source, rollout_id: RolloutId) -> tuple[SecretDecision, ...]:
    return tuple(source.store.secret_decisions(rollout_id))
