"""Which certificate counts for which call, and when raw logprobs are as good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from explorer.records import NOT_CERTIFIED, Call, Certificate, Grade, MaskReason
from explorer.trace.policy import DEFAULT_POLICY, Policy
from explorer.trace.verdict import Judgement, judge
from tests.trace.build import CERTIFIED, RAW, make_call
from tests.trace.build import record as build_record

PLAIN: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}

AT_ONE = Policy("at-one", accept_raw_at_one=True)


def judged(
    *calls: Call,
    certificate: Certificate | None = CERTIFIED,
    certificates: tuple[Certificate, ...] = (),
    policy: Policy = DEFAULT_POLICY,
) -> Judgement:
    record = build_record(*calls, certificate=certificate)
    return judge(replace(record, certificates=certificates), policy)


def two(**second: Any) -> tuple[Call, Call]:
    first = make_call("a", 0, [1, 2], [3], n_tools=1)
    return first, make_call("b", 1, [1, 2, 3, 4], [5], parent=first, n_tools=1, **second)


def test_a_call_is_judged_by_the_certificate_it_names() -> None:
    for named, reason in (
        (CERTIFIED.certificate_id, None),
        (RAW.certificate_id, MaskReason.UNCERTIFIED),
        (NOT_CERTIFIED, MaskReason.UNCERTIFIED),
        ("never-stored", MaskReason.UNCERTIFIED),
    ):
        found = judged(*two(certificate_id=named), certificates=(RAW,))
        by_name = {str(call_id): mask.reason for call_id, mask in found.masks.items()}
        assert by_name == {"a": None, "b": reason}
        assert found.trainable is (reason is None)


def test_an_engine_that_changed_in_between_is_named_with_its_call() -> None:
    found = judged(*two(certificate_id=NOT_CERTIFIED))
    (fatal,) = [item for item in found.findings if item.grade is Grade.FATAL]
    assert fatal.code == "uncertified_engine"
    assert fatal.where.call_id == "b"


def test_a_better_later_certificate_counts_for_its_own_calls_only() -> None:
    found = judged(
        *two(certificate_id=CERTIFIED.certificate_id),
        certificate=RAW,
        certificates=(CERTIFIED,),
    )
    reasons = [mask.reason for mask in found.masks.values()]
    assert reasons == [MaskReason.UNCERTIFIED, None]
    assert not found.trainable


def test_raw_logprobs_of_plainly_drawn_calls_are_the_processed_ones() -> None:
    first = make_call("a", 0, [1, 2], [3], n_tools=1, submitted_sampling=PLAIN)
    second = make_call(
        "b", 1, [1, 2, 3, 4], [5], parent=first, n_tools=1, submitted_sampling=PLAIN
    )
    refused = judged(first, second, certificate=RAW)
    assert [reason.code for reason in refused.reasons] == ["raw_logprobs", "nothing_trainable"]
    found = judged(first, second, certificate=RAW, policy=AT_ONE)
    assert found.trainable
    assert found.supervised_tokens == 2
    for judgement in (refused, found):
        codes = {item.code: item.grade for item in judgement.findings}
        assert codes["raw_coincides"] is Grade.INFO
    assert "raw_logprobs" not in codes


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.7},
        {"temperature": None},
        {"top_p": 0.9},
        {"top_k": 40},
        {"min_p": 0.05},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 1.1},
    ],
)
def test_anything_that_shapes_the_distribution_needs_processed_logprobs(
    change: dict[str, Any],
) -> None:
    sent = {key: value for key, value in (PLAIN | change).items() if value is not None}
    call = make_call("a", 0, [1, 2], [3], n_tools=1, submitted_sampling=sent)
    found = judged(call, certificate=RAW, policy=AT_ONE)
    assert [mask.reason for mask in found.masks.values()] == [MaskReason.UNCERTIFIED]
    assert "raw_logprobs" in [reason.code for reason in found.reasons]


def test_a_constrained_call_is_never_plain() -> None:
    call = make_call(
        "a",
        0,
        [1, 2],
        [3],
        n_tools=1,
        submitted_sampling=PLAIN,
        constraints=("logit_bias",),
    )
    assert not judged(call, certificate=RAW, policy=AT_ONE).trainable


def test_one_raw_call_that_is_not_plain_blocks_the_rollout() -> None:
    first = make_call("a", 0, [1, 2], [3], n_tools=1, submitted_sampling=PLAIN)
    second = make_call("b", 1, [1, 2, 3, 4], [5], parent=first, n_tools=1)
    found = judged(first, second, certificate=RAW, policy=AT_ONE)
    assert [mask.reason for mask in found.masks.values()] == [None, MaskReason.UNCERTIFIED]
    assert not found.trainable
