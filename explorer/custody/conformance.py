"""Golden vectors, so that any implementation can prove that its bytes are these.

Owns: `golden_vectors.json`, and the check of this code against it.
Must not know: who asks. A worker that fails the check must not start.

The file holds the two vectors that NeMo Gym 0.7.0 publishes and more: chain and cumulative
hashes, extras of every type, float32 narrowing, staged calls, canonical JSON, fingerprints, and
receipts that must be refused, each with its code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from explorer.custody.canonical import canonical_arguments
from explorer.custody.digest import chain_hash, cumulative_hash
from explorer.custody.errors import CustodyError, FingerprintError, ReceiptVerificationError
from explorer.custody.fields import Record
from explorer.custody.fingerprint import assistant_fingerprint, conversation_digest
from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import RolloutReceipt, StagedCallBaseSnapshot
from explorer.custody.staging import encode_f32, extras_digest, staging_digest

PATH = Path(__file__).with_name("golden_vectors.json")


class ConformanceError(CustodyError):
    """This code does not do what a golden vector says."""

    def __init__(self, detail: str) -> None:
        super().__init__("vector_mismatch", detail)


class _Fields:
    """A staged call's fields as a vector gives them, unchecked."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields)


def load_golden_vectors() -> dict[str, Any]:
    """The vectors as JSON values."""
    vectors: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return vectors


def assert_golden_vectors() -> int:
    """Checks every vector; how many there are.

    Raises:
        ConformanceError: the first that this code does not reproduce.
    """
    count = 0
    for name, wanted, found in _results(load_golden_vectors()):
        if found != wanted:
            raise ConformanceError(f"{name}: expected {wanted!r}, got {found!r}")
        count += 1
    return count


def _results(vectors: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """(name, expected, found) of every vector."""
    for item in vectors["extras"]:
        yield f"extras {item['name']}", item["digest"], extras_digest(item["extras"])
    for item in vectors["cumulative"]:
        yield "cumulative", item["digest"], cumulative_hash(item["tokens"]).hex()
    for item in vectors["chain"]:
        parent = None if item["parent"] is None else bytes.fromhex(item["parent"])
        yield "chain", item["digest"], chain_hash(parent, item["delta"]).hex()
    for item in vectors["float32"]:
        values = [pair[0] for pair in struct.iter_unpack(">d", bytes.fromhex(item["doubles"]))]
        yield f"float32 {item['name']}", item["encoded"], encode_f32(values).hex()
    for item in vectors["staged_calls"]:
        call: Any = _Fields(item["call"])
        yield f"staged call {item['name']}", item["digest"], staging_digest(call)
    for item in vectors["arguments"]:
        yield "arguments", item["canonical"], canonical_arguments(item["text"])
    for item in vectors["fingerprints"]:
        name = f"fingerprint {item['name']}"
        yield name, item["assistant"], _or_refused(assistant_fingerprint, item["items"])
        yield name, item["conversation"], _or_refused(conversation_digest, item["items"])
    for item in vectors["receipts"]["cases"]:
        found = _code_of(vectors["receipts"]["base"], item["changes"])
        yield f"receipt {item['name']}", item["code"], found


def _or_refused(function: Any, items: Any) -> str | None:
    """The fingerprint, or None where there is none."""
    try:
        return str(function(items))
    except FingerprintError:
        return None


def changed(
    base: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]
) -> tuple[RolloutReceipt, list[StagedCallBaseSnapshot]]:
    """A receipt and its staged calls as a damaged store would give them, unchecked."""
    receipt = RolloutReceipt.parse(base["receipt"])
    calls = [StagedCallBaseSnapshot.parse(call) for call in base["snapshots"]]
    for change in changes:
        _apply(change, receipt, calls)
    return receipt, calls


def _code_of(base: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> str | None:
    """The code with which a changed rollout is refused; None where it is accepted."""
    try:
        verify_and_linearize(*changed(base, changes))
    except ReceiptVerificationError as error:
        return error.code
    return None


def _apply(
    change: Mapping[str, Any], receipt: RolloutReceipt, calls: list[StagedCallBaseSnapshot]
) -> None:
    """One change of a damaged store: `set` a field, `order` the calls or rows, `rehash`."""
    if change["do"] == "order":
        if change["of"] == "snapshot":
            calls[:] = [calls[index] for index in change["to"]]
        else:
            rows = tuple(receipt.manifest[index] for index in change["to"])
            object.__setattr__(receipt, "manifest", rows)
        return
    target: Record = receipt
    if change["of"] != "receipt":
        target = (calls if change["of"] == "snapshot" else receipt.manifest)[change["index"]]
    if change["do"] == "rehash":
        call = calls[change["index"]]
        object.__setattr__(call, "digest", staging_digest(call))
        object.__setattr__(receipt.manifest[change["index"]], "digest", call.digest)
        return
    value = change["to"]
    if isinstance(value, list):
        value = np.array(value, np.uint64 if change["field"] == "token_ids_delta" else None)
    object.__setattr__(target, change["field"], value)
