"""The custody of a rollout as documents carry it: receipts, the manifest, what is missing.

Owns: its shape. Must not know: signatures, when a receipt was issued: it all follows from the
record, so that whoever has the document makes it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from explorer.records import RolloutRecord
from explorer.trace.custody_calls import custody_calls
from explorer.trace.jsontext import dump
from explorer.trace.receipts import NumberedReceipt, receipts_of


def custody_chunks(record: RolloutRecord) -> Iterator[bytes]:
    """The section as JSON, a chunk a row.

    `receipts` by number, each with its digest; `failures`: calls that have no row, and why;
    `manifest` with a row a call, without tokens. A receipt's own manifest are the rows of the
    calls that had ended when it was issued.
    """
    calls = custody_calls(record)
    receipts = [_told(each) for each in receipts_of(record, calls)]
    yield b'{"receipts":' + dump(receipts) + b',"failures":['
    yield from _listed(failure.to_json() for failure in calls.failures)
    yield b'],"manifest":['
    yield from _listed(row.to_json() for row in calls.rows)
    yield b"]}"


def _listed(values: Iterable[Any]) -> Iterator[bytes]:
    for place, value in enumerate(values):
        yield (b"," if place else b"") + dump(value)


def _told(receipt: NumberedReceipt) -> dict[str, Any]:
    content = receipt.receipt.to_json()
    rows = content.pop("manifest")
    return {
        "number": receipt.number,
        "sha256": receipt.sha256,
        "time_us": receipt.time_us,
        "n_calls": len(rows),
        **content,
    }
