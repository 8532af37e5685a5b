"""A rollout's ledger: which calls were committed, which failed, and who may continue whom.

Owns: the ledger rows, the index over them, the protocol `CaptureLedger`.
Must not know: where rows are kept. No row holds a token.

A call is committed once: the same commit again changes nothing, another one is refused. A
failure after a commit is kept, so one call can stand in both lists; after a failure no commit
of that call is taken.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from explorer.custody.errors import LedgerError, RecordError
from explorer.custody.fields import dump, hex_digest, ident, nat, optional, sequence, text
from explorer.custody.fingerprint import (
    FINGERPRINT_VERSION,
    assistant_fingerprint,
    conversation_digest,
)
from explorer.custody.records import (
    ROW_WITHOUT_CHAIN_HASH,
    ROW_WITHOUT_RESPONSE_ID,
    CallRecord,
    CaptureLedgerCommit,
    ManifestFailure,
    RolloutManifest,
)

# Columns that a row has as its record has them. Two are called otherwise in a row: `digest` is
# the cumulative hash there, and `staging_digest` the digest of the staged call.
_SHARED = (
    *("model_call_id", "parent_call_id", "staging_key", "weight_version", "prev_len"),
    *("delta_len", "cum_len", "extras_digest", "mode", "admitted_at", "chain_hash"),
    *("cumulative_hash", "response_id", "output_fingerprint", "continuation_fingerprint"),
    "fingerprint_version",
)
_OPTIONAL = frozenset({"admitted_at", "output_fingerprint", "continuation_fingerprint"})
_ROLLOUT_ID = re.compile(r"[A-Za-z0-9._-]+")


class Candidate(NamedTuple):
    """A committed call as a possible parent."""

    model_call_id: str
    context_len: int
    context_digest: str
    cum_len: int
    sequence_digest: str
    chain_hash: str | None


class CaptureLedger(Protocol):
    """What admission, commit and control need of a ledger.

    Each method may be called from several threads and processes at once. A write is durable
    when it returns.
    """

    def record(self, commit: CaptureLedgerCommit) -> None:
        """Commits a call; raises `LedgerError` where another row stands for it."""

    def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """Poisons a call; the same reason again changes nothing."""

    def manifest(self, rollout_id: str) -> RolloutManifest:
        """Every committed call and every failure; empty for an unknown rollout."""

    def has_rows(self, rollout_id: str) -> bool:
        """Whether any row stands for the rollout, of either kind."""

    def candidates(self, rollout_id: str, fingerprint: str) -> Sequence[Candidate]:
        """The committed calls after which a conversation has this assistant fingerprint."""

    def staging_chain(self, rollout_id: str, model_call_id: str) -> tuple[str, ...]:
        """The storage keys from the root to this committed call."""


def checked_rollout_id(rollout_id: object) -> str:
    """`rollout_id`, where it can name a ledger of any kind.

    Raises:
        LedgerError: it cannot.
    """
    if not isinstance(rollout_id, str) or not _ROLLOUT_ID.fullmatch(rollout_id):
        raise LedgerError(
            "invalid_rollout_id",
            "a rollout id has letters, digits, points, lines and hyphens only",
        )
    return rollout_id


def row_of(commit: CaptureLedgerCommit) -> dict[str, Any]:
    """The row of a committed call.

    Raises:
        FingerprintError: the conversation cannot be fingerprinted.
    """
    record, request = commit.record, list(commit.request_items)
    return {
        **{name: getattr(record, name) for name in _SHARED},
        "digest": record.cumulative_hash,
        "staging_digest": record.digest,
        "staging_chain": list(commit.staging_chain),
        "fingerprint": assistant_fingerprint([*request, *commit.response_items]),
        "context_len": len(request),
        "context_digest": conversation_digest(request),
    }


def failure_row(model_call_id: str, reason: str) -> dict[str, Any]:
    """The row of a poisoned call.

    Raises:
        RecordError: an empty id or reason.
    """
    return {"failure_reason": ident(reason), "model_call_id": ident(model_call_id)}


class LedgerIndex:
    """The rows of one rollout, indexed. Not safe for concurrent use by itself."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self._records: list[CallRecord] = []
        self._failures: list[ManifestFailure] = []
        # A hash of the first row of each call: a commit is compared with it.
        self._first: dict[str, bytes] = {}
        self._failed: set[tuple[str, str]] = set()
        self._by_fingerprint: dict[str, list[Candidate]] = {}
        self._keys: dict[str, tuple[str, str | None]] = {}
        # Only chains that are not simply the parent's and one more key.
        self._odd_chains: dict[str, tuple[str, ...]] = {}

    def manifest(self) -> RolloutManifest:
        """As `CaptureLedger.manifest`."""
        return RolloutManifest(
            rollout_id=self.rollout_id,
            records=tuple(self._records),
            failures=tuple(self._failures),
        )

    def has_rows(self) -> bool:
        """As `CaptureLedger.has_rows`."""
        return bool(self._first)

    def candidates(self, fingerprint: str) -> Sequence[Candidate]:
        """As `CaptureLedger.candidates`."""
        return tuple(self._by_fingerprint.get(fingerprint, ()))

    def staging_chain(self, model_call_id: str) -> tuple[str, ...]:
        """As `CaptureLedger.staging_chain`.

        Raises:
            LedgerError: no such call.
        """
        tail: list[str] = []
        current: str | None = model_call_id
        while current is not None and current not in self._odd_chains:
            if current not in self._keys:
                raise LedgerError("unknown_call", f"no committed call {current}")
            key, current = self._keys[current]
            tail.append(key)
        head = () if current is None else self._odd_chains[current]
        return (*head, *reversed(tail))

    def accepts(self, row: Mapping[str, Any]) -> bool:
        """Whether `row` is new; False where it stands already.

        Raises:
            LedgerError: a commit for a call that has another row.
        """
        call = row["model_call_id"]
        if "failure_reason" in row:
            return (call, row["failure_reason"]) not in self._failed
        first = self._first.get(call)
        if first is not None and first != _hash_of(row):
            raise LedgerError("conflicting_commit", f"another row stands for call {call}")
        return first is None

    def add(self, row: object) -> None:
        """Takes in one stored row.

        Raises:
            RecordError: it does not have the form of a row.
        """
        if not isinstance(row, Mapping):
            raise RecordError(f"a ledger row is a {type(row).__name__}, not an object")
        call = ident(row.get("model_call_id"))
        if row.get("failure_reason") is not None:
            self._add_failure(call, ident(row["failure_reason"]))
        elif row.get("staging_key") is not None:
            self._add_commit(call, row)
        self._first.setdefault(call, _hash_of(row))

    def _add_failure(self, call: str, reason: str) -> None:
        if (call, reason) not in self._failed:
            self._failed.add((call, reason))
            self._failures.append(ManifestFailure(model_call_id=call, reason=reason))

    def _add_commit(self, call: str, row: Mapping[str, Any]) -> None:
        if call in self._first:
            raise RecordError(f"a second row commits call {call}")
        if not row.get("response_id"):
            self._add_failure(call, ROW_WITHOUT_RESPONSE_ID)
        elif not row.get("chain_hash") or not row.get("cumulative_hash"):
            self._add_failure(call, ROW_WITHOUT_CHAIN_HASH)
        else:
            self._records.append(_record_of(row))
        key, parent = ident(row["staging_key"]), optional(ident)(row.get("parent_call_id"))
        chain = sequence(text)(row.get("staging_chain", []))
        known = parent is None or parent in self._keys
        if not known or chain != (*(self.staging_chain(parent) if parent else ()), key):
            self._odd_chains[call] = chain
        self._keys[call] = (key, parent)
        self._index(call, row)

    def _index(self, call: str, row: Mapping[str, Any]) -> None:
        fingerprint = row.get("fingerprint")
        if not fingerprint or row.get("fingerprint_version") != FINGERPRINT_VERSION:
            return
        found = Candidate(
            call,
            nat(row.get("context_len")),
            hex_digest(row.get("context_digest")),
            nat(row.get("cum_len")),
            hex_digest(row.get("digest")),
            optional(hex_digest)(row.get("chain_hash")),
        )
        self._by_fingerprint.setdefault(hex_digest(fingerprint), []).append(found)


def _hash_of(row: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(dump(dict(row)).encode()).digest()


def _record_of(row: Mapping[str, Any]) -> CallRecord:
    values = {name: row[name] for name in _SHARED if name in row}
    if "staging_digest" in row:
        values["digest"] = row["staging_digest"]
    return CallRecord.parse(values)


class Held(Protocol):
    """The rows of one rollout, for one user at a time."""

    @property
    def index(self) -> LedgerIndex:
        """All of them."""


class IndexedLedger(ABC):
    """A `CaptureLedger` over an index a rollout, wherever its rows are kept."""

    @abstractmethod
    def _current(self, rollout_id: str) -> AbstractContextManager[Held]:
        """The rollout's rows as they are now, held while they are used."""

    @abstractmethod
    def _append(self, rollout_id: str, row: Mapping[str, Any]) -> None:
        """Makes one more row durable."""

    def record(self, commit: CaptureLedgerCommit) -> None:
        """As `CaptureLedger.record`.

        Raises:
            LedgerError: another row stands for the call, or the rows cannot be read or written.
            FingerprintError: the conversation cannot be fingerprinted.
        """
        self._append(commit.rollout_id, row_of(commit))

    def record_failure(self, rollout_id: str, model_call_id: str, reason: str) -> None:
        """As `CaptureLedger.record_failure`.

        Raises:
            LedgerError: the rows cannot be read or written.
        """
        self._append(rollout_id, failure_row(model_call_id, reason))

    def manifest(self, rollout_id: str) -> RolloutManifest:
        """As `CaptureLedger.manifest`.

        Raises:
            LedgerError: the rows cannot be read or written.
        """
        with self._current(rollout_id) as held:
            return held.index.manifest()

    def has_rows(self, rollout_id: str) -> bool:
        """As `CaptureLedger.has_rows`."""
        with self._current(rollout_id) as held:
            return held.index.has_rows()

    def candidates(self, rollout_id: str, fingerprint: str) -> Sequence[Candidate]:
        """As `CaptureLedger.candidates`."""
        with self._current(rollout_id) as held:
            return held.index.candidates(fingerprint)

    def staging_chain(self, rollout_id: str, model_call_id: str) -> tuple[str, ...]:
        """As `CaptureLedger.staging_chain`."""
        with self._current(rollout_id) as held:
            return held.index.staging_chain(model_call_id)
