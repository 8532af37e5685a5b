"""One line a rollout: its receipts, its manifest and the staged calls behind them.

Owns: the names of the fields around NeMo Gym's records.
Must not know: signatures, when a receipt was issued: that does not follow from the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from explorer.export.dataset.adapter import Adapter, Layout, Line, Subject
from explorer.trace.custody_calls import custody_calls
from explorer.trace.jsontext import dump
from explorer.trace.receipts import NumberedReceipt, receipts_of


class Custody(Adapter):
    """What `verify_and_linearize` needs, for every rollout."""

    name = "custody"
    layout = Layout.LINES
    suffix = "jsonl"
    about = (
        "One line a rollout in NeMo Gym 0.7.0's records: `receipt` (the newest, with its "
        "manifest) and `staged` (a staged call for each row of it) are what "
        "`verify_and_linearize` takes; `receipts` has every number that was issued and its "
        "digest, to be compared with a signed one. The mask of a staged call says generated, "
        "never trained. Not in it: texts, verdicts, signatures."
    )

    def add(self, subject: Subject) -> Iterable[Line]:
        """Its line; the manifest's rows and staged calls stand in one order."""
        record = subject.record
        calls = custody_calls(record, subject.judgement.tree.sequences)
        receipts = receipts_of(record, calls)
        newest = receipts[-1].receipt if receipts else None
        rows = newest.manifest if newest else ()
        yield Line(
            dump(
                {
                    "rollout_id": record.rollout.rollout_id,
                    "receipts": [_told(each) for each in receipts],
                    "receipt": newest.to_json() if newest else None,
                    "staged": [calls.by_id[row.model_call_id].staged.to_json() for row in rows],
                    "failures": [failure.to_json() for failure in calls.failures],
                }
            )
        )


def _told(receipt: NumberedReceipt) -> dict[str, Any]:
    return {
        "number": receipt.number,
        "sha256": receipt.sha256,
        "time_us": receipt.time_us,
        "reward": receipt.receipt.reward,
    }
