"""Receipts of recorded rollouts: numbered, made again from the record, verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from explorer.custody.errors import ReceiptVerificationError
from explorer.custody.rebuild import verify_and_linearize
from explorer.records import Call, CallStatus, EventKind, RolloutEvent, RolloutRecord
from explorer.trace.custody_calls import custody_calls
from explorer.trace.custody_links import rebuilt
from explorer.trace.receipts import NumberedReceipt, receipts_of
from tests.trace.build import NULL, ROLLOUT, event, failed_call, make_call, record


def served(name: str, *arguments: Any, **fields: Any) -> Call:
    return make_call(name, *arguments, response_id=f"resp-{name}", **fields)


def closed(sequence: int = 100, **fields: Any) -> RolloutEvent:
    return event(EventKind.CLOSED, sequence * 1000, **fields)


def turns() -> tuple[Call, Call, Call]:
    """a: [1 2] → [3 4]; b goes on with [5] → [6]; c with [7] → [8 9]."""
    a = served("a", 1, [1, 2], [3, 4])
    b = served("b", 2, [1, 2, 3, 4, 5], [6], parent=a)
    c = served("c", 3, [1, 2, 3, 4, 5, 6, 7], [8, 9], parent=b)
    return a, b, c


def only(made: RolloutRecord) -> NumberedReceipt:
    (receipt,) = receipts_of(made)
    return receipt


def linearized(made: RolloutRecord, place: int = -1) -> Any:
    receipt = receipts_of(made)[place].receipt
    names = {row.model_call_id for row in receipt.manifest}
    calls = custody_calls(made).calls
    return verify_and_linearize(
        receipt, [call.staged for call in calls if call.row.model_call_id in names]
    )


def test_a_closed_rollout_has_a_receipt_that_verifies_to_its_tokens() -> None:
    made = record(*turns(), events=[closed(reward=0.5)])
    receipt = only(made)
    assert receipt.number == 1
    assert receipt.receipt.reward == 0.5
    assert receipt.receipt.terminal_model_call_id == "c"
    assert receipt.receipt.terminal_selection == "heuristic"
    row = linearized(made)
    assert list(row.token_ids) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert list(row.token_mask) == [0, 0, 1, 1, 0, 1, 0, 1, 1]
    assert list(row.model_call_ids) == ["a", "b", "c"]
    # The chain is the one that was made when the calls were committed.
    for call, kept in zip(made.calls, custody_calls(made).calls, strict=True):
        assert call.chain_hash is not None
        assert kept.row.chain_hash == call.chain_hash.hex()


def test_an_open_rollout_has_none_and_each_later_reward_issues_the_next() -> None:
    assert receipts_of(record(*turns(), events=[event(EventKind.STARTED)])) == ()
    told = [
        event(EventKind.REWARD, 50, reward=0.1),
        closed(),
        event(EventKind.REWARD, 200_000, reward=0.7),
        event(EventKind.REWARD, 300_000, ok=True),
        event(EventKind.REWARD, 400_000, reward=0.2),
    ]
    found = receipts_of(record(*turns(), events=told))
    assert [each.number for each in found] == [1, 2, 3]
    assert [each.receipt.reward for each in found] == [0.1, 0.7, 0.2]
    assert len({each.sha256 for each in found}) == 3
    # What comes later alters none that was issued.
    fewer = receipts_of(record(*turns(), events=told[:3]))
    assert [each.sha256 for each in fewer] == [each.sha256 for each in found[:2]]


def test_a_call_that_ends_after_the_closing_is_in_no_earlier_receipt() -> None:
    a, b, c = turns()
    late = replace(c, ended_us=150_000)
    told = [closed(reward=1.0), event(EventKind.REWARD, 200_000, reward=0.0)]
    first, second = receipts_of(record(a, b, late, events=told))
    assert first.sha256 == only(record(a, b, events=[closed(reward=1.0)])).sha256
    assert [row.model_call_id for row in first.receipt.manifest] == ["a", "b"]
    assert [row.model_call_id for row in second.receipt.manifest] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["b", "nobody"])
def test_what_the_harness_declares_decides_or_nothing_does(name: str) -> None:
    told = closed(payload={"terminal_response_id": f"resp-{name}"})
    receipt = only(record(*turns(), events=[told])).receipt
    if name == "b":
        assert (receipt.terminal_model_call_id, receipt.terminal_selection) == ("b", "declared")
    else:
        assert receipt.terminal_model_call_id is None
        assert receipt.capture_poisoned
        assert receipt.failure_reason == "declared_terminal_not_captured"


def test_a_declared_call_is_named_by_its_id_too_and_disagreement_names_nothing() -> None:
    told = closed(payload={"terminal_call_id": "b"})
    assert only(record(*turns(), events=[told])).receipt.terminal_model_call_id == "b"
    told = closed(payload={"terminal_call_id": "b", "terminal_response_id": "resp-c"})
    receipt = only(record(*turns(), events=[told])).receipt
    assert receipt.terminal_model_call_id is None
    assert "witness_disagreement" in str(receipt.failure_reason)


def test_two_ends_are_ambiguous() -> None:
    a, b, _ = turns()
    other = served("d", 4, [1, 2, 3, 4, 9], [9], parent=a)
    receipt = only(record(a, b, other, events=[closed()])).receipt
    assert receipt.failure_reason is not None
    assert receipt.failure_reason.endswith("ambiguous_terminal")


def test_a_failed_call_poisons_nothing_and_is_told() -> None:
    made = record(*turns(), failed_call("x", 4), events=[closed()])
    assert not only(made).receipt.capture_poisoned
    (failure,) = custody_calls(made).failures
    assert failure.reason == "request_finished_without_staged_coordinates"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": None}, "worker_capture_failed"),
        ({"logprobs": np.array([np.inf], np.float32)}, "worker_capture_failed"),
        ({"completion": None, "logprobs": None}, "worker_capture_failed"),
        ({"response_id": None}, "ledger_row_missing_response_id"),
        ({"chain_hash": None}, "ledger_row_missing_chain_hash"),
        ({"status": CallStatus.FAILED}, "request_finished_without_staged_coordinates"),
    ],
)
def test_what_is_no_staged_call_has_its_reason_and_so_have_those_behind_it(
    change: dict[str, Any], reason: str
) -> None:
    a, b, c = turns()
    made = record(a, replace(b, **change), c, events=[closed()])
    reasons = {each.model_call_id: each.reason for each in custody_calls(made).failures}
    assert reasons == {"b": reason, "c": "unresolved_parent"}


def test_a_lost_answer_poisons_where_it_is_on_the_way_or_went_on_from_the_end() -> None:
    a, b, c = turns()
    heard = replace(c, message_digests=("u", "lost"))
    # Answered, without logprobs; its answer stands in the last call's context.
    lost = served("t", 4, [90], [91], logprobs=[NULL], reply_digest="lost")
    told = record(a, b, heard, replace(lost, logprobs=None), events=[closed()])
    assert only(told).receipt.failure_reason == "worker_capture_failed"
    # The same beside it, which nobody heard: a title, say.
    beside = record(a, b, c, replace(lost, logprobs=None), events=[closed()])
    assert not only(beside).receipt.capture_poisoned
    # It went on from the end: the end is not the end.
    after = served("e", 5, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1], [1], parent=c)
    onward = record(a, b, c, replace(after, logprobs=None), events=[closed()])
    assert only(onward).receipt.failure_reason == "worker_capture_failed"


def test_weights_that_nobody_announced_are_zero_and_counted() -> None:
    a, b, _ = turns()
    made = record(a, replace(b, weight_version_start=None), events=[closed()])
    calls = custody_calls(made)
    assert [call.row.weight_version for call in calls.calls] == [7, 0]
    assert calls.unknown_weights == 1


@pytest.mark.parametrize("what", ["token", "logprob", "chain", "moved"])
def test_a_changed_record_no_longer_gives_the_receipt_that_was_issued(what: str) -> None:
    a, b, c = turns()
    issued = only(record(a, b, c, events=[closed(reward=1.0)]))
    assert b.completion is not None
    assert b.logprobs is not None
    changed = {
        "token": lambda: replace(b, completion=b.completion + 1),
        "logprob": lambda: replace(b, logprobs=b.logprobs - 1),
        "chain": lambda: replace(b, chain_hash=b"\0" * 32),
        "moved": lambda: replace(b, weight_version_start=8),
    }[what]()
    made = record(a, changed, c, events=[closed(reward=1.0)])
    now = only(made)
    assert now.sha256 != issued.sha256
    if what in ("token", "chain"):
        with pytest.raises(ReceiptVerificationError) as refused:
            linearized(made)
        assert refused.value.code == "chain_hash_mismatch"


def test_a_call_that_ended_before_its_parent_did_is_in_no_receipt_without_it() -> None:
    """Clocks are set back, and foreign records say what they like."""
    first = make_call("a", 1, [1, 2], [3, 4], response_id="r-a", ended_us=900)
    second = make_call(
        "b", 2, [1, 2, 3, 4, 5], [6], parent=first, response_id="r-b", ended_us=40
    )
    third = make_call(
        "c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=second, response_id="r-c", ended_us=45
    )
    ended = RolloutEvent(ROLLOUT, 1, 50, EventKind.CLOSED, 1.0, True)
    rewarded = RolloutEvent(ROLLOUT, 2, 950, EventKind.REWARD, 0.5)
    made = record(first, second, third, events=(ended, rewarded))
    early, late = receipts_of(made)
    assert early.receipt.manifest == ()
    assert early.receipt.capture_poisoned
    assert early.receipt.failure_reason == "unresolved_parent"
    assert late.receipt.terminal_model_call_id == "c"
    assert rebuilt(late.receipt, custody_calls(made)).code == ""
