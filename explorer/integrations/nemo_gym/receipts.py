"""The framework's end of external custody: from a manifest to a verified training row.

Owns: what of a manifest poisons, how the scored call is named in a receipt.
Must not know: HTTP, where tokens are stored.

The mask of the row says *generated*. Whether a token may train, weights and samplers
considered, is for the framework to say; nothing here has judged it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.custody.errors import ReceiptVerificationError
from explorer.custody.protocols import StagingSource
from explorer.custody.rebuild import LinearizedRow, verify_and_linearize
from explorer.custody.records import (
    FINISHED_WITHOUT_COORDINATES,
    RolloutManifest,
    RolloutReceipt,
)
from explorer.custody.terminal import attribute

# How a terminal that was named by its call id is called: the format has no word for it.
_METHODS = {"explicit": "declared"}


def receipt_of(
    manifest: RolloutManifest,
    *,
    reward: float | None = None,
    declared_response_id: str | None = None,
    response: Mapping[str, Any] | None = None,
) -> RolloutReceipt:
    """The receipt of a rollout that is over.

    Any failure poisons, but for a call that only ended without coordinates: nothing can have
    continued it.

    Args:
        declared_response_id: the served id of the scored reply, where the harness tells it.
        response: the scored reply, in the form of the Responses API.
    """
    rows = manifest.records
    found = attribute(rows, response, declared_response_id=declared_response_id)
    poisons = [
        failure.reason
        for failure in manifest.failures
        if failure.reason != FINISHED_WITHOUT_COORDINATES
    ]
    reason = poisons[0] if poisons else None
    if reason is None and found.model_call_id is None:
        reason = found.reason or "no_records"
    terminal = None if reason else found.model_call_id
    return RolloutReceipt(
        rollout_id=manifest.rollout_id,
        reward=reward,
        terminal_model_call_id=terminal,
        manifest=rows,
        capture_poisoned=reason is not None,
        failure_reason=reason,
        terminal_selection=_METHODS.get(found.method, found.method) if terminal else None,
        terminal_attribution_reason=found.reason or None,
    )


def training_row(receipt: RolloutReceipt, source: StagingSource) -> LinearizedRow:
    """The row behind a receipt, fetched once and verified link by link.

    Raises:
        LookupError: a call is not in storage.
        ReceiptVerificationError: what is there does not hold; its `code` says why.
    """
    if receipt.failure_reason is not None:
        raise ReceiptVerificationError("rollout_failed", receipt.failure_reason)
    return verify_and_linearize(
        receipt, source.fetch([row.staging_key for row in receipt.manifest])
    )
