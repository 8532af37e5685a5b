"""What is kept about secrets, as frozen records: marks of scans, findings, decisions.

Owns: the records. Must not know: rows, how a secret is found, what is done about one.

None holds a secret. A finding is known by its id; a decision about it is a later record,
and the latest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.records import RolloutId


@dataclass(frozen=True, slots=True)
class SecretMark:
    """That a rollout was scanned as it was at `stamp`; the latest of a rollout counts."""

    rollout_id: RolloutId
    time_us: int
    version: int
    stamp: str
    n_secrets: int
    n_paths: int


@dataclass(frozen=True, slots=True)
class SecretRow:
    """That a rollout holds something; `blocks` when a person must decide about it,
    `listed` when it stands in what lists show or filter by."""

    rollout_id: RolloutId
    finding_id: str
    time_us: int
    kind: str
    blocks: bool
    listed: bool


@dataclass(frozen=True, slots=True)
class SecretDecision:
    """What a person decided about a finding: `not_a_secret`, `release` or `withhold`."""

    decision_id: str
    rollout_id: RolloutId
    finding_id: str
    time_us: int
    decision: str
    who: str
    reason: str


SecretRecord = SecretMark | SecretRow | SecretDecision
