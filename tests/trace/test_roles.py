"""Roles from structure, one small rollout per rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.records import Call, CallId, CallStatus, Note, Override, Role
from explorer.trace.roles import RoleDecision, assign_roles
from explorer.trace.tree import build_tree
from explorer.trace.verdict import judge
from tests.trace.build import (
    admission,
    failed_call,
    make_call,
    override,
    record,
    two_turns,
)


def decide(
    *calls: Call, overrides: tuple[Override, ...] = (), **more: Any
) -> dict[str, RoleDecision]:
    decisions = assign_roles(build_tree(calls), calls, overrides, **more)
    return {str(name): decision for name, decision in decisions.items()}


def roles(*calls: Call, **more: Any) -> dict[str, str]:
    return {name: str(item.role) for name, item in decide(*calls, **more).items()}


TITLE = make_call("title", 0, [90, 91], [92], n_tools=0)


def test_mask_12_thirteen_calls_without_tools_are_all_agent() -> None:
    calls: list[Call] = []
    prompt = [1]
    for number in range(13):
        calls.append(make_call(str(number), number, prompt, [2]))
        prompt = [*prompt, 2, 3]
    assert set(roles(*calls).values()) == {"agent"}
    assert decide(*calls)["0"].rule == "tools_do_not_discriminate"


def test_a_title_call_beside_tools_is_auxiliary() -> None:
    decided = decide(TITLE, *two_turns())
    assert decided["title"].role is Role.AUXILIARY
    assert decided["title"].rule == "no_tools_on_path"
    assert decided["a"].rule == "tool_bearing_path"


def test_a_failed_attempt_with_tools_still_counts() -> None:
    decided = roles(TITLE, failed_call("main", 1, n_tools=5))
    assert decided == {"title": "auxiliary", "main": "failed"}


def test_a_refused_or_open_attempt_with_tools_counts_too() -> None:
    refused = failed_call("main", 1, n_tools=5, status=CallStatus.REFUSED)
    assert roles(TITLE, refused) == {"title": "auxiliary"}
    assert roles(TITLE, open_calls=[admission("main", 1, 5)]) == {"title": "auxiliary"}


def test_a_tool_less_call_on_a_tool_bearing_path_is_agent() -> None:
    first = make_call("a", 1, [1], [2], n_tools=0)
    second = make_call("b", 2, [1, 2, 3], [4], n_tools=3)
    last = make_call("c", 3, [1, 2, 3, 4, 5], [6], n_tools=0)
    side = make_call("d", 4, [7], [8], n_tools=0)
    assert roles(first, second, last, side) == {
        "a": "agent",
        "b": "agent",
        "c": "agent",
        "d": "auxiliary",
    }


@pytest.mark.parametrize("status", [CallStatus.FAILED, CallStatus.ABORTED, CallStatus.OPEN])
def test_failed(status: CallStatus) -> None:
    bad = make_call("x", 2, [5], [6], status=status)
    assert decide(make_call("a", 1, [1], [2]), bad)["x"].rule == "failed_status"


def test_a_childless_sibling_of_a_continued_call_is_discarded() -> None:
    root = make_call("r", 1, [1], [2])
    unused = make_call("a", 2, [1, 2, 3], [4])
    used = make_call("b", 3, [1, 2, 3], [5])
    after = make_call("c", 4, [1, 2, 3, 5, 6], [7])
    decided = decide(root, unused, used, after)
    assert decided["a"].role is Role.DISCARDED
    assert decided["a"].rule == "sibling_continued"
    assert decided["b"].role is Role.AGENT


def test_roots_with_the_same_prompt_are_siblings() -> None:
    first, second = two_turns()
    retry = make_call("a2", 9, [1, 2], [8], n_tools=2)
    assert roles(first, second, retry)["a2"] == "discarded"


def test_a_fork_with_another_prompt_is_not_discarded() -> None:
    first, second = two_turns()
    other = make_call("c", 3, [1, 2, 3, 4, 9], [6], n_tools=2)
    after = make_call("d", 4, [1, 2, 3, 4, 5, 6, 7], [8], n_tools=2)
    assert roles(first, second, other, after)["c"] == "agent"


def test_two_unanswered_last_siblings_are_ambiguous_agents() -> None:
    first, second = two_turns()
    again = make_call("c", 3, [1, 2, 3, 4, 5], [7], n_tools=2)
    decided = decide(first, second, again)
    for name in ("b", "c"):
        assert decided[name].role is Role.AGENT
        assert decided[name].ambiguous
        assert decided[name].rule == "unanswered_siblings"
    assert not decided["a"].ambiguous


def test_a_failed_twin_makes_nothing_ambiguous() -> None:
    first, second = two_turns()
    twin = make_call("c", 3, [1, 2, 3, 4, 5], [7], status=CallStatus.ABORTED)
    assert not decide(first, second, twin)["b"].ambiguous


def test_override_wins() -> None:
    first, second = two_turns()
    again = make_call("c", 3, [1, 2, 3, 4, 5], [7], n_tools=2)
    chosen = override("role", "c", role=Role.AGENT)
    decided = decide(first, second, again, overrides=(chosen,))
    assert decided["c"] == RoleDecision(Role.AGENT, "override", "ada: because")
    changed = override("role", "a", role=Role.AUXILIARY)
    assert roles(first, second, overrides=(changed,))["a"] == "auxiliary"


def subagent_rollout(**fields: Any) -> tuple[Call, ...]:
    """main asks for tools, a root of its own runs, main goes on."""
    asks = make_call(
        "m1", 1, [1, 2], [3], n_tools=5, system_digest="M", finish_reason="tool_calls"
    )
    facts: dict[str, Any] = {"n_tools": 3, "system_digest": "S"}
    sub = make_call("s1", 2, [8, 8], [9], **(facts | fields))
    sub2 = make_call("s2", 3, [8, 8, 9, 1], [2], **(facts | fields))
    goes_on = make_call("m2", 4, [1, 2, 3, 4], [5], n_tools=5, system_digest="M")
    return asks, sub, sub2, goes_on


def test_subagent_by_structure() -> None:
    decided = decide(*subagent_rollout())
    assert decided["s1"].rule == decided["s2"].rule == "nested_in_tool_call"
    assert decided["s1"].role is Role.SUBAGENT
    assert decided["m2"].role is Role.AGENT


def test_a_child_nobody_waits_for_is_known_by_its_first_words() -> None:
    asks, sub, sub2, goes_on = subagent_rollout(
        notes=(Note("prompt_from_argument", "m1"),), n_tools=3
    )
    # The parent goes on before the child begins, so nothing is nested.
    goes_on = replace(goes_on, sequence=2)
    sub, sub2 = replace(sub, sequence=3), replace(sub2, sequence=4)
    decided = decide(asks, goes_on, sub, sub2)
    assert decided["s1"].rule == decided["s2"].rule == "prompt_from_argument"
    assert decided["m2"].role is Role.AGENT
    # The same agent that begins anew and quotes one of its arguments stays the agent, and so
    # does one whose note names a call that is not there.
    for changed in ({"system_digest": "M"}, {"notes": (Note("prompt_from_argument", "x"),)}):
        again = [replace(call, **changed) for call in (sub, sub2)]
        assert set(roles(asks, goes_on, *again).values()) == {"agent"}


def written_anew() -> tuple[Call, ...]:
    """The same where every turn comes back in other tokens: each call is a root of its own."""
    tools: dict[str, Any] = {"finish_reason": "tool_calls"}
    main: dict[str, Any] = {"n_tools": 5, "system_digest": "M", "tools_digest": "five"}
    sub: dict[str, Any] = {"n_tools": 3, "system_digest": "S", "tools_digest": "three"}
    return (
        make_call("m1", 1, [1], [3], message_digests=("u",), reply_digest="A", **main, **tools),
        make_call("s1", 2, [8], [9], message_digests=("v",), reply_digest="B", **sub, **tools),
        make_call(
            "s2", 4, [8, 7], [2], message_digests=("v", "B", "t"), reply_digest="C", **sub
        ),
        make_call("m2", 5, [1, 7], [5], message_digests=("u", "A", "t"), **main),
    )


def test_a_subagent_is_found_where_every_turn_is_written_anew() -> None:
    decided = decide(*written_anew())
    assert decided["s1"].rule == decided["s2"].rule == "nested_in_tool_call"
    assert "goes on from call s1" in decided["s2"].why
    assert decided["m1"].role is decided["m2"].role is Role.AGENT


def test_a_subagent_that_asks_again_after_its_parent_went_on_is_still_one() -> None:
    """Its first attempt began while the parent waited, and failed."""
    main, sub, after, goes_on = written_anew()
    facts = {"n_tools": 3, "system_digest": "S", "tools_digest": "three"}
    failed = failed_call("s0", 2, message_digests=("v",), **facts)
    goes_on = replace(goes_on, sequence=3)
    sub, after = replace(sub, sequence=4), replace(after, sequence=5)
    decided = decide(main, failed, goes_on, sub, after)
    assert decided["s1"].rule == decided["s2"].rule == "nested_in_tool_call"
    assert decided["s1"].why == "asks again what call s0 of a subagent asked"
    assert decided["m2"].role is Role.AGENT
    # Other messages are another request, of which nothing is known.
    other = replace(sub, message_digests=("w",))
    assert decide(main, failed, goes_on, other)["s1"].role is Role.AGENT


def test_what_goes_on_from_a_claimed_subagent_is_one_too() -> None:
    main, sub, after, _ = written_anew()
    claimed = replace(sub, claims={"x-parent-session-id": "main"})
    late = replace(after, sequence=9)
    assert decide(main, claimed, late)["s2"].rule == "claimed_parent"


def test_other_tools_under_one_system_prompt_are_another_agent_only_with_other_messages() -> (
    None
):
    main, sub, after, goes_on = written_anew()
    same = [replace(call, system_digest="M") for call in (sub, after)]
    assert roles(main, *same, goes_on)["s1"] == "subagent"
    grown = replace(goes_on, sequence=3, tools_digest="six", n_tools=6)
    again = replace(goes_on, call_id=CallId("m3"), sequence=6)
    assert roles(main, grown, again) == {"m1": "agent", "m2": "agent", "m3": "agent"}


def test_a_conversation_that_went_on_by_its_messages_waits_no_more() -> None:
    main, sub, after, goes_on = written_anew()
    early = replace(goes_on, sequence=2)
    late = [replace(call, sequence=call.sequence + 5) for call in (sub, after)]
    assert roles(main, early, *late)["s1"] == "agent"


@pytest.mark.parametrize("case", ["same system", "no wait", "no continuation", "no tools"])
def test_structure_is_careful(case: str) -> None:
    asks, sub, sub2, goes_on = subagent_rollout()
    if case == "same system":
        sub, sub2 = (replace(call, system_digest="M") for call in (sub, sub2))
    if case == "no wait":
        asks = replace(asks, finish_reason="stop")
    calls = [asks, sub, sub2, goes_on][: 3 if case == "no continuation" else 4]
    if case == "no tools":
        calls = [replace(call, n_tools=0) for call in calls]
    assert roles(*calls)["s1"] == "agent"


def test_a_root_that_begins_after_the_wait_is_no_subagent() -> None:
    asks, sub, sub2, goes_on = subagent_rollout()
    late = [replace(call, sequence=call.sequence + 5) for call in (sub, sub2)]
    assert roles(asks, goes_on, *late)["s1"] == "agent"


def test_tool_calls_under_finish_stop_are_a_wait_as_well() -> None:
    asks, *rest = subagent_rollout()
    asks = replace(asks, finish_reason="stop", notes=(Note("tool_calls_with_stop"),))
    assert roles(asks, *rest)["s1"] == "subagent"


@pytest.mark.parametrize(
    "claims",
    [
        {"x-parent-session-id": "main", "x-session-id": "child"},
        {"x-codex-parent-thread-id": "main", "thread-id": "child", "session-id": "main"},
        {"x-claude-code-agent-id": "a03e9"},
        {"x-openai-subagent": "collab_spawn", "session_id": "main"},
        {"x-parent-session-affinity": "main", "x-session-affinity": "child"},
        {"parent_session": "main"},
    ],
)
def test_subagent_by_claim(claims: dict[str, str]) -> None:
    main = make_call("m", 1, [1], [2], n_tools=5, claims={"x-session-id": "main"})
    sub = make_call("s", 2, [8], [9], n_tools=3, claims=claims)
    decided = decide(main, sub)
    assert decided["s"].role is Role.SUBAGENT
    assert decided["s"].rule == "claimed_parent"
    assert decided["m"].role is Role.AGENT


def test_the_first_tool_bearing_root_is_never_a_subagent() -> None:
    lone = make_call("s", 2, [8], [9], n_tools=3, claims={"parent_session": "elsewhere"})
    again = make_call("t", 3, [5], [6], n_tools=3, claims={"parent_session": "elsewhere"})
    assert roles(lone) == {"s": "agent"}
    assert roles(lone, again) == {"s": "agent", "t": "agent"}


@pytest.mark.parametrize(
    "claims",
    [
        {"x-session-id": "main"},
        {"x-session-id": "main", "x-parent-session-id": "main"},
        {"user-agent": "parent"},
    ],
)
def test_claims_that_name_no_subagent(claims: dict[str, str]) -> None:
    main = make_call("m", 1, [1], [2], n_tools=5, claims={"x-session-id": "main"})
    other = make_call("s", 2, [8], [9], n_tools=3, claims=claims)
    assert roles(main, other)["s"] == "agent"


@pytest.mark.parametrize(
    "claims",
    [
        {"x-openai-subagent": "compact"},
        {"request_kind": "compaction"},
        {"x-request-kind": "Title"},
        {"thread_source": "thread_title", "x-thread-id": "other"},
    ],
)
def test_a_harness_that_says_it_is_side_work_is_believed(claims: dict[str, str]) -> None:
    first, second = two_turns()
    inside = make_call("in", 3, [1, 2, 3, 4, 5, 6, 7], [8], n_tools=2, claims=claims)
    beside = make_call("out", 4, [8], [9], n_tools=3, claims=claims)
    decided = decide(first, second, inside, beside)
    for name in ("in", "out"):
        assert decided[name].role is Role.AUXILIARY
        assert decided[name].rule == "claimed_auxiliary"
    assert decided["a"].role is Role.AGENT


@pytest.mark.parametrize("kind", ["turn", "user", "", "titles", "{}"])
def test_other_kinds_of_request_say_nothing(kind: str) -> None:
    first, second = two_turns()
    claims = {"request_kind": kind, "thread_source": kind}
    last = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], n_tools=2, claims=claims)
    assert roles(first, second, last)["c"] == "agent"


def test_no_claim_turns_side_work_or_another_rule_into_agent_work() -> None:
    claims = {"request_kind": "turn", "thread_source": "user"}
    title = make_call("title", 0, [90, 91], [92], n_tools=0, claims=claims)
    bad = make_call(
        "bad", 8, [5], [6], status=CallStatus.FAILED, claims={"request_kind": "title"}
    )
    decided = decide(title, *two_turns(), bad)
    assert decided["title"].rule == "no_tools_on_path"
    assert decided["bad"].role is Role.FAILED


def test_a_title_call_with_tools_is_not_the_main_agent() -> None:
    """It came first; the agent names the session that it belongs to as its parent."""
    title = make_call(
        "t", 0, [90], [91], n_tools=3, claims={"request_kind": "title", "x-session-id": "t"}
    )
    agent = make_call("a", 1, [1], [2], n_tools=3, claims={"x-parent-session-id": "t"})
    assert roles(title, agent) == {"t": "auxiliary", "a": "agent"}


@pytest.mark.parametrize("claimed", ["the main agent", "the subagent", "one between"])
def test_no_claim_about_one_call_makes_another_the_agents(claimed: str) -> None:
    """What the shape shows stands, whatever the harness says of the calls that show it."""
    asks, sub, sub2, goes_on = subagent_rollout()
    first = make_call("first", 0, [100], [101], n_tools=5, system_digest="other")
    parent, side = {"x-parent-session-id": "zz"}, {"request_kind": "title"}
    if claimed == "the main agent":
        decided = roles(replace(asks, claims=side), sub, sub2, goes_on)
    elif claimed == "the subagent":
        decided = roles(asks, replace(sub, claims=side), sub2, goes_on)
    else:
        between = [replace(call, claims=parent) for call in (asks, goes_on)]
        decided = roles(first, between[0], sub, sub2, between[1])
    assert decided["s1"] in ("subagent", "auxiliary")
    assert decided["s2"] == "subagent"


CLAIMS: tuple[dict[str, str], ...] = (
    {},
    {"request_kind": "title"},
    {"x-parent-session-id": "p"},
    {"x-session-id": "p"},
    {"x-openai-subagent": "k"},
    {"x-session-id": "q", "x-parent-session-id": "q"},
)
SHAPE = st.tuples(
    st.integers(0, 7),
    st.integers(0, 3),
    st.sampled_from([0, 3]),
    st.sampled_from("MS"),
    st.sampled_from("tu"),
    st.sampled_from(["stop", "tool_calls"]),
    st.sampled_from(CLAIMS),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(SHAPE, min_size=2, max_size=6))
def test_claims_only_ever_take_out(shapes: list[Any]) -> None:
    calls: list[Call] = []
    rows: list[list[int]] = []
    for place, (after, word, n_tools, system, tools, finish, claims) in enumerate(shapes):
        prompt = [*rows[after], word] if after < len(rows) else [10 + word]
        rows.append([*prompt, 20 + place])
        call = make_call(f"c{place}", place, prompt, [20 + place], n_tools=n_tools)
        calls.append(
            replace(
                call,
                system_digest=system,
                tools_digest=tools if n_tools else None,
                finish_reason=finish,
                claims=claims,
            )
        )
    silent = roles(*[replace(call, claims={}) for call in calls])
    told = roles(*calls)
    for name, role in told.items():
        assert role != "agent" or silent[name] == "agent"
        # A policy may let subagents train, too.
        assert role != "subagent" or silent[name] in ("agent", "subagent")


def test_a_main_agent_that_begins_anew_beside_a_waiting_subagent_stays_the_agent() -> None:
    asks = make_call(
        "b1", 2, [8], [9], n_tools=3, system_digest="S", finish_reason="tool_calls"
    )
    on = make_call("b2", 5, [8, 9, 1], [2], n_tools=3, system_digest="S")
    main = make_call("m1", 1, [1], [2], n_tools=5, system_digest="M")
    anew = make_call("m2", 3, [5], [6], n_tools=5, system_digest="M")
    assert roles(main, asks, anew, on)["m2"] == "agent"


def twice(reply: str, again: str) -> tuple[Call, Call, Call]:
    """One prompt answered twice, then a request that writes the second answer anew."""
    said = ("task",)
    return (
        make_call("a", 1, [1, 2], [3, 4], n_tools=2, message_digests=said, reply_digest=reply),
        make_call("b", 2, [1, 2], [3, 5], n_tools=2, message_digests=said, reply_digest=again),
        make_call("c", 3, [1, 2, 9], [6], n_tools=2, message_digests=("task", again, "tool")),
    )


def test_the_answer_that_was_echoed_is_the_one_that_was_used() -> None:
    decided = decide(*twice("first", "second"))
    assert decided["a"].role is Role.DISCARDED
    assert decided["b"].rule == "tool_bearing_path"
    assert not decided["b"].ambiguous


def test_two_equal_answers_stay_ambiguous() -> None:
    decided = decide(*twice("same", "same"))
    assert decided["a"].ambiguous
    assert decided["b"].ambiguous


def test_an_echo_behind_other_messages_proves_no_use() -> None:
    first, second, third = twice("first", "second")
    elsewhere = replace(third, message_digests=("other task", "second", "tool"))
    decided = decide(first, second, elsewhere)
    assert decided["a"].ambiguous
    assert decided["b"].ambiguous


def test_a_compaction_root_stays_agent() -> None:
    first, second = two_turns()
    compacted = make_call("k", 3, [1, 2, 40, 41], [42], n_tools=2)
    assert roles(first, second, compacted)["k"] == "agent"


def twins(**second: Any) -> tuple[Call, Call]:
    """Two answers to one prompt with the same ids, told apart by the ids of their calls."""
    first = make_call("a", 1, [1, 2], [3], n_tools=1, message_digests=("q",), reply_digest="ra")
    other = make_call("b", 2, [1, 2], [3], n_tools=1, message_digests=("q",), reply_digest="rb")
    return first, replace(other, **second)


def follower(name: str, sequence: int, said: str) -> Call:
    return make_call(
        name, sequence, [1, 2, 3, 4], [5], n_tools=1, message_digests=("q", said, "t")
    )


def test_mask_07_the_echo_tells_which_of_two_twins_was_used() -> None:
    first, other = twins()
    for used, unused in (("ra", "b"), ("rb", "a")):
        judgement = judge(record(first, other, follower("c", 3, used)))
        roles = {name: item.role.value for name, item in judgement.roles.items()}
        assert roles.pop(CallId(unused)) == "discarded"
        assert set(roles.values()) == {"agent"}
        assert judgement.tree.nodes[CallId("c")].parent_id in roles
        assert judgement.supervised_tokens == 2


def test_mask_07_an_answer_that_begins_the_used_one_is_not_the_used_one() -> None:
    first, _ = twins()
    longer = make_call(
        "b", 2, [1, 2], [3, 4], n_tools=1, message_digests=("q",), reply_digest="rb"
    )
    # The harness wrote the used answer anew, so that its tokens go on from the other's.
    judgement = judge(record(first, longer, follower("c", 3, "rb")))
    assert judgement.roles[CallId("a")].role is Role.DISCARDED
    assert judgement.roles[CallId("b")].role is Role.AGENT


def test_mask_07_twins_that_nothing_tells_apart_train_once() -> None:
    first, other = twins(reply_digest="ra")
    judgement = judge(record(first, other, follower("c", 3, "ra")))
    assert judgement.supervised_tokens == 2
    assert judgement.roles[CallId("b")].role is Role.DISCARDED
