"""What people decided about what looks like a secret, and what follows for files.

Owns: the decisions there are, and the one rule for what may leave: whole, or not at all.
Must not know: how a secret is found or hidden, the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from explorer.records import RolloutId
from explorer.store.secret_marks import SecretDecision
from explorer.trace.secret_scan import SecretFinding

State = Literal["none", "undecided", "decided"]

NOT_A_SECRET, RELEASE, WITHHOLD = "not_a_secret", "release", "withhold"
DECISIONS = (NOT_A_SECRET, RELEASE, WITHHOLD)
_FREE = frozenset((NOT_A_SECRET, RELEASE))


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A finding and the decision that stands about it, None while there is none."""

    finding: SecretFinding
    decision: SecretDecision | None

    @property
    def open(self) -> bool:
        """Whether it waits for a person."""
        return self.finding.blocks and self.decision is None

    @property
    def hidden(self) -> bool:
        """Whether readers without leave do not see it."""
        if not self.finding.blocks:
            return False
        return self.decision is None or self.decision.decision not in _FREE


@dataclass(frozen=True, slots=True)
class Review:
    """Everything that was found in one rollout, and where it stands."""

    rollout_id: RolloutId
    items: tuple[Reviewed, ...]

    @property
    def secrets(self) -> tuple[Reviewed, ...]:
        """What a person must decide about, or has decided about."""
        return tuple(item for item in self.items if item.finding.blocks)

    @property
    def n_paths(self) -> int:
        """Different paths with a person's name; they never block."""
        return len(self.items) - len(self.secrets)

    @property
    def n_undecided(self) -> int:
        """Findings that wait for a person."""
        return sum(item.open for item in self.items)

    @property
    def state(self) -> State:
        """`none` when nothing looks like a secret."""
        if not self.secrets:
            return "none"
        return "undecided" if self.n_undecided else "decided"

    @property
    def refusal(self) -> str | None:
        """Why no file of this rollout may leave, None when it may: whole, or not at all."""
        withheld = sum(
            item.decision is not None and item.decision.decision == WITHHOLD
            for item in self.secrets
        )
        if self.n_undecided:
            many = self.n_undecided > 1
            what = f"{self.n_undecided} things that look like secrets are"
            return (
                f"{what if many else 'something that looks like a secret is'} in this rollout, "
                f"and nobody has decided about {'them' if many else 'it'}; a curator decides "
                "on its findings tab"
            )
        if withheld:
            return (
                "a person withholds a secret that is in this rollout; a file never leaves with "
                "a part missing, so none leaves"
            )
        return None
