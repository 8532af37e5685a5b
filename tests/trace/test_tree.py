"""Parents, roots, forks and breaks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.records import Call, CallId, CallStatus
from explorer.trace.causes import BreakCause
from explorer.trace.tree import Tree, build_tree
from tests.trace.build import failed_call, make_call, two_turns


def parents(tree: Tree) -> dict[str, str | None]:
    return {str(name): node.parent_id for name, node in tree.nodes.items()}


def test_a_chain() -> None:
    first, second = two_turns()
    third = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=second)
    tree = build_tree([first, second, third])
    assert parents(tree) == {"a": None, "b": "a", "c": "b"}
    assert tree.roots == ("a",)
    assert tree.leaves == ("c",)
    assert tree.path(CallId("c")) == ("a", "b", "c")
    node = tree.nodes[CallId("c")]
    assert (node.depth, node.root_id, node.shared_len) == (2, "a", 6)
    assert (node.prompt_len, node.completion_len, node.break_) == (7, 1, None)


def test_mask_02_break_names_offset_and_both_tokens() -> None:
    one = make_call("t1", 1, [1, 2], [3, 4])
    two = make_call("t2", 2, [1, 2, 3, 9, 5], [6])
    node = build_tree([one, two]).nodes[CallId("t2")]
    assert node.parent_id is None
    assert node.break_ is not None
    assert (node.break_.offset, node.break_.expected_id, node.break_.actual_id) == (3, 4, 9)
    assert node.break_.nearest_call_id == "t1"
    assert node.shared_len == 3


def test_mask_11_any_insertion_order_gives_the_same_graph() -> None:
    late = make_call("turn2", 1, [1, 2, 3, 4, 5], [6])
    early = make_call("turn1", 2, [1, 2], [3, 4])
    tree = build_tree([late, early])
    assert parents(tree) == {"turn2": "turn1", "turn1": None}
    assert tree.nodes[CallId("turn2")].adopted
    assert not tree.nodes[CallId("turn1")].adopted
    assert tree.nodes[CallId("turn2")].break_ is None


def test_mask_07_twins_the_earliest_is_the_parent() -> None:
    twin_a = make_call("A", 1, [1, 2], [3])
    twin_b = make_call("B", 2, [1, 2], [3])
    child = make_call("C", 3, [1, 2, 3, 4], [5])
    tree = build_tree([twin_a, twin_b, child])
    assert tree.nodes[CallId("C")].parent_id == "A"
    assert tree.nodes[CallId("B")].children == ()


def test_a_committed_twin_is_preferred_to_an_aborted_one() -> None:
    aborted = make_call("A", 1, [1, 2], [3], status=CallStatus.ABORTED)
    good = make_call("B", 2, [1, 2], [3])
    child = make_call("C", 3, [1, 2, 3, 4], [5])
    assert build_tree([aborted, good, child]).nodes[CallId("C")].parent_id == "B"


def test_a_retry_is_a_sibling_of_what_failed_before_its_first_token() -> None:
    cut = make_call("A", 1, [1, 2], [], status=CallStatus.FAILED)
    retry = make_call("B", 2, [1, 2], [3])
    tree = build_tree([cut, retry])
    assert tree.roots == ("A", "B")
    assert tree.nodes[CallId("A")].prompt_key == tree.nodes[CallId("B")].prompt_key


def test_empty_completions_make_no_cycle() -> None:
    calls = [make_call(name, place, [1, 2], []) for place, name in enumerate("abc")]
    longer = make_call("d", 9, [1, 2, 3], [])
    tree = build_tree([*calls, longer])
    assert parents(tree) == {"a": None, "b": None, "c": None, "d": "a"}


def test_refused_calls_are_no_nodes() -> None:
    refused = failed_call("x", 2, status=CallStatus.REFUSED)
    assert list(build_tree([make_call("a", 1, [1], [2]), refused]).nodes) == ["a"]


def test_fork_says_where_siblings_part() -> None:
    first, second = two_turns()
    other = make_call("c", 3, [1, 2, 3, 4, 9], [6], parent=first)
    deeper = make_call("d", 4, [1, 2, 3, 4, 5, 7], [6], parent=first)
    tree = build_tree([first, second, other, deeper])
    assert tree.nodes[CallId("b")].break_ is None
    fork = tree.nodes[CallId("c")].break_
    assert fork is not None
    assert (fork.nearest_call_id, fork.offset) == ("b", 4)
    assert (fork.expected_id, fork.actual_id) == (5, 9)
    fork = tree.nodes[CallId("d")].break_
    assert fork is not None
    assert (fork.offset, fork.expected_id, fork.actual_id) == (5, 6, 7)
    assert tree.nodes[CallId("d")].shared_len == 5


def test_a_call_whose_delta_does_not_fit_is_placed_by_its_messages() -> None:
    first, second = two_turns()
    first = replace(first, message_digests=("u1",), reply_digest="r1")
    broken = replace(second, prompt_len=99, message_digests=("u1", "r1", "u2"))
    tree = build_tree([first, broken])
    assert tree.nodes[CallId("b")].parent_id == "a"
    assert not tree.nodes[CallId("b")].has_ids


def test_text_level_calls_are_placed_by_messages() -> None:
    told = {"status": CallStatus.COMMITTED}
    calls = [
        failed_call("a", 1, message_digests=("s", "u"), reply_digest="r1", **told),
        failed_call("b", 2, message_digests=("s", "u", "r1", "t"), reply_digest="r2", **told),
        failed_call("c", 3, message_digests=("s", "u", "r1", "t", "r2", "t2")),
        failed_call("d", 4, message_digests=("x",)),
    ]
    expected = {"a": None, "b": "a", "c": "b", "d": None}
    for order in itertools.permutations(calls):
        assert parents(build_tree(order)) == expected


def call_with(name: str, sequence: int, prompt: list[int], **fields: Any) -> Call:
    facts: dict[str, Any] = {"system_digest": "S", "tools_digest": "T"}
    return make_call(name, sequence, prompt, [50], **(facts | fields))


NEAREST = call_with("n", 1, [1, 2, 3, 4], message_digests=("u1", "r1", "u2"), reply_digest="r2")


ALL = ("u1", "r1", "u2", "r2")
CAUSES: list[tuple[list[int], dict[str, Any], str]] = [
    ([1, 2, 9], {"system_digest": "S2", "message_digests": ALL}, "system_changed"),
    ([1, 2, 9], {"tools_digest": "T2", "message_digests": ALL}, "tools_changed"),
    ([1, 2, 9], {"message_digests": ("u1", "summary")}, "compaction"),
    ([1, 2, 9], {"message_digests": ("u1", "edited", "u2", "r2")}, "history_rewritten"),
    ([1, 2, 9], {"message_digests": ALL}, "unknown"),
    ([1, 2, 9], {"message_digests": ("u1", "r1", "u2", "cut")}, "history_rewritten"),
    ([1, 2, 9], {"message_digests": ("title",), "system_digest": "S2"}, "unrelated"),
    ([9], {"message_digests": ("u1",)}, "unrelated"),
    ([1, 2, 3], {"message_digests": ("u1", "r1")}, "same_prompt"),
    ([1, 2, 9], {}, "unknown"),
]


@pytest.mark.parametrize(("prompt", "fields", "cause"), CAUSES)
def test_causes(prompt: list[int], fields: dict[str, Any], cause: str) -> None:
    node = build_tree([NEAREST, call_with("c", 2, prompt, **fields)]).nodes[CallId("c")]
    assert node.parent_id is None
    assert node.break_ is not None
    assert node.break_.cause is BreakCause(cause)


SUMMARY = {"tools_digest": None, "message_digests": ("u1", "r1", "u2", "r2", "sum up")}


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (SUMMARY, {}, "compaction"),
        (SUMMARY, {"tools_digest": "T2"}, "unrelated"),
        (SUMMARY, {"system_digest": "S2"}, "unrelated"),
        (SUMMARY | {"message_digests": ("title of u1",)}, {}, "unrelated"),
        (SUMMARY | {"tools_digest": "T"}, {}, "unrelated"),
    ],
)
def test_a_root_after_a_summary_call_is_a_compaction(
    before: dict[str, Any], after: dict[str, Any], cause: str
) -> None:
    # The harness starts over from the summary alone, sharing no message with the past.
    calls = [
        NEAREST,
        call_with("s", 2, [8, 8, 8], **before),
        call_with("c", 3, [1, 2, 9], **({"message_digests": ("summary",)} | after)),
    ]
    broke = build_tree(calls).nodes[CallId("c")].break_
    assert broke is not None
    assert broke.nearest_call_id == "n"
    assert broke.cause is BreakCause(cause)


OURS = {"x-session-id": "s"}
THEIRS = {"x-session-id": "s", "x-claude-code-agent-id": "b"}


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        # The task stands in both, and nothing else does: a title call and the agent.
        (
            {"system_digest": "S2", "tools_digest": None, "message_digests": ("u2", "go")},
            "unrelated",
        ),
        ({"system_digest": "S2", "message_digests": ("u1", "else")}, "system_changed"),
        ({"message_digests": ("u1", "other task"), "claims": THEIRS}, "unrelated"),
        ({"message_digests": ("u1", "r1", "u9", "x"), "claims": OURS}, "history_rewritten"),
        # What was between is gone, under a system prompt that marks the first message.
        ({"system_digest": "S2", "message_digests": ("summary", "u2")}, "compaction"),
        ({"system_digest": "S2", "message_digests": ("u2", "new")}, "compaction"),
        (
            {"system_digest": "S2", "tools_digest": "T2", "message_digests": ("u2",)},
            "unrelated",
        ),
        # Whoever says that it is another agent, the answer in it says more.
        (
            {"message_digests": ("u1", "edited", "r2", "x"), "claims": THEIRS},
            "history_rewritten",
        ),
    ],
)
def test_causes_told_by_claims_and_by_what_moved(fields: dict[str, Any], cause: str) -> None:
    nearest = call_with(
        "n", 1, [1, 2, 3, 4], message_digests=("u1", "r1", "u2"), reply_digest="r2", claims=OURS
    )
    node = build_tree([nearest, call_with("c", 2, [1, 2, 9], **fields)]).nodes[CallId("c")]
    assert node.break_ is not None
    assert node.break_.cause is BreakCause(cause)


IN_BAND: dict[str, Any] = {
    "message_digests": (*ALL, "sum up"),
    "reply_digest": "the summary",
    "finish_reason": "stop",
    "claims": OURS,
}


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ({}, {}, "compaction"),
        ({}, {"system_digest": "S2"}, "compaction"),
        ({}, {"message_digests": ("u1", "the task again")}, "compaction"),
        ({}, {"claims": {}}, "unrelated"),
        ({}, {"claims": THEIRS}, "unrelated"),
        ({}, {"tools_digest": "T2"}, "unrelated"),
        ({"claims": {}}, {}, "unrelated"),
        ({"finish_reason": "tool_calls"}, {}, "unrelated"),
    ],
)
def test_a_root_after_a_summary_in_band_is_a_compaction(
    before: dict[str, Any], after: dict[str, Any], cause: str
) -> None:
    """Nothing but the harness's own word ties the new context to the old one."""
    nearest = call_with(
        "n", 1, [1, 2, 3, 4], message_digests=ALL[:3], reply_digest="r2", claims=OURS
    )
    fresh = {"message_digests": ("the summary as a user's",), "claims": OURS}
    calls = [
        nearest,
        call_with("s", 2, [8, 8, 8], **(IN_BAND | before)),
        call_with("c", 3, [1, 2, 9], **(fresh | after)),
    ]
    broke = build_tree(calls).nodes[CallId("c")].break_
    assert broke is not None
    assert broke.nearest_call_id == "n"
    assert broke.cause is BreakCause(cause)


def test_a_summary_that_comes_back_as_the_agents_own_turn_is_a_compaction() -> None:
    calls = [
        NEAREST,
        call_with(
            "s",
            2,
            [8, 8, 8],
            system_digest="summing up",
            tools_digest=None,
            message_digests=("the transcript",),
            reply_digest="summary",
        ),
        call_with("c", 3, [1, 2, 9], message_digests=("so far?", "summary", "go on")),
    ]
    broke = build_tree(calls).nodes[CallId("c")].break_
    assert broke is not None
    assert broke.cause is BreakCause.COMPACTION


def test_the_cause_is_that_of_the_answer_which_the_harness_used() -> None:
    """More tokens agree with the answer that it threw away."""
    facts: dict[str, Any] = {"system_digest": "S", "tools_digest": "T"}
    thrown = make_call(
        "n1", 1, [1, 2], [50, 8], message_digests=("u",), reply_digest="no", **facts
    )
    thought = [60, 61, 62, 63]
    used = make_call(
        "n2",
        2,
        [1, 2],
        [*thought, 50, 9, 10],
        message_digests=("u",),
        reply_digest="yes",
        **facts,
    )
    after = call_with("c", 3, [1, 2, 50, 9, 10, 11], message_digests=("u", "yes", "t"))
    broke = build_tree([thrown, used, after]).nodes[CallId("c")].break_
    assert broke is not None
    assert (broke.nearest_call_id, broke.offset) == ("n1", 3)
    assert broke.cause is BreakCause.REASONING_DROPPED


def test_where_turns_are_written_anew_the_cause_is_that_of_the_end_of_the_conversation() -> (
    None
):
    """Each call shares the same few tokens with all the others, whatever it goes on from."""
    said: tuple[str, ...] = ("preamble", "task")
    calls = [call_with("0", 0, [1, 2, 3], message_digests=said, reply_digest="r0")]
    for number in range(1, 4):
        said = (*said, f"r{number - 1}", f"t{number}")
        prompt = [1, 2, 3, 60 + number]
        reply = f"r{number}"
        calls.append(
            call_with(str(number), number, prompt, message_digests=said, reply_digest=reply)
        )
    grown = call_with(
        "g", 5, [1, 2, 80], tools_digest="T2", message_digests=(*said, "r3", "found")
    )
    summed = call_with(
        "s", 6, [9, 9], tools_digest=None, message_digests=(*said, "r3", "sum up")
    )
    anew = call_with(
        "k",
        7,
        [1, 2, 3, 70],
        tools_digest="T2",
        message_digests=("preamble", "task", "summary"),
    )
    nodes = build_tree([*calls, grown, summed, anew]).nodes
    breaks = {name: node.break_ for name, node in nodes.items() if node.break_}
    causes = {name: broke.cause for name, broke in breaks.items()}
    assert all(breaks[CallId(name)].rendered_anew for name in "123")
    assert causes[CallId("g")] is BreakCause.TOOLS_CHANGED
    assert causes[CallId("k")] is BreakCause.COMPACTION


def test_a_compaction_is_compared_with_the_end_of_the_conversation() -> None:
    calls = [call_with("0", 0, [1, 2, 3], message_digests=("s", "u0"), reply_digest="r0")]
    prompt = [1, 2, 3]
    said: tuple[str, ...] = ("s", "u0")
    for number in range(1, 5):
        prompt = [*prompt, 50, number]
        said = (*said, f"r{number - 1}", f"u{number}")
        calls.append(
            call_with(
                str(number),
                number,
                prompt,
                parent=calls[-1],
                message_digests=said,
                reply_digest=f"r{number}",
            )
        )
    calls.append(call_with("k", 9, [1, 2, 77], message_digests=("s", "summary")))
    broke = build_tree(calls).nodes[CallId("k")].break_
    assert broke is not None
    assert (broke.nearest_call_id, broke.offset) == ("4", 2)
    assert broke.cause is BreakCause.COMPACTION


def test_mask_04_system_prompt_that_grew() -> None:
    system, rest = list(range(100, 160)), list(range(300, 340))
    five = call_with("5", 5, system + rest, message_digests=("u1", "r1", "u2"))
    six = call_with(
        "6",
        6,
        [*system, 7, 8, *rest, 50, 51],
        system_digest="S2",
        message_digests=("u1", "r1", "u2", "r2", "u3"),
    )
    broke = build_tree([five, six]).nodes[CallId("6")].break_
    assert broke is not None
    assert (broke.cause, broke.offset) == (BreakCause.SYSTEM_CHANGED, 60)


def test_clk_02_no_clock_decides_order_or_parents() -> None:
    first, second = two_turns()
    other = make_call("c", 3, [1, 2, 3, 4, 9], [6], parent=first)
    calls = [first, second, other]
    expected = build_tree(calls).nodes
    for stamps in itertools.permutations((5_000_000, 9_000_000, -1)):
        stamped = [
            replace(call, started_us=at, ended_us=at - 4_000_000)
            for call, at in zip(calls, stamps, strict=True)
        ]
        assert build_tree(stamped).nodes == expected


def test_mask_06_how_a_message_is_spelled_decides_nothing_about_tokens() -> None:
    # The digests differ as arguments sent as an object and as a string would.
    one = make_call("a", 1, [1, 2], [3, 4], message_digests=("u",), reply_digest="object")
    two = make_call("b", 2, [1, 2, 3, 4, 5], [6], message_digests=("u", "string", "t"))
    node = build_tree([one, two]).nodes[CallId("b")]
    assert (node.parent_id, node.break_) == ("a", None)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.lists(st.integers(0, 2), max_size=3),
        st.lists(st.integers(0, 2), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=9,
)


def grown(steps: list[tuple[int, list[int], list[int], bool]]) -> list[Call]:
    """Prompts over a tiny alphabet, most of which continue an earlier call."""
    calls: list[Call] = []
    fulls: list[list[int]] = []
    for number, (parent, extra, completion, fresh) in enumerate(steps):
        base = [] if fresh or not fulls else fulls[parent % len(fulls)]
        prompt = base + extra or [0]
        stored = calls[parent % len(calls)] if base and number % 2 else None
        calls.append(make_call(str(number), number, prompt, completion, parent=stored))
        fulls.append(prompt + completion)
    return calls


def oracle(calls: list[Call], tree: Tree) -> dict[str, str | None]:
    """The longest exact prefix by a scan over all calls."""
    sequences = tree.sequences
    found: dict[str, str | None] = {}
    for call in calls:
        prompt = sequences.prompt(call.call_id).tolist()
        best: tuple[int, int, str] | None = None
        for other in calls:
            full = sequences.full(other.call_id).tolist()
            is_prefix = prompt[: len(full)] == full and (
                len(full) < len(prompt)
                or (other.completion is not None and other.completion.size)
            )
            if is_prefix:
                key = (-len(full), other.sequence, str(other.call_id))
                best = key if best is None else min(best, key)
        found[str(call.call_id)] = None if best is None else best[2]
    return found


@given(STEPS, st.integers(1, 3))
def test_parents_are_what_a_scan_finds(
    steps: list[tuple[int, list[int], list[int], bool]], block: int
) -> None:
    calls = grown(steps)
    tree = build_tree(calls, block=block)
    assert parents(tree) == oracle(calls, tree)
    assert sorted(node.call_id for node in tree.walk()) == sorted(tree.nodes)  # no cycle
    for node in tree.nodes.values():
        tree.path(node.call_id)
        if node.parent_id is None and node.sequence > 0:
            assert node.break_ is not None
        if node.break_ is not None:
            nearest = tree.sequences.full(node.break_.nearest_call_id).tolist()
            prompt = tree.sequences.prompt(node.call_id).tolist()
            offset = node.break_.offset
            assert nearest[:offset] == prompt[:offset]
            assert node.shared_len == offset
            same = offset == len(prompt) == len(nearest)
            assert same or nearest[offset : offset + 1] != prompt[offset : offset + 1]


@given(STEPS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(
    steps: list[tuple[int, list[int], list[int], bool]], random: Any
) -> None:
    calls = grown(steps)
    shuffled = list(calls)
    random.shuffle(shuffled)
    assert build_tree(shuffled).nodes == build_tree(calls).nodes


@given(st.permutations(range(6)))
def test_any_arrival_order_gives_the_same_parents(order: list[int]) -> None:
    script = [
        ("a", [1, 2], [3]),
        ("b", [1, 2, 3, 4], [5]),
        ("c", [1, 2, 3, 4, 5, 6], [7]),
        ("d", [1, 2, 3, 8], [9]),
        ("e", [4, 4], [4]),
        ("f", [4, 4, 4, 1], [2]),
    ]
    calls = [
        make_call(name, order[place], prompt, completion)
        for place, (name, prompt, completion) in enumerate(script)
    ]
    expected = {"a": None, "b": "a", "c": "b", "d": "a", "e": None, "f": "e"}
    assert parents(build_tree(calls)) == expected


def test_a_prompt_asked_again_names_the_call_that_asked_it() -> None:
    """However far its conversation went on: an agent that runs twice asks its first prompt."""
    first = make_call("a", 1, [1, 2], [3, 4])
    second = make_call("b", 2, [1, 2, 3, 4, 5], [6], parent=first)
    third = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=second)
    for prompt, asked in (([1, 2], "a"), ([1, 2, 3], "a"), ([1, 2, 3, 4, 5], "b")):
        again = make_call("d", 4, prompt, [9])
        broke = build_tree([first, second, third, again]).nodes[CallId("d")].break_
        if broke is None:
            assert asked == "b"  # it is a child of `a`, and its twin's rival
            continue
        assert broke.cause is BreakCause.SAME_PROMPT
        assert broke.nearest_call_id == asked
