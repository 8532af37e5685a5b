"""What a format cannot do without beyond the one verdict.

Owns: `Need`, and the reasons that an unmet one adds. A format adds refusals and never takes
one away.
Must not know: how a verdict comes about, documents.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from explorer.trace.verdict import Judgement, Reason


class Need(StrEnum):
    """Something that a reader of an export may be unable to do without. Closed."""

    REWARD = "reward"


def refusals(judgement: Judgement, needs: Collection[Need] = ()) -> tuple[Reason, ...]:
    """Every reason against an export: those of the verdict, then what is still missing."""
    missing = []
    if Need.REWARD in needs and judgement.state.reward is None:
        missing.append(
            Reason(
                "reward_missing",
                "The rollout has no reward, and this reader needs one; nothing is read as 0.",
            )
        )
    return (*judgement.reasons, *missing)
