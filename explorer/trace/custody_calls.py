"""A recorded rollout as custody has it: what each call added, and a row without tokens.

Owns: which recorded calls are staged calls, under which names, and why others are none.
Must not know: receipts, what may train. The mask here says generated, never trained.

A call continues the stored parent whose whole sequence its prompt begins with, so the chain
hashes are those that were made when the calls were committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from explorer.custody.digest import cumulative_hash
from explorer.custody.errors import RecordError
from explorer.custody.records import (
    CAPTURE_FAILED,
    FINISHED_WITHOUT_COORDINATES,
    ROW_WITHOUT_CHAIN_HASH,
    ROW_WITHOUT_RESPONSE_ID,
    UNRESOLVED_PARENT,
    CallRecord,
    ManifestFailure,
    StagedCallBaseSnapshot,
    staging_key,
)
from explorer.custody.routes import committed_extras
from explorer.custody.staging import (
    DIGEST_VERSION,
    EMPTY_EXTRAS_DIGEST,
    EXTRAS_DIGEST_VERSION,
    SCHEMA_VERSION,
    build_delta,
    staging_digest,
)
from explorer.records import Call, CallId, CallStatus, RolloutRecord
from explorer.trace.sequences import Sequences

# What a call says of its weights where nobody announced a version: the format has no null.
UNKNOWN_WEIGHTS = 0
_VERSIONS = {
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}
_SHARED = (
    *("model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "mode"),
    *("weight_version", "digest", "extras_digest", "chain_hash", "cumulative_hash"),
)


class CustodyCall(NamedTuple):
    """One call with its tokens, and its row without them."""

    staged: StagedCallBaseSnapshot
    row: CallRecord


@dataclass(frozen=True, slots=True)
class CustodyCalls:
    """Every call of a rollout, in admission order.

    Attributes:
        calls: those that are staged calls.
        failures: the others that sampled or failed, with a poison reason each.
        unknown_weights: staged calls whose weight version nobody announced.
    """

    calls: tuple[CustodyCall, ...] = ()
    failures: tuple[ManifestFailure, ...] = ()
    unknown_weights: int = 0
    by_id: Mapping[str, CustodyCall] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[CallRecord, ...]:
        """The manifest's rows."""
        return tuple(call.row for call in self.calls)

    def only(self, names: frozenset[str]) -> CustodyCalls:
        """Those of these calls whose parents are among them; clocks can say otherwise."""
        kept: dict[str, CustodyCall] = {}
        failures = [item for item in self.failures if item.model_call_id in names]
        for call in self.calls:
            name, parent = call.row.model_call_id, call.row.parent_call_id
            if name not in names:
                continue
            if parent is None or parent in kept:
                kept[name] = call
            else:
                failures.append(ManifestFailure(model_call_id=name, reason=UNRESOLVED_PARENT))
        return CustodyCalls(tuple(kept.values()), tuple(failures), self.unknown_weights, kept)

    def ancestry(self, call_id: str) -> list[CustodyCall]:
        """From the root to this call."""
        path: list[CustodyCall] = []
        current: str | None = call_id
        while current is not None:
            path.append(self.by_id[current])
            current = path[-1].row.parent_call_id
        return path[::-1]


def custody_calls(record: RolloutRecord, sequences: Sequences | None = None) -> CustodyCalls:
    """The rollout's calls as custody has them."""
    sequences = sequences or Sequences(record.calls)
    made: dict[str, CustodyCall] = {}
    failures: list[ManifestFailure] = []
    unknown = 0
    for call in _in_order(record.calls):
        found = _custody_call(call, sequences, made)
        if isinstance(found, CustodyCall):
            made[call.call_id] = found
            unknown += call.weight_version_start is None
        elif found:
            failures.append(ManifestFailure(model_call_id=str(call.call_id), reason=found))
    return CustodyCalls(tuple(made.values()), tuple(failures), unknown, made)


def _in_order(calls: Iterable[Call]) -> Sequence[Call]:
    return sorted(calls, key=lambda call: (call.sequence, call.call_id))


def _custody_call(
    call: Call, sequences: Sequences, made: Mapping[str, CustodyCall]
) -> CustodyCall | str:
    """The call, the reason why there is none, or nothing where nothing was asked."""
    if call.status is CallStatus.REFUSED:
        return ""
    if call.status is not CallStatus.COMMITTED:
        return FINISHED_WITHOUT_COORDINATES
    parent = call.stored_parent_id
    if parent is not None and (
        parent not in made or made[parent].row.cum_len != call.prefix_len
    ):
        return UNRESOLVED_PARENT
    if not _whole(call, sequences):
        return CAPTURE_FAILED
    if not call.response_id:
        return ROW_WITHOUT_RESPONSE_ID
    if call.chain_hash is None:
        return ROW_WITHOUT_CHAIN_HASH
    try:
        return _made(call, sequences)
    except (RecordError, TypeError, ValueError):
        return CAPTURE_FAILED


def _whole(call: Call, sequences: Sequences) -> bool:
    """Whether ids and logprobs are on record for all that it sampled."""
    return (
        call.completion is not None
        and call.logprobs is not None
        and 0 < call.completion.size == call.logprobs.size
        and bool(np.isfinite(call.logprobs).all())
        and sequences.problem(call.call_id) is None
    )


def _made(call: Call, sequences: Sequences) -> CustodyCall:
    """Raises `RecordError`, `TypeError` or `ValueError` where a rule is broken."""
    assert call.completion is not None  # `_whole` said so
    assert call.logprobs is not None
    assert call.chain_hash is not None
    assert call.response_id is not None
    prompt = sequences.prompt(call.call_id)
    delta = build_delta(prompt, call.completion, call.logprobs, call.prefix_len)
    version = call.weight_version_start
    values: dict[str, Any] = {
        "rollout_id": str(call.rollout_id),
        "model_call_id": str(call.call_id),
        "parent_call_id": _text(call.stored_parent_id),
        "mode": "text" if call.stored_parent_id is None else "token_in",
        "prev_len": call.prefix_len,
        "delta_len": int(delta.token_ids.size),
        "cum_len": call.prefix_len + int(delta.token_ids.size),
        "weight_version": UNKNOWN_WEIGHTS if version is None else version,
        "token_ids_delta": delta.token_ids,
        "token_mask_delta": delta.mask,
        "generation_log_probs_delta": delta.logprobs,
        "extras_digest": EMPTY_EXTRAS_DIGEST
        if call.routed_experts is None
        else committed_extras(call.routed_experts),
        # As it was recorded: whoever checks makes it again.
        "chain_hash": call.chain_hash.hex(),
        "cumulative_hash": cumulative_hash(prompt, call.completion).hex(),
    }
    digest = staging_digest(SimpleNamespace(**values, **_VERSIONS))
    staged = StagedCallBaseSnapshot(**values, digest=digest)
    row = CallRecord(
        **{name: getattr(staged, name) for name in _SHARED},
        staging_key=staging_key(staged.rollout_id, staged.model_call_id),
        response_id=call.response_id,
        admitted_at=call.started_us / 1e6,
    )
    return CustodyCall(staged, row)


def _text(name: CallId | None) -> str | None:
    return None if name is None else str(name)
