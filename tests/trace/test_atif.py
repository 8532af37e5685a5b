"""A harness's own trajectory against the record: what agrees and what it forbids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.records import (
    Call,
    CallId,
    EventKind,
    Finding,
    Grade,
    Purpose,
    Role,
    RolloutRecord,
)
from explorer.trace import atif_document
from explorer.trace.atif import Agreement, agreement
from explorer.trace.atif_document import read_trajectory
from explorer.trace.findings import FINDINGS
from explorer.trace.trajectory import trajectory_of
from explorer.trace.verdict import Judgement, judge
from tests.trace.build import event, make_call, override, record

OPENENV = {
    Grade.FATAL: (
        "no_agent_sequence",
        "atif_coverage_too_low",
        "turn_mismatch",
        "atif_subagents",
    ),
    Grade.WARN: (
        *("atif_synthetic_api_error", "atif_calls_missing", "atif_partial_usage"),
        *("atif_no_token_counts", "atif_aux_calls", "prompt_len_mismatch", "atif_retries"),
    ),
    Grade.INFO: (
        *("no_atif", "atif_version", "atif_no_agent_steps", "eval_reconcile_counts_only"),
        *("atif_extra_calls", "proxy_budget_stops", "no_turns_upstream", "turns_match"),
    ),
}


def step(completion: Any, prompt: Any = None, **more: Any) -> dict[str, Any]:
    """One step of the agent."""
    metrics = {"completion_tokens": completion, "prompt_tokens": prompt}
    told = {key: value for key, value in metrics.items() if value is not None}
    ids = {key: more.pop(key) for key in tuple(more) if key.endswith("_ids")}
    return {"source": "agent", "message": "m", "metrics": told | ids} | more


def document(*steps: Any, **more: Any) -> dict[str, Any]:
    """A trajectory with these steps behind the task's own."""
    numbered = [{"source": "user", "message": "task"}, *steps]
    return {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "an-agent"},
        "steps": [each | {"step_id": n} for n, each in enumerate(numbered, 1)],
    } | more


def chain(*lengths: int, n_tools: int = 1) -> tuple[Call, ...]:
    """A conversation whose turns sample so many tokens each."""
    calls: list[Call] = []
    whole: list[int] = [1, 2]
    for number, length in enumerate(lengths, 1):
        sampled = list(range(number * 100, number * 100 + length))
        before = calls[-1] if calls else None
        calls.append(
            make_call(f"c{number}", number, whole, sampled, parent=before, n_tools=n_tools)
        )
        whole = [*whole, *sampled, 7]
    return tuple(calls)


def told(calls: Sequence[Call], *steps: Any, **more: Any) -> RolloutRecord:
    """A rollout closed with this trajectory."""
    given = read_trajectory(document(*steps, **more)).payload()
    # As the store gives it back.
    payload = {"trajectory": json.loads(json.dumps(given))}
    closed = event(EventKind.CLOSED, ok=True, reward=1.0, payload=payload)
    return record(*calls, events=(closed,))


def found(judgement: Judgement) -> dict[str, Finding]:
    """The findings about the trajectory by code, but for the one that is always there."""
    known = {code for codes in OPENENV.values() for code in codes} | {"atif_ids_differ"}
    return {
        finding.code: finding
        for finding in judgement.findings
        if finding.code in known and finding.code != "atif_version"
    }


def result(judgement: Judgement) -> Agreement:
    return agreement(judgement.findings)


def test_every_code_of_openenv_is_known_with_its_grade() -> None:
    for grade, codes in OPENENV.items():
        assert {FINDINGS[code].grade for code in codes} == {grade}


def test_a_trajectory_that_agrees() -> None:
    judgement = judge(told(chain(3, 4, 5), step(3, 2), step(4, 6), step(5, 11)))
    assert list(found(judgement)) == ["turns_match"]
    assert "3 calls, 12 sampled tokens" in found(judgement)["turns_match"].message
    assert judgement.trainable
    assert result(judgement) is Agreement.MATCH


def test_no_trajectory_and_none_expected_says_nothing() -> None:
    judgement = judge(record(*chain(3)))
    assert not [f for f in judgement.findings if f.code in ("no_atif", "atif_version")]
    assert result(judgement) is Agreement.NONE


def test_an_expected_trajectory_that_is_not_there_is_a_note() -> None:
    closed = event(
        EventKind.CLOSED, ok=True, payload={"trajectory_problem": "The run wrote no file x."}
    )
    judgement = judge(record(*chain(3), events=(closed,)))
    assert found(judgement)["no_atif"].grade is Grade.INFO
    assert "wrote no file x" in found(judgement)["no_atif"].message
    assert judgement.trainable


@pytest.mark.parametrize("steps", [(3, 9, 5), (4, 3, 5), (3, 4, 5, 6), (9,)])
def test_other_counts_forbid_training(steps: tuple[int, ...]) -> None:
    judgement = judge(told(chain(3, 4, 5), *map(step, steps)))
    code = "atif_calls_missing" if steps == (3, 4, 5, 6) else "turn_mismatch"
    assert found(judgement)[code].grade is Grade.FATAL
    assert code in {reason.code for reason in judgement.reasons}
    assert not judgement.trainable
    assert result(judgement) is Agreement.MISMATCH


def test_a_mismatch_names_the_first_call_that_differs_and_both_lists() -> None:
    judgement = judge(told(chain(3, 4, 5), step(3), step(9), step(5)))
    finding = found(judgement)["turn_mismatch"]
    assert finding.where.call_id == "c2"
    assert "[3, 4, 5]" in finding.message
    assert "[3, 9, 5]" in finding.message


def test_a_call_of_the_agent_that_is_not_listed_must_not_train() -> None:
    calls = chain(3, 4, 5, 6)
    judgement = judge(told(calls, step(3), step(5), step(6)))
    finding = found(judgement)["atif_aux_calls"]
    assert (finding.grade, finding.where.call_id) == (Grade.FATAL, "c2")
    assert not judgement.trainable
    assert "role auxiliary" in finding.hint


def test_once_its_role_is_overridden_the_others_train() -> None:
    calls = chain(3, 4, 5, 6)
    before = told(calls, step(3), step(5), step(6))
    roled = replace(before, overrides=(override("role", "c2", role=Role.AUXILIARY),))
    judgement = judge(roled)
    assert judgement.masks[CallId("c2")].supervised == 0
    assert found(judgement)["atif_extra_calls"].grade is Grade.INFO
    assert judgement.trainable
    assert result(judgement) is Agreement.MATCH


def test_where_counts_do_not_tell_which_call_is_missing_each_of_them_is_named() -> None:
    """One of two calls with four tokens is listed; to exclude one may keep the wrong one."""
    base = told(chain(3, 4, 4, 6), step(3), step(4), step(6))
    finding = found(judge(base))["atif_aux_calls"]
    assert "c2, c3" in finding.message
    assert finding.grade is Grade.FATAL
    one = replace(base, overrides=(override("exclude_call", "c3"),))
    assert not judge(one).trainable
    both = replace(
        base, overrides=(override("exclude_call", "c2"), override("exclude_call", "c3"))
    )
    assert judge(both).trainable
    assert found(judge(both))["atif_aux_calls"].grade is Grade.WARN


@given(counts=st.lists(st.integers(1, 3), min_size=2, max_size=9), data=st.data())
def test_no_call_that_is_left_out_ever_trains(counts: list[int], data: st.DataObject) -> None:
    """Whichever calls a harness leaves out: training is refused, or names all of them."""
    listed = data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    steps = [step(count) for count, kept in zip(counts, listed, strict=True) if kept]
    left_out = {f"c{n}" for n, kept in enumerate(listed, 1) if not kept}
    judgement = judge(told(chain(*counts), *steps))
    if not steps:
        assert "atif_no_agent_steps" in found(judgement)
    elif left_out:
        assert not judgement.trainable
        code = "atif_coverage_too_low" if 2 * len(steps) < len(counts) else "atif_aux_calls"
        finding = found(judgement)[code]
        if code == "atif_aux_calls":
            named = finding.message.partition("not in it: ")[2].partition(".")[0]
            assert left_out <= set(named.split(", "))
    else:
        assert judgement.trainable
        assert result(judgement) is Agreement.MATCH


def test_ids_tell_which_call_is_missing_where_counts_do_not() -> None:
    calls = chain(3, 4, 4, 6)
    ids = [300, 301, 302, 303]
    listed = (step(3), step(4, completion_token_ids=ids), step(6))
    finding = found(judge(told(calls, *listed)))["atif_aux_calls"]
    assert "not in it: c2." in finding.message


def test_too_few_steps_agree_by_chance() -> None:
    judgement = judge(told(chain(3, 4, 5, 6, 7), step(4), step(7)))
    assert found(judgement)["atif_coverage_too_low"].grade is Grade.FATAL
    assert result(judgement) is Agreement.MISMATCH


def test_calls_that_we_mask_anyway_need_not_be_listed() -> None:
    title = make_call("t", 9, [8, 8], [9, 9], n_tools=0)
    judgement = judge(told((*chain(3, 4), title), step(3), step(4)))
    assert judgement.roles[CallId("t")].role is Role.AUXILIARY
    assert set(found(judgement)) == {"atif_extra_calls", "turns_match"}
    assert judgement.trainable


def test_a_trajectory_puts_no_token_in() -> None:
    """It lists a call that we take for auxiliary; that call stays masked."""
    title = make_call("t", 9, [8, 8], [9, 9], n_tools=0)
    judgement = judge(told((*chain(3, 4), title), step(3), step(4), step(2)))
    assert judgement.masks[CallId("t")].supervised == 0
    assert result(judgement) is Agreement.MATCH


def test_partly_counted_and_not_counted_trajectories() -> None:
    partly = judge(told(chain(3, 4), step(3), step(None)))
    assert set(found(partly)) == {"atif_partial_usage"}
    assert partly.trainable
    assert result(partly) is Agreement.MATCH
    zeros = judge(told(chain(3, 4), step(0), step(0)))
    assert set(found(zeros)) == {"atif_no_token_counts"}
    assert result(zeros) is Agreement.NONE
    assert zeros.trainable
    more = judge(told(chain(3, 4), step(0), step(0), step(0)))
    assert found(more)["atif_calls_missing"].grade is Grade.WARN
    assert result(more) is Agreement.MISMATCH


def test_an_evaluation_is_compared_and_never_refused_for_it() -> None:
    given = told(chain(3, 4), step(None), step(None))
    evaluation = replace(given, rollout=replace(given.rollout, purpose=Purpose.EVAL))
    assert "eval_reconcile_counts_only" in found(judge(evaluation))
    given = told(chain(3, 4), step(3), step(4), step(5))
    evaluation = replace(given, rollout=replace(given.rollout, purpose=Purpose.EVAL))
    assert found(judge(evaluation))["atif_calls_missing"].grade is Grade.WARN


def test_steps_that_stand_for_no_call_of_their_own() -> None:
    broke = step(0, 0, model_name="<synthetic>", message="API Error: 529")
    copied = step(77, is_copied_context=True)
    machine = {"source": "agent", "message": "m", "llm_call_count": 0}
    judgement = judge(told(chain(3, 4), copied, step(3), machine, broke, step(4)))
    assert set(found(judgement)) == {"turns_match", "atif_synthetic_api_error"}
    # Without its mark it is a step like any other.
    plain = step(0, 0, message="API Error: 529")
    counted = judge(told(chain(3, 4, 5), step(3), plain, step(4), step(5)))
    assert found(counted)["atif_calls_missing"].grade is Grade.FATAL


def test_a_step_of_several_calls_adds_them_up() -> None:
    judgement = judge(told(chain(3, 4, 5), step(7, llm_call_count=2), step(5)))
    assert set(found(judgement)) == {"turns_match", "atif_retries"}
    assert "turn_mismatch" in found(judge(told(chain(3, 4, 5), step(7), step(5))))


def test_a_reply_that_the_proxy_wrote() -> None:
    first, second = chain(3, 4)
    stop = make_call("s", 3, [1], [], injected=True, n_tools=1)
    judgement = judge(told((first, second, stop), step(3), step(4), step(0)))
    assert set(found(judgement)) == {"turns_match", "proxy_budget_stops"}
    # Nor need it be listed.
    unlisted = judge(told((first, second, stop), step(3), step(4)))
    assert set(found(unlisted)) == {"turns_match"}


def test_a_prompt_of_another_length() -> None:
    judgement = judge(told(chain(3, 4), step(3, 2), step(4, 99)))
    finding = found(judgement)["prompt_len_mismatch"]
    assert finding.where.call_id == "c2"
    assert "6 tokens here, 99 there" in finding.message
    assert judgement.trainable


@pytest.mark.parametrize(
    ("ids", "start"),
    [
        ({"completion_token_ids": [100, 101, 999]}, 4),
        ({"prompt_token_ids": [1, 9], "completion_token_ids": [100, 101, 102]}, 1),
        ({"prompt_token_ids": [1, 2, 3]}, 2),
    ],
)
def test_an_id_that_differs_is_named_with_its_place(ids: dict[str, Any], start: int) -> None:
    judgement = judge(told(chain(3, 4), step(3, **ids), step(4)))
    assert set(found(judgement)) == {"atif_ids_differ"}
    finding = found(judgement)["atif_ids_differ"]
    assert finding.grade is Grade.FATAL
    assert (finding.where.call_id, finding.where.start, finding.where.end) == (
        "c1",
        start,
        start + 1,
    )
    assert not judgement.trainable
    assert result(judgement) is Agreement.MISMATCH


def test_the_same_ids_agree_though_prompts_are_kept_as_what_they_add() -> None:
    calls = chain(3, 4)
    given = document(
        step(3, prompt_token_ids=[1, 2], completion_token_ids=[100, 101, 102]),
        step(4, prompt_token_ids=[1, 2, 100, 101, 102, 7]),
    )
    kept = read_trajectory(given).payload()
    assert [each.get("prompt_rest") for each in kept["steps"]] == [[1, 2], [7]]
    closed = event(EventKind.CLOSED, ok=True, payload={"trajectory": kept})
    judgement = judge(record(*calls, events=(closed,)))
    assert set(found(judgement)) == {"turns_match"}


def test_too_many_ids_are_left_out_and_counts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atif_document, "MAX_IDS", 4)
    given = document(step(5, completion_token_ids=[1, 2, 3, 4, 5]))
    kept = read_trajectory(given)
    assert kept.ids_left_out
    assert kept.payload()["steps"] == [{"step": 2, "completion": 5}]


def subagent(*lengths: int) -> dict[str, Any]:
    return document(*map(step, lengths), agent={"name": "child"}, trajectory_id="x")


def test_subagents_forbid_training_unless_all_their_calls_are_known() -> None:
    unknown = judge(told(chain(3, 4), step(3), step(4), subagent_trajectories=[subagent(8)]))
    assert found(unknown)["atif_subagents"].grade is Grade.FATAL
    assert result(unknown) is Agreement.MISMATCH
    child = make_call("x", 9, [8, 8], list(range(8)), n_tools=1)
    roled = replace(
        told((*chain(3, 4), child), step(3), step(4), subagent_trajectories=[subagent(8)]),
        overrides=(override("role", "x", role=Role.SUBAGENT),),
    )
    known = judge(roled)
    assert found(known)["atif_subagents"].grade is Grade.WARN
    assert known.trainable
    twice = replace(
        told(
            (*chain(3, 4), child),
            *(step(3), step(4)),
            subagent_trajectories=[subagent(8), subagent(8)],
        ),
        overrides=roled.overrides,
    )
    assert found(judge(twice))["atif_subagents"].grade is Grade.FATAL


def test_without_calls_or_steps_there_is_nothing_to_compare() -> None:
    assert "no_turns_upstream" in found(judge(told((), step(3))))
    assert "atif_no_agent_steps" in found(judge(told(chain(3))))
    title = chain(3)
    roled = replace(
        told(title, step(3)), overrides=(override("role", "c1", role=Role.AUXILIARY),)
    )
    assert found(judge(roled))["no_agent_sequence"].grade is Grade.FATAL


@pytest.mark.parametrize("version", ["ATIF-v1.0", "ATIF-v1.8", "ATIF-v9", 7, None])
def test_the_version_is_told_and_an_unknown_one_is_read_all_the_same(version: Any) -> None:
    judgement = judge(told(chain(3), step(3), schema_version=version))
    (finding,) = [f for f in judgement.findings if f.code == "atif_version"]
    assert ("unknown here" in finding.message) is (version not in ("ATIF-v1.0", "ATIF-v1.8"))
    assert "turns_match" in found(judgement)


HOSTILE: list[Any] = [
    [],
    "x",
    7,
    {},
    {"steps": "no"},
    {"steps": {}},
    {"steps": [{}] * (atif_document.MAX_STEPS + 1)},
    {"steps": [], "subagent_trajectories": [{}] * (atif_document.MAX_SUBAGENTS + 1)},
]


@pytest.mark.parametrize("given", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_trajectory_is_refused_in_words(given: Any) -> None:
    with pytest.raises(InvalidValue, match="trajectory"):
        read_trajectory(given)


ODD: list[Any] = [None, True, -1, 1.5, 2**70, "7", [], {}, [1, "x"], [2**31], "\ud800"]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_any_value_may_be_of_any_type(odd: Any) -> None:
    """What cannot be read is not told; it is never taken for a count or an id."""
    steps = [
        odd,
        {"source": odd},
        {"source": "agent", "metrics": odd, "observation": odd, "message": odd},
        step(odd, odd, llm_call_count=odd, completion_token_ids=odd, prompt_token_ids=odd),
        {"source": "agent", "observation": {"results": odd}},
        {"source": "agent", "observation": {"results": [{"subagent_trajectory_ref": odd}]}},
    ]
    given = {"steps": steps, "agent": odd, "schema_version": odd} | {
        "subagent_trajectories": [odd, {"steps": odd}, {"agent": {"name": odd}}]
    }
    kept = read_trajectory(given)
    assert all(each.completion is None and each.prompt is None for each in kept.steps)
    judge(told(chain(3), *steps[1:]))


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_a_stored_payload_may_be_anything_too(odd: Any) -> None:
    for payload in (
        {"trajectory": odd},
        {"trajectory": {"steps": odd, "subagents": odd, "version": odd}},
        {"trajectory": {"steps": [odd, {"prompt_rest": [1], "prompt_shared": odd}]}},
        {"trajectory": {"subagents": [odd, {"steps": [odd]}]}},
        {"trajectory_problem": odd},
    ):
        closed = event(EventKind.CLOSED, ok=True, payload=payload)
        judge(record(*chain(3), events=(closed,)))


def test_prompts_put_together_are_limited() -> None:
    """A crafted payload names the same long prompt in every step."""
    long = {"completion": 3, "prompt_shared": 0, "prompt_rest": list(range(100_000))}
    again = [{"completion": 3, "prompt_shared": 100_000, "prompt_rest": []}] * 5_000
    kept = trajectory_of(
        [event(EventKind.CLOSED, payload={"trajectory": {"steps": [long, *again]}})]
    )
    assert kept is not None
    whole = [each for each in kept.steps if each.prompt_ids is not None]
    assert 70 < len(whole) < 90
