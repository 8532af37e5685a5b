"""Whether the links of a recorded rollout hold: each call's, and the way to the scored one.

Owns: the codes, one a call. Must not know: receipts that were issued, pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.custody.digest import chain_hash
from explorer.custody.errors import CustodyError
from explorer.custody.rebuild import LinearizedRow, verify_and_linearize
from explorer.custody.records import RolloutReceipt
from explorer.trace.custody_calls import CustodyCall, CustodyCalls

HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a receipt and the recorded calls give: the row, or the code of what is wrong."""

    row: LinearizedRow | None
    code: str = ""


def link_codes(calls: CustodyCalls) -> dict[str, str]:
    """By call: `HOLDS`, or what does not; with those that are no staged call their reason."""
    codes = {item.model_call_id: item.reason for item in calls.failures}
    for call in calls.calls:
        codes[call.row.model_call_id] = _code(call, calls)
    return codes


def _code(call: CustodyCall, calls: CustodyCalls) -> str:
    parent = call.row.parent_call_id
    link = None if parent is None else bytes.fromhex(calls.by_id[parent].row.chain_hash)
    made = chain_hash(link, call.staged.token_ids_delta).hex()
    return HOLDS if made == call.row.chain_hash else "chain_hash_mismatch"


def rebuilt(receipt: RolloutReceipt, calls: CustodyCalls) -> Rebuilt:
    """The training row of custody behind a receipt, verified link by link."""
    staged = [calls.by_id[row.model_call_id].staged for row in receipt.manifest]
    try:
        return Rebuilt(verify_and_linearize(receipt, staged))
    except CustodyError as error:
        return Rebuilt(None, error.code)
