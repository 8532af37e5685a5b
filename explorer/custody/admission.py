"""Whether a call may be captured, and as the continuation of which call.

Owns: the resolution of a parent, the tri-state admission, the settlement of a worker's reply.
Must not know: HTTP, where rows are kept. It fails closed: what is not sure is not captured.

A request without model-authored history is a root. One with history must continue exactly one
committed call; else the call is poisoned, and served as ordinary traffic. History in an empty
ledger was seeded by the harness: such a call is a root too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from explorer.custody.errors import CustodyError, FingerprintError, LedgerError, RecordError
from explorer.custody.fields import shown
from explorer.custody.fingerprint import (
    FINGERPRINT_VERSION,
    assistant_fingerprint,
    conversation_digests,
)
from explorer.custody.ledger import Candidate, CaptureLedger
from explorer.custody.records import (
    CAPTURE_FAILED,
    FINISHED_WITHOUT_COORDINATES,
    INVALID_COORDINATES,
    MISSING_COORDINATES,
    UNRESOLVED_PARENT,
    CallRecord,
    CaptureAdmission,
    CaptureLedgerCommit,
    CommitCoords,
)

ROOT, RESOLVED, UNRESOLVED = "root", "resolved", "unresolved"


class Resolution(NamedTuple):
    """What a request continues: (status, the parent, why there is none)."""

    status: str
    parent: Candidate | None = None
    diagnostic: str = ""


class Decision(NamedTuple):
    """What becomes of a call: an admission, or the reason of its poison row."""

    admission: CaptureAdmission | None
    poison: str | None = None
    diagnostic: str = ""


class Settlement(NamedTuple):
    """What becomes of an admitted call's reply: a commit, or the reason of its poison row."""

    commit: CaptureLedgerCommit | None
    poison: str | None = None
    detail: str = ""


class Served(NamedTuple):
    """What the commit takes from the server: ids, times and the conversation as served."""

    response_id: object
    admitted_at: float | None
    request_items: Sequence[dict[str, Any]]
    response_items: Sequence[dict[str, Any]]


def resolve_parent(
    ledger: CaptureLedger, rollout_id: str, request_items: Sequence[Mapping[str, Any]]
) -> Resolution:
    """The one committed call that a request continues.

    Candidates are held against the request's context before they are counted, so a repeated
    answer under another context does not disturb. Several that remain are one if their tokens
    are the same; the smallest id stands for them.
    """
    try:
        fingerprint = assistant_fingerprint(request_items)
        if not fingerprint:
            return Resolution(ROOT)
        candidates = ledger.candidates(rollout_id, fingerprint)
        digests = conversation_digests(request_items, {row.context_len for row in candidates})
    except (FingerprintError, LedgerError) as error:
        return Resolution(UNRESOLVED, None, f"lookup_error: {error}")
    fitting = [row for row in candidates if digests.get(row.context_len) == row.context_digest]
    if not fitting:
        return Resolution(UNRESOLVED, None, "no_match")
    if len({(row.sequence_digest, row.cum_len) for row in fitting}) > 1:
        return Resolution(UNRESOLVED, None, "ambiguous")
    return Resolution(RESOLVED, min(fitting, key=lambda row: row.model_call_id))


def decide(
    ledger: CaptureLedger,
    rollout_id: str,
    model_call_id: str,
    request_items: Sequence[Mapping[str, Any]],
) -> Decision:
    """The admission of a call, or why it has none. Writes nothing."""
    found = resolve_parent(ledger, rollout_id, request_items)
    refused = Decision(None, UNRESOLVED_PARENT, found.diagnostic)
    try:
        if found.status == UNRESOLVED:
            # History that cannot be read would fail at its commit as well.
            if found.diagnostic != "no_match" or ledger.has_rows(rollout_id):
                return refused
            return Decision(_root(rollout_id, model_call_id), None, "seeded history")
        if found.parent is None:
            return Decision(_root(rollout_id, model_call_id))
        return Decision(_child(ledger, rollout_id, model_call_id, found.parent))
    except (RecordError, LedgerError) as error:
        return refused._replace(diagnostic=str(error))


def _root(rollout_id: str, model_call_id: str) -> CaptureAdmission:
    return CaptureAdmission(rollout_id=rollout_id, model_call_id=model_call_id, mode="text")


def _child(
    ledger: CaptureLedger, rollout_id: str, model_call_id: str, parent: Candidate
) -> CaptureAdmission:
    """The admission of a continuation; refused where the parent's row has no chain hash."""
    return CaptureAdmission(
        rollout_id=rollout_id,
        model_call_id=model_call_id,
        parent_call_id=parent.model_call_id,
        prev_len=parent.cum_len,
        mode="token_in",
        staging_chain=ledger.staging_chain(rollout_id, parent.model_call_id),
        parent_chain_hash=parent.chain_hash,
    )


def admit(
    ledger: CaptureLedger,
    rollout_id: str,
    model_call_id: str,
    request_items: Sequence[Mapping[str, Any]],
) -> Decision:
    """As `decide`, and the poison row of a call without an admission is written.

    Raises:
        LedgerError: the poison row could not be written; the rollout must not train.
    """
    decision = decide(ledger, rollout_id, model_call_id, request_items)
    if decision.poison is not None:
        ledger.record_failure(rollout_id, model_call_id, decision.poison)
    return decision


def settle(admission: CaptureAdmission, coordinates: object, served: Served) -> Settlement:
    """What a worker's reply commits, or the poison of a reply that commits nothing.

    Args:
        coordinates: what the worker acknowledged, as it came; None where it did not.
        served: the reply as the client gets it.
    """
    if coordinates is None:
        return Settlement(None, MISSING_COORDINATES)
    try:
        coords = CommitCoords.parse(coordinates)
        _check_identity(admission, coords)
        if coords.disposition == "capture_failed":
            return Settlement(None, CAPTURE_FAILED)
        return Settlement(_commit(admission, coords, served))
    except CustodyError as error:
        return Settlement(None, INVALID_COORDINATES, error.detail)


def _check_identity(admission: CaptureAdmission, coords: CommitCoords) -> None:
    for name in ("rollout_id", "model_call_id", "parent_call_id", "prev_len"):
        mine, theirs = getattr(admission, name), getattr(coords, name)
        if mine != theirs:
            raise RecordError(f"{name} is {shown(theirs)}, admitted was {shown(mine)}")


def _commit(
    admission: CaptureAdmission, coords: CommitCoords, served: Served
) -> CaptureLedgerCommit:
    """The commit behind staged coordinates.

    Raises:
        RecordError: no served id.
        FingerprintError: the conversation cannot be fingerprinted.
    """
    request, response = tuple(served.request_items), tuple(served.response_items)
    shared = (
        *("model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "digest"),
        *("weight_version", "extras_digest", "staging_key", "chain_hash", "cumulative_hash"),
    )
    record = CallRecord.parse(
        {name: getattr(coords, name) for name in shared}
        | {
            "mode": admission.mode,
            "response_id": served.response_id,
            "admitted_at": served.admitted_at,
            "output_fingerprint": assistant_fingerprint(response) or None,
            "continuation_fingerprint": assistant_fingerprint([*request, *response]) or None,
            "fingerprint_version": FINGERPRINT_VERSION,
        }
    )
    return CaptureLedgerCommit(
        rollout_id=admission.rollout_id,
        record=record,
        staging_chain=(*admission.staging_chain, record.staging_key),
        request_items=request,
        response_items=response,
    )


def commit(ledger: CaptureLedger, admission: CaptureAdmission, settlement: Settlement) -> bool:
    """Writes a settlement; whether the call is committed now.

    A commit that cannot be written is poisoned instead.

    Raises:
        LedgerError: not even the poison could be written; the rollout must not train.
    """
    poison = settlement.poison
    if settlement.commit is not None:
        try:
            ledger.record(settlement.commit)
        except CustodyError:
            poison = INVALID_COORDINATES
        else:
            return True
    reason = poison or INVALID_COORDINATES
    ledger.record_failure(admission.rollout_id, admission.model_call_id, reason)
    return False


def finish(ledger: CaptureLedger, admission: CaptureAdmission, committed: bool) -> None:
    """The end of an admitted request: without a commit it is poisoned for that too.

    Raises:
        LedgerError: the poison row could not be written.
    """
    if not committed:
        ledger.record_failure(
            admission.rollout_id, admission.model_call_id, FINISHED_WITHOUT_COORDINATES
        )
