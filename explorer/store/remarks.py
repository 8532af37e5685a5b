"""What people write beside rollouts: labels, notes and saved views, as frozen records.

Owns: the records. Must not know: rows, the judge (an annotation never changes a mask; a
decision that does is an override), pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.records import CallId, RolloutId


@dataclass(frozen=True, slots=True)
class Annotation:
    """One remark of a person about a rollout, a call, or a span of a call's tokens.

    ``start`` and ``end`` count tokens of the call's prompt and completion together, half
    open, as in an override. ``withdraws`` names the annotation that this one takes back;
    such a row carries nothing else.
    """

    annotation_id: str
    rollout_id: RolloutId
    time_us: int
    who: str
    label: str | None = None
    note: str | None = None
    call_id: CallId | None = None
    start: int | None = None
    end: int | None = None
    withdraws: str | None = None


@dataclass(frozen=True, slots=True)
class SavedView:
    """A named query string of the rollout list; the latest row of a name counts."""

    name: str
    query: str
    who: str
    time_us: int
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class LabelCount:
    """How many rollouts carry a label."""

    label: str
    n_rollouts: int
