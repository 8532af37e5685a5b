"""The records of token custody, as they cross a wire or lie in a file.

Owns: their fields, their rules, the reason codes.
Must not know: how records are stored, sent or verified against each other.

Only staged calls hold tokens; every other record is free of them. A record refuses unknown
fields and wrong values when it is made, so whoever holds one need not check it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from explorer.custody.errors import RecordError
from explorer.custody.fields import (
    Record,
    constant,
    flag,
    float_column,
    hex_digest,
    ident,
    mapping,
    nat,
    number,
    of,
    one_of,
    optional,
    sequence,
    text,
    token_column,
)
from explorer.custody.staging import (
    DIGEST_VERSION,
    EMPTY_EXTRAS_DIGEST,
    EXTRAS_DIGEST_VERSION,
    MODES,
    SCHEMA_VERSION,
    extras_digest,
    staging_digest,
)

# Why a call has no custody row. The vocabulary is frozen: frameworks switch on it.
UNRESOLVED_PARENT = "unresolved_parent"
FINISHED_WITHOUT_COORDINATES = "request_finished_without_staged_coordinates"
MISSING_COORDINATES = "worker_response_missing_commit_coordinates"
CAPTURE_FAILED = "worker_capture_failed"
INVALID_COORDINATES = "invalid_worker_commit_coordinates"
ROW_WITHOUT_RESPONSE_ID = "ledger_row_missing_response_id"
ROW_WITHOUT_CHAIN_HASH = "ledger_row_missing_chain_hash"
POISON_REASONS = (
    *(UNRESOLVED_PARENT, FINISHED_WITHOUT_COORDINATES, MISSING_COORDINATES, CAPTURE_FAILED),
    *(INVALID_COORDINATES, ROW_WITHOUT_RESPONSE_ID, ROW_WITHOUT_CHAIN_HASH),
)
SELECTIONS = ("declared", "response_id", "content", "heuristic")


@dataclass(frozen=True, kw_only=True, eq=False)
class WireRecord(Record):
    """A record with the schema's version."""

    schema_version: int = of(constant(SCHEMA_VERSION), default=SCHEMA_VERSION)


@dataclass(frozen=True, kw_only=True, eq=False)
class DigestRecord(WireRecord):
    """A record that carries digests, and so their versions."""

    digest_version: int = of(constant(DIGEST_VERSION), default=DIGEST_VERSION)
    extras_digest_version: int = of(
        constant(EXTRAS_DIGEST_VERSION), default=EXTRAS_DIGEST_VERSION
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureAdmission(WireRecord):
    """What a server lets a worker capture (server to worker)."""

    NAME: ClassVar[str] = "admission"
    rollout_id: str = of(ident)
    model_call_id: str = of(ident)
    parent_call_id: str | None = of(optional(ident), default=None)
    prev_len: int = of(nat, default=0)
    mode: str = of(one_of(*MODES))
    required_prefix_token_ids: tuple[int, ...] = of(sequence(nat), default=())
    staging_chain: tuple[str, ...] = of(sequence(text), default=())
    parent_chain_hash: str | None = of(optional(hex_digest), default=None)

    def check(self) -> None:
        """A child names its parent and its prefix, a root neither."""
        inline = len(self.required_prefix_token_ids)
        if self.mode == "text":
            empty = self.parent_call_id is None and self.parent_chain_hash is None
            nothing = not (self.prev_len or inline or self.staging_chain)
            self.refuse_unless(empty and nothing, "mode text has no parent and no prefix")
            return
        named = self.parent_call_id is not None and self.parent_chain_hash is not None
        self.refuse_unless(
            named and self.prev_len > 0,
            "mode token_in needs a parent, its chain hash and a prev_len over 0",
        )
        self.refuse_unless(
            bool(self.staging_chain) or inline == self.prev_len,
            "without a staging_chain the inline prefix is prev_len ids long",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedCallBaseSnapshot(DigestRecord):
    """One call's new tokens as read back from storage, without its extras.

    Its digest is recomputed when it is made.
    """

    NAME: ClassVar[str] = "staged call"
    rollout_id: str = of(ident)
    model_call_id: str = of(ident)
    parent_call_id: str | None = of(optional(ident), default=None)
    mode: str = of(one_of(*MODES))
    prev_len: int = of(nat)
    delta_len: int = of(nat)
    cum_len: int = of(nat)
    weight_version: int = of(nat)
    digest: str = of(hex_digest)
    token_ids_delta: NDArray[np.uint64] = of(token_column)  # noqa: RUF009
    token_mask_delta: NDArray[np.float64] = of(float_column)  # noqa: RUF009
    generation_log_probs_delta: NDArray[np.float64] = of(float_column)  # noqa: RUF009
    extras_digest: str = of(hex_digest, default=EMPTY_EXTRAS_DIGEST)
    chain_hash: str = of(hex_digest)
    cumulative_hash: str = of(hex_digest)

    def check(self) -> None:
        """The rules of a staged call, and its digest."""
        try:
            found = staging_digest(self)
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.NAME}: {error}") from None
        self.refuse_unless(found == self.digest, "digest is not that of the other fields")

    @property
    def staging_key(self) -> str:
        """The key under which it is stored where a sink chooses no other."""
        return staging_key(self.rollout_id, self.model_call_id)


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedCallRecord(StagedCallBaseSnapshot):
    """One call's new tokens with its extras, as a worker stages them."""

    extras: dict[str, Any] | None = of(optional(mapping), default=None)  # noqa: RUF009

    def check(self) -> None:
        """As the base, and the digest of the extras."""
        super().check()
        try:
            found = extras_digest(self.extras)
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.NAME}.extras: {error}") from None
        self.refuse_unless(found == self.extras_digest, "extras_digest is not that of extras")


def staging_key(rollout_id: str, model_call_id: str) -> str:
    """The default storage key of a call."""
    return f"{ident(rollout_id)}/{ident(model_call_id)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class StageResult(WireRecord):
    """What a sink says about one write."""

    NAME: ClassVar[str] = "stage result"
    ok: bool = of(flag)
    staging_key: str | None = of(optional(ident), default=None)
    error: str | None = of(optional(text), default=None)

    def check(self) -> None:
        """A success has a key, a failure says why."""
        if self.ok:
            self.refuse_unless(self.staging_key is not None, "a success needs a staging_key")
        else:
            self.refuse_unless(bool(self.error), "a failure needs an error")


@dataclass(frozen=True, kw_only=True, eq=False)
class CommitCoords(DigestRecord):
    """What a worker acknowledges (worker to server): coordinates, no tokens."""

    NAME: ClassVar[str] = "commit coordinates"
    rollout_id: str = of(ident)
    model_call_id: str = of(ident)
    parent_call_id: str | None = of(optional(ident), default=None)
    prev_len: int = of(nat)
    delta_len: int = of(nat)
    cum_len: int = of(nat)
    weight_version: int = of(nat)
    disposition: str = of(one_of("staged", "capture_failed"), default="staged")
    digest: str | None = of(optional(hex_digest), default=None)
    extras_digest: str | None = of(optional(hex_digest), default=None)
    staging_key: str | None = of(optional(ident), default=None)
    chain_hash: str | None = of(optional(hex_digest), default=None)
    cumulative_hash: str | None = of(optional(hex_digest), default=None)

    def check(self) -> None:
        """Staged needs every coordinate, failed has none."""
        held = (
            *(self.digest, self.extras_digest, self.staging_key),
            *(self.chain_hash, self.cumulative_hash),
        )
        self.refuse_unless(
            self.cum_len == self.prev_len + self.delta_len, "cum_len is prev_len + delta_len"
        )
        self.refuse_unless(
            (self.parent_call_id is not None) == (self.prev_len > 0),
            "a parent is named exactly where prev_len is over 0",
        )
        if self.disposition == "staged":
            complete = None not in held and self.delta_len > 0
            self.refuse_unless(complete, "staged needs all five coordinates and a delta")
        else:
            empty = held == (None,) * len(held) and self.delta_len == 0
            self.refuse_unless(empty, "capture_failed has no coordinates and no delta")


@dataclass(frozen=True, kw_only=True, eq=False)
class CallRecord(DigestRecord):
    """One committed call in a manifest, free of tokens; the rollout id is around it."""

    NAME: ClassVar[str] = "manifest row"
    model_call_id: str = of(ident)
    parent_call_id: str | None = of(optional(ident), default=None)
    prev_len: int = of(nat)
    delta_len: int = of(nat)
    cum_len: int = of(nat)
    weight_version: int = of(nat)
    digest: str = of(hex_digest)
    extras_digest: str = of(hex_digest)
    staging_key: str = of(ident)
    mode: str = of(one_of(*MODES), default="token_in")
    chain_hash: str = of(hex_digest)
    cumulative_hash: str = of(hex_digest)
    response_id: str = of(ident)
    admitted_at: float | None = of(optional(number), default=None)
    output_fingerprint: str | None = of(optional(hex_digest), default=None)
    continuation_fingerprint: str | None = of(optional(hex_digest), default=None)
    fingerprint_version: int = of(nat, default=0)

    def check(self) -> None:
        """A delta that follows on, and a root that is one in every field."""
        self.refuse_unless(
            self.delta_len > 0 and self.cum_len == self.prev_len + self.delta_len,
            "delta_len is over 0 and cum_len is prev_len + delta_len",
        )
        root = self.parent_call_id is None
        self.refuse_unless(
            root == (self.prev_len == 0) == (self.mode == "text"),
            "no parent, prev_len 0 and mode text go together",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureLedgerCommit(WireRecord):
    """One call as it is committed, with the conversation that its fingerprints are of."""

    NAME: ClassVar[str] = "ledger commit"
    rollout_id: str = of(ident)
    record: CallRecord = of(CallRecord.parse)  # noqa: RUF009
    staging_chain: tuple[str, ...] = of(sequence(ident), default=())
    request_items: tuple[dict[str, Any], ...] = of(sequence(mapping))
    response_items: tuple[dict[str, Any], ...] = of(sequence(mapping))


@dataclass(frozen=True, kw_only=True, eq=False)
class ManifestFailure(WireRecord):
    """Why one call has no custody row."""

    NAME: ClassVar[str] = "manifest failure"
    model_call_id: str = of(ident)
    reason: str = of(ident)


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutManifest(WireRecord):
    """Every committed call and every failure of a rollout, in the ledger's order."""

    NAME: ClassVar[str] = "manifest"
    rollout_id: str = of(ident)
    records: tuple[CallRecord, ...] = of(sequence(CallRecord.parse), default=())
    failures: tuple[ManifestFailure, ...] = of(sequence(ManifestFailure.parse), default=())


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutReceipt(DigestRecord):
    """A closed rollout: its manifest, which call was scored last, and the reward."""

    NAME: ClassVar[str] = "receipt"
    rollout_id: str = of(ident)
    reward: float | None = of(optional(number), default=None)
    terminal_model_call_id: str | None = of(optional(ident), default=None)
    manifest: tuple[CallRecord, ...] = of(sequence(CallRecord.parse))
    capture_poisoned: bool = of(flag, default=False)
    failure_reason: str | None = of(optional(text), default=None)
    terminal_selection: str | None = of(optional(one_of(*SELECTIONS)), default=None)
    terminal_attribution_reason: str | None = of(optional(text), default=None)

    def check(self) -> None:
        """A receipt that may train names its terminal and how it was found."""
        ids = [row.model_call_id for row in self.manifest]
        self.refuse_unless(len(set(ids)) == len(ids), "a call stands in the manifest twice")
        terminal, selection = self.terminal_model_call_id, self.terminal_selection
        self.refuse_unless(
            terminal is None or terminal in ids, "the terminal is not in the manifest"
        )
        if not self.capture_poisoned:
            whole = terminal is not None and selection is not None
            self.refuse_unless(
                whole and self.failure_reason is None,
                "without poison it names a terminal and a selection, and no failure_reason",
            )
        if selection is None:
            self.refuse_unless(
                terminal is None and bool(self.failure_reason),
                "without a selection it names no terminal, and a failure_reason",
            )
