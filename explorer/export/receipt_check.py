"""Checks receipts that a server gave against a Capture audit, and their signatures.

Owns: what is compared, and the words. Must not know: where the files came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.custody.errors import CustodyError
from explorer.custody.records import RolloutReceipt
from explorer.custody.staging import is_digest
from explorer.errors import InvalidValue
from explorer.export.signing import CheckingKey, Signature
from explorer.trace.audit_reader import read_audit
from explorer.trace.custody_calls import CustodyCalls, custody_calls
from explorer.trace.custody_links import HOLDS, link_codes, rebuilt
from explorer.trace.receipts import NumberedReceipt, receipts_of
from explorer.trace.verify import Report, parse

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class _Given:
    """One receipt as a file has it."""

    number: int
    sha256: str
    issued_us: int
    signature: Signature | None
    receipt: NumberedReceipt


@dataclass(slots=True)
class _Found:
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    signed: int = 0
    rebuilt: int = 0


def check_receipts(
    report: Report, audit: bytes, receipts: bytes, key: CheckingKey | None
) -> Report:
    """The report of an audit, with what its receipts add.

    Raises:
        InvalidValue: one of the files is not what it should be.
    """
    record = read_audit(parse(audit)).record
    document = parse(receipts)
    if not isinstance(document, dict) or not isinstance(document.get("receipts"), list):
        raise InvalidValue("the receipts are what `/api/v1/rollouts/{id}/receipts` gives")
    calls = custody_calls(record)
    follows = {each.number: each for each in receipts_of(record, calls)}
    found = _Found()
    if document.get("rollout_id") != str(record.rollout.rollout_id):
        found.problems.append("the receipts are of another rollout")
    if len(document["receipts"]) > _MOST:
        raise InvalidValue(f"more than {_MOST} receipts of one rollout are not checked")
    manifests = document.get("manifests")
    if not isinstance(manifests, Mapping):
        raise InvalidValue("the receipts have their `manifests` beside them")
    given = [_given(each, manifests) for each in document["receipts"]]
    for each in given:
        for words in _one(each, follows.get(each.number), calls, key, found):
            found.problems.append(f"receipt {each.number}: {words}")
    missing = sorted(set(follows) - {each.number for each in given})
    if missing:
        found.problems.append(f"receipt {missing[0]} is not among them, and was due")
    codes = link_codes(calls)
    broken = [name for name, code in codes.items() if code == _BROKEN]
    found.problems += [
        f"call {name}: its chain hash is not that of its tokens" for name in broken
    ]
    if key is None and any(each.signature for each in given):
        found.notes.append("signatures were not checked: no --key was given")
    return replace(
        report,
        ok=report.ok and not found.problems,
        problems=(*report.problems, *found.problems),
        facts=report.facts
        | {
            "receipts": len(given),
            "receipts_signed": found.signed,
            "receipts_rebuilt": found.rebuilt,
            "links_that_hold": sum(code == HOLDS for code in codes.values()),
        },
        notes=(*report.notes, *found.notes),
    )


_BROKEN = "chain_hash_mismatch"


def _given(value: Any, manifests: Mapping[str, Any]) -> _Given:
    if not isinstance(value, Mapping):
        raise InvalidValue("a receipt is a JSON object")
    number, digest, issued = (value.get(name) for name in ("number", "sha256", "issued_us"))
    if type(number) is not int or not is_digest(digest):
        raise InvalidValue("a receipt has a `number` and its `sha256`")
    if issued is not None and (type(issued) is not int or abs(issued) >= 1 << 62):
        raise InvalidValue(f"receipt {number}: `issued_us` is no time")
    content, rows = value.get("receipt"), manifests.get(str(value.get("manifest_sha256")))
    if not isinstance(content, Mapping) or "manifest" in content:
        raise InvalidValue(f"receipt {number} has no content, or a manifest of its own")
    try:
        receipt = RolloutReceipt.parse({**content, "manifest": rows})
    except CustodyError as error:
        raise InvalidValue(f"receipt {number}: {error.detail}") from error
    numbered = NumberedReceipt(number, 0, receipt)
    return _Given(number, str(digest), issued or 0, _signature(value), numbered)


def _signature(value: Mapping[str, Any]) -> Signature | None:
    told = value.get("signature")
    if told is None:
        return None
    parts = (
        [told.get(name) for name in ("algorithm", "key_id", "value")]
        if isinstance(told, Mapping)
        else [None]
    )
    if not all(isinstance(part, str) for part in parts):
        raise InvalidValue("a signature has `algorithm`, `key_id` and `value`")
    return Signature(*map(str, parts))


def _one(
    given: _Given,
    follows: NumberedReceipt | None,
    calls: CustodyCalls,
    key: CheckingKey | None,
    found: _Found,
) -> Iterator[str]:
    if given.receipt.sha256 != given.sha256:
        yield "its digest is not that of its content"
    if follows is None:
        yield "the audit gives no receipt of this number"
    elif follows.sha256 != given.sha256:
        yield "the audit gives another one: the record was changed since it was issued"
    if key is not None:
        if given.signature is None:
            yield "it is not signed"
        elif (given.signature.algorithm, given.signature.key_id) != (key.algorithm, key.key_id):
            yield f"it is signed by another key, {given.signature.key_id[:40]}"
        elif not key.fits(given.sha256, given.issued_us, given.signature):
            yield "its signature is not of this key"
        else:
            found.signed += 1
    if follows is not None and not follows.receipt.capture_poisoned:
        made = rebuilt(follows.receipt, calls)
        if made.row is None:
            yield f"the way to the scored call does not hold: {made.code}"
        else:
            found.rebuilt += 1
