"""Whole rollouts made at random, against what must hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from explorer.records import Call, CallStatus, CaptureLevel, MaskReason, Override, Role
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.branch import branch_segments
from explorer.trace.policy import Crossing, Policy
from explorer.trace.verdict import judge
from tests.trace.build import CERTIFIED, RAW, logprobs_of, make_call, override, record

VALUES = st.sampled_from([-0.1, -2.0, 0.0, None, -9999.0, float("nan"), float("-inf"), 0.5])
GOOD_VALUES = st.sampled_from([-0.1, -2.0, -9999.0])
FAULTS: list[dict[str, Any]] = [
    {"status": CallStatus.FAILED},
    {"status": CallStatus.ABORTED},
    {"status": CallStatus.REFUSED},
    {"greedy": True},
    {"constraints": ("grammar",)},
    {"injected": True},
    {"weight_version_end": 9},
    {"finish_reason": "abort"},
    {"finish_reason": "length"},
    {"usage_completion": 77},
    {"usage_prompt": 77},
    {"prompt_len": 77},
    {"capture_level": CaptureLevel.TEXT},
    {"prompt_delta": None},
    {"completion": None},
    {"logprobs": None},
]


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[Call], list[list[int]]]:
    """Calls that continue each other over a tiny alphabet, some with faults."""
    calls: list[Call] = []
    prompts: list[list[int]] = []
    fulls: list[list[int]] = []
    for number in range(draw(st.integers(1, 7))):
        base: list[int] = []
        stored = None
        if draw(st.integers(0, 4)) and calls:
            place = draw(st.integers(0, len(calls) - 1))
            base = fulls[place]
            stored = calls[place] if draw(st.booleans()) else None
        prompt = [*base, *draw(st.lists(st.integers(0, 2), max_size=2))] or [0]
        completion = draw(st.lists(st.integers(0, 2), max_size=3))
        values = draw(st.one_of(st.just(GOOD_VALUES), st.just(GOOD_VALUES), st.just(VALUES)))
        logprobs = draw(st.lists(values, min_size=len(completion), max_size=len(completion)))
        call = make_call(
            str(number),
            number,
            prompt,
            completion,
            parent=stored,
            logprobs=logprobs,
            n_tools=draw(st.integers(0, 1)),
        )
        calls.append(call)
        prompts.append(prompt)
        fulls.append(prompt + completion)
    return calls, prompts


@st.composite
def faulty(draw: st.DrawFn) -> list[Call]:
    made: tuple[list[Call], list[list[int]]] = draw(rollouts())
    calls: list[Call] = []
    for call in made[0]:
        fault: dict[str, Any] = draw(st.one_of(st.just({}), st.sampled_from([{}, *FAULTS])))
        calls.append(replace(call, **fault))
    return calls


POLICIES = st.builds(
    Policy,
    include_subagents=st.booleans(),
    train_truncated=st.booleans(),
    train_constrained=st.booleans(),
    train_greedy=st.booleans(),
    version_crossed=st.sampled_from(Crossing),
    train_stop_token=st.booleans(),
    train_unparsed=st.booleans(),
    train_aborted=st.booleans(),
    allow_uncertified=st.booleans(),
    accept_raw=st.booleans(),
)
OVERRIDES = st.lists(
    st.builds(
        override,
        st.sampled_from(["role", "exclude_span", "exclude_call", "accept_logprobs"]),
        st.sampled_from([None, "0", "1", "2"]),
        role=st.sampled_from([None, *Role]),
        start=st.one_of(st.none(), st.integers(0, 9)),
        end=st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=2,
)
CERTIFICATES = st.sampled_from([CERTIFIED, CERTIFIED, RAW, None])


@given(faulty(), POLICIES, OVERRIDES, CERTIFICATES)
def test_the_promise(
    calls: list[Call], policy: Policy, overrides: list[Override], certificate: Any
) -> None:
    """Every trainable token was sampled by that call there with that logprob; every
    other token has a reason; spans cover rows exactly."""
    made = record(*calls, overrides=overrides, certificate=certificate)
    judgement = judge(made, policy)
    by_id = {call.call_id: call for call in calls}
    assert set(judgement.masks) == set(judgement.tree.nodes)
    for call_id, mask in judgement.masks.items():
        call = by_id[call_id]
        spans = mask.spans
        edges = [0, *(span.end for span in spans)]
        assert [span.start for span in spans] == edges[:-1]
        assert edges[-1] == mask.length
        assert all(one.reason is not two.reason for one, two in pairwise(spans))
        bits = mask.bits()
        assert int(bits.sum()) == mask.supervised
        trained = np.flatnonzero(bits)
        if not trained.size:
            continue
        assert call.status is CallStatus.COMMITTED
        assert not call.injected
        assert call.completion is not None
        assert call.logprobs is not None
        assert call.completion.size == call.logprobs.size == call.usage_completion
        row = judgement.tree.sequences.full(call_id)
        assert row.size == mask.length
        assert trained.min() >= mask.prompt_len
        here = trained - mask.prompt_len
        assert (row[trained] == call.completion[here]).all()
        assert np.isfinite(call.logprobs).all()
        assert (call.logprobs[here] > -9999).all()
        assert (call.logprobs[here] <= 1e-6).all()
        assert mask.reasons()[int(trained[0])] is MaskReason.SAMPLED
    total = sum(judgement.mask_counts.values())
    assert total == sum(mask.length - mask.own_start for mask in judgement.masks.values())
    b"".join(capture_audit(made, judgement))
    if judgement.trainable:
        b"".join(training_trace(made, judgement))


@given(rollouts())
def test_assembled_prompts_are_the_engines(made: tuple[list[Call], list[list[int]]]) -> None:
    calls, prompts = made
    judgement = judge(record(*calls))
    for call, prompt in zip(calls, prompts, strict=True):
        assert judgement.tree.sequences.prompt(call.call_id).tolist() == prompt


@given(faulty(), st.randoms(use_true_random=False))
def test_the_order_of_the_record_changes_nothing(calls: list[Call], random: Any) -> None:
    shuffled = list(calls)
    random.shuffle(shuffled)
    one, two = judge(record(*calls)), judge(record(*shuffled))
    assert one.tree.nodes == two.tree.nodes
    assert one.roles == two.roles
    assert one.masks == two.masks
    assert (one.reasons, one.inputs_sha256) == (two.reasons, two.inputs_sha256)


@given(st.permutations(range(5)))
def test_any_arrival_order_gives_the_same_masks(order: list[int]) -> None:
    script = [
        ("title", [90], [91], 0),
        ("a", [1, 2], [3], 2),
        ("b", [1, 2, 3, 4], [5], 2),
        ("c", [1, 2, 3, 4, 5, 6], [7], 2),
        ("k", [1, 2, 9], [8], 2),
    ]
    calls = [
        make_call(name, order[place], prompt, completion, n_tools=tools)
        for place, (name, prompt, completion, tools) in enumerate(script)
    ]
    masks = judge(record(*calls)).masks
    shown = {
        str(name): [(span.start, span.end, str(span.reason)) for span in mask.spans]
        for name, mask in masks.items()
    }
    assert shown["title"] == [(0, 1, "prompt"), (1, 2, "auxiliary")]
    assert shown["c"][-2:] == [(5, 6, "environment"), (6, 7, "sampled")]
    assert shown["k"] == [(0, 3, "prompt"), (3, 4, "sampled")]


@given(faulty())
def test_a_branch_is_the_whole_row_of_its_leaf(calls: list[Call]) -> None:
    judgement = judge(record(*calls))
    for leaf in judgement.tree.leaves:
        if not judgement.tree.nodes[leaf].has_ids:
            branch_segments(judgement, leaf)
            continue
        segments = branch_segments(judgement, leaf)
        edges = [0, *(segment.end for segment in segments)]
        assert [segment.start for segment in segments] == edges[:-1]
        assert edges[-1] == judgement.masks[leaf].length
        for segment in segments:
            assert segment.spans[0].start == segment.start
            assert segment.spans[-1].end == segment.end


def test_every_mask_reason_can_be_told_apart() -> None:
    null = make_call("x", 1, [1], [2], logprobs=[None])
    assert null.logprobs is not None
    assert null.logprobs.view(np.uint32)[0] == 0x7FC00001
    assert np.isnan(logprobs_of([float("nan")])).all()
