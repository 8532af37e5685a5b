"""The turn tree: numbers across prefix breaks, forks, depth, and the default branch."""

from __future__ import annotations

from explorer.export.judged import Judged
from explorer.records import CallId, EventKind, RolloutEvent, RolloutRecord
from explorer.trace.sequences import Sequences
from explorer.trace.verdict import judge
from explorer.web.turn_tree import TurnTree, View, named_calls
from tests.web.seeds import CERTIFICATE, FIRST, TOOL_OUTPUT, Maker, forked, maker


def judged(made: Maker) -> Judged:
    """A closed rollout, judged without a store."""
    rollout_id = made.rollout.rollout_id
    closed = RolloutEvent(rollout_id, 0, 1, EventKind.CLOSED, ok=True)
    record = RolloutRecord(made.rollout, (closed,), tuple(made.calls), CERTIFICATE)
    return Judged(record, judge(record), Sequences(record.calls))


def rows(tree: TurnTree) -> list[tuple[str, str, int]]:
    """Label, role and indentation of every line."""
    view = View(tree.default_leaf(), "tokens", {})
    return [(row.label, row.role, row.indent) for row in tree.rows(view, str)]


def test_a_chain_is_one_column_however_deep() -> None:
    made = maker("deep")
    parent: CallId | None = None
    for _ in range(1_500):
        said = (("tool", "ok"),) if parent else FIRST
        parent = made.call("go", parent=parent, said=said, with_bodies=False)
    found = rows(TurnTree(judged(made)))
    assert [label for label, _, _ in found] == [str(number) for number in range(1_501)]
    assert {indent for _, _, indent in found} == {0}


def test_a_prefix_break_goes_on_counting() -> None:
    made = maker("forgetful")
    one = made.call("think", said=FIRST)
    dropped = (*FIRST, ("assistant", "…"), ("tool", TOOL_OUTPUT))
    made.call("think again", said=dropped)
    made.call("done", said=(*dropped, ("assistant", "…"), ("tool", TOOL_OUTPUT)))
    tree = TurnTree(judged(made))
    assert [label for label, role, _ in rows(tree) if role == "agent"] == ["1", "2", "3"]
    # The last one has the longest prompt, so it shows most of the conversation.
    assert tree.default_leaf() == made.calls[-1].call_id
    assert one != tree.default_leaf()


def test_forks_auxiliary_and_failed_calls() -> None:
    assert rows(TurnTree(judged(forked()))) == [
        ("A.1", "auxiliary", 0),
        ("0", "prompt", 0),
        ("1", "agent", 0),
        ("2", "agent", 0),
        ("3", "agent", 1),
        ("3′", "discarded", 1),
        ("4", "agent", 1),
        ("4′", "failed", 1),
        ("5", "agent", 0),
        ("6", "agent", 0),
    ]


def drawn(made: Maker) -> list[tuple[str, str, str]]:
    """Rails, label and what a line is said to follow."""
    tree = TurnTree(judged(made))
    view = View(tree.default_leaf(), "tokens", {})
    lines = [row for row in tree.rows(view, str) if row.role != "prompt"]
    return [(row.rails, row.label, row.after) for row in lines]


def chain(made: Maker, parent: CallId | None, turns: int, first: str) -> CallId:
    """Some turns, the first one after `first`."""
    for turn in range(turns):
        said = (("tool", first if turn == 0 else TOOL_OUTPUT),)
        parent = made.call("go on", parent=parent, said=said, with_bodies=False)
    assert parent is not None
    return parent


def test_both_branches_go_on_under_their_own_parent() -> None:
    made = maker("two-branches")
    one = made.call("look", said=FIRST)
    chain(made, one, 2, "error: try again")
    chain(made, one, 3, "12")
    assert drawn(made) == [
        ("", "1", ""),
        ("├", "2", ""),
        ("│", "3", ""),
        ("│", "4", ""),
        ("└", "2′", ""),
        (" ", "3′", ""),
    ]


def test_a_long_trunk_comes_after_its_alternatives() -> None:
    made = maker("long-trunk")
    one = made.call("look", said=FIRST)
    chain(made, one, 20, "12")
    chain(made, one, 2, "error: try again")
    lines = drawn(made)
    assert lines[:4] == [("", "1", ""), ("├", "2′", ""), ("│", "3′", ""), ("└", "2", "")]
    assert lines[4] == ("", "3", "2")
    assert {(rails, after) for rails, _, after in lines[5:]} == {("", "")}


def test_what_follows_a_thrown_away_answer_says_what_it_follows() -> None:
    assert drawn(forked())[1:] == [
        ("", "1", ""),
        ("", "2", ""),
        ("├", "3", ""),
        ("└", "3′", ""),
        ("├", "4", "3"),
        ("└", "4′", "3"),
        ("", "5", "4"),
        ("", "6", ""),
    ]


def test_forks_within_forks_stay_readable() -> None:
    made = maker("deep-forks")
    parent = made.call("look", said=FIRST)
    for _ in range(12):
        chain(made, parent, 2, "error")
        parent = chain(made, parent, 1, "12")
    tree = TurnTree(judged(made))
    assert max(len(line.rails) for line in tree.lines) <= 6
    assert len(set(tree.labels.values())) == len(made.calls)
    above: CallId | None = None
    rails: dict[CallId, str] = {}
    for line in tree.lines:
        left = line.node.parent_id
        deeper = left is not None and len(line.rails) > len(rails[left])
        assert left in (None, above, line.after) or deeper
        rails[line.node.call_id] = line.rails
        above = line.node.call_id
    # The trunk keeps to the left as long as it goes on for some turns.
    assert max(len(line.rails) for line in tree.lines[:25]) == 1


def test_asked_again_keeps_the_number() -> None:
    made = maker("retry")
    made.call("thrown away", said=FIRST)
    two = made.call("kept", said=FIRST)
    made.call("done", parent=two, said=(("tool", TOOL_OUTPUT),))
    tree = TurnTree(judged(made))
    found = tree.rows(View(tree.default_leaf(), "tokens", {}), str)
    assert [(row.label, row.role) for row in found] == [
        ("1′", "discarded"),
        ("0", "prompt"),
        ("1", "agent"),
        ("2", "agent"),
    ]
    note = found[1].broke
    assert note is not None
    assert (note.kind, note.nearest) == ("again", "turn 1′")


def test_a_side_call_takes_no_turn_number() -> None:
    made = maker("compact")
    one = made.call("look", said=FIRST)
    asked = (*FIRST, ("assistant", "…"), ("tool", TOOL_OUTPUT), ("user", "Summarise.\n"))
    made.call("a summary", said=asked, tools=0)
    made.call("done", said=(FIRST[0], ("user", "Go on.\n"), ("tool", TOOL_OUTPUT)))
    labels = {row[0]: row[1] for row in rows(TurnTree(judged(made)))}
    assert one == made.calls[0].call_id
    assert labels == {"0": "prompt", "1": "agent", "A.1": "auxiliary", "2": "agent"}


def test_a_fork_says_where_it_differs_and_a_rendered_turn_is_a_break() -> None:
    made = maker("fork-notes")
    one = made.call("look", said=FIRST)
    made.call("a", parent=one, said=(("tool", "12"),))
    made.call("b", parent=one, said=(("tool", "error"),))
    tree = TurnTree(judged(made))
    found = tree.rows(View(tree.default_leaf(), "tokens", {}), str)
    notes = [(row.label, row.broke) for row in found if row.broke]
    assert len(notes) == 1
    assert notes[0][1] is not None
    assert (notes[0][1].kind, notes[0][1].cause) == ("fork", "")


def test_no_calls() -> None:
    tree = TurnTree(judged(maker("empty")))
    assert tree.default_leaf() is None
    assert rows(tree) == []


def test_a_turn_rendered_anew_goes_on_counting() -> None:
    made = maker("rendered")
    one = made.call("look", said=FIRST)
    two = made.call("pear .", parent=one, said=(("tool", "12"),))
    # The harness sent everything back; the template made other tokens of turn 2.
    made.call("done", parent=one, said=(("tool", "12"), ("assistant", "pear."), ("tool", "4")))
    made.rebody(2, [*made.messages[two], {"role": "tool", "content": "4"}])
    assert drawn(made) == [("", "1", ""), ("├", "2", ""), ("└", "3", "")]
    tree = TurnTree(judged(made))
    notes = [row.broke for row in tree.rows(View(None, "tokens", {}), str)]
    kinds = [note.kind for note in notes if note]
    assert kinds == ["break"]


def test_texts_name_calls_by_their_turn() -> None:
    first, second = CallId("0" * 32), CallId("01a2291d-bacc-724d-885d-a7d0015e8f5d")
    text = f"call {first} answered; At 5 of call {second}: no. Calls: {first}, {'f' * 32}."
    assert named_calls(text, {first: "1′", second: "A.1"}) == (
        f"turn 1′ answered; At 5 of turn A.1: no. Calls: turn 1′, {'f' * 32}."
    )
