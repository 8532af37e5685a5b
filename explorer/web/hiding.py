"""Secrets covered up for readers who may not see them, wherever pages read from.

Owns: joining the scans of rollouts with the narrowed store.
Must not know: who the reader is, how a secret is found.
"""

from __future__ import annotations

from explorer.export.judged import Judged
from explorer.export.secrets import SecretScans
from explorer.records import Body, RolloutId, RolloutRecord
from explorer.trace.secret_text import masked_text
from explorer.web.narrowing import Hiding


class HiddenSecrets(Hiding):
    """What looks like a secret is covered until a person lets it go.

    Args:
        scans: knows every rollout's secrets.
    """

    def __init__(self, scans: SecretScans) -> None:
        self._scans = scans

    def record(self, record: RolloutRecord) -> RolloutRecord:
        """The record as it is shown; may scan the rollout first."""
        return self._scans.record(record)

    def judged(self, judged: Judged) -> Judged:
        """The judged rollout as it is shown; may scan the rollout first."""
        return self._scans.judged(judged)

    def bodies(self, rollout_id: RolloutId, bodies: tuple[Body, ...]) -> tuple[Body, ...]:
        """A call's bodies as they are shown."""
        return self._scans.bodies(rollout_id, bodies)

    def text(self, text: str, rollout_id: RolloutId | None = None) -> str:
        """Words about a rollout; without one, what looks like a secret by itself."""
        return masked_text(text) if rollout_id is None else self._scans.text(rollout_id, text)

    def unlisted(self) -> frozenset[RolloutId]:
        """Rollouts that no list tells of."""
        return self._scans.unlisted()
