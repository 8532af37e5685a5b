"""Which rollouts go into a dataset, and why others do not.

Owns: where rollouts come from, the decision about each, and their order.
Must not know: files, pages, HTTP, the command line.

What is in a dataset: sealed rollouts, whole. One with something undecided or withheld in it
is left out whole. One that may not train is in `rollouts` and `calls` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from explorer.errors import SecretsUndecided
from explorer.export.dataset.manifest import Excluded, Manifest
from explorer.export.dataset.proof import Vocabulary
from explorer.export.judged import JudgedSource
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId, TokenizerId
from explorer.store.interface import RolloutState, RolloutStatus, Store


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
class Plan:
    """What will be written.

    Attributes:
        rollouts: in the order of their seals.
        excluded: in the order they were asked for.
    """

    rollouts: tuple[RolloutId, ...]
    excluded: tuple[Excluded, ...]

    def beyond(self, old: Manifest) -> Plan:
        """The plan without what a dataset has already."""
        there = {entry.rollout_id for entry in old.rollouts}
        return Plan(
            tuple(name for name in self.rollouts if name not in there),
            tuple(item for item in self.excluded if item.rollout_id not in there),
        )

    def without(self, some: Iterable[RolloutId], code: str, reason: str) -> Plan:
        """The plan without some of its rollouts."""
        gone = frozenset(some)
        return Plan(
            tuple(name for name in self.rollouts if name not in gone),
            (*self.excluded, *(Excluded(name, code, reason) for name in sorted(gone))),
        )


async def plan(source: Source, rollout_ids: Iterable[RolloutId]) -> Plan:
    """Decides about each rollout that was asked for."""
    kept: dict[RolloutId, int] = {}
    excluded: dict[RolloutId, Excluded] = {}
    for rollout_id in rollout_ids:
        if rollout_id in kept or rollout_id in excluded:
            continue
        state = await asyncio.to_thread(source.store.rollout_state, rollout_id)
        reason = await asyncio.to_thread(_refusal, source, rollout_id, state)
        if reason is not None:
            excluded[rollout_id] = reason
        elif state is not None:
            kept[rollout_id] = state.closed_us or 0
    ordered = sorted(kept, key=lambda name: (kept[name], name))
    return Plan(tuple(ordered), tuple(excluded.values()))


def _refusal(
    source: Source, rollout_id: RolloutId, state: RolloutState | None
) -> Excluded | None:
    if state is None or state.status is RolloutStatus.DELETED:
        return Excluded(rollout_id, "not_found", "There is no such rollout, or no longer.")
    if state.closed_us is None:
        return Excluded(rollout_id, "rollout_open", "The rollout is still open.")
    try:
        source.secrets.require_released(rollout_id)
    except SecretsUndecided as error:
        return Excluded(rollout_id, error.code, error.message)
    return None
