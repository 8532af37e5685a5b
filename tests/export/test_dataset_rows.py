"""Rows of a dataset: nothing lost on the way there and back, every token trained once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from explorer.errors import RecordInconsistent
from explorer.export.dataset.paths import training_rows
from explorer.export.dataset.reading import read_rollout
from explorer.export.dataset.rows import batches_of
from explorer.export.dataset.rules import broken_rules
from explorer.export.dataset.schema import (
    CONFIGS,
    REASON_CODES,
    SEQUENCES,
    TYPE_WORDS,
    dictionary_columns,
    schema_of,
)
from explorer.export.dataset.values import list_array, logprob_array, logprobs_of
from explorer.records import EventKind, MaskReason, Note, Purpose, RolloutRecord, WeightSpan
from explorer.trace.audit import PLAIN_FIELDS, SPELT_APART
from explorer.trace.inputs import hash_inputs
from explorer.trace.policy import DEFAULT_POLICY, Crossing
from explorer.trace.verdict import Judgement, judge
from tests.export.datasets import forked, odd
from tests.store.making import facts
from tests.trace.build import event, make_call, record, two_turns
from tests.trace.conversations import Script, recorded
from tests.trace.test_interleaving import interleaved

NAMES = {code: reason for reason, code in REASON_CODES.items()}


def tables(made: RolloutRecord, judgement: Judgement, size: int = 1 << 24) -> dict[str, Any]:
    """All rows of a rollout by config."""
    batches: dict[str, list[Any]] = {config: [] for config in CONFIGS}
    for config, rows in batches_of(made, judgement, batch_bytes=size):
        batches[config].append(rows)
    return {
        config: pa.Table.from_batches(found, schema=schema_of(config))
        for config, found in batches.items()
    }


def read_back(found: dict[str, Any]) -> RolloutRecord:
    return read_rollout(found["rollouts"], found["calls"].to_batches()).record


def test_every_reason_has_one_code_and_every_column_a_type() -> None:
    assert set(REASON_CODES) == set(MaskReason)
    assert len(set(REASON_CODES.values())) == len(MaskReason)
    assert REASON_CODES[MaskReason.SAMPLED] == 0
    for config, columns in CONFIGS.items():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        assert {column.kind for column in columns} <= set(TYPE_WORDS)
        assert schema_of(config).names == names
    assert "token_ids.list.element" not in dictionary_columns(SEQUENCES)
    assert "loss_mask.list.element" in dictionary_columns(SEQUENCES)
    # TRL would train on all of a column of this name.
    assert "input_ids" not in schema_of("sequences").names


def test_every_field_of_a_call_has_a_column() -> None:
    """A field that is added to the record later cannot be forgotten here."""
    names = {column.name for column in CONFIGS["calls"]}
    spelt = {"stored_parent_id": "prefix_of"}
    assert {spelt.get(name, name) for name in (*PLAIN_FIELDS, *SPELT_APART)} <= names


@pytest.mark.parametrize("size", [1, 1 << 24])
def test_a_fork_trains_each_sampled_token_once(size: int) -> None:
    made = record(*forked())
    judgement = judge(made)
    assert judgement.trainable
    rows = tables(made, judgement, size)["sequences"].to_pylist()
    assert [row["call_ids"] for row in rows] == [["f-a", "f-b"], ["f-a", "f-c", "f-d"]]
    left, right = rows
    assert left["token_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert left["loss_mask"] == [0, 0, 1, 1, 0, 1, 1]
    assert left["owned"] == [True, True]
    assert right["token_ids"] == [1, 2, 3, 4, 8, 9, 10, 11, 12, 13]
    assert right["loss_mask"] == [0, 0, 0, 0, 0, 0, 1, 0, 1, 1]
    assert right["owned"] == [False, True, True]
    assert [str(NAMES[code]) for code in right["mask_reasons"][:5]] == [
        *("prompt", "prompt", "owned_by_other_row", "owned_by_other_row", "environment"),
    ]
    assert (right["completion_starts"], right["completion_ends"]) == ([2, 6, 8], [4, 7, 10])
    assert right["logprobs"][:3] == [None, None, -0.25]
    assert right["weight_versions"][1:3] == [None, 7]
    assert right["reward"] == 1.0
    assert sum(row["supervised_tokens"] for row in rows) == judgement.supervised_tokens == 7


def test_ver_01_the_engines_spans_give_every_token_of_a_sequence_its_version() -> None:
    first, second = two_turns()
    spans = (WeightSpan("7", 7, 0, 1), WeightSpan("8", 8, 1, 3))
    across = make_call(
        "c",
        3,
        [1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10],
        parent=second,
        n_tools=2,
        weight_version_end=8,
        weight_spans=spans,
    )
    made = record(first, second, across)
    judgement = judge(made, replace(DEFAULT_POLICY, version_crossed=Crossing.TRAIN))
    found = tables(made, judgement)
    (row,) = found["sequences"].to_pylist()
    none = None
    assert row["weight_versions"] == [none, none, 7, 7, none, 7, none, 7, 8, 8]
    assert read_back(found).calls[2].weight_spans == spans


def test_a_rollout_that_may_not_train_has_calls_with_reasons_and_no_sequences() -> None:
    for made in (record(*forked(), purpose=Purpose.EVAL), record(*forked(), certificate=None)):
        judgement = judge(made)
        assert not judgement.trainable
        found = tables(made, judgement)
        assert found["sequences"].num_rows == 0
        assert found["calls"].num_rows == 6
        (row,) = found["rollouts"].to_pylist()
        assert row["reason_codes"] == [reason.code for reason in judgement.reasons]
        assert (row["trainable"], row["supervised_tokens"], row["n_sequences"]) == (False, 0, 0)
        assert "loss_mask" not in found["calls"].column_names


def test_a_row_ends_with_the_last_call_that_trains() -> None:
    """A greedy turn at the end trains nothing, so no row needs it."""
    first, second = two_turns()
    last = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=second, greedy=True, n_tools=2)
    made = record(first, second, last)
    (row,) = tables(made, judge(made))["sequences"].to_pylist()
    assert row["call_ids"] == ["a", "b"]
    between = make_call("b", 2, [1, 2, 3, 4, 5], [6], parent=first, greedy=True, n_tools=2)
    last = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=between, n_tools=2)
    made = record(first, between, last)
    (row,) = tables(made, judge(made))["sequences"].to_pylist()
    assert row["call_ids"] == ["a", "b", "c"]
    assert row["loss_mask"] == [0, 0, 1, 1, 0, 0, 0, 1]
    assert NAMES[row["mask_reasons"][5]] is MaskReason.GREEDY


def test_an_open_rollout_has_no_rows() -> None:
    made = record(*two_turns(), events=[])
    with pytest.raises(RecordInconsistent):
        list(batches_of(made, judge(made)))


def test_a_judgement_that_trains_what_no_export_holds_gives_no_row() -> None:
    made = record(*two_turns())
    judgement = judge(made)
    holes = [call for call in made.calls if call.call_id != "b"]
    bad = make_call("b", 2, [1, 2, 3, 4, 5], [6], parent=holes[0], logprobs=[None], n_tools=2)
    with pytest.raises(RecordInconsistent):
        list(training_rows(record(holes[0], bad), judgement))


def test_odd_values_come_back_by_their_bits() -> None:
    made = record(*odd())
    found = tables(made, judge(made))
    back = read_back(found)
    assert [facts(call) for call in back.calls] == [facts(call) for call in made.calls]
    (first, second, third, fourth) = found["calls"].to_pylist()
    assert first["logprobs"] == [-0.5, None, -9999.0, 0.0]
    assert second["logprobs"][:2] == [np.inf, -np.inf]
    assert third["prompt_delta"] is None
    assert fourth["completion"] == []


def test_pq_01_arguments_are_text_and_keep_their_own_keys() -> None:
    """`{"a": 1}` beside `{"b": "x"}` stays what it was; no row has the other's keys."""
    made = record(*odd())
    rows = tables(made, judge(made))["calls"].to_pylist()
    assert rows[0]["requested_sampling"] == '{"args":{"a":1}}'
    assert orjson.loads(rows[1]["requested_sampling"]) == {"args": {"b": "x"}}


@given(interleaved())
@settings(max_examples=60)
def test_whatever_happened_every_token_that_trains_does_so_in_one_row(
    made: tuple[Script, list[str]],
) -> None:
    rollout = recorded(*made)
    judgement = judge(rollout)
    found = tables(rollout, judgement, 64)
    assert list(broken_rules(found["rollouts"].to_pylist()[0], found["sequences"])) == []
    trained: Counter[tuple[str, int]] = Counter()
    calls = {call.call_id: call for call in rollout.calls}
    for row in found["sequences"].to_pylist():
        for name, start, end in zip(
            row["call_ids"], row["completion_starts"], row["completion_ends"], strict=True
        ):
            prompt = judgement.tree.sequences.full(name)
            assert row["token_ids"][:end] == prompt.tolist()
            bits = row["loss_mask"][start:end]
            trained.update((name, place) for place, bit in enumerate(bits) if bit)
            sampled = calls[name].logprobs
            assert sampled is not None
            assert row["logprobs"][start:end] == sampled.tolist()
    expected = {
        (name, place): 1
        for name, mask in judgement.masks.items()
        for place, bit in enumerate(mask.completion_bits())
        if bit and judgement.trainable
    }
    assert trained == expected
    again = read_back(found)
    assert hash_inputs(again, judgement.policy) == judgement.inputs_sha256


BITS = npst.arrays(np.uint32, st.integers(0, 12)).map(lambda bits: bits.view(np.float32))


@given(st.lists(st.none() | BITS, max_size=6))
def test_any_logprobs_come_back_and_are_null_only_where_they_were(
    values: list[np.ndarray[Any, Any] | None],
) -> None:
    array = logprob_array(values, numbers_only=False)
    assert array.type == pa.list_(pa.float32())
    back = [logprobs_of(array, row) for row in range(len(values))]
    assert [None if each is None else each.tobytes() for each in back] == [
        None if each is None else each.tobytes() for each in values
    ]
    numbers = logprob_array(values, numbers_only=True)
    flat = [value for row in numbers.to_pylist() for value in row or ()]
    assert all(value is None or np.isfinite(value) for value in flat)


@given(st.lists(st.none() | npst.arrays(np.int32, st.integers(0, 9)), max_size=6))
def test_any_ids_come_back(values: list[np.ndarray[Any, Any] | None]) -> None:
    array = list_array(values, pa.int32())
    assert array.to_pylist() == [None if each is None else each.tolist() for each in values]


TEXTS = st.text(st.characters(), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=3), TEXTS)
def test_hostile_values_give_the_same_verdict_when_they_are_read_back(
    values: dict[str, Any], text: str
) -> None:
    first, second = two_turns()
    hostile = make_call(
        "c",
        3,
        [50],
        [51],
        requested_sampling=values,
        claims={text: text},
        notes=(Note("note", text),),
        preview=text,
        stop_reason=text,
        message_digests=(text, "b"),
    )
    events = [
        event(EventKind.CLOSED),
        event(EventKind.REWARD, 9, reward=0.5, payload=values, reason=text),
    ]
    made = record(first, second, hostile, events=events)
    judgement = judge(made)
    back = read_back(tables(made, judgement))
    assert hash_inputs(back, judgement.policy) == judgement.inputs_sha256
