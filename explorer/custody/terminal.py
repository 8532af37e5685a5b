"""Which committed call was scored: witnesses first, the shape of the tree last.

Owns: terminal attribution and its vocabulary.
Must not know: tokens, ledgers, HTTP.

Witnesses in order: a model-call id (explicit), a served response id that the harness declares,
the id of the scored response, its content. Each abstains where it is not sure; those that
speak must name one call, or nothing is attributed. A declared id that the ledger does not
confirm attributes nothing, whatever the others say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from explorer.custody.errors import FingerprintError
from explorer.custody.fingerprint import (
    FINGERPRINT_VERSION,
    assistant_fingerprint,
    is_model_authored,
)
from explorer.custody.records import CallRecord

# An abstention for lack of material, where the tree's shape may still decide. Any other
# means that something was scored which no call, or more than one, could have produced.
SILENT = frozenset(
    {
        *("no_response_object", "response_has_no_id", "response_has_no_output"),
        "no_model_authored_output",
    }
)


class TerminalAttribution(NamedTuple):
    """The scored call, if one could be named, by which witness, and the trail."""

    model_call_id: str | None
    method: str = ""
    reason: str = ""


class TerminalSelection(NamedTuple):
    """What the parent links alone say."""

    terminal_model_call_id: str | None
    reason: str


def attribute(
    records: Sequence[CallRecord],
    response: Mapping[str, Any] | None = None,
    *,
    explicit_call_id: str | None = None,
    declared_response_id: str | None = None,
) -> TerminalAttribution:
    """The scored call by witnesses, or by the tree where no witness has anything to say.

    An answer that matches no call, or that is ambiguous, never falls back to the tree.
    """
    found = resolve_terminal(
        records,
        response,
        explicit_call_id=explicit_call_id,
        declared_response_id=declared_response_id,
    )
    if found.model_call_id is not None or not SILENT.issuperset(found.reason.split(",")):
        return found
    selection = select_terminal_call(records)
    trail = f"{found.reason},{selection.reason}"
    if selection.terminal_model_call_id is None:
        return TerminalAttribution(None, "", trail)
    return TerminalAttribution(selection.terminal_model_call_id, "heuristic", trail)


def resolve_terminal(
    records: Sequence[CallRecord],
    response: Mapping[str, Any] | None,
    *,
    explicit_call_id: str | None = None,
    declared_response_id: str | None = None,
) -> TerminalAttribution:
    """The scored call by witnesses alone."""
    trail: list[str] = []
    votes: list[tuple[str, CallRecord]] = []
    if explicit_call_id is not None:
        named = [row for row in records if row.model_call_id == explicit_call_id]
        _vote(votes, trail, "explicit", named, ("explicit_terminal_not_captured",) * 2)
    if declared_response_id is not None:
        named = [row for row in records if row.response_id == declared_response_id]
        reasons = ("declared_terminal_not_captured", "declared_ambiguous")
        if not _vote(votes, trail, "declared", named, reasons):
            return TerminalAttribution(None, "", ",".join(trail))
    if not isinstance(response, Mapping):
        trail.append("no_response_object")
    else:
        _response_id_witness(records, response, votes, trail)
        _content_witness(records, response, votes, trail)
    if not votes:
        return TerminalAttribution(None, "", ",".join(trail))
    if collapse([row for _, row in votes]) is None:
        named_by = ";".join(f"{method}={row.model_call_id}" for method, row in votes)
        trail.append(f"witness_disagreement[{named_by}]")
        return TerminalAttribution(None, "", ",".join(trail))
    (method, first), *others = votes
    if others:
        trail.append("corroborated_by=" + "+".join(name for name, _ in others))
    return TerminalAttribution(first.model_call_id, method, ",".join(trail))


def _vote(
    votes: list[tuple[str, CallRecord]],
    trail: list[str],
    method: str,
    candidates: Sequence[CallRecord],
    reasons: tuple[str, str],
) -> bool:
    """Adds the one call behind `candidates`, or why there is none: (absent, ambiguous)."""
    found = collapse(candidates)
    if found is None:
        trail.append(reasons[bool(candidates)])
        return False
    votes.append((method, found))
    return True


def identity(row: CallRecord) -> tuple[str, str, int]:
    """What makes two calls the same: tokens, and how they were cut."""
    return row.cumulative_hash, row.chain_hash, row.cum_len


def collapse(candidates: Sequence[CallRecord]) -> CallRecord | None:
    """The one call behind `candidates`: the smallest id of identical ones, else None."""
    if len(set(map(identity, candidates))) != 1:
        return None
    return min(candidates, key=lambda row: row.model_call_id)


def _response_id_witness(
    records: Sequence[CallRecord],
    response: Mapping[str, Any],
    votes: list[tuple[str, CallRecord]],
    trail: list[str],
) -> None:
    served = response.get("id")
    if not served:
        trail.append("response_has_no_id")
        return
    named = [row for row in records if row.response_id == served]
    reasons = ("response_id_no_match", "response_id_ambiguous")
    _vote(votes, trail, "response_id", named, reasons)


def _content_witness(
    records: Sequence[CallRecord],
    response: Mapping[str, Any],
    votes: list[tuple[str, CallRecord]],
    trail: list[str],
) -> None:
    output = response.get("output")
    if not isinstance(output, list) or not output:
        trail.append("response_has_no_output")
        return
    items = [item for item in output if isinstance(item, Mapping)]
    try:
        whole = assistant_fingerprint(items)
        tail = assistant_fingerprint(_trailing_block(items))
    except FingerprintError:
        trail.append("response_output_unfingerprintable")
        return
    if not whole:
        trail.append("no_model_authored_output")
        return
    readings: list[Callable[[CallRecord], bool]] = [
        lambda row: whole in (row.continuation_fingerprint, row.output_fingerprint),
        lambda row: bool(tail) and tail == row.output_fingerprint,
    ]
    named = [
        row
        for row in records
        if row.fingerprint_version == FINGERPRINT_VERSION
        and any(reading(row) for reading in readings)
    ]
    _vote(votes, trail, "content", named, ("no_content_match", "content_ambiguous"))


def _trailing_block(items: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The model-authored items at the end, where something else stands before them."""
    start = len(items)
    while start and is_model_authored(items[start - 1]):
        start -= 1
    return items[start:] if start else []


def select_terminal_call(records: Sequence[CallRecord]) -> TerminalSelection:
    """The leaf that the parent links lead to, if they lead to one only."""
    if not records:
        return TerminalSelection(None, "no_records")
    ids = {row.model_call_id for row in records}
    if len(ids) != len(records):
        return TerminalSelection(None, "duplicate_call_id")
    children: dict[str | None, list[CallRecord]] = {}
    for row in records:
        if row.parent_call_id is not None and row.parent_call_id not in ids:
            return TerminalSelection(None, "orphaned_row")
        children.setdefault(row.parent_call_id, []).append(row)
    roots = children.get(None)
    if not roots:
        return TerminalSelection(None, "no_root")
    # The sort is stable, so the manifest's order decides between equal times.
    current = min(
        roots,
        key=lambda row: (
            row.model_call_id not in children,
            row.admitted_at is None,
            row.admitted_at or 0.0,
        ),
    )
    while below := children.get(current.model_call_id):
        extended = [row for row in below if row.model_call_id in children]
        survivors = extended or below
        if len(survivors) > 1:
            return TerminalSelection(None, "ambiguous_terminal")
        current = survivors[0]
    return TerminalSelection(current.model_call_id, "selected")
