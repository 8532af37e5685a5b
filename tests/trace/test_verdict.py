"""The one verdict: every reason once true and once not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    EventKind,
    FailureKind,
    Grade,
    MaskReason,
    Purpose,
    Role,
    RolloutRecord,
)
from explorer.trace.policy import DEFAULT_POLICY, Policy
from explorer.trace.verdict import judge
from tests.trace.build import (
    RAW,
    SCRIPTED,
    admission,
    event,
    failed_call,
    logprobs_of,
    make_call,
    override,
    record,
    two_turns,
)

TITLE = make_call("title", 0, [90, 91], [92], n_tools=0)


def reasons(made: RolloutRecord, policy: Policy = DEFAULT_POLICY) -> list[str]:
    judgement = judge(made, policy)
    assert judgement.trainable == (not judgement.reasons)
    fatal = {item.code for item in judgement.findings if item.grade is Grade.FATAL}
    assert fatal <= {reason.code for reason in judgement.reasons}
    return [reason.code for reason in judgement.reasons]


def finding_codes(made: RolloutRecord) -> set[str]:
    return {finding.code for finding in judge(made).findings}


def test_a_good_rollout() -> None:
    judgement = judge(record(*two_turns()))
    assert judgement.trainable
    assert judgement.reasons == ()
    assert judgement.notices == ()
    assert judgement.n_agent_calls == 2
    assert (judgement.state.ok, judgement.state.reward) == (True, 1.0)


CLOSED = EventKind.CLOSED
REWARD = EventKind.REWARD


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (record(*two_turns(), events=()), ["rollout_open"]),
        (record(*two_turns(), events=[event(CLOSED)]), []),
        (record(*two_turns(), events=[event(CLOSED, ok=False)]), ["rollout_failed"]),
        (record(*two_turns(), events=[event(CLOSED, ok=False), event(REWARD, 2, ok=True)]), []),
        (
            record(*two_turns(), events=[event(REWARD, 1, ok=False), event(CLOSED, 2)]),
            ["rollout_failed"],
        ),
        (
            record(*two_turns(), events=[event(CLOSED), event(EventKind.DELETED, 2)]),
            ["rollout_deleted"],
        ),
        (record(*two_turns(), purpose=Purpose.EVAL), ["eval_purpose"]),
        (record(), ["no_turns"]),
        (record(failed_call("a", 1)), ["no_turns"]),
        (record(make_call("a", 1, [1], [2], greedy=True)), ["nothing_trainable"]),
        (record(make_call("a", 1, [1], [])), ["nothing_trainable"]),
    ],
)
def test_state_reasons(made: RolloutRecord, expected: list[str]) -> None:
    assert reasons(made) == expected


def test_tok_12_no_turns_and_nothing_trainable_are_distinct() -> None:
    assert reasons(record()) == ["no_turns"]
    masked = make_call("a", 1, [1], [2], constraints=("grammar",))
    assert reasons(record(masked)) == ["nothing_trainable"]


def test_mask_08_a_failed_rollout_without_calls() -> None:
    made = record(events=[event(CLOSED, ok=False, reward=0.0)])
    assert reasons(made) == ["rollout_failed", "no_turns"]


def test_made_up_logprobs_are_refused_whoever_accepts_them() -> None:
    made = record(*two_turns(), certificate=SCRIPTED, overrides=[override("accept_logprobs")])
    judgement = judge(made, Policy(allow_uncertified=True))
    assert {reason.code for reason in judgement.reasons} == {
        "scripted_engine",
        "nothing_trainable",
    }
    assert judgement.notices == ()


@pytest.mark.parametrize(
    ("certificate", "code"),
    [(None, "uncertified_engine"), (RAW, "raw_logprobs")],
)
def test_uncertified(certificate: Any, code: str) -> None:
    made = record(*two_turns(), certificate=certificate)
    assert set(reasons(made)) == {code, "nothing_trainable"}
    judgement = judge(made, Policy(allow_uncertified=True))
    assert judgement.trainable
    assert len(judgement.notices) == 1
    assert "accepted by the operator" in judgement.notices[0]
    assert code in {item.code for item in judgement.findings if item.grade is Grade.WARN}


def test_a_person_may_accept_a_logprob_kind() -> None:
    accept = override("accept_logprobs")
    judgement = judge(record(*two_turns(), certificate=RAW, overrides=[accept]))
    assert judgement.trainable
    assert "accepted by ada: because" in judgement.notices[0]
    one = override("accept_logprobs", "a")
    assert reasons(record(*two_turns(), certificate=RAW, overrides=[one])) == ["raw_logprobs"]
    both = [one, override("accept_logprobs", "b")]
    assert reasons(record(*two_turns(), certificate=RAW, overrides=both)) == []


def null_second() -> tuple[Call, Call]:
    first, second = two_turns()
    return first, replace(
        second, logprobs=make_call("x", 1, [1], [6], logprobs=[None]).logprobs
    )


def test_a_null_logprob_refuses_until_the_call_is_dropped() -> None:
    made = record(*null_second())
    assert reasons(made) == ["logprob_missing"]
    assert judge(made).reasons[0].call_ids == ("b",)
    dropped = record(*null_second(), overrides=[override("exclude_call", "b")])
    assert reasons(dropped) == []
    assert judge(dropped).masks[CallId("b")].reason is MaskReason.EXCLUDED_BY_USER


@pytest.mark.parametrize("kind", ["auxiliary", "discarded", "failed", "subagent"])
def test_one_bad_other_call_never_blocks_the_agent(kind: str) -> None:
    first, second = two_turns()
    bad = {
        "auxiliary": make_call("x", 0, [90], [91, 92], logprobs=[None]),
        "discarded": make_call("x", 0, [1, 2], [91], logprobs=[None], n_tools=2),
        "failed": failed_call("x", 0, n_tools=2),
        "subagent": make_call(
            "x", 3, [90], [91], logprobs=[None], n_tools=1, claims={"parent": "main"}
        ),
    }[kind]
    judgement = judge(record(first, second, bad))
    assert judgement.roles[CallId("x")].role == kind
    assert judgement.trainable
    assert judgement.supervised_tokens == 3


def test_an_included_subagent_blocks_like_the_agent() -> None:
    sub = make_call("x", 3, [90], [91], logprobs=[None], n_tools=1, claims={"parent": "main"})
    made = record(*two_turns(), sub)
    assert reasons(made, Policy(include_subagents=True)) == ["logprob_missing"]


def test_the_only_agent_attempt_failed() -> None:
    made = record(TITLE, failed_call("main", 1, n_tools=5))
    assert reasons(made) == ["nothing_trainable"]
    assert judge(made).supervised_tokens == 0


def test_rollout_findings() -> None:
    first, second = two_turns()
    lone = make_call("a", 1, [1], [2])
    assert "degenerate_rollout" in finding_codes(record(lone))
    assert "degenerate_rollout" not in finding_codes(record(first, second))
    rooted = record(first, second, make_call("k", 3, [1, 2, 3, 9], [1], n_tools=2))
    assert {"multiple_roots", "prefix_break"} <= finding_codes(rooted)
    (broke,) = [f for f in judge(rooted).findings if f.code == "prefix_break"]
    assert "left call b at 3: expected 4 got 9; no cause can be named" in broke.message
    assert broke.where.call_id == "k"
    twins = record(first, second, make_call("c", 3, [1, 2, 3, 4, 5], [7], n_tools=2))
    assert {"ambiguous_siblings", "forks"} <= finding_codes(twins)
    retry = make_call("a2", 3, [1, 2], [8], n_tools=2)
    assert "discarded_turns" in finding_codes(record(first, second, retry))
    refused = failed_call("r", 9, status=CallStatus.REFUSED, failure_kind=FailureKind.BUDGET)
    assert "calls_refused" in finding_codes(record(first, second, refused))
    waiting = record(first, second, open_calls=[admission("o", 9)])
    assert "open_at_close" in finding_codes(waiting)
    left = event(CLOSED, ok=True, payload={"exit_code": 3})
    assert "harness_exit" in finding_codes(record(first, second, events=[left]))
    assert not finding_codes(record(first, second))


def test_mask_07_a_twin_parent_is_recorded_and_counted_once() -> None:
    twin_a = make_call("A", 1, [1, 2], [3])
    twin_b = make_call("B", 2, [1, 2], [3])
    child = make_call("C", 3, [1, 2, 3, 4], [5])
    judgement = judge(record(twin_a, twin_b, child))
    assert "ambiguous_parent" in {finding.code for finding in judgement.findings}
    assert judgement.roles[CallId("B")].role is Role.DISCARDED
    assert judgement.supervised_tokens == 2


def test_mask_02_both_branches_keep_their_valid_rows() -> None:
    one = make_call("t1", 1, [1, 2], [3, 4])
    two = make_call("t2", 2, [1, 2, 3, 9, 5], [6])
    judgement = judge(record(one, two))
    assert judgement.trainable
    assert judgement.masks[CallId("t1")].bits().tolist() == [0, 0, 1, 1]
    assert judgement.masks[CallId("t2")].bits().tolist() == [0, 0, 0, 0, 0, 1]


def test_tool_07_a_turn_whose_echo_the_engine_refuses_stays_trainable() -> None:
    judgement = judge(record(make_call("a", 1, [1, 2], [3, 4]), failed_call("b", 2)))
    assert judgement.trainable
    assert judgement.masks[CallId("a")].bits().tolist() == [0, 0, 1, 1]
    assert judgement.supervised_tokens == 2


@pytest.mark.parametrize(
    ("kind", "call_id", "fields", "ignored"),
    [
        ("exclude_call", "gone", {}, True),
        ("exclude_call", None, {}, True),
        ("exclude_call", "a", {}, False),
        ("exclude_span", "a", {"start": 0, "end": 2}, True),
        ("exclude_span", "a", {"start": 9, "end": 12}, True),
        ("exclude_span", "a", {"start": 2, "end": 3}, False),
        ("role", "a", {}, True),
        ("supply_logprobs", "a", {}, True),
        ("accept_logprobs", None, {}, False),
    ],
)
def test_overrides_that_name_nothing(
    kind: str, call_id: str | None, fields: dict[str, Any], ignored: bool
) -> None:
    made = record(*two_turns(), overrides=[override(kind, call_id, **fields)])
    assert ("override_ignored" in finding_codes(made)) == ignored


def test_findings_are_worst_first() -> None:
    made = record(*null_second(), failed_call("f", 9), events=())
    grades = [finding.grade for finding in judge(made).findings]
    assert grades == sorted(grades, key=[Grade.FATAL, Grade.WARN, Grade.INFO].index)


def test_one_reason_per_code_names_all_calls() -> None:
    first, second = two_turns()
    made = record(replace(first, logprobs=None), replace(second, logprobs=None))
    (reason,) = [item for item in judge(made).reasons if item.code == "no_logprobs"]
    assert reason.call_ids == ("a", "b")


def test_inputs_hash() -> None:
    first, second = two_turns()
    base = judge(record(first, second)).inputs_sha256
    assert judge(record(second, first)).inputs_sha256 == base
    different = [
        judge(record(first, second), Policy(train_greedy=True)),
        judge(record(first, second, events=())),
        judge(record(first, second, certificate=RAW)),
        judge(record(first, second, overrides=[override("exclude_call", "a")])),
        judge(record(first, replace(second, logprobs=logprobs_of([-9.0])))),
        judge(record(first)),
    ]
    assert base not in {item.inputs_sha256 for item in different}
    shown = judge(record(first, replace(second, preview="other text")))
    assert shown.inputs_sha256 == base


def test_findings_of_a_call() -> None:
    judgement = judge(record(*null_second()))
    assert [item.code for item in judgement.findings_of(CallId("b"))] == ["logprob_missing"]


def test_a_turn_rendered_anew_below_a_root_is_a_prefix_break_and_a_plain_fork_is_none() -> None:
    said: dict[str, Any] = {"system_digest": "S", "tools_digest": "T", "n_tools": 1}
    root = make_call("a", 1, [1, 2], [3], message_digests=("u",), reply_digest="r", **said)
    first = make_call(
        "b",
        2,
        [1, 2, 3, 4],
        [5],
        parent=root,
        message_digests=("u", "r", "t"),
        reply_digest="s",
        **said,
    )
    forked = make_call(
        "c", 3, [1, 2, 3, 9], [6], parent=root, message_digests=("u", "r", "x"), **said
    )
    anew = make_call(
        "d",
        4,
        [1, 2, 3, 4, 7],
        [8],
        parent=root,
        message_digests=("u", "r", "t", "s", "w"),
        **said,
    )
    breaks = [
        (finding.where.call_id, finding.grade)
        for finding in judge(record(root, first, forked, anew)).findings
        if finding.code == "prefix_break"
    ]
    assert breaks == [("d", Grade.WARN)]
