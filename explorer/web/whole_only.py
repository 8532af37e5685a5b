"""What of a store is for those who see all of it.

Owns: the list of these methods, each of which refuses. Must not know: who sees what.
"""

from __future__ import annotations

from typing import Any, NoReturn

from explorer.errors import AccessDenied
from explorer.records import KeyHash, Rollout, RolloutId
from explorer.store.interface import QuarantinedRow


class WholeOnly:
    """The methods of a `Store` that a narrowed one does not have."""

    def seals_due(self) -> Any:
        whole_only()

    async def add_trainer_logps(self, post: Any) -> None:
        whole_only()

    async def add_delta_summary(self, summary: Any) -> None:
        whole_only()

    async def add_seal(self, seal: Any) -> None:
        whole_only()

    async def add_weight_update(self, update: Any) -> None:
        whole_only()

    def secret_marks(self) -> Any:
        whole_only()

    def secret_mark(self, rollout_id: RolloutId) -> Any:
        whole_only()

    def secret_rows(self, rollout_id: RolloutId) -> Any:
        whole_only()

    def secret_decisions(self, rollout_id: RolloutId) -> Any:
        whole_only()

    def secrets_undecided(self) -> Any:
        whole_only()

    def secrets_in_lists(self) -> Any:
        whole_only()

    async def add_secret(self, record: Any) -> None:
        whole_only()

    def rollout_by_key(self, key_hash: KeyHash) -> Rollout | None:
        whole_only()

    def open_rollouts(self) -> tuple[Rollout, ...]:
        whole_only()

    def judged_otherwise(self, policy: str, limit: int) -> tuple[RolloutId, ...]:
        whole_only()

    def backup(self, target: Any) -> Any:
        whole_only()

    def snapshot(self) -> Any:
        whole_only()

    def quarantined(self) -> tuple[QuarantinedRow, ...]:
        whole_only()

    async def close(self) -> None:
        whole_only()

    async def add_rollout(self, rollout: Any) -> None:
        whole_only()

    async def add_event(self, event: Any) -> Any:
        whole_only()

    def admit(self, admission: Any) -> Any:
        whole_only()

    async def commit_call(self, call: Any, bodies: Any) -> None:
        whole_only()

    async def add_certificate(self, certificate: Any) -> None:
        whole_only()

    async def add_vocabulary(self, entries: Any) -> None:
        whole_only()

    async def add_judgement(self, row: Any) -> None:
        whole_only()

    async def add_annotation(self, annotation: Any) -> None:
        whole_only()

    async def add_view(self, view: Any) -> None:
        whole_only()


def whole_only() -> NoReturn:
    """Raises:
    AccessDenied: always.
    """
    raise AccessDenied("this is for curators and operators, who see the whole store")
