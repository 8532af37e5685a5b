"""Properties: tampering is caught, any tree comes back, hostile input is refused cleanly."""

from __future__ import annotations

import copy
import json
import struct
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.custody import admission as gate
from explorer.custody import records
from explorer.custody.canonical import canonical_json
from explorer.custody.errors import CustodyError, ReceiptVerificationError
from explorer.custody.fields import Record, loads
from explorer.custody.fingerprint import (
    assistant_fingerprint,
    conversation_digest,
    conversation_digests,
    request_items,
    response_items,
)
from explorer.custody.ledger import LedgerIndex
from explorer.custody.rebuild import LinearizedRow, verify_and_linearize
from explorer.custody.staging import build_delta, encode_f32
from explorer.custody.terminal import attribute, select_terminal_call
from tests.custody.build import Rollout, forced, linear, random_tree, rehashed

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec=None), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
# What no digest covers: a forger may change these and stay unseen.
UNCOVERED = {
    *("response_id", "admitted_at", "output_fingerprint", "continuation_fingerprint"),
    *("fingerprint_version", "staging_key", "reward", "terminal_attribution_reason"),
    *("terminal_selection",),
}


def verified(document: dict[str, Any]) -> LinearizedRow:
    """The row behind a stored rollout, read from JSON text."""
    read = loads(json.dumps(document))
    receipt = records.RolloutReceipt.parse(read["receipt"])
    calls = [records.StagedCallBaseSnapshot.parse(call) for call in read["calls"]]
    return verify_and_linearize(receipt, calls)


def document(rollout: Rollout, terminal: str) -> dict[str, Any]:
    """A rollout as it is stored."""
    return {
        "receipt": rollout.receipt(terminal).to_json(),
        "calls": [call.to_json() for call in rollout.calls],
    }


@given(st.integers(0, 10**9), st.data())
@settings(max_examples=150, deadline=None)
def test_any_tree_comes_back_as_it_was(seed: int, data: st.DataObject) -> None:
    rollout = random_tree(seed)
    terminal = data.draw(st.sampled_from([call.model_call_id for call in rollout.calls]))
    row = verified(document(rollout, terminal))
    assert row.token_ids.tolist() == rollout.tokens[terminal]
    assert row.model_call_ids[-1] == terminal
    by_id = {call.model_call_id: call for call in rollout.calls}
    path = [by_id[name] for name in row.model_call_ids]
    assert row.token_mask.tolist() == [x for call in path for x in call.token_mask_delta]
    assert row.logprobs.tolist() == [
        x for call in path for x in call.generation_log_probs_delta
    ]
    assert [span.carry_len + span.generation_len for span in row.link_spans] == [
        call.delta_len for call in path
    ]
    assert [span.end for span in row.weight_version_spans] == [call.cum_len for call in path]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every simple value."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [
            leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))
        ]
    return [path]


def as_f32(value: float) -> bytes:
    """What a digest sees of a float."""
    return struct.pack(">f", value)


def another(value: Any, data: st.DataObject) -> Any:
    """A value of the same type that is not the same to a digest."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return data.draw(st.integers(0, 2**64 - 1).filter(lambda other: other != value))
    if isinstance(value, float):
        floats = st.floats(-(2.0**100), 2.0**100).filter(
            lambda other: as_f32(other) != as_f32(value)
        )
        return data.draw(floats | st.just(-0.0 if as_f32(value) == as_f32(0.0) else 0.0))
    if isinstance(value, str) and len(value) == 64:
        place = data.draw(st.integers(0, 63))
        return value[:place] + ("0" if value[place] != "0" else "1") + value[place + 1 :]
    return data.draw(st.text(max_size=5).filter(lambda other: other != value))


@given(st.integers(0, 10**9), st.data())
@settings(max_examples=400, deadline=None)
def test_any_single_change_of_a_stored_value_is_caught(seed: int, data: st.DataObject) -> None:
    rollout = random_tree(seed)
    terminal = data.draw(st.sampled_from([call.model_call_id for call in rollout.calls]))
    stored = document(rollout, terminal)
    paths = [path for path in leaves(stored) if path[-1] not in UNCOVERED]
    # Naming another valid call as the terminal is not seen: nothing is keyed.
    paths.remove(("receipt", "terminal_model_call_id"))
    path = data.draw(st.sampled_from(paths))
    changed = copy.deepcopy(stored)
    target: Any = changed
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = another(target[path[-1]], data)
    assert verified(stored).rollout_id == rollout.rollout_id
    with pytest.raises(CustodyError):
        verified(changed)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_token_with_new_digests_everywhere_still_breaks_the_chain(
    data: st.DataObject,
) -> None:
    rollout = linear(5)
    index = data.draw(st.integers(0, 4))
    ids = rollout.calls[index].token_ids_delta.copy()
    ids[data.draw(st.integers(0, len(ids) - 1))] += data.draw(st.integers(1, 1000))
    calls = [*rollout.calls]
    calls[index] = rehashed(calls[index], token_ids_delta=ids)
    receipt = rollout.receipt()
    receipt = forced(receipt, manifest=tuple(map(rollout.row, calls)))
    with pytest.raises(ReceiptVerificationError, match="chain_hash_mismatch"):
        verify_and_linearize(receipt, calls)


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_reordering_is_caught(calls: list[int], rows: list[int]) -> None:
    rollout = linear(5)
    manifest = tuple(rollout.rows()[place] for place in rows)
    receipt, staged = rollout.receipt(manifest=manifest), [rollout.calls[n] for n in calls]
    if calls == rows:
        # The order of the manifest is free, as long as the calls stand in it.
        assert verify_and_linearize(receipt, staged).token_ids.tolist() == list(range(1, 21))
    else:
        with pytest.raises(ReceiptVerificationError, match="snapshot_order_mismatch"):
            verify_and_linearize(receipt, staged)


@pytest.mark.parametrize("lost", range(5))
def test_a_lost_row_and_its_call_are_caught(lost: int) -> None:
    rollout = linear(5)
    rows = tuple(row for n, row in enumerate(rollout.rows()) if n != lost)
    calls = [call for n, call in enumerate(rollout.calls) if n != lost]
    receipt = forced(rollout.receipt(), manifest=rows)
    wanted = "missing_terminal" if lost == 4 else "missing_parent"
    with pytest.raises(ReceiptVerificationError, match=wanted):
        verify_and_linearize(receipt, calls)


RECORDS: list[type[Record]] = [
    *(records.CaptureAdmission, records.StagedCallBaseSnapshot, records.StagedCallRecord),
    *(records.StageResult, records.CommitCoords, records.CallRecord, records.ManifestFailure),
    *(records.CaptureLedgerCommit, records.RolloutManifest, records.RolloutReceipt),
]


@given(st.sampled_from(RECORDS), JSON)
def test_a_record_of_hostile_json_is_refused_with_a_reason(
    kind: type[Record], value: Any
) -> None:
    with pytest.raises(CustodyError):
        kind.parse(value if value != {} or kind is not records.RolloutManifest else 5)


SAMPLES: list[Record] = [
    linear().calls[1],
    linear().rows()[1],
    linear().receipt(),
    records.RolloutManifest(rollout_id="r1", records=linear().rows()),
    records.StageResult(ok=True, staging_key="k"),
    records.ManifestFailure(model_call_id="a", reason="worker_capture_failed"),
    records.CommitCoords(
        rollout_id="r1",
        model_call_id="a",
        **dict.fromkeys(("prev_len", "delta_len", "cum_len", "weight_version"), 0),  # type: ignore[arg-type]
        disposition="capture_failed",
    ),
    records.CaptureAdmission(rollout_id="r1", model_call_id="a", mode="text"),
]


@given(st.sampled_from(SAMPLES), st.data(), JSON)
@settings(max_examples=400, deadline=None)
def test_one_hostile_field_is_refused_or_kept(
    sample: Record, data: st.DataObject, value: Any
) -> None:
    payload = sample.to_json()
    assert type(sample).parse(payload) == sample
    payload[data.draw(st.sampled_from(sorted(payload)))] = value
    record = or_code(type(sample).parse, payload)
    if isinstance(record, Record):
        assert type(sample).parse(record.to_json()) == record
    else:
        assert record == "invalid_record"


def or_code(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, or the code with which it refuses."""
    try:
        return function(*arguments)
    except CustodyError as error:
        return error.code


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_hostile_items_and_bodies_are_refused_with_a_reason(value: Any) -> None:
    items = value if isinstance(value, list) else [value]
    for function in (assistant_fingerprint, conversation_digest):
        found = or_code(function, items)
        assert found == "unfingerprintable" or len(found) in (0, 64)
    for field in ("messages", "input", "tools", "output", "choices", "content"):
        for read in (request_items, response_items):
            found = or_code(read, {field: value})
            assert found == "unfingerprintable" or isinstance(found, list)


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_a_hostile_ledger_row_is_refused_or_ignored(value: Any) -> None:
    good = {"failure_reason": "x", "model_call_id": "a"}
    for row in (value, {**good, "failure_reason": value}, {**good, "model_call_id": value}):
        index = LedgerIndex("r1")
        try:
            index.add(row)
        except CustodyError:
            assert not index.has_rows()


def test_an_integer_too_long_for_its_text_is_refused_as_any_other() -> None:
    for sample in SAMPLES:
        for name in sample.to_json():
            for bad in (10**5000, -(10**5000)):
                payload = sample.to_json() | {name: bad}
                assert or_code(type(sample).parse, payload) == "invalid_record", name


@pytest.mark.parametrize("name", ["role", "type", "call_id", "name", "namespace", "arguments"])
def test_an_item_named_by_an_endless_integer_or_list_has_no_fingerprint(name: str) -> None:
    endless: list[Any] = []
    for _ in range(100_000):
        endless = [endless]
    for bad in (10**5000, endless):
        item = {"type": "function_call", name: bad}
        assert or_code(conversation_digest, [item]) == "unfingerprintable"


@given(JSON, JSON, JSON)
def test_a_hostile_scored_response_is_never_more_than_unmatched(
    served: Any, output: Any, response: Any
) -> None:
    rows = linear().rows()
    found = attribute(rows, {"id": served, "output": output})
    assert found.model_call_id is None or not served
    attribute(rows, response)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_canonical_floats_read_back(value: float) -> None:
    text = canonical_json(value)
    assert struct.pack(">d", float(text)) == struct.pack(">d", value)
    assert "e" in text or "." in text
    assert "e-0" not in text and "e+0" not in text  # noqa: PT018 - one spelling


@pytest.mark.parametrize(
    "size", [2.0**128 - 2.0**103, 2.0**128, 1e300, float("inf"), float("nan")]
)
def test_a_float_that_32_bits_cannot_hold_has_no_digest(size: float) -> None:
    for values in ([size], [-size], [0.0, size, 1.0]):
        with pytest.raises(ValueError, match="not finite"):
            encode_f32(values)


@given(st.integers(0, 12))
def test_context_digests_are_those_of_each_prefix(count: int) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(count)]
    found = conversation_digests(items, range(count + 5))
    assert found == {size: conversation_digest(items[:size]) for size in range(count + 1)}


def test_the_envelope_comes_first_and_token_fields_never() -> None:
    body = {"input": [{"role": "user"}], "instructions": "é", "tools": []}
    assert request_items(body) == [
        {"role": "_ng_request_envelope", "content": '{"instructions": "\\u00e9"}'},
        {"role": "user"},
    ]
    assert request_items({"input": "text"}) == []
    secret = {"prompt_token_ids": [1], "generation_log_probs": [0.1], "routed_experts": "x"}
    message = {"role": "assistant", "content": "a", **secret}
    assert response_items({"choices": [{"message": message}]}) == [
        {"role": "assistant", "content": "a"}
    ]
    assert response_items({"output": [message]}) == [{"role": "assistant", "content": "a"}]
    blocks = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "t"}]
    items = response_items({"role": "assistant", "content": blocks})
    assert [item.get("type") for item in items] == ["reasoning", None]
    assert items[1]["content"] == blocks[:1]


@pytest.mark.parametrize(
    ("prompt", "generated", "logprobs", "prev_len", "refused"),
    [
        ([1, 2], [3], [-0.1], 3, "beyond the prompt"),
        ([1, 2], [3], [-0.1], -1, "does not fit"),
        ([1, 2], [3], [], 1, "differ in length"),
        ([1, 2], [], [], 2, "empty"),
        ([1, -2], [3], [-0.1], 0, "does not fit"),
        ([1, True], [3], [-0.1], 0, "not an integer"),
    ],
)
def test_a_delta_that_cannot_be_cut(
    prompt: list[int], generated: list[int], logprobs: list[float], prev_len: int, refused: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=refused):
        build_delta(prompt, generated, logprobs, prev_len)


def operations(work: Callable[[], object]) -> int:
    """How many functions run, Python's own included: a cost that no clock disturbs."""
    count = 0

    def counting(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(counting)
    try:
        work()
    finally:
        sys.setprofile(previous)
    return count


def costs(work: Callable[[int], Callable[[], object]]) -> tuple[int, int]:
    """The operations for 200 and for 400 calls."""
    small, large = work(200), work(400)
    small()
    return operations(small), operations(large)


def verifying(count: int) -> Callable[[], object]:
    """The verification of one line of calls, its manifest from the leaf to the root."""
    rollout = linear(count)
    rows, calls = rollout.rows()[::-1], rollout.calls[::-1]
    receipt = rollout.receipt(f"c{count - 1}", manifest=rows)
    return lambda: verify_and_linearize(receipt, calls)


def selecting(count: int) -> Callable[[], object]:
    """The heuristic over one line of calls."""
    rows = linear(count).rows()
    return lambda: select_terminal_call(rows)


def resolving(count: int) -> Callable[[], object]:
    """The last admission of a long conversation in which every context has the same answer."""
    index = LedgerIndex("r1")
    items: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for number in range(count):
        index.add(
            {
                **dict.fromkeys(("delta_len", "prev_len", "weight_version"), 1),
                "model_call_id": f"c{number}",
                "staging_key": f"k{number}",
                "response_id": "r",
                "fingerprint": assistant_fingerprint([{"role": "assistant", "content": "a"}]),
                "fingerprint_version": 2,
                "context_len": number + 1,
                "context_digest": conversation_digest([{"role": "user", "content": "other"}]),
                "cum_len": number + 1,
                "digest": "0" * 64,
            }
        )
        items.append({"role": "user", "content": str(number)})
    items.append({"role": "assistant", "content": "a"})

    class Ledger:
        def candidates(self, rollout_id: str, fingerprint: str) -> Any:
            return index.candidates(fingerprint)

    ledger: Any = Ledger()
    return lambda: gate.resolve_parent(ledger, "r1", items)


@pytest.mark.parametrize("work", [verifying, selecting, resolving])
def test_twice_the_calls_cost_twice_the_operations(
    work: Callable[[int], Callable[[], object]],
) -> None:
    small, large = costs(work)
    assert 1.8 * small < large < 2.2 * small
