"""The turn tree: numbers across prefix breaks, forks, depth, and the default branch."""

from __future__ import annotations

from explorer.export.judged import Judged
from explorer.records import CallId, EventKind, RolloutEvent, RolloutRecord
from explorer.trace.sequences import Sequences
from explorer.trace.verdict import judge
from explorer.web.turn_tree import TurnTree, View
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


def test_no_calls() -> None:
    tree = TurnTree(judged(maker("empty")))
    assert tree.default_leaf() is None
    assert rows(tree) == []
