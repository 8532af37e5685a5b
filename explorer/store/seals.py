"""Issued receipts: what was said about a closed rollout when it was said.

Owns: the record. Must not know: rows, what a receipt holds, how it is signed.

A receipt follows from the record of its rollout; its digest here is what it was when it was
issued, so that a record that was changed afterwards no longer gives it.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.records import RolloutId


@dataclass(frozen=True, slots=True)
class Seal:
    """One issued receipt.

    Attributes:
        number: from 1 on, within its rollout.
        time_us: when it was issued.
        sha256: of the receipt, in hexadecimal.
        algorithm, key_id, signature: over that digest; None where there was no key.
    """

    rollout_id: RolloutId
    number: int
    time_us: int
    sha256: str
    algorithm: str | None = None
    key_id: str | None = None
    signature: str | None = None
