"""One golden rollout per mask reason, and the row as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    LogprobKind,
    MaskReason,
    Note,
    Override,
    Role,
    WeightSpan,
)
from explorer.trace.branch import branch_segments
from explorer.trace.mask import Lineage, Span, mask_call, merge
from explorer.trace.policy import DEFAULT_POLICY, Crossing, Policy
from explorer.trace.roles import RoleDecision
from explorer.trace.verdict import judge
from tests.trace.build import (
    CERTIFIED,
    RAW,
    SCRIPTED,
    failed_call,
    logprobs_of,
    make_call,
    override,
    record,
    two_turns,
)

R = MaskReason
Spans = list[tuple[int, int, str]]


def spans_of(
    *calls: Call,
    of: str,
    policy: Policy = DEFAULT_POLICY,
    overrides: tuple[Override, ...] = (),
    certificate: Certificate | None = CERTIFIED,
) -> Spans:
    made = record(*calls, overrides=overrides, certificate=certificate)
    mask = judge(made, policy).masks[CallId(of)]
    return [(span.start, span.end, str(span.reason)) for span in mask.spans]


def test_sampled_prompt_environment_and_owned() -> None:
    first, second = two_turns()
    assert spans_of(first, second, of="a") == [(0, 2, "prompt"), (2, 4, "sampled")]
    assert spans_of(first, second, of="b") == [
        (0, 2, "prompt"),
        (2, 4, "owned_by_other_row"),
        (4, 5, "environment"),
        (5, 6, "sampled"),
    ]


def test_an_empty_delta_joins_what_ancestors_own() -> None:
    first = make_call("a", 1, [1], [2])
    second = make_call("b", 2, [1, 2], [3])
    third = make_call("c", 3, [1, 2, 3], [4])
    assert spans_of(first, second, third, of="c") == [
        (0, 1, "prompt"),
        (1, 3, "owned_by_other_row"),
        (3, 4, "sampled"),
    ]


ONE = make_call("a", 1, [1, 2], [3, 4, 5], logprobs=[-0.1, -0.2, -0.3])

WHOLE: list[tuple[str, dict[str, Any], MaskReason]] = [
    ("failed", {"status": CallStatus.FAILED}, R.FAILED_CALL),
    ("aborted", {"status": CallStatus.ABORTED}, R.ABORTED),
    ("open", {"status": CallStatus.OPEN}, R.ABORTED),
    ("engine abort", {"finish_reason": "abort"}, R.ABORTED),
    ("engine error", {"finish_reason": "error"}, R.ABORTED),
    ("no finish reason", {"finish_reason": None}, R.ABORTED),
    ("one null", {"logprobs": logprobs_of([-0.1, None, -0.3])}, R.LOGPROB_MISSING),
    ("no logprobs", {"logprobs": None}, R.LOGPROB_MISSING),
    ("nan", {"logprobs": logprobs_of([-0.1, float("nan"), -1])}, R.LOGPROB_NOT_FINITE),
    ("-inf", {"logprobs": logprobs_of([-0.1, float("-inf"), -1])}, R.LOGPROB_NOT_FINITE),
    ("+inf", {"logprobs": logprobs_of([-0.1, float("inf"), -1])}, R.LOGPROB_NOT_FINITE),
    ("positive", {"logprobs": logprobs_of([0.3, -0.1, -0.2])}, R.LOGPROB_NOT_FINITE),
    ("short logprobs", {"logprobs": logprobs_of([-0.1])}, R.COUNT_MISMATCH),
    ("usage", {"usage_completion": 4}, R.COUNT_MISMATCH),
    ("completion_len", {"completion_len": 4}, R.COUNT_MISMATCH),
    ("prompt usage", {"usage_prompt": 9}, R.COUNT_MISMATCH),
    ("level", {"capture_level": CaptureLevel.LOGPROBS}, R.CAPTURE_LEVEL),
    ("constrained", {"constraints": ("tool_choice",)}, R.CONSTRAINED),
    ("greedy", {"greedy": True}, R.GREEDY),
    ("crossed", {"weight_version_end": 8}, R.VERSION_CROSSED),
    ("no usage", {"notes": (Note("usage_missing"),)}, R.COUNT_MISMATCH),
    ("several choices", {"notes": (Note("several_choices"),)}, R.COUNT_MISMATCH),
    ("no finish", {"finish_reason": ""}, R.ABORTED),
    ("cancelled", {"finish_reason": "cancelled"}, R.ABORTED),
    ("crossed by the engine's word", {"engine_weight_label": "1,2"}, R.VERSION_CROSSED),
    ("crossing not disproved", {"weight_version_end": None}, R.VERSION_CROSSED),
    ("the fence saw an update", {"notes": (Note("version_crossed"),)}, R.VERSION_CROSSED),
    ("nobody knows", {"notes": (Note("version_unknown"),)}, R.VERSION_CROSSED),
    (
        "two spans of one name",
        {"weight_spans": (WeightSpan("v", None, 0, 1), WeightSpan("v", None, 1, 3))},
        R.VERSION_CROSSED,
    ),
    ("injected", {"injected": True}, R.INJECTED_BY_PROXY),
]


@pytest.mark.parametrize(
    ("fields", "reason"), [(f, r) for _, f, r in WHOLE], ids=[w[0] for w in WHOLE]
)
def test_what_masks_a_whole_call(fields: dict[str, Any], reason: MaskReason) -> None:
    assert spans_of(replace(ONE, **fields), of="a") == [(0, 2, "prompt"), (2, 5, str(reason))]
    assert spans_of(ONE, of="a") == [(0, 2, "prompt"), (2, 5, "sampled")]


def test_prompt_ids_missing() -> None:
    bare = replace(ONE, prompt_delta=None, prompt_len=None)
    assert spans_of(bare, of="a") == [(0, 3, "prompt_ids_missing")]
    inconsistent = replace(ONE, prompt_len=7)
    assert spans_of(inconsistent, of="a") == [(0, 3, "prompt_ids_missing")]


def test_a_changed_token_breaks_the_chain_hash() -> None:
    changed = replace(ONE, completion=make_call("x", 1, [1], [3, 4, 6]).completion)
    assert spans_of(changed, of="a")[-1] == (2, 5, "capture_level")


def test_lp_03_a_sentinel_masks_its_token_only() -> None:
    call = replace(ONE, logprobs=logprobs_of([-0.1, -9999.0, -0.2]))
    assert spans_of(call, of="a") == [
        (0, 2, "prompt"),
        (2, 3, "sampled"),
        (3, 4, "logprob_not_finite"),
        (4, 5, "sampled"),
    ]
    call = replace(ONE, logprobs=logprobs_of([-1e30, -9998.0, 0.0]))
    assert spans_of(call, of="a")[1:] == [(2, 3, "logprob_not_finite"), (3, 5, "sampled")]


def test_no_number_trains_even_if_nobody_reported_it() -> None:
    call = replace(ONE, logprobs=logprobs_of([None, float("inf"), -0.2]))
    agent = RoleDecision(Role.AGENT, "test", "")
    mask = mask_call(call, agent, DEFAULT_POLICY, (), CERTIFIED, (), Lineage(2))
    assert mask.bits().tolist() == [0, 0, 0, 0, 1]


def test_excluded_by_user() -> None:
    span = override("exclude_span", "a", start=3, end=4)
    assert spans_of(ONE, of="a", overrides=(span,))[1:] == [
        (2, 3, "sampled"),
        (3, 4, "excluded_by_user"),
        (4, 5, "sampled"),
    ]
    wide = override("exclude_span", "a", start=0, end=4)
    assert spans_of(ONE, of="a", overrides=(wide,)) == [
        (0, 2, "prompt"),
        (2, 4, "excluded_by_user"),
        (4, 5, "sampled"),
    ]
    for whole in (override("exclude_call", "a"), override("exclude_span", "a")):
        assert spans_of(ONE, of="a", overrides=(whole,))[-1] == (2, 5, "excluded_by_user")


def test_an_override_of_another_call_changes_nothing() -> None:
    first, second = two_turns()
    drop = override("exclude_call", "a")
    assert spans_of(first, second, of="b", overrides=(drop,))[-1][2] == "sampled"


def test_roles_mask() -> None:
    first, second = two_turns()
    title = make_call("t", 0, [90], [91])
    assert spans_of(title, first, second, of="t")[-1][2] == "auxiliary"
    retry = make_call("a2", 9, [1, 2], [8], n_tools=2)
    assert spans_of(first, second, retry, of="a2")[-1][2] == "discarded"
    again = make_call("c", 3, [1, 2, 3, 4, 5], [7], n_tools=2)
    assert spans_of(first, second, again, of="b")[-1][2] == "ambiguous_sibling"
    assert spans_of(first, second, again, of="c")[-1][2] == "ambiguous_sibling"
    assert spans_of(first, second, again, of="a")[-1][2] == "sampled"
    sub = override("role", "b", role=Role.SUBAGENT)
    assert spans_of(first, second, of="b", overrides=(sub,))[-1][2] == "subagent"
    included = Policy(include_subagents=True)
    assert (
        spans_of(first, second, of="b", overrides=(sub,), policy=included)[-1][2] == "sampled"
    )


def test_a_role_override_never_supplies_what_is_missing() -> None:
    chosen = override("role", "x", role=Role.AGENT)
    for bad in (
        make_call("x", 2, [5], [6], status=CallStatus.FAILED),
        make_call("x", 2, [5], [6], logprobs=[None]),
        make_call("x", 2, [5], [6], injected=True),
    ):
        assert spans_of(ONE, bad, of="x", overrides=(chosen,))[-1][2] != "sampled"


@pytest.mark.parametrize(
    "certificate", [SCRIPTED, replace(RAW, logprob_kind=LogprobKind.LOGITS)]
)
def test_what_is_no_logprob_cannot_be_accepted_by_anybody(certificate: Certificate) -> None:
    accept = (override("accept_logprobs"), override("accept_logprobs", "a"))
    policy = Policy(allow_uncertified=True, accept_raw=True)
    spans = spans_of(ONE, of="a", certificate=certificate, policy=policy, overrides=accept)
    assert spans[-1][2] == "uncertified"


@pytest.mark.parametrize("certificate", [None, RAW])
def test_uncertified(certificate: Certificate | None) -> None:
    def last(**more: Any) -> str:
        return spans_of(ONE, of="a", certificate=certificate, **more)[-1][2]

    assert last() == "uncertified"
    assert last(policy=Policy(allow_uncertified=True)) == "sampled"
    assert last(overrides=(override("accept_logprobs"),)) == "sampled"
    assert last(overrides=(override("accept_logprobs", "a"),)) == "sampled"
    accept_raw = last(policy=Policy(accept_raw=True))
    assert accept_raw == ("sampled" if certificate is RAW else "uncertified")


def test_accepting_logprobs_of_another_call_is_not_enough() -> None:
    first, second = two_turns()
    accept = override("accept_logprobs", "a")
    assert (
        spans_of(first, second, of="b", certificate=RAW, overrides=(accept,))[-1][2]
        == "uncertified"
    )


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({"constraints": ("bias",)}, Policy(train_constrained=True)),
        ({"greedy": True}, Policy(train_greedy=True)),
        ({"weight_version_end": 8}, Policy(version_crossed=Crossing.TRAIN)),
    ],
)
def test_policy_may_let_them_train(fields: dict[str, Any], policy: Policy) -> None:
    call = replace(ONE, **fields)
    assert spans_of(call, of="a", policy=policy)[-1][2] == "sampled"


def test_ver_01_a_crossing_can_be_accepted_by_a_person() -> None:
    call = replace(ONE, weight_version_end=8)
    accept = override("accept_versions", "a")
    assert spans_of(call, of="a", overrides=(accept,))[-1][2] == "sampled"


def test_fin_04_a_cut_turn_trains_unless_the_policy_says_no() -> None:
    cut = replace(ONE, finish_reason="length")
    assert spans_of(cut, of="a")[-1][2] == "sampled"
    no = Policy(train_truncated=False)
    assert spans_of(cut, of="a", policy=no)[-1][2] == "truncated_policy"


def test_fin_02_a_stop_token_trains_if_and_only_if_it_was_sampled() -> None:
    with_stop = make_call("a", 1, [1, 2], [5, 6, 151643])
    without = make_call("a", 1, [1, 2], [5, 6])
    assert spans_of(with_stop, of="a")[-1] == (2, 5, "sampled")
    assert spans_of(without, of="a")[-1] == (2, 4, "sampled")


def test_fin_03_ids_are_never_compared_with_a_pad_id() -> None:
    call = make_call("a", 1, [2, 2], [5, 2, 2])
    assert judge(record(call)).masks[CallId("a")].bits().tolist() == [0, 0, 1, 1, 1]


def test_bits_reasons_and_counts_agree() -> None:
    first, second = two_turns()
    judgement = judge(record(first, second))
    mask = judgement.masks[CallId("b")]
    assert mask.bits().tolist() == [0, 0, 0, 0, 0, 1]
    assert mask.reasons()[2:] == (
        R.OWNED_BY_OTHER_ROW,
        R.OWNED_BY_OTHER_ROW,
        R.ENVIRONMENT,
        R.SAMPLED,
    )
    assert judgement.mask_counts == {R.PROMPT: 2, R.SAMPLED: 3, R.ENVIRONMENT: 1}
    assert (judgement.supervised_tokens, judgement.generated_tokens) == (3, 3)


def test_merge() -> None:
    spans = [Span(0, 0, R.PROMPT), Span(0, 2, R.PROMPT), Span(2, 3, R.PROMPT)]
    assert merge(spans) == (Span(0, 3, R.PROMPT),)


def test_branch_segments() -> None:
    first, second = two_turns()
    third = make_call("c", 3, [1, 2, 3, 4, 5, 6], [7], n_tools=2)
    judgement = judge(record(first, second, third))
    assert [
        (item.call_id, item.kind, item.start, item.end, [str(s.reason) for s in item.spans])
        for item in branch_segments(judgement, CallId("c"))
    ] == [
        ("a", "prompt", 0, 2, ["prompt"]),
        ("a", "completion", 2, 4, ["sampled"]),
        ("b", "environment", 4, 5, ["environment"]),
        ("b", "completion", 5, 6, ["sampled"]),
        ("c", "completion", 6, 7, ["sampled"]),
    ]


def test_branch_of_a_call_without_ids() -> None:
    first, _ = two_turns()
    first = replace(first, message_digests=("u",), reply_digest="r")
    text = failed_call("b", 2, message_digests=("u", "r", "v"))
    judgement = judge(record(first, text))
    segments = branch_segments(judgement, CallId("b"))
    assert [segment.call_id for segment in segments] == ["a", "a"]
