"""The negative cases that an implementation of the format must pass, by their numbers.

Cases 1 to 26 are golden vectors: a sound rollout, changed as a damaged store would change it.
Of 29, 33 and 35 the part without a worker or HTTP is here; the worker's (29 to 32) and the
envelope's (45) are in test_worker.py, the proxy's (33 to 37, 39, 40) in
tests/capture/test_external.py, the control route's (46) in test_external.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from explorer.custody import admission as gate
from explorer.custody import conformance
from explorer.custody.errors import LedgerError, ReceiptVerificationError, RecordError
from explorer.custody.fingerprint import request_items, response_items
from explorer.custody.jsonl import JsonlLedger
from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import (
    CallRecord,
    CaptureAdmission,
    CommitCoords,
    RolloutReceipt,
    StagedCallRecord,
)
from explorer.custody.staging import extras_digest
from explorer.custody.terminal import attribute, resolve_terminal, select_terminal_call
from tests.custody.build import SHARED, Rollout, branched, forced, linear

# What the cases say, apart from the vectors: None is accepted.
EXPECTED: Mapping[int, tuple[str | None, ...]] = {
    1: ("corrupt_digest",),
    2: ("corrupt_digest",),
    3: (None,),
    4: ("corrupt_digest",),
    5: ("corrupt_digest", None),
    6: ("invalid_snapshot",),
    7: ("wrong_weight_version",),
    8: ("wrong_parent_call_id",),
    9: ("wrong_cum_len",),
    10: ("wrong_digest",),
    11: ("row_count_mismatch", "row_count_mismatch"),
    12: ("duplicate_snapshot",),
    13: ("snapshot_order_mismatch",),
    14: ("snapshot_identity_mismatch",),
    15: ("wrong_rollout",),
    16: ("duplicate_staging_key",),
    17: ("chain_hash_mismatch",),
    18: ("chain_hash_mismatch", None),
    19: ("cumulative_hash_mismatch", None),
    20: ("missing_parent",),
    21: ("parent_length_mismatch",),
    22: ("lineage_cycle",),
    23: ("invalid_mask_order",),
    24: ("empty_generation", None),
    25: ("capture_poisoned", "rollout_failed"),
    26: ("unsupported_schema",),
}
VECTORS = conformance.load_golden_vectors()["receipts"]


def vectors_of(number: int) -> list[dict[str, Any]]:
    """The vectors of one case."""
    return [case for case in VECTORS["cases"] if case["name"].startswith(f"case {number}:")]


@pytest.mark.parametrize("number", EXPECTED, ids=lambda number: f"case_{number:02}")
def test_receipt(number: int) -> None:
    found: list[str | None] = []
    for case in vectors_of(number):
        receipt, calls = conformance.changed(VECTORS["base"], case["changes"])
        try:
            row = verify_and_linearize(receipt, calls)
        except ReceiptVerificationError as error:
            found.append(error.code)
        else:
            assert row.model_call_ids == ("c0", "c1", "c2")
            found.append(None)
    assert tuple(found) == EXPECTED[number]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"terminal_model_call_id": "absent"}, "not in the manifest"),
        ({"terminal_selection": None}, "selection"),
        ({"terminal_selection": "explicit"}, "expected one of declared"),
        ({"failure_reason": "worker_capture_failed"}, "failure_reason"),
        ({"capture_poisoned": True, "terminal_selection": None}, "without a selection"),
    ],
)
def test_case_27_receipts_that_cannot_exist(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(RecordError, match=rule):
        linear().receipt(**values)


def test_case_27_a_poisoned_receipt_may_name_its_terminal() -> None:
    receipt = linear().receipt(capture_poisoned=True, failure_reason="worker_capture_failed")
    assert receipt.terminal_model_call_id == "c2"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"digest": "AB" * 32}, "lowercase"),
        ({"surprise": 1}, "unknown field 'surprise'"),
        ({"schema_version": 3}, "schema_version: expected 2"),
        ({"schema_version": 2.0}, "schema_version: expected 2"),
        ({"digest_version": 1}, "digest_version: expected 2"),
        ({"prev_len": "0"}, "prev_len: expected an integer"),
        ({"weight_version": True}, "weight_version: expected an integer"),
        ({"response_id": ""}, "response_id: expected a string that is not empty"),
        ({"response_id": None}, "response_id: expected a string"),
        ({"admitted_at": float("nan")}, "admitted_at: the number is not finite"),
        ({"mode": "token_in"}, "go together"),
        ({"delta_len": 3}, "cum_len is"),
    ],
)
def test_case_28_rows_that_cannot_exist(change: dict[str, Any], rule: str) -> None:
    rollout = linear()
    row = rollout.rows()[0].to_json()
    assert CallRecord.parse(row) == rollout.rows()[0]
    with pytest.raises(RecordError, match=re.escape(rule)):
        CallRecord.parse(row | change)


@pytest.mark.parametrize(
    "bad", [(1,), {1: 2}, {"a": 2**80}, {"a": float("nan")}, {"a": {"b": b"x"}}, {"a": {2}}]
)
def test_case_29_extras_that_have_no_encoding(bad: Any) -> None:
    extras: Any = {"x": bad} if isinstance(bad, tuple) else bad
    with pytest.raises((TypeError, ValueError)):
        extras_digest(extras)
    call = linear().calls[0].to_json()
    with pytest.raises(RecordError, match="extras"):
        StagedCallRecord.parse(call | {"extras": extras})


def test_case_29_extras_belong_to_their_digest() -> None:
    call = Rollout().add("a", [1], [2], extras={"a": 1}).to_json()
    assert StagedCallRecord.parse(call | {"extras": {"a": 1}}).extras == {"a": 1}
    for other in ({"a": 1.0}, {"a": True}, {}, None):
        with pytest.raises(RecordError, match="extras_digest is not that of extras"):
            StagedCallRecord.parse(call | {"extras": other})


class Exchange:
    """A rollout as a server and a worker make it: admission, staging, settlement, commit."""

    def __init__(self, root: Path) -> None:
        self.ledger = JsonlLedger(root)
        self.rollout = Rollout()
        self.count = 0

    def admit(self, body: dict[str, Any], call: str | None = None) -> gate.Decision:
        """The gate's decision on a request."""
        self.count += 1
        name = call or f"call-{self.count}"
        return gate.admit(self.ledger, "r1", name, request_items(body))

    def staged(self, admitted: CaptureAdmission) -> dict[str, Any]:
        """The coordinates of a worker that staged three new tokens."""
        first = self.count * 100
        call = self.rollout.add(
            admitted.model_call_id, [first], [first + 1, first + 2], admitted.parent_call_id
        )
        coords = {name: getattr(call, name) for name in SHARED if name != "mode"}
        coords |= {"rollout_id": "r1", "staging_key": call.staging_key}
        return CommitCoords.parse(coords).to_json()

    def turn(self, body: dict[str, Any], text: str, call: str | None = None) -> str:
        """One whole call; its id."""
        decision = self.admit(body, call)
        assert decision.admission is not None, decision
        coords = self.staged(decision.admission)
        settled = gate.settle(decision.admission, coords, served(body, text, self.count))
        assert gate.commit(self.ledger, decision.admission, settled), settled
        return decision.admission.model_call_id

    def failures(self) -> list[tuple[str, str]]:
        """Every poison row: (call, reason)."""
        rows = self.ledger.manifest("r1").failures
        return [(row.model_call_id, row.reason) for row in rows]


def served(body: dict[str, Any], text: str, number: int) -> gate.Served:
    """A chat reply as it is served."""
    reply = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return gate.Served(
        f"resp-{number}", float(number), request_items(body), response_items(reply)
    )


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    """A chat request: user and assistant by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, **more}


def test_the_happy_path_verifies(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    first = exchange.turn(chat("q"), "a")
    second = exchange.turn(chat("q", "a", "r"), "b")
    third = exchange.turn(chat("q", "a", "r", "b", "s"), "c")
    manifest = exchange.ledger.manifest("r1")
    assert [row.parent_call_id for row in manifest.records] == [None, first, second]
    assert exchange.ledger.staging_chain("r1", third) == tuple(
        f"r1/{call}" for call in (first, second, third)
    )
    found = attribute(manifest.records, {"id": "resp-3"})
    assert (found.model_call_id, found.method) == (third, "response_id")
    receipt = RolloutReceipt(
        rollout_id="r1",
        manifest=manifest.records,
        terminal_model_call_id=found.model_call_id,
        terminal_selection=found.method,
    )
    row = verify_and_linearize(receipt, exchange.rollout.calls)
    assert row.token_ids.tolist() == exchange.rollout.tokens[third]
    assert exchange.failures() == []


def test_case_33_a_reply_without_coordinates(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    admitted = exchange.admit(chat("q")).admission
    assert admitted is not None
    settled = gate.settle(admitted, None, served(chat("q"), "a", 1))
    done = gate.commit(exchange.ledger, admitted, settled)
    gate.finish(exchange.ledger, admitted, done)
    assert exchange.failures() == [
        ("call-1", "worker_response_missing_commit_coordinates"),
        ("call-1", "request_finished_without_staged_coordinates"),
    ]
    assert exchange.ledger.manifest("r1").records == ()


@pytest.mark.parametrize(
    "change",
    [
        {"model_call_id": "other"},
        {"rollout_id": "other"},
        {"parent_call_id": "other"},
        {"prev_len": 2, "cum_len": 5},
        {"digest_version": 1},
        {"surprise": 1},
        {"digest": None},
        {"chain_hash": "x"},
        {"disposition": "capture_failed"},
        {"delta_len": 0, "cum_len": 3},
    ],
    ids=str,
)
def test_case_34_coordinates_that_do_not_fit(change: dict[str, Any], tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.turn(chat("q"), "a")
    body = chat("q", "a", "r")
    admitted = exchange.admit(body).admission
    assert admitted is not None
    assert admitted.prev_len == 3
    coords = exchange.staged(admitted)
    payloads: list[Any] = [coords | change, [], "x", 5]
    for payload in payloads:
        settled = gate.settle(admitted, payload, served(body, "b", 2))
        assert settled.commit is None
        assert settled.poison == "invalid_worker_commit_coordinates"
        assert settled.detail
    assert gate.settle(admitted, coords, served(body, "b", 2)).commit is not None


@pytest.mark.parametrize("served_id", ["", None, 5, "\ud800"])
def test_case_34_a_reply_without_an_id(served_id: Any, tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    admitted = exchange.admit(chat("q")).admission
    assert admitted is not None
    reply = served(chat("q"), "a", 1)._replace(response_id=served_id)
    settled = gate.settle(admitted, exchange.staged(admitted), reply)
    assert settled.poison == "invalid_worker_commit_coordinates"


def test_a_worker_that_failed(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    admitted = exchange.admit(chat("q")).admission
    assert admitted is not None
    coords: dict[str, Any] = {"rollout_id": "r1", "model_call_id": "call-1"}
    coords |= {"disposition": "capture_failed"}
    coords |= dict.fromkeys(("prev_len", "delta_len", "cum_len", "weight_version"), 0)
    settled = gate.settle(admitted, coords, served(chat("q"), "a", 1))
    gate.finish(exchange.ledger, admitted, gate.commit(exchange.ledger, admitted, settled))
    assert [reason for _, reason in exchange.failures()] == [
        "worker_capture_failed",
        "request_finished_without_staged_coordinates",
    ]


def test_double_poison_in_both_orders(tmp_path: Path) -> None:
    reasons = ("worker_capture_failed", "request_finished_without_staged_coordinates")
    for order in (reasons, reasons[::-1]):
        exchange = Exchange(tmp_path / order[0])
        admitted = exchange.admit(chat("q")).admission
        assert admitted is not None
        settled = gate.settle(admitted, exchange.staged(admitted), served(chat("q"), "a", 1))
        for reason in (*order, *order):
            exchange.ledger.record_failure("r1", "call-1", reason)
        # After a poison the call cannot be committed any more, in either order.
        assert not gate.commit(exchange.ledger, admitted, settled)
        assert [reason for _, reason in exchange.failures()] == [
            *order,
            "invalid_worker_commit_coordinates",
        ]
        assert exchange.ledger.manifest("r1").records == ()


def test_case_35_an_edited_history(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.turn(chat("q"), "a")
    decision = exchange.admit(chat("q", "edited", "r"))
    assert (decision.admission, decision.poison) == (None, "unresolved_parent")
    assert exchange.failures() == [("call-2", "unresolved_parent")]


@pytest.mark.parametrize("more", [{"tools": [{"name": "g"}]}, {}, {"instructions": "be"}])
def test_case_36_a_changed_tool_list(more: dict[str, Any], tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    tools = {"tools": [{"name": "f"}]}
    exchange.turn(chat("q", **tools), "a")
    decision = exchange.admit(chat("q", "a", "r", **more))
    assert (decision.admission, decision.poison) == (None, "unresolved_parent")
    assert exchange.admit(chat("q", "a", "r", **tools)).admission is not None


def test_case_37_seeded_history(tmp_path: Path) -> None:
    seeded = chat("q", "from elsewhere", "r")
    exchange = Exchange(tmp_path)
    decision = exchange.admit(seeded)
    assert decision.admission is not None
    assert decision.admission.mode == "text"
    exchange.ledger.record_failure("r1", "x", "worker_capture_failed")
    assert exchange.admit(seeded).poison == "unresolved_parent"


def test_case_38_a_commit_again(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    admitted = exchange.admit(chat("q")).admission
    assert admitted is not None
    coords = exchange.staged(admitted)
    settled = gate.settle(admitted, coords, served(chat("q"), "a", 1))
    assert settled.commit is not None
    exchange.ledger.record(settled.commit)
    path = exchange.ledger.path_of("r1")
    before = path.read_bytes()
    exchange.ledger.record(settled.commit)
    assert path.read_bytes() == before
    other = gate.settle(admitted, coords, served(chat("q"), "another answer", 1))
    assert other.commit is not None
    with pytest.raises(LedgerError, match="conflicting_commit"):
        exchange.ledger.record(other.commit)
    assert path.read_bytes() == before
    # A poison after a commit is kept beside it.
    exchange.ledger.record_failure("r1", "call-1", "worker_capture_failed")
    manifest = exchange.ledger.manifest("r1")
    assert len(manifest.records) == len(manifest.failures) == 1


@pytest.mark.parametrize("case", ["case_39_synthetic_reply", "case_40_conversion_failed"])
def test_a_request_that_commits_nothing(case: str, tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.turn(chat("q"), "a")
    admitted = exchange.admit(chat("q", "a", "r")).admission
    assert admitted is not None
    if case.startswith("case_40"):
        exchange.staged(admitted)
    gate.finish(exchange.ledger, admitted, committed=False)
    assert exchange.failures() == [("call-2", "request_finished_without_staged_coordinates")]
    found = attribute(exchange.ledger.manifest("r1").records, declared_response_id="resp-2")
    assert found == (None, "", "declared_terminal_not_captured")


def test_case_41_a_declared_id_that_nobody_served() -> None:
    rows = linear().rows()
    response = {"id": "resp-c2"}
    assert resolve_terminal(rows, response).model_call_id == "c2"
    found = attribute(rows, response, declared_response_id="absent")
    assert found == (None, "", "declared_terminal_not_captured")


def test_case_42_the_id_says_one_and_the_content_another(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.turn(chat("q"), "a", "first")
    exchange.turn(chat("q", "a", "r"), "b", "second")
    rows = exchange.ledger.manifest("r1").records
    output = [{"type": "message", "role": "assistant", "content": "b"}]
    agreed = attribute(rows, {"id": "resp-2", "output": output})
    assert agreed == ("second", "response_id", "corroborated_by=content")
    found = attribute(rows, {"id": "resp-1", "output": output})
    reason = "witness_disagreement[response_id=first;content=second]"
    assert found == (None, "", reason)


def test_identical_tokens_are_one_call_only_if_they_were_cut_alike() -> None:
    rollout = linear()
    first = rollout.row(rollout.calls[0], response_id="r")
    same = forced(first, model_call_id="a")
    assert resolve_terminal([first, same], {"id": "r"}).model_call_id == "a"
    cut = forced(same, chain_hash="11" * 32)
    assert resolve_terminal([first, cut], {"id": "r"}).reason == (
        "response_id_ambiguous,response_has_no_output"
    )


def test_fingerprints_of_another_version_are_no_witness(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.turn(chat("q"), "a")
    (row,) = exchange.ledger.manifest("r1").records
    response = {"output": [{"role": "assistant", "content": "a"}]}
    assert attribute([row], response).method == "content"
    older = forced(row, fingerprint_version=1)
    assert attribute([older], response) == (None, "", "response_has_no_id,no_content_match")
    path = exchange.ledger.path_of("r1")
    path.write_text(
        path.read_text().replace('"fingerprint_version":2', '"fingerprint_version":1')
    )
    decision = gate.decide(JsonlLedger(tmp_path), "r1", "x", request_items(chat("q", "a", "r")))
    assert decision == (None, "unresolved_parent", "no_match")


def test_case_43_two_ends() -> None:
    rollout = linear()
    assert select_terminal_call(rollout.rows()) == ("c2", "selected")
    rollout.add("retry", [91], [92], "c1")
    assert select_terminal_call(rollout.rows()) == (None, "ambiguous_terminal")
    extended = branched()
    extended.add("b2", [93], [94], "b1")
    assert select_terminal_call(extended.rows()) == (None, "ambiguous_terminal")
    assert attribute(extended.rows()) == (None, "", "no_response_object,ambiguous_terminal")


def test_case_43_a_childless_branch_and_the_first_of_two_roots() -> None:
    assert select_terminal_call(branched().rows()) == ("c2", "selected")
    rollout = linear(2)
    rollout.add("other", [50], [51])
    rollout.add("other-2", [52], [53], "other")
    rollout.admitted = {"c0": 2.0, "other": 1.0}
    assert select_terminal_call(rollout.rows()) == ("other-2", "selected")
    rollout.admitted = {"c0": 0.0, "other": 1.0}
    assert select_terminal_call(rollout.rows()) == ("c1", "selected")


def test_case_44_rows_that_are_no_tree() -> None:
    rollout = linear()
    rows = rollout.rows()
    assert select_terminal_call(rows[1:]) == (None, "orphaned_row")
    cyclic = [rollout.row(rollout.calls[1], parent_call_id="c2"), rows[2]]
    assert select_terminal_call(cyclic) == (None, "no_root")
    assert select_terminal_call([*rows, rows[0]]) == (None, "duplicate_call_id")
    assert select_terminal_call([]) == (None, "no_records")


def test_better_the_same_answer_under_another_context(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    main = exchange.turn(chat("q"), "same")
    side = exchange.turn(chat("another question"), "same")
    for question, parent in (("q", main), ("another question", side)):
        decision = exchange.admit(chat(question, "same", "r"))
        assert decision.admission is not None
        assert decision.admission.parent_call_id == parent


def test_better_a_retry_with_the_same_tokens_is_one_parent_and_with_others_none(
    tmp_path: Path,
) -> None:
    exchange = Exchange(tmp_path)
    admitted = exchange.admit(chat("q"), "b").admission
    assert admitted is not None
    coords = exchange.staged(admitted)
    for call in ("b", "a"):
        again = CaptureAdmission(rollout_id="r1", model_call_id=call, mode="text")
        payload = coords | {"model_call_id": call, "staging_key": f"r1/{call}"}
        settled = gate.settle(again, payload, served(chat("q"), "a", 1))
        assert gate.commit(exchange.ledger, again, settled)
    decision = exchange.admit(chat("q", "a", "r"))
    assert decision.admission is not None
    assert decision.admission.parent_call_id == "a"
    exchange.turn(chat("q"), "a", "other-tokens")
    decision = exchange.admit(chat("q", "a", "r"))
    assert decision == (None, "unresolved_parent", "ambiguous")


@pytest.mark.parametrize(
    "number", [2**64, -(2**63) - 1, 10**5000], ids=["over", "under", "very long"]
)
def test_better_an_integer_beyond_64_bits_poisons_and_fails_nothing(
    number: int, tmp_path: Path
) -> None:
    exchange = Exchange(tmp_path)
    arguments = {"n": number}
    body = chat("q")
    body["messages"] += [
        {
            "role": "assistant",
            "tool_calls": [{"id": "t", "function": {"arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "t", "content": "r"},
    ]
    decision = exchange.admit(body)
    assert (decision.admission, decision.poison) == (None, "unresolved_parent")
    assert decision.diagnostic.startswith("lookup_error")
    admitted = exchange.admit(chat("q")).admission
    assert admitted is not None
    reply = served(chat("q"), "a", 1)._replace(response_items=body["messages"][1:2])
    settled = gate.settle(admitted, exchange.staged(admitted), reply)
    assert settled.poison == "invalid_worker_commit_coordinates"


def test_an_older_row_without_a_chain_hash_cannot_be_continued(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.turn(chat("q"), "a")
    path = exchange.ledger.path_of("r1")
    text = path.read_text()
    path.write_text(re.sub(r'"chain_hash":"\w+",', "", text))
    ledger = JsonlLedger(tmp_path)
    decision = gate.admit(ledger, "r1", "x", request_items(chat("q", "a", "r")))
    assert decision.poison == "unresolved_parent"
    reasons = [row.reason for row in ledger.manifest("r1").failures]
    assert reasons == ["ledger_row_missing_chain_hash", "unresolved_parent"]
    path.write_text(re.sub(r'"response_id":"resp-1",', "", text))
    assert JsonlLedger(tmp_path).manifest("r1").failures[0].reason == (
        "ledger_row_missing_response_id"
    )


def test_every_case_has_a_test() -> None:
    root = Path(__file__).parents[1]
    files = [root / "custody", root / "capture"]
    texts = [path.read_text() for folder in files for path in folder.glob("test_*.py")]
    named = {int(found) for text in texts for found in re.findall(r"def test_case_(\d+)", text)}
    assert named | set(EXPECTED) == set(range(1, 47))
