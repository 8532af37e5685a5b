"""Conversations of one rollout in any order: the same tree, the same masks.

What order can matter for, by design, and is left out of a property for that reason:

* `nested_in_tool_call`: a tool-bearing root with a system prompt or tools of its own is a
  subagent if it began while another conversation waited for its tools. That a subagent begins
  between its parent's turn and the next one is part of what happened, so the orders of
  `interleavings` keep it; only spawned conversations have a system prompt of their own, since
  another agent that begins alone in one order and beside a waiting one in another is told
  apart by nothing else. Orders that keep no cause at all are tried without digests and waits.
* What goes on from what by its messages is looked for among earlier calls only, so it is
  evidence of order too, and left out in the same way.
* The first tool-bearing root is the main agent whatever it claims: an arrival order in which
  the first one claims to be a subagent is passed over.
* Twins, whose prompt and sampled ids are one and the same sequence: the earliest is the parent
  of what follows, so which of them is `discarded` is a matter of order. They are compared as a
  set, and no script has twins that differ in anything else: that one of them has tools, say, or
  that one sampled what is prompt in the other. A twin that failed is no such case: whatever the
  order, the one that ended well is the parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from explorer.records import CallId, MaskReason, Override, Role, RolloutRecord
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.audit_reader import read_audit
from explorer.trace.mask import Span
from explorer.trace.tree import Tree
from explorer.trace.verdict import Judgement, judge
from explorer.trace.verify import verify
from tests.trace.build import override
from tests.trace.conversations import Script, Step, interleavings, recorded, scripts

Edges = dict[str, tuple[int, ...] | None]
ROLES = {
    "sampled": Role.AGENT,
    "greedy": Role.AGENT,
    "ambiguous_sibling": Role.AGENT,
    "failed_call": Role.FAILED,
    "discarded": Role.DISCARDED,
    "auxiliary": Role.AUXILIARY,
    "subagent": Role.SUBAGENT,
}


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[Script, list[str]]:
    script = draw(scripts())
    return script, draw(interleavings(script))


def _twins(step: Step) -> tuple[tuple[int, ...], bool]:
    return step.full, step.meant == "failed_call"


@st.composite
def blind(draw: st.DrawFn) -> tuple[Script, list[str], list[str]]:
    """Tokens alone, from a tiny alphabet, and two arrival orders that keep nothing. Of twins
    that are not alike the first stays."""
    kept: dict[tuple[tuple[int, ...], bool], Step] = {}
    script: list[Step] = []
    for drawn in draw(scripts(apart=False)):
        facts = {key: drawn.facts[key] for key in drawn.facts if key not in _ORDERED}
        step = replace(drawn, facts=facts)
        twin = step if step.sampled is None else kept.setdefault(_twins(step), step)
        if (twin.prompt, twin.facts) == (step.prompt, step.facts):
            script.append(step)
    names = [step.name for step in script]
    return tuple(script), draw(st.permutations(names)), draw(st.permutations(names))


_ORDERED = frozenset(("message_digests", "reply_digest", "system_digest", "tools_digest"))


def scanned_edges(script: Sequence[Step]) -> Edges:
    """By call with ids, the whole sequence of its parent: the longest one that its prompt
    begins with, found by a scan over all calls."""
    found: Edges = {}
    for step in script:
        if step.sampled is None:
            continue
        known = [
            other.full
            for other in script
            if other.sampled is not None
            and step.prompt[: len(other.full)] == other.full
            # Who failed before the first token is nobody's parent, and no sequence that ends
            # where the prompt ends may be, unless it sampled something.
            and (other.sampled or other.meant != "failed_call")
            and (other.sampled or len(other.full) < len(step.prompt))
        ]
        found[step.name] = max(known, key=len, default=None)
    return found


def edges(tree: Tree) -> Edges:
    """The same from the tree."""
    return {
        str(node.call_id): None
        if node.parent_id is None
        else tuple(tree.sequences.full(node.parent_id).tolist())
        for node in tree.nodes.values()
        if node.has_ids
    }


def shown(judgement: Judgement, call_id: str) -> tuple[Any, ...]:
    """What was decided about a call."""
    decision, mask = judgement.roles[CallId(call_id)], judgement.masks[CallId(call_id)]
    return decision.role, decision.rule, decision.ambiguous, mask.reason, mask.spans


def meant(step: Step, by_full: Mapping[tuple[int, ...], Step], parents: Edges) -> list[Span]:
    """The whole row as the script means it: what each ancestor left, then its own."""
    spans: list[Span] = []
    start, line = 0, [step]
    while (above := parents[line[-1].name]) is not None:
        line.append(by_full[above])
    for ancestor in reversed(line):
        kind = MaskReason.PROMPT if start == 0 else MaskReason.ENVIRONMENT
        spans.append(Span(start, len(ancestor.prompt), kind))
        start = len(ancestor.full)
        last = MaskReason(step.meant) if ancestor is step else MaskReason.OWNED_BY_OTHER_ROW
        spans.append(Span(len(ancestor.prompt), start, last))
    return [span for span in spans if span.start < span.end]


# -- order that keeps causes ----------------------------------------------------------------


@settings(max_examples=250)
@given(interleaved())
def test_any_interleaving_gives_the_masks_that_the_conversations_mean(
    made: tuple[Script, list[str]],
) -> None:
    """Each call has the role and the mask that its conversation means, whatever the others
    did in between; so all interleavings give the same."""
    script, order = made
    judgement = judge(recorded(script, order))
    parents = scanned_edges(script)
    assert edges(judgement.tree) == parents
    by_full = {step.full: step for step in script if step.sampled is not None}
    for step in script:
        decision = judgement.roles[CallId(step.name)]
        assert decision.role is ROLES[step.meant], (step, decision, order)
        assert decision.ambiguous is (step.meant == "ambiguous_sibling")
        mask = judgement.masks[CallId(step.name)]
        if step.sampled is None:
            assert mask.length == 0
        else:
            assert list(mask.spans) == meant(step, by_full, parents)


@given(interleaved(), st.data())
def test_two_interleavings_agree_in_every_bit_and_in_the_verdict(
    made: tuple[Script, list[str]], data: st.DataObject
) -> None:
    script, order = made
    one = judge(recorded(script, order))
    two = judge(recorded(script, data.draw(interleavings(script))))
    for step in script:
        assert shown(one, step.name)[3:] == shown(two, step.name)[3:]
    assert edges(one.tree) == edges(two.tree)
    assert [item.code for item in one.reasons] == [item.code for item in two.reasons]
    assert one.mask_counts == two.mask_counts
    assert one.supervised_tokens == two.supervised_tokens


# -- any arrival order ------------------------------------------------------------------------


@given(blind())
def test_any_arrival_order_gives_the_same_edges_and_masks(
    made: tuple[Script, list[str], list[str]],
) -> None:
    script, *orders = made
    groups: dict[Any, list[Step]] = {}
    for step in script:
        key = step.name if step.sampled is None else _twins(step)
        groups.setdefault(key, []).append(step)
    found = []
    for order in orders:
        record = recorded(script, order)
        judgement = judge(record)
        assume(not _first_claims(record, judgement.tree))
        assert edges(judgement.tree) == scanned_edges(script)
        found.append(judgement)
    one, two = found
    for twins in groups.values():
        decided = [
            Counter(shown(judgement, twin.name) for twin in twins) for judgement in (one, two)
        ]
        assert decided[0] == decided[1], (script, orders)
    assert one.mask_counts == two.mask_counts
    assert {item.code for item in one.reasons} == {item.code for item in two.reasons}


def _first_claims(record: RolloutRecord, tree: Tree) -> bool:
    """Whether the first tool-bearing root that is no side work claims a parent."""
    by_id = {call.call_id: call for call in record.calls}
    roots = {tree.nodes[name].root_id for name, call in by_id.items() if call.n_tools}
    working = [
        root
        for root in tree.roots
        if root in roots and "request_kind" not in by_id[root].claims
    ]
    return bool(working) and "x-parent-session-id" in by_id[working[0]].claims


@given(blind())
def test_assembled_sequences_are_the_engines_own_whatever_the_order(
    made: tuple[Script, list[str], list[str]],
) -> None:
    """Capture stores a call against what had ended by then; put together it is what the engine
    said, whatever the orders in which calls came and ended, also after it was exported."""
    script, order, ended = made
    record = recorded(script, order, ended)
    judgement = judge(record)
    tree = judgement.tree
    assert edges(tree) == scanned_edges(script)
    for step in script:
        if step.sampled is not None:
            assert tuple(tree.sequences.prompt(CallId(step.name)).tolist()) == step.prompt
            assert tuple(tree.sequences.full(CallId(step.name)).tolist()) == step.full
    codes = {finding.code for finding in judgement.findings}
    assert not codes & {"record_inconsistent", "chain_mismatch", "prompt_count_mismatch"}
    audit = b"".join(capture_audit(record, judgement))
    read = read_audit(orjson.loads(audit))
    assert b"".join(capture_audit(read.record, judge(read.record, read.policy))) == audit
    if judgement.trainable:
        trace = b"".join(training_trace(record, judgement))
        assert verify(trace, audit).problems == ()


# -- what leaves ------------------------------------------------------------------------------


@given(interleaved(), st.data())
def test_every_sampled_token_that_trains_does_so_in_one_row_of_the_export(
    made: tuple[Script, list[str]], data: st.DataObject
) -> None:
    """Ones of the mask = sampled ids of the agent that nobody excluded; and of the whole file,
    each such token has loss exactly once, in its own call's row."""
    script, order = made
    by_name = {step.name: step for step in script}
    excluded: list[Override] = []
    gone: set[tuple[str, int]] = set()
    for name in data.draw(st.lists(st.sampled_from(sorted(by_name)), max_size=2, unique=True)):
        start, end = sorted((data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))))
        excluded.append(override("exclude_span", name, start=start, end=end))
        gone |= {(name, place) for place in range(start, end)}
    expected = {
        (step.name, place)
        for step in script
        if step.meant == "sampled" and step.sampled is not None
        for place in range(len(step.prompt), len(step.full))
        if (step.name, place) not in gone
    }
    record = replace(recorded(script, order), overrides=tuple(excluded))
    judgement = judge(record)
    ones = {
        (str(call_id), place)
        for call_id, mask in judgement.masks.items()
        for place, bit in enumerate(mask.bits().tolist())
        if bit
    }
    assert ones == expected
    assert judgement.trainable is bool(expected)
    if not expected:
        assert [item.code for item in judgement.reasons][-1] in (
            "nothing_trainable",
            "no_turns",
        )
        return
    turns = orjson.loads(b"".join(training_trace(record, judgement)))["turns"]
    assert len({turn["node_id"] for turn in turns}) == len(turns)
    trained: Counter[tuple[str, int]] = Counter()
    for turn in turns:
        step = by_name[turn["node_id"]]
        assert tuple(turn["prompt_token_ids"]) == step.prompt
        assert tuple(turn["completion_token_ids"]) == step.sampled
        assert len(turn["loss_mask"]) == len(step.full)
        for place, bit in enumerate(turn["loss_mask"]):
            if bit:
                trained[_owner(step, place, by_name, judgement)] += 1
    assert set(trained.values()) <= {1}
    assert set(trained) == expected


def _owner(
    step: Step, place: int, by_name: Mapping[str, Step], judgement: Judgement
) -> tuple[str, int]:
    """The call that sampled the token at a place of a row, or a name that no call has."""
    current: CallId | None = CallId(step.name)
    while current is not None:
        owner = by_name[current]
        if len(owner.prompt) <= place < len(owner.full):
            return owner.name, place
        current = judgement.tree.nodes[current].parent_id
    return "nobody", place
