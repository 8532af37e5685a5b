"""Several training rows of one rollout: every branch, each generated span owned once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from explorer.custody.errors import RebuildError
from explorer.custody.rebuild import verify_and_linearize, verify_and_linearize_all
from tests.custody.build import branched, forced, linear, random_tree, rehashed


def test_one_branch_is_one_row() -> None:
    made = linear()
    (only,) = verify_and_linearize_all(made.receipt(), made.calls)
    assert only.owned == (True, True, True)
    assert np.array_equal(only.owned_mask, only.row.token_mask)


@pytest.mark.parametrize("seed", range(40))
def test_each_generated_span_is_owned_by_one_row(seed: int) -> None:
    made = random_tree(seed)
    receipt = made.receipt()
    rows = verify_and_linearize_all(receipt, made.calls)
    alone = verify_and_linearize(receipt, made.calls)
    assert rows[0].row.model_call_ids == alone.model_call_ids
    assert rows[0].row.token_ids.tolist() == alone.token_ids.tolist()
    owners = Counter(
        call
        for each in rows
        for call, owned in zip(each.row.model_call_ids, each.owned, strict=True)
        if owned
    )
    assert owners == Counter(call.model_call_id for call in made.calls)
    generated = sum(float(call.token_mask_delta.sum()) for call in made.calls)
    assert sum(float(each.owned_mask.sum()) for each in rows) == generated
    for each in rows:
        assert not (each.owned_mask > each.row.token_mask).any()


def test_a_branch_off_the_way_is_verified_too() -> None:
    made = branched()
    receipt = made.receipt()
    on_the_way = set(verify_and_linearize(receipt, made.calls).model_call_ids)
    off = next(call for call in made.calls if call.model_call_id not in on_the_way)
    # The digest covers the chain hash: a forger makes it anew.
    forged = rehashed(off, chain_hash="0" * 64)
    calls = [forged if call is off else call for call in made.calls]
    rows = [
        forced(row, chain_hash=forged.chain_hash, digest=forged.digest)
        if row.model_call_id == off.model_call_id
        else row
        for row in receipt.manifest
    ]
    forged_receipt = forced(receipt, manifest=tuple(rows))
    verify_and_linearize(forged_receipt, calls)
    with pytest.raises(RebuildError) as caught:
        verify_and_linearize_all(forged_receipt, calls)
    assert caught.value.code == "chain_hash_mismatch"
