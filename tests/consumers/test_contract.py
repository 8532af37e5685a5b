"""Our own check of a trace, and the rows made of it. Needs none of the real packages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.demo.group import Outcome
from explorer.integrations.attempts import Attempt, Ended, Endpoint, perform
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.contract import MalformedTrace, check_trace, read_trace
from explorer.integrations.rows import Row, branches, choose_row
from explorer.trace.assemble import training_trace
from explorer.trace.verdict import judge
from explorer.trace.verify import verify
from tests.consumers.making import document, talk, text, turn
from tests.trace.build import make_call, record

BROKEN = [
    ("no_turns", document()),
    ("no_turns", document(turns={})),
    ("nothing_trainable", document(turn(loss_mask=[0, 0, 0, 0]))),
    ("schema_version", document(turn(), schema_version=True)),
    ("schema_version", document(turn(), schema_version=1.0)),
    ("schema_version", document(turn(), schema_version=2)),
    ("schema_version", document(turn(), schema_version="1")),
    ("unknown_key", document(turn(), reward=1.0)),
    ("unknown_key", document(turn(reward=1.0))),
    ("missing_key", document(turn(loss_mask=None))),
    ("missing_key", document(turn(per_token_logps=None))),
    ("invalid_node_id", document(turn(""))),
    ("invalid_node_id", document(turn(7))),  # type: ignore[arg-type]
    ("duplicate_node_id", document(turn(), turn())),
    ("no_prompt_ids", document(turn(prompt_token_ids=[], loss_mask=[1, 1]))),
    ("invalid_token_id", document(turn(prompt_token_ids=[1, 2**70]))),
    ("invalid_token_id", document(turn(prompt_token_ids=[1, 2**31]))),
    ("invalid_token_id", document(turn(completion_token_ids=[3, -1]))),
    ("invalid_token_id", document(turn(completion_token_ids=[3, True]))),
    ("invalid_token_id", document(turn(completion_token_ids=[3, 4.0]))),
    ("invalid_token_id", document(turn(completion_token_ids=[3, None]))),
    ("invalid_document", document(turn(completion_token_ids="34"))),
    ("invalid_document", document(turn(metadata=[]))),
    ("invalid_document", document("turn")),  # type: ignore[arg-type]
    ("invalid_document", []),
    ("invalid_document", None),
    ("logprob_misalign", document(turn(per_token_logps=[-0.5]))),
    ("logprob_misalign", document(turn(per_token_logps=[-0.5, -0.25, -0.1]))),
    ("invalid_logprob", document(turn(per_token_logps=[-0.5, None]))),
    ("invalid_logprob", document(turn(per_token_logps=[-0.5, False]))),
    ("invalid_logprob", document(turn(per_token_logps=[-0.5, float("-inf")]))),
    ("invalid_logprob", document(turn(per_token_logps=[-0.5, -(10**400)]))),
    ("positive_logprob", document(turn(per_token_logps=[-0.5, 0.5]))),
    ("sentinel_logprob", document(turn(per_token_logps=[-0.5, -9999.0]))),
    ("sentinel_logprob", document(turn(per_token_logps=[-0.5, -1e9]))),
    ("length_mismatch", document(turn(loss_mask=[0, 0, 1]))),
    ("length_mismatch", document(turn(loss_mask=[0, 0, 1, 1, 1]))),
    ("invalid_loss_mask", document(turn(loss_mask=[0, 0, 1, 2]))),
    ("invalid_loss_mask", document(turn(loss_mask=[0, 0, 1, True]))),
    ("invalid_loss_mask", document(turn(loss_mask=[0, 0, 1, 1.0]))),
    ("trainable_prompt", document(turn(loss_mask=[0, 1, 1, 1]))),
]


@pytest.mark.parametrize(("code", "broken"), BROKEN)
def test_what_breaks_a_rule_is_refused_by_its_name(code: str, broken: Any) -> None:
    with pytest.raises(MalformedTrace) as refused:
        check_trace(broken)
    assert refused.value.code == code
    assert isinstance(refused.value, ValueError)


def test_text_that_is_no_json_is_refused() -> None:
    for raw in (b"", b"{", b"\xff", b'{"schema_version": NaN}'):
        with pytest.raises(MalformedTrace):
            read_trace(raw)


def test_what_is_allowed_stays_allowed() -> None:
    kept = turn(per_token_logps=[-9999.0, 0], loss_mask=[0, 0, 0, 1])
    empty = turn("b", completion_token_ids=[], per_token_logps=[], loss_mask=[0, 0])
    trace = read_trace(text(kept, empty))
    assert trace.turns[0].logprobs == (-9999.0, 0.0)
    assert trace.turns[0].completion_mask == (0, 1)
    assert trace.supervised == 1
    assert trace.reward is None


@pytest.mark.parametrize("reward", [True, "1", None, [1]])
def test_a_reward_that_is_no_number_is_none(reward: Any) -> None:
    assert check_trace(document(turn(metadata={"reward": reward}))).reward is None


def test_branch_order_is_checked() -> None:
    def under(node_id: str, parent: str | None) -> dict[str, Any]:
        return turn(node_id, metadata={"parent_id": parent})

    good = (
        under("a", None),
        under("b", "a"),
        under("c", "b"),
        under("d", "a"),
        under("e", None),
    )
    assert len(check_trace(document(*good)).turns) == 5
    # By the clock: a subagent's call between two of the main conversation.
    for order in ((0, 4, 1, 2, 3), (1, 0, 2, 3, 4), (0, 1, 3, 2, 4)):
        with pytest.raises(MalformedTrace, match="branch_order"):
            check_trace(document(*(good[place] for place in order)))
    # The parent may have been left out of the export.
    assert check_trace(document(under("b", "a"), under("c", "b"))).turns[1].node_id == "c"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(place=st.sampled_from([*turn(), "metadata"]), value=json_values)
def test_any_value_anywhere_is_read_or_refused(place: str, value: Any) -> None:
    for broken in (document(turn() | {place: value}), document(turn(), turns=value)):
        try:
            trace = check_trace(broken)
        except MalformedTrace:
            continue
        assert trace.supervised > 0


# Rows.


def chain(
    node_id: str, prompt: list[int], completion: list[int], **more: Any
) -> dict[str, Any]:
    mask = [0] * len(prompt) + [1] * len(completion)
    made = turn(
        node_id,
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        per_token_logps=[-float(token) / 100 for token in completion],
        loss_mask=mask,
    )
    return made | more


def test_a_row_joins_the_calls_of_a_branch() -> None:
    first = chain("a", [1, 2], [3, 4])
    second = chain("b", [1, 2, 3, 4, 5, 6], [7], loss_mask=[0] * 6 + [1])
    row = choose_row(check_trace(document(first, second)))
    assert row.prompt_ids == (1, 2)
    assert row.completion_ids == (3, 4, 5, 6, 7)
    assert row.env_mask == (1, 1, 0, 0, 1)
    assert row.logprobs == (-0.03, -0.04, 0.0, 0.0, -0.07)
    assert row.node_ids == ("a", "b")
    assert row.left_out_tokens == 0


def test_a_masked_call_keeps_its_logprobs_and_trains_nothing() -> None:
    first = chain("a", [1, 2], [3, 4], loss_mask=[0, 0, 0, 0])
    second = chain("b", [1, 2, 3, 4, 5], [7, 8], loss_mask=[0] * 6 + [1])
    row = choose_row(check_trace(document(first, second)))
    assert row.env_mask == (0, 0, 0, 0, 1)
    assert row.logprobs[:2] == (-0.03, -0.04)


def test_of_a_tree_the_branch_with_most_supervised_tokens_is_taken() -> None:
    root = chain("a", [1], [2])
    long = chain("b", [1, 2, 3], [4, 5, 6])
    short = chain("c", [1, 2, 9], [4])
    trace = check_trace(document(root, long, short))
    assert len(branches(trace)) == 2
    row = choose_row(trace)
    assert (row.node_ids, row.left_out, row.left_out_tokens) == (("a", "b"), ("c",), 1)
    last = choose_row(trace, "last")
    assert (last.node_ids, last.left_out, last.left_out_tokens) == (("a", "c"), ("b",), 3)


def test_of_equal_branches_the_one_that_ended_last_is_taken() -> None:
    root = chain("a", [1], [2])
    one = chain("b", [1, 2, 3], [4], metadata={"index": 9})
    two = chain("c", [1, 2, 9], [4], metadata={"index": 3})
    assert choose_row(check_trace(document(root, one, two))).node_ids == ("a", "b")


def test_a_subagent_is_never_the_row_of_its_rollout() -> None:
    main = chain("a", [1], [2])
    sub = chain("s", [7], [4, 5, 6], metadata={"role": "subagent"})
    assert choose_row(check_trace(document(main, sub))).node_ids == ("a",)


def test_the_tokens_say_what_continues_what_and_not_the_metadata() -> None:
    first = chain("a", [1, 2], [3])
    liar = chain("b", [8, 9], [4, 5], metadata={"parent_id": "a"})
    assert choose_row(check_trace(document(first, liar))).node_ids == ("b",)


def test_a_row_ends_on_the_last_sampled_token() -> None:
    first = chain("a", [1, 2], [3])
    empty = chain("b", [1, 2, 3, 5, 6], [])
    row = choose_row(check_trace(document(first, empty)))
    assert row.completion_ids == (3,)


@pytest.mark.parametrize(
    "arrays",
    [
        ((1,), (2, 3), (-0.1, -0.1), (1,)),
        ((1,), (2, 3), (-0.1,), (1, 1)),
        ((1,), (2, 3), (-0.1, -0.1), (1, 1, 1)),
        ((1,), (), (), ()),
        ((), (2,), (-0.1,), (1,)),
        ((1,), (2,), (-0.1,), (2,)),
    ],
)
def test_a_row_that_does_not_fit_together_cannot_be_made(arrays: Any) -> None:
    with pytest.raises(ValueError, match=r"row|mask"):
        Row(*arrays)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Any tree of calls over a small vocabulary, in branch order."""
    token = st.integers(1, 4)
    turns: list[dict[str, Any]] = []

    def grow(parent: str | None, held: list[int], depth: int) -> None:
        for _ in range(draw(st.integers(0 if turns else 1, 2 if depth < 3 else 0))):
            prompt = held + draw(st.lists(token, min_size=1, max_size=3))
            completion = draw(st.lists(token, max_size=3))
            bits = draw(st.lists(st.integers(0, 1), min_size=3, max_size=3))[: len(completion)]
            made = chain(f"n{len(turns)}", prompt, completion)
            made["loss_mask"] = [0] * len(prompt) + bits
            made["metadata"] = {"parent_id": parent}
            turns.append(made)
            grow(made["node_id"], prompt + completion, depth + 1)

    grow(None, [], 0)
    return document(*turns)


@given(trees())
def test_any_tree_gives_a_row_whose_ones_are_supervised_tokens_each_once(
    tree: dict[str, Any],
) -> None:
    if not any(any(call["loss_mask"]) for call in tree["turns"]):
        with pytest.raises(MalformedTrace, match="nothing_trainable"):
            check_trace(tree)
        return
    trace = check_trace(tree)
    row = choose_row(trace)
    by_id = {call.node_id: call for call in trace.turns}
    assert len(set(row.node_ids)) == len(row.node_ids)
    assert {*row.node_ids, *row.left_out} == set(by_id)
    assert row.supervised == sum(by_id[name].supervised for name in row.node_ids)
    assert row.supervised + row.left_out_tokens == trace.supervised
    whole = row.prompt_ids + row.completion_ids
    for name in row.node_ids:
        call = by_id[name]
        if call.completion_ids:
            ids = call.prompt_ids + call.completion_ids
            assert whole[: len(ids)] == ids
            place = len(call.prompt_ids) - len(row.prompt_ids)
            bits = row.env_mask[place : place + len(call.completion_ids)]
            assert bits == call.completion_mask
            values = row.logprobs[place : place + len(call.completion_ids)]
            assert values == call.logprobs


# Over HTTP.


def test_every_demo_rollout_is_read_or_refused_with_reasons(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    read = refused = trees_found = 0
    for rollout_id in demo:
        if not server.show(rollout_id)["verdict"]["trainable"]:
            with pytest.raises(TraceRefused) as no:
                server.training_trace(rollout_id)
            assert no.value.codes
            refused += 1
            continue
        trace = read_trace(server.training_trace(rollout_id))
        assert trace.supervised == server.show(rollout_id)["verdict"]["supervised_tokens"]
        assert trace.reward == demo[rollout_id].reward
        row = choose_row(trace)
        trees_found += bool(row.left_out)
        assert row.supervised + row.left_out_tokens == trace.supervised
        read += 1
    assert read > 20
    assert refused > 0
    assert trees_found > 0


def test_lengths_in_the_api_and_the_trace_agree(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    rollout_id = next(name for name in demo if server.show(name)["verdict"]["trainable"])
    calls = {call["call_id"]: call for call in server.calls(rollout_id)}
    for exported in json.loads(server.training_trace(rollout_id))["turns"]:
        listed = calls[exported["node_id"]]
        assert listed["prompt_len"] == len(exported["prompt_token_ids"])
        assert listed["supervised"] == sum(exported["loss_mask"])


def test_a_value_that_means_none_may_be_any_number() -> None:
    """Engines write -9999 or less; what the verdict lets through masked, a trainer can read."""
    call = make_call("a", 1, [1, 2], [3, 4], logprobs=[-0.25, -3e38], n_tools=1)
    made = record(call)
    raw = b"".join(training_trace(made, judge(made)))
    assert verify(raw).ok
    assert read_trace(raw).turns[0].loss_mask == (0, 0, 1, 0)


def test_facts_of_a_run_cannot_say_that_it_went_well(server: ExplorerServer) -> None:
    def failed(attempt: Attempt) -> Ended:
        talk(attempt.endpoint, "hi")
        return Ended(ok=False, reward=1.0, facts={"ok": True, "exit_code": 3})

    endpoint = Endpoint.create(server, {"run": "facts"}, server.model())
    perform(server, failed, Attempt("hi", endpoint))
    shown = server.show(endpoint.rollout_id)
    assert shown["ok"] is False
    with pytest.raises(TraceRefused) as refused:
        server.training_trace(endpoint.rollout_id)
    assert "rollout_failed" in refused.value.codes
