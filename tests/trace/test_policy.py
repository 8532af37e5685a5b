"""Policies: by name, from a file's values, and what each switch does to a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from explorer.errors import ConfigurationError, NotTrainable
from explorer.policies import policy_of
from explorer.records import CallStatus, FailureKind, Note, Purpose, Role
from explorer.settings import load
from explorer.trace.assemble import training_trace
from explorer.trace.policy import DEFAULT_POLICY, SHIPPED, Crossing, Policy, read_policy
from explorer.trace.refusals import Need, refusals
from explorer.trace.verdict import judge
from tests.trace.build import make_call, override, record, two_turns


def last_reason(policy: Policy, **fields: Any) -> str:
    call = make_call("a", 1, [1, 2], [3, 4], **fields)
    made = record(call)
    return str(judge(made, policy).masks[call.call_id].own[-1].reason)


def codes(policy: Policy, *calls: Any, **more: Any) -> list[str]:
    return [reason.code for reason in judge(record(*calls, **more), policy).reasons]


def test_each_switch_moves_its_own_tokens_only() -> None:
    stop = Policy("p", train_stop_token=False)
    assert last_reason(stop) == "stop_policy"
    assert last_reason(DEFAULT_POLICY) == "sampled"
    # A stop text is no token; a stop id is named by its number.
    assert last_reason(stop, stop_reason="</answer>") == "sampled"
    assert last_reason(stop, stop_reason="4") == "stop_policy"
    assert last_reason(stop, finish_reason="length") == "sampled"
    unread = {"notes": (Note("tool_call_as_text", "<tool_call>"),), "n_tools": 1}
    strict = SHIPPED["strict"]
    assert last_reason(strict, **unread) == "unparsed_policy"
    assert last_reason(DEFAULT_POLICY, **unread) == "sampled"
    # Without tools a marker is only a text.
    assert last_reason(strict, notes=unread["notes"]) == "sampled"
    assert last_reason(strict, finish_reason="length") == "truncated_policy"


def test_what_an_engine_cut_short_trains_only_when_asked() -> None:
    cut: dict[str, Any] = {
        "status": CallStatus.ABORTED,
        "failure_kind": FailureKind.ENGINE_ABORTED,
        "finish_reason": "abort",
    }
    assert last_reason(DEFAULT_POLICY, **cut) == "aborted"
    keep = Policy("p", train_aborted=True)
    assert last_reason(keep, **cut) == "sampled"
    # What the client or the server ended has no whole reply, whatever the policy.
    gone = cut | {"failure_kind": FailureKind.CLIENT_GONE}
    assert last_reason(keep, **gone) == "aborted"
    # Its data is held to the same rules as any other.
    assert last_reason(keep, **cut, usage_completion=9) == "count_mismatch"
    call = make_call("a", 1, [1, 2], [3, 4], **cut)
    made = record(call)
    turns = orjson.loads(b"".join(training_trace(made, judge(made, keep))))["turns"]
    assert turns[0]["loss_mask"] == [0, 0, 1, 1]


def test_a_cut_answer_that_was_thrown_away_trains_under_no_policy() -> None:
    """The harness asked again, and went on from the whole answer."""
    keep = Policy("p", train_aborted=True)
    cut = make_call(
        "a",
        1,
        [1, 2],
        [3],
        status=CallStatus.ABORTED,
        failure_kind=FailureKind.ENGINE_ABORTED,
        finish_reason="abort",
    )
    whole = make_call("b", 2, [1, 2], [4])
    after = make_call("c", 3, [1, 2, 4, 5], [6])
    judgement = judge(record(cut, whole, after), keep)
    assert judgement.roles[cut.call_id].role is Role.DISCARDED
    assert judgement.supervised_tokens == 2
    # Of two answers that nobody went on from, neither trains.
    unsure = judge(record(cut, whole), keep)
    assert unsure.supervised_tokens == 0
    assert {item.code for item in unsure.findings} >= {"ambiguous_siblings"}


def test_a_crossing_refuses_masks_or_trains() -> None:
    first, second = two_turns()
    crossed = replace(second, weight_version_end=8)
    assert codes(DEFAULT_POLICY, first, crossed) == ["version_crossed"]
    assert codes(SHIPPED["async"], first, crossed) == []
    assert last_reason(SHIPPED["async"], weight_version_end=8) == "version_crossed"
    assert last_reason(Policy("p", version_crossed=Crossing.TRAIN), weight_version_end=8) == (
        "sampled"
    )
    # A person may accept it, or drop the call; an auxiliary call never blocks.
    accepted = override("accept_versions", "b")
    assert codes(DEFAULT_POLICY, first, crossed, overrides=[accepted]) == []
    dropped = override("exclude_call", "b")
    assert codes(DEFAULT_POLICY, first, crossed, overrides=[dropped]) == []
    title = make_call("t", 9, [90], [91], weight_version_end=8)
    assert judge(record(first, second, title)).roles[title.call_id].role is Role.AUXILIARY
    assert codes(DEFAULT_POLICY, first, second, title) == []


def test_a_reader_that_needs_a_reward() -> None:
    first, second = two_turns()
    unscored = record(first, second, events=[replace(record(first).events[0], reward=None)])
    judgement = judge(unscored)
    assert judgement.trainable
    b"".join(training_trace(unscored, judgement))
    assert [reason.code for reason in refusals(judgement, [Need.REWARD])] == ["reward_missing"]
    with pytest.raises(NotTrainable) as told:
        training_trace(unscored, judgement, [Need.REWARD])
    assert told.value.details["reasons"][0]["code"] == "reward_missing"
    made = record(first, second)
    made = replace(made, rollout=replace(made.rollout, purpose=Purpose.EVAL))
    both = [r.code for r in refusals(judge(made), [Need.REWARD])]
    assert both == ["eval_purpose"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "needs a `name`"),
        ({"name": "default"}, "ships"),
        ({"name": "x", "version": 0}, "whole number"),
        ({"name": "x", "version": True}, "whole number"),
        ({"name": "x", "train_greed": True}, "train_greedy"),
        ({"name": "x", "train_greedy": 1}, "true or false"),
        ({"name": "x", "version_crossed": "maybe"}, "`refuse`"),
        ({"name": "x", "version_crossed": ["refuse"]}, "`refuse`"),
        ({"name": ["x"]}, "needs a `name`"),
    ],
)
def test_a_wrong_policy_says_what_to_change(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_policy(values)


def test_settings_name_a_policy_or_a_file(tmp_path: Any) -> None:
    assert policy_of(load()) == DEFAULT_POLICY
    assert policy_of(load(policy="async")).version_crossed is Crossing.MASK
    named = policy_of(load(allow_uncertified=True))
    assert named.name == "default+allow_uncertified"
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nversion = 3\ntrain_stop_token = false\n')
    mine = policy_of(load(policy=str(path)))
    assert (mine.name, mine.version, mine.train_stop_token) == ("mine", 3, False)
    assert mine.sha256 != DEFAULT_POLICY.sha256
    path.write_text("name = ")
    with pytest.raises(ConfigurationError, match="not TOML"):
        policy_of(load(policy=str(path)))
    with pytest.raises(ConfigurationError, match="default, strict, async"):
        policy_of(load(policy="carefull"))
