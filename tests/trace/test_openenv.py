"""Our Training trace, read by the real `openenv` package.

Runs only where `openenv` is installed (`pip install openenv==0.10.0`, best in an
environment of its own); everywhere else the skip says so.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import pytest

from explorer.trace.assemble import training_trace
from explorer.trace.verdict import judge
from tests.trace.build import make_call, override, record, two_turns

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openenv") is None,
    reason="openenv is not installed: `make test-consumers` runs these",
)


def parse(*calls: Any, **more: Any) -> Any:
    from openenv.core.harness import TrainingTrace

    made = record(*calls, **more)
    text = b"".join(training_trace(made, judge(made))).decode()
    return TrainingTrace.model_validate_json(text)


def test_it_parses_and_round_trips() -> None:
    first, second = two_turns()
    greedy = make_call("g", 3, [1, 2, 3, 4, 5, 6, 7], [8], n_tools=2, greedy=True)
    fork = make_call("c", 4, [1, 2, 3, 4, 9], [6, 7], parent=first, n_tools=2)
    parsed = parse(first, second, greedy, fork)
    assert [turn.node_id for turn in parsed.turns] == ["a", "b", "g", "c"]
    assert parsed.turns[1].prompt_token_ids == [1, 2, 3, 4, 5]
    assert parsed.turns[1].loss_mask == [0, 0, 0, 0, 0, 1]
    entries = parsed.to_trace_entries()
    assert type(parsed).from_entries(entries) == parsed


def test_borderline_values_parse() -> None:
    values = [-9999.0, 5e-7, 0.0, -0.0, -1e-30]
    call = make_call("a", 1, [0], [0, 1, 2, 3, 4], logprobs=values)
    empty = make_call("b", 2, [0, 0, 1, 2, 3, 4, 5], [])
    parsed = parse(call, empty)
    # The record keeps float32, and its JSON number is exactly that value.
    smallest = float(np.float32(-1e-30))
    assert parsed.turns[0].per_token_logps == [-9999.0, 0.0, 0.0, 0.0, smallest]
    assert parsed.turns[1].completion_token_ids == []


def test_a_dropped_call_leaves_a_valid_trace() -> None:
    first, second = two_turns()
    parsed = parse(first, second, overrides=[override("exclude_call", "b")])
    assert [turn.node_id for turn in parsed.turns] == ["a"]
    json.loads(parsed.model_dump_json())
