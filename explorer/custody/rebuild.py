"""Verifies a receipt against the staged calls and puts the training rows together.

Owns: `verify_and_linearize`, its order of checks and its codes; `verify_and_linearize_all`,
the same for every branch.
Must not know: where the calls were stored, who sent the receipt.

Every check is made in a fixed order and the first failure wins, so two implementations name
the same code. Cost is linear: each delta is hashed twice, the terminal's tokens once, and each
parent link is followed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from explorer.custody.batch import encode_all
from explorer.custody.digest import chain_hash_of, cumulative_hash
from explorer.custody.errors import RebuildError, ReceiptVerificationError
from explorer.custody.fields import shown
from explorer.custody.records import CallRecord, RolloutReceipt, StagedCallBaseSnapshot
from explorer.custody.staging import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    SCHEMA_VERSION,
    Columns,
    encode_columns,
    staging_digest,
)

# (field, expected, code) of a receipt.
_RECEIPT_VERSIONS = (
    ("schema_version", SCHEMA_VERSION, "unsupported_schema"),
    ("digest_version", DIGEST_VERSION, "unsupported_digest"),
    ("extras_digest_version", EXTRAS_DIGEST_VERSION, "unsupported_extras_digest"),
)
# Fields in which a staged call and its manifest row must agree, in this order.
_COMPARED = (
    *("model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len"),
    *("weight_version", "digest", "extras_digest", "chain_hash", "cumulative_hash"),
)
_compared_of = attrgetter(*_COMPARED)
_VERSIONS = ("schema_version", "digest_version", "extras_digest_version")
_versions_of = attrgetter(*_VERSIONS)
_commitment_of = attrgetter("model_call_id", "extras_digest_version", "extras_digest")
# Of the values that a mask may hold, encoded, only 1.0 has this byte, and it has it once.
_MARK_OF_ONE = b"\x3f"
_FLOAT_BYTES = 4


class _Staged(NamedTuple):
    """A staged call that agrees with its row and its digest, and its columns as hashed."""

    call: StagedCallBaseSnapshot
    columns: Columns


class WeightVersionSpan(NamedTuple):
    """One call's part of the row, and the weights that it was drawn from."""

    model_call_id: str
    start: int
    end: int
    weight_version: int


class LinkSpan(NamedTuple):
    """How one call's delta splits into carry and generation."""

    model_call_id: str
    carry_len: int
    generation_len: int


class ExtrasCommitment(NamedTuple):
    """What one call's extras must hash to."""

    model_call_id: str
    extras_digest_version: int
    extras_digest: str


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearizedRow:
    """The verified sequence from the root to the terminal call.

    The mask says *generated*; whether a token trains is decided elsewhere.
    """

    rollout_id: str
    token_ids: NDArray[np.uint64]
    token_mask: NDArray[np.float64]
    logprobs: NDArray[np.float64]
    model_call_ids: tuple[str, ...]
    prompt_len: int
    weight_versions: tuple[int, ...]
    weight_version_spans: tuple[WeightVersionSpan, ...]
    link_spans: tuple[LinkSpan, ...]
    extras_commitments: tuple[ExtrasCommitment, ...]


class OwnedRow(NamedTuple):
    """One branch.

    Attributes:
        owned: by call of the row: whether what it generated is trained on in this row.
    """

    row: LinearizedRow
    owned: tuple[bool, ...]

    @property
    def owned_mask(self) -> NDArray[np.float64]:
        """The row's mask with zeros in the calls that another row owns."""
        mask = self.row.token_mask.copy()
        for span, owned in zip(self.row.weight_version_spans, self.owned, strict=True):
            if not owned:
                mask[span.start : span.end] = 0.0
        return mask


class _Verified(NamedTuple):
    """Rows and staged calls by call id, and the links that were derived so far."""

    rows: Mapping[str, CallRecord]
    staged: Mapping[str, _Staged]
    links: dict[str, LinkSpan]


def verify_and_linearize(
    receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]
) -> LinearizedRow:
    """The training row behind `receipt`, every link re-derived.

    Args:
        snapshots: one staged call for each manifest row, branches too, in its order.

    Raises:
        TypeError: an argument is not of its type.
        ReceiptVerificationError: the first check that fails; its `code` says which.
    """
    verified = _verified(receipt, snapshots)
    return _row_to(_terminal(receipt, verified), receipt, verified)


def verify_and_linearize_all(
    receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]
) -> tuple[OwnedRow, ...]:
    """Every branch behind `receipt`: of subagents, before a compaction, of a fork.

    The terminal's row comes first, and is that of `verify_and_linearize`; then each other
    call that nothing continues, in the manifest's order. What a call generated is owned by
    the first row that holds it and by no other, so that no token is trained on twice.

    Raises:
        As `verify_and_linearize`; a link off the terminal's way is checked too.
    """
    verified = _verified(receipt, snapshots)
    terminal = _terminal(receipt, verified)
    parents = {row.parent_call_id for row in verified.rows.values()}
    leaves = [call for call in verified.rows if call not in parents and call != terminal]
    known: set[str] = set()
    made = []
    for leaf in (terminal, *leaves):
        row = _row_to(leaf, receipt, verified)
        made.append(OwnedRow(row, tuple(call not in known for call in row.model_call_ids)))
        known.update(row.model_call_ids)
    return tuple(made)


def _verified(
    receipt: RolloutReceipt, snapshots: Sequence[StagedCallBaseSnapshot]
) -> _Verified:
    """All that is checked before a row is made."""
    if not isinstance(receipt, RolloutReceipt):
        raise TypeError(f"expected a receipt, got {type(receipt).__name__}")
    rows = _check_receipt(receipt)
    if len(snapshots) != len(rows):
        raise ReceiptVerificationError(
            "row_count_mismatch", f"{len(rows)} manifest rows, {len(snapshots)} staged calls"
        )
    staged = _check_pairs(receipt, rows, snapshots)
    _check_graph(rows)
    return _Verified(rows, staged, {})


def _terminal(receipt: RolloutReceipt, verified: _Verified) -> str:
    terminal = receipt.terminal_model_call_id
    if terminal is None or terminal not in verified.rows:
        raise RebuildError("missing_terminal", f"no manifest row for {terminal!r}")
    return terminal


def _row_to(call: str, receipt: RolloutReceipt, verified: _Verified) -> LinearizedRow:
    """The row from the root to `call`; each link is derived once, whoever asks."""
    rows, staged, links = verified
    path = _path_to(call, rows)
    for name in path:
        if name not in links:
            links[name] = _check_link(rows[name], staged[name].columns, rows)
    return _joined(
        receipt, [staged[name].call for name in path], [links[name] for name in path]
    )


def _check_receipt(receipt: RolloutReceipt) -> dict[str, CallRecord]:
    """Everything that the receipt alone can get wrong; its rows by call id."""
    for name, wanted, code in _RECEIPT_VERSIONS:
        found = getattr(receipt, name)
        if found != wanted:
            raise ReceiptVerificationError(
                code, f"{name} is {shown(found)}, this code reads {wanted}"
            )
    if receipt.failure_reason is not None:
        raise ReceiptVerificationError("rollout_failed", receipt.failure_reason)
    if receipt.capture_poisoned:
        raise ReceiptVerificationError("capture_poisoned", "the capture was poisoned")
    if not receipt.manifest:
        raise ReceiptVerificationError("empty_manifest", "the receipt has no rows")
    rows: dict[str, CallRecord] = {}
    keys: set[str] = set()
    for row in receipt.manifest:
        if row.model_call_id in rows:
            raise ReceiptVerificationError("duplicate_manifest_row", row.model_call_id)
        if row.staging_key in keys:
            raise ReceiptVerificationError("duplicate_staging_key", row.staging_key)
        rows[row.model_call_id] = row
        keys.add(row.staging_key)
    return rows


def _check_pairs(
    receipt: RolloutReceipt,
    rows: Mapping[str, CallRecord],
    snapshots: Sequence[StagedCallBaseSnapshot],
) -> dict[str, _Staged]:
    """Each staged call against its manifest row; the calls by id."""
    staged: dict[str, _Staged] = {}
    known = all(isinstance(snapshot, StagedCallBaseSnapshot) for snapshot in snapshots)
    encoded = encode_all(snapshots) if known else itertools.repeat(None, len(snapshots))
    for row, snapshot, columns in zip(receipt.manifest, snapshots, encoded, strict=True):
        if not isinstance(snapshot, StagedCallBaseSnapshot):
            raise TypeError(f"expected a staged call, got {type(snapshot).__name__}")
        call = snapshot.model_call_id
        if call in staged:
            raise ReceiptVerificationError("duplicate_snapshot", call)
        if call not in rows:
            raise ReceiptVerificationError("snapshot_identity_mismatch", call)
        if call != row.model_call_id:
            raise ReceiptVerificationError(
                "snapshot_order_mismatch", f"{call} stands in place of {row.model_call_id}"
            )
        staged[call] = _Staged(snapshot, _check_pair(receipt, row, snapshot, columns))
    return staged


def _check_pair(
    receipt: RolloutReceipt,
    row: CallRecord,
    snapshot: StagedCallBaseSnapshot,
    columns: Columns | None,
) -> Columns:
    """One staged call against its row; its columns, which are encoded here if they were not."""
    call = row.model_call_id
    if snapshot.rollout_id != receipt.rollout_id:
        raise ReceiptVerificationError("wrong_rollout", f"{call} is of {snapshot.rollout_id}")
    rows, stored = _compared_of(row), _compared_of(snapshot)
    if rows != stored:
        name, mine, theirs = next(
            found for found in zip(_COMPARED, rows, stored, strict=True) if found[1] != found[2]
        )
        raise ReceiptVerificationError(
            f"wrong_{name}", f"{call}: {shown(mine)} in the manifest, {shown(theirs)} staged"
        )
    if not _versions_of(snapshot) == _versions_of(row) == _versions_of(receipt):
        for name in _VERSIONS:
            if not getattr(snapshot, name) == getattr(row, name) == getattr(receipt, name):
                raise ReceiptVerificationError(f"wrong_{name}", call)
    try:
        columns = columns or encode_columns(snapshot)
        found = staging_digest(snapshot, columns)
    except (TypeError, ValueError) as error:
        raise ReceiptVerificationError("invalid_snapshot", f"{call}: {error}") from error
    if found != snapshot.digest:
        raise ReceiptVerificationError("corrupt_digest", f"{call} hashes to {found}")
    return columns


def _check_graph(rows: Mapping[str, CallRecord]) -> None:
    """Each row follows on its parent, and leads to a root; each link is followed once."""
    rooted: set[str] = set()
    for row in rows.values():
        parent = row.parent_call_id
        if parent is not None:
            if parent not in rows:
                raise RebuildError("missing_parent", f"{row.model_call_id} names {parent}")
            if rows[parent].cum_len != row.prev_len:
                raise RebuildError(
                    "parent_length_mismatch",
                    f"{row.model_call_id} starts at {row.prev_len}, "
                    f"{parent} ends at {rows[parent].cum_len}",
                )
        if parent is None or parent in rooted:
            rooted.add(row.model_call_id)
        else:
            rooted |= _walk(row.model_call_id, rows, rooted)


def _walk(call: str, rows: Mapping[str, CallRecord], rooted: set[str]) -> set[str]:
    """The calls from `call` up to a root, or up to one that is known to lead to a root.

    An ancestor whose parent is absent ends the walk: its own check names it.
    """
    seen: set[str] = set()
    current: str | None = call
    while current is not None and current in rows and current not in rooted:
        if current in seen:
            raise RebuildError("lineage_cycle", f"{call} does not lead to a root")
        seen.add(current)
        current = rows[current].parent_call_id
    return seen


def _path_to(terminal: str, rows: Mapping[str, CallRecord]) -> list[str]:
    path: list[str] = []
    current: str | None = terminal
    while current is not None:
        path.append(current)
        current = rows[current].parent_call_id
    return path[::-1]


def _check_link(row: CallRecord, columns: Columns, rows: Mapping[str, CallRecord]) -> LinkSpan:
    """One call of the terminal's ancestry: its chain hash and the shape of its mask."""
    call, parent = row.model_call_id, row.parent_call_id
    link = None if parent is None else bytes.fromhex(rows[parent].chain_hash)
    if chain_hash_of(link, columns.size, columns.token_ids).hex() != row.chain_hash:
        raise RebuildError("chain_hash_mismatch", call)
    generated = columns.mask.count(_MARK_OF_ONE)
    if not generated:
        raise RebuildError("empty_generation", call)
    carry = row.delta_len - generated
    if columns.mask.index(_MARK_OF_ONE) != _FLOAT_BYTES * carry:
        raise RebuildError("invalid_mask_order", f"{call}: prompt ids after generated ones")
    return LinkSpan(call, carry, generated)


def _joined(
    receipt: RolloutReceipt, calls: Sequence[StagedCallBaseSnapshot], links: Sequence[LinkSpan]
) -> LinearizedRow:
    token_ids: NDArray[np.uint64] = np.concatenate([call.token_ids_delta for call in calls])
    if cumulative_hash(token_ids).hex() != calls[-1].cumulative_hash:
        raise RebuildError("cumulative_hash_mismatch", calls[-1].model_call_id)
    ends = np.cumsum([call.delta_len for call in calls]).tolist()
    starts = [0, *ends[:-1]]
    return LinearizedRow(
        rollout_id=receipt.rollout_id,
        token_ids=token_ids,
        token_mask=np.concatenate([call.token_mask_delta for call in calls]),
        logprobs=np.concatenate([call.generation_log_probs_delta for call in calls]),
        model_call_ids=tuple(call.model_call_id for call in calls),
        prompt_len=links[0].carry_len,
        weight_versions=tuple(call.weight_version for call in calls),
        weight_version_spans=tuple(
            WeightVersionSpan(call.model_call_id, start, end, call.weight_version)
            for call, start, end in zip(calls, starts, ends, strict=True)
        ),
        link_spans=tuple(links),
        extras_commitments=tuple(map(ExtrasCommitment._make, map(_commitment_of, calls))),
    )
