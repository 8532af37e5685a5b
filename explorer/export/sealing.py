"""Receipts as they were issued, beside those that the record gives now.

Owns: issuing what is due, and the comparison.
Must not know: pages, HTTP, what may train.

A receipt is issued once: its digest is stored, signed where there is a key. Whoever changes
the record afterwards gets other receipts, and where they differ is said; whoever changes the
stored digest too has no signature for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from explorer.export.signing import CheckingKey, Signature, SigningKey
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.store.seals import Seal
from explorer.trace.custody_calls import CustodyCalls, custody_calls
from explorer.trace.receipts import NumberedReceipt, receipts_of


class Signed(StrEnum):
    """What a signature says."""

    NONE = "none"  # there is no signature
    MISSING = "missing"  # there is none, though this server signs
    GOOD = "good"  # this key signed this digest
    BAD = "bad"  # it says it is of this key, and is not
    UNKNOWN = "unknown"  # of another key, or there is no key to check it with


@dataclass(frozen=True, slots=True)
class Issued:
    """One receipt.

    Attributes:
        now: as the record gives it; None where it gives none of this number.
        seal: as it was issued; None where it was not yet.
        signed: what its signature says.
    """

    number: int
    now: NumberedReceipt | None
    seal: Seal | None
    signed: Signed = Signed.NONE

    @property
    def agrees(self) -> bool:
        """Whether the record still gives what was issued."""
        return (
            self.now is not None
            and self.seal is not None
            and self.now.sha256 == self.seal.sha256
            and self.signed is not Signed.BAD
        )

    @property
    def state(self) -> str:
        """The same in words, for people and programs."""
        if self.now is None:
            return "gone from the record"
        if self.seal is None:
            return "not issued"
        return "as issued" if self.agrees else "changed since"


@dataclass(frozen=True, slots=True)
class Custody:
    """A rollout's calls as custody has them, and its receipts."""

    calls: CustodyCalls
    receipts: tuple[Issued, ...]


class Sealing:
    """Issues receipts, each once.

    Args:
        key: what receipts are signed with.
    """

    def __init__(
        self, store: Store, now_us: Callable[[], int], key: SigningKey | None = None
    ) -> None:
        self._store = store
        self._now_us = now_us
        self._key = key
        self._lock = asyncio.Lock()

    async def issue(self, rollout_id: RolloutId) -> Custody | None:
        """The receipts of a rollout, None where there is none of this id; those that are due
        are issued now, if they can be.

        The record is read here: one of which parts are hidden from somebody is another one.

        Raises:
            StoreFailed: a receipt could not be stored.
        """
        read = await asyncio.to_thread(self._read, rollout_id)
        if read is None:
            return None
        calls, found, stored = read
        due = {each.number for each in found} - {seal.number for seal in stored}
        if due and not self._store.health().read_only:
            async with self._lock:
                stored = await self._issued(rollout_id, found)
        return Custody(calls, compared(found, stored, self._key))

    async def _issued(
        self, rollout_id: RolloutId, found: Sequence[NumberedReceipt]
    ) -> tuple[Seal, ...]:
        """Issues what is due; one at a time, since a number is given once."""
        stored = await asyncio.to_thread(self._store.seals, rollout_id)
        known = {seal.number for seal in stored}
        for each in found:
            if each.number not in known:
                await self._store.add_seal(self._seal(rollout_id, each))
        return await asyncio.to_thread(self._store.seals, rollout_id)

    def _read(
        self, rollout_id: RolloutId
    ) -> tuple[CustodyCalls, tuple[NumberedReceipt, ...], tuple[Seal, ...]] | None:
        record = self._store.record(rollout_id)
        if record is None:
            return None
        calls = custody_calls(record)
        return calls, receipts_of(record, calls), self._store.seals(rollout_id)

    def _seal(self, rollout_id: RolloutId, receipt: NumberedReceipt) -> Seal:
        now = self._now_us()
        made = None if self._key is None else self._key.sign(receipt.sha256, now)
        return Seal(
            rollout_id=rollout_id,
            number=receipt.number,
            time_us=now,
            sha256=receipt.sha256,
            algorithm=None if made is None else made.algorithm,
            key_id=None if made is None else made.key_id,
            signature=None if made is None else made.value,
        )


def compared(
    found: Sequence[NumberedReceipt], stored: Sequence[Seal], key: CheckingKey | None
) -> tuple[Issued, ...]:
    """What the record gives beside what was issued, by number."""
    now = {each.number: each for each in found}
    seals = {seal.number: seal for seal in stored}
    return tuple(
        Issued(
            number,
            now.get(number),
            seals.get(number),
            checked(seals.get(number), key),
        )
        for number in sorted({*now, *seals})
    )


def checked(seal: Seal | None, key: CheckingKey | None) -> Signed:
    """What the signature of a seal says."""
    if seal is None:
        return Signed.NONE
    if seal.signature is None or not seal.algorithm or not seal.key_id:
        return Signed.NONE if key is None else Signed.MISSING
    if key is None or (seal.algorithm, seal.key_id) != (key.algorithm, key.key_id):
        return Signed.UNKNOWN
    signature = Signature(seal.algorithm, seal.key_id, seal.signature)
    return Signed.GOOD if key.fits(seal.sha256, seal.time_us, signature) else Signed.BAD
