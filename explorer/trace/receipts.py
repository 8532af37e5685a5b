"""The numbered receipts of a closed rollout: which tokens, in which order, earned which reward.

Owns: when a receipt is issued, its number, its terminal, what poisons it, its digest.
Must not know: signatures, who asks for it, what may train.

Closing issues the first one; every reward that is told afterwards issues the next. All of them
follow from the record, so that whoever has the record makes them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

from explorer.custody.canonical import canonical_json
from explorer.custody.records import (
    FINISHED_WITHOUT_COORDINATES,
    RolloutReceipt,
)
from explorer.custody.terminal import attribute
from explorer.records import Call, EventKind, RolloutEvent, RolloutRecord
from explorer.trace.checks import kept_by_worker
from explorer.trace.custody_calls import CustodyCalls, custody_calls
from explorer.trace.sequences import Sequences
from explorer.trace.state import rollout_state

# How a terminal that was declared by its call id is named: the format has no word for it.
_METHODS = {"explicit": "declared"}
_DIGEST_TAG = b"rollout-explorer-receipt-v1"
_MANIFEST_TAG = b"rollout-explorer-manifest-v1"
_CONTENT = tuple(item.name for item in fields(RolloutReceipt))


@dataclass(frozen=True, slots=True)
class NumberedReceipt:
    """One receipt.

    Attributes:
        number: from 1 on.
        time_us: of the event that it was issued for.
        manifest_sha256: where it is known already.
    """

    number: int
    time_us: int
    receipt: RolloutReceipt

    manifest_sha256: str = ""

    @property
    def sha256(self) -> str:
        """Names it; what is signed."""
        # Not `to_json`: rewards that are told again and again share one manifest.
        content = {name: getattr(self.receipt, name) for name in _CONTENT if name != "manifest"}
        content |= {
            "number": self.number,
            "manifest": self.manifest_sha256 or manifest_sha256(self.receipt),
        }
        return hashlib.sha256(_DIGEST_TAG + canonical_json(content).encode()).hexdigest()


def manifest_sha256(receipt: RolloutReceipt) -> str:
    """The digest of a receipt's rows."""
    rows = [row.to_json() for row in receipt.manifest]
    return hashlib.sha256(_MANIFEST_TAG + canonical_json(rows).encode()).hexdigest()


def receipts_of(
    record: RolloutRecord, calls: CustodyCalls | None = None
) -> tuple[NumberedReceipt, ...]:
    """Every receipt that was issued, in order; none while the rollout is open, and none of
    calls whose tokens a worker keeps: their receipts are made from its manifest."""
    if any(map(kept_by_worker, record.calls)):
        return ()
    events = sorted(record.events, key=lambda event: event.sequence)
    places = issued_at(events)
    if not places:
        return ()
    calls = calls or custody_calls(record, Sequences(record.calls))
    made: list[NumberedReceipt] = []
    known: dict[Any, tuple[RolloutReceipt, str]] = {}
    ends = {str(call.call_id): call.ended_us for call in record.calls}
    for number, place in enumerate(places, 1):
        told, time_us = events[: place + 1], events[place].time_us
        # A call may end after the rollout was closed: no receipt from before has it.
        late = frozenset(name for name, end in ends.items() if end > time_us)
        declared = _declared(told)
        key = (late, *declared.values())
        if key not in known:
            first = _receipt(record, calls.only(frozenset(ends) - late), told, declared)
            known[key] = (first, manifest_sha256(first))
        like, digest = known[key]
        receipt = _with_reward(like, rollout_state(told).reward)
        made.append(NumberedReceipt(number, time_us, receipt, digest))
    return tuple(made)


def _with_reward(receipt: RolloutReceipt, reward: float | None) -> RolloutReceipt:
    """The same receipt about another reward; nothing else of it has to be checked again."""
    made = copy(receipt)
    object.__setattr__(made, "reward", None if reward is None else float(reward))
    return made


def issued_at(events: Sequence[RolloutEvent]) -> list[int]:
    """Where in a rollout's events, by their sequence, a receipt was issued."""
    places: list[int] = []
    for place, event in enumerate(events):
        closes = event.kind is EventKind.CLOSED and not places
        rewards = event.reward is not None and event.kind in (
            EventKind.REWARD,
            EventKind.CLOSED,
        )
        if closes or (places and rewards):
            places.append(place)
    return places


def _receipt(
    record: RolloutRecord,
    calls: CustodyCalls,
    events: Sequence[RolloutEvent],
    declared: dict[str, str | None],
) -> RolloutReceipt:
    rows = calls.rows
    found = attribute(rows, None, **declared)
    poison = None
    if found.model_call_id is not None:
        poison = _poison(record, calls, found.model_call_id)
    elif calls.failures:
        poison = calls.failures[0].reason
    terminal = None if poison else found.model_call_id
    reason = poison or (None if terminal else found.reason or "no_records")
    return RolloutReceipt(
        rollout_id=str(record.rollout.rollout_id),
        reward=rollout_state(events).reward,
        terminal_model_call_id=terminal,
        manifest=rows,
        capture_poisoned=reason is not None,
        failure_reason=reason,
        terminal_selection=_METHODS.get(found.method, found.method) if terminal else None,
        terminal_attribution_reason=found.reason or None,
    )


def _declared(events: Sequence[RolloutEvent]) -> dict[str, str | None]:
    """What the harness said about the scored call when it closed."""
    told: dict[str, str | None] = {"explicit_call_id": None, "declared_response_id": None}
    for event in events:
        if event.kind is EventKind.CLOSED:
            for key, name in (
                ("terminal_call_id", "explicit_call_id"),
                ("terminal_response_id", "declared_response_id"),
            ):
                value = event.payload.get(key)
                told[name] = value if isinstance(value, str) and value else told[name]
    return told


def _poison(record: RolloutRecord, calls: CustodyCalls, terminal: str) -> str | None:
    """The reason of a failure on or hiding the way from the root to the terminal.

    A call that only failed was never continued, so it hides nothing. One that answered and is
    no staged call hides something where its answer stands in a later call's context on the
    way, or where it went on from the terminal's own answer.
    """
    lost = {
        failure.model_call_id: failure
        for failure in calls.failures
        if failure.reason != FINISHED_WITHOUT_COORDINATES
    }
    if not lost:
        return None
    by_id = {str(call.call_id): call for call in record.calls}
    path = [by_id[row.row.model_call_id] for row in calls.ancestry(terminal)]
    heard = {digest for call in path for digest in call.message_digests}
    end = path[-1]
    for failure in calls.failures:
        call = by_id.get(failure.model_call_id)
        if failure.model_call_id not in lost or call is None:
            continue
        on_the_way = call.reply_digest is not None and call.reply_digest in heard
        if on_the_way or _continues(call, end):
            return failure.reason
    return None


def _continues(call: Call, end: Call) -> bool:
    """Whether a call went on from the answer of another one."""
    by_tokens = call.stored_parent_id == end.call_id
    return by_tokens or (
        end.reply_digest is not None and end.reply_digest in call.message_digests
    )
