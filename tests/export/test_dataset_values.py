"""Columns are built quickly where values are usual, and rightly where they are not."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.export.dataset import rows
from explorer.export.dataset.rows import batches_of
from explorer.export.dataset.schema import CONFIGS, REASON_CODES
from explorer.export.dataset.values import (
    Versions,
    list_array,
    logprob_array,
    text_array,
    version_array,
)
from explorer.records import Call, MaskReason, Role, Rollout
from explorer.trace.verdict import judge
from tests.trace.build import make_call, record

TEXT = pa.string()


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1))
def test_texts_stand_as_they_are_and_what_is_no_unicode_is_written_out(
    values: list[str | None],
) -> None:
    found = text_array([*values, "\ud800"], TEXT).to_pylist()
    told = [v and v.encode("utf-8", "backslashreplace").decode() for v in values]
    assert found == [*told, "\\ud800"]
    assert text_array(values, TEXT).to_pylist() == told


def test_what_is_no_text_is_written_as_its_text() -> None:
    assert text_array([Role.AGENT, None, 3], TEXT).to_pylist() == ["agent", None, "3"]
    lists = text_array([["a", "\ud800"], None, []], pa.list_(TEXT))
    assert lists.to_pylist() == [["a", "\\ud800"], None, []]


@pytest.mark.parametrize(("config", "stored"), [("calls", Call), ("rollouts", Rollout)])
def test_only_the_chain_hash_is_bytes_among_texts(config: str, stored: type) -> None:
    # Arrow would take bytes for text as they come.
    hints = typing.get_type_hints(stored)
    holding = {
        column.name
        for column in CONFIGS[config]
        if column.kind in ("text", "texts") and "bytes" in str(hints.get(column.name))
    }
    assert holding <= rows._BYTES
    assert ("chain_hash" in holding) == (config == "calls")


def rows_of(*calls: Call) -> dict[str, list[dict[str, Any]]]:
    made = record(*calls)
    found: dict[str, list[dict[str, Any]]] = {config: [] for config in CONFIGS}
    for config, batch in batches_of(made, judge(made)):
        found[config] += batch.to_pylist()
    return found


@pytest.mark.parametrize("size", [1, rows._USUAL, rows._USUAL + 1])
def test_reasons_of_a_completion_are_its_own_whatever_its_length(size: int) -> None:
    for reason, greedy in ((MaskReason.SAMPLED, False), (MaskReason.GREEDY, True)):
        call = make_call("a", 1, [5], [1] * size, n_tools=1, greedy=greedy)
        (row,) = rows_of(call)["calls"]
        assert row["mask_reasons"] == [REASON_CODES[reason]] * size


def test_kept_arrays_are_never_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        rows._uniform(3, 5)[0] = 1
    assert rows._uniform(3, 5).tolist() == [3] * 5


def test_columns_of_one_value_and_of_several_read_alike() -> None:
    one = rows_of(*(make_call(name, n, [n], [9]) for n, name in enumerate("abc", 1)))
    assert [row["dialect"] for row in one["calls"]] == ["chat"] * 3
    assert [row["call_id"] for row in one["calls"]] == ["a", "b", "c"]
    assert [row["greedy"] for row in one["calls"]] == [False] * 3


def test_equal_numbers_and_json_are_told_apart() -> None:
    calls = [
        make_call("a", 1, [1], [9], engine_ms=0.0, requested_sampling={"n": 1}),
        make_call("b", 2, [2], [9], engine_ms=-0.0, requested_sampling={"n": True}),
        make_call("c", 3, [3], [9], engine_ms=-0.0, requested_sampling={"n": 1.0}),
    ]
    found = rows_of(*calls)["calls"]
    assert [repr(row["engine_ms"]) for row in found] == ["0.0", "-0.0", "-0.0"]
    assert [row["requested_sampling"] for row in found] == [
        '{"n":1}',
        '{"n":true}',
        '{"n":1.0}',
    ]


def test_lists_without_rows_or_ids() -> None:
    assert list_array([], pa.int32()).to_pylist() == []
    empty = np.zeros(0, np.int32)
    assert list_array([None, empty, empty + 1], pa.int32()).to_pylist() == [None, [], []]
    assert logprob_array([None], numbers_only=True).to_pylist() == [None]
    assert version_array([]).to_pylist() == []


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-9, 9)), max_size=5),
        max_size=6,
    )
)
def test_versions_over_stretches_are_those_of_each_token(
    given_: list[list[tuple[int, int | None]]],
) -> None:
    made, expected = [], []
    for row in given_:
        runs: list[tuple[int, int, int]] = []
        flat: list[int | None] = []
        for length, number in row:
            if number is not None:
                runs.append((len(flat), len(flat) + length, number))
            flat += [number] * length
        made.append(Versions(len(flat), runs))
        expected.append(flat)
    assert version_array(made).to_pylist() == expected


def test_memory_of_a_column_is_its_own() -> None:
    first = list_array([np.arange(1000, dtype=np.int32)], pa.int32())
    before = first.to_pylist()
    for _ in range(20):
        list_array([np.zeros(1000, np.int32)], pa.int32())
    assert first.to_pylist() == before
