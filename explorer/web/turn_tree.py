"""The turn tree as lines: every call, its role and the rule that decided it.

Owns: the order, indentation and labels of the lines, and the list of branches.
Must not know: HTML, tokens beyond their counts.

A chain of calls is not indented. Under a fork the continuations stand one step in; the
one that goes on longest is followed back at the fork's own level, so that a long
rollout with a few discarded answers stays one column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from explorer.export.judged import Judged
from explorer.records import CallId, Role
from explorer.trace.breaks import BreakCause
from explorer.trace.tree import Node, Tree
from explorer.web import words
from explorer.web.contexts_rollout import (
    BranchChoice,
    BreakNote,
    TreeRow,
)
from explorer.web.frames import rollout_href

MAX_INDENT = 5

CAUSES = {
    BreakCause.SAME_PROMPT: "The prompt is the same; it was asked again.",
    BreakCause.SYSTEM_CHANGED: "The system prompt changed.",
    BreakCause.TOOLS_CHANGED: "The tools changed.",
    BreakCause.COMPACTION: "The harness shortened the history.",
    BreakCause.HISTORY_REWRITTEN: "Earlier messages were rewritten.",
    BreakCause.REASONING_DROPPED: "Reasoning dropped or a turn re-serialised.",
    BreakCause.UNRELATED: "A conversation of its own",
    BreakCause.UNKNOWN: "The cause is unknown.",
}

Decode = Callable[[int | None], str]


@dataclass(frozen=True, slots=True)
class View:
    """The branch shown, the tab that links go to, and the view state they keep."""

    leaf: CallId | None
    tab: str
    state: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Line:
    node: Node
    indent: int
    glyph: str
    label: str


class TurnTree:
    """The lines and branches of one judged rollout."""

    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        self.tree: Tree = judged.judgement.tree
        self.calls = {call.call_id: call for call in judged.record.calls}
        self.sizes = _subtree_sizes(self.tree)
        self._numbering = self._number_roots()
        self.lines = tuple(self._lines())
        self.labels = {line.node.call_id: line.label for line in self.lines}

    def _number_roots(self) -> dict[CallId, tuple[str, int]]:
        """Letter and first turn number of each root.

        A prompt that left its sequence goes on with the numbers of the call it left. A
        conversation of its own begins at 1, with a letter unless it is the main one.
        """
        leaf = self.default_leaf()
        main = None if leaf is None else self._origin(self.tree.nodes[leaf].root_id)
        numbering: dict[CallId, tuple[str, int]] = {}
        apart = 0
        for root in self.tree.roots:
            left = self._left(root)
            if left is not None and left.root_id in numbering:
                letter, first = numbering[left.root_id]
                numbering[root] = (letter, first + left.depth + 1)
                continue
            name = "" if root == main else f"{_letters(apart)}."
            apart += root != main
            numbering[root] = (name, 1)
        return numbering

    def _left(self, root: CallId) -> Node | None:
        """The call whose sequence a root's prompt left, if it was the same conversation."""
        broke = self.tree.nodes[root].break_
        if broke is None or broke.cause is BreakCause.UNRELATED:
            return None
        return self.tree.nodes.get(broke.nearest_call_id)

    def _origin(self, root: CallId) -> CallId:
        """The root where the conversation of a root began."""
        left = self._left(root)
        while left is not None and left.sequence < self.tree.nodes[root].sequence:
            root = left.root_id
            left = self._left(root)
        return root

    def main_leaf(self, call_id: CallId) -> CallId:
        """The end of the longest continuation of a call."""
        node = self.tree.nodes[call_id]
        while node.children:
            node = self.tree.nodes[self._main_child(node)]
        return node.call_id

    def default_leaf(self) -> CallId | None:
        """The branch to open: of those that train, the one with most agent calls, then
        the longest, which holds most of the conversation."""
        masks, roles = self.judged.judgement.masks, self.judged.judgement.roles

        def rank(leaf: CallId) -> tuple[bool, int, int]:
            path = self.tree.path(leaf)
            trains = any(masks[call_id].supervised for call_id in path)
            agents = sum(roles[call_id].role is Role.AGENT for call_id in path)
            return trains, agents, masks[leaf].length

        return max(self.tree.leaves, key=rank, default=None)

    def _main_child(self, node: Node) -> CallId:
        roles = self.judged.judgement.roles

        def weight(call_id: CallId) -> tuple[bool, int, int]:
            kept = roles[call_id].role not in (Role.DISCARDED, Role.FAILED)
            return kept, self.sizes[call_id], -self.tree.nodes[call_id].sequence

        return max(node.children, key=weight)

    def _lines(self) -> Iterator[_Line]:
        """Depth first with an explicit stack: a chain may be thousands of calls deep."""
        marks: dict[tuple[str, int], int] = {}
        said: set[CallId] = set()
        stack: list[tuple[CallId, int, str, bool]] = [
            (root, 0, "", True) for root in reversed(self.tree.roots)
        ]
        while stack:
            call_id, indent, glyph, follow = stack.pop()
            node = self.tree.nodes[call_id]
            if call_id in said:  # the main continuation of a fork: only what follows it
                stack.extend(reversed(self._below(node, indent)))
                continue
            said.add(call_id)
            letter, first = self._numbering[node.root_id]
            number = first + node.depth
            place = (letter, number)
            primes = marks.get(place, 0)
            marks[place] = primes + 1
            yield _Line(node, indent, glyph, f"{letter}{number}{_primes(primes)}")
            if follow:
                stack.extend(reversed(self._below(node, indent)))

    def _below(self, node: Node, indent: int) -> list[tuple[CallId, int, str, bool]]:
        """What comes after a line: its continuations, the main one's rest last."""
        if not node.children:
            return []
        if len(node.children) == 1:
            return [(node.children[0], indent, "", True)]
        main = self._main_child(node)
        others = [child for child in node.children if child != main]
        inner = min(indent + 1, MAX_INDENT)
        below = [(main, inner, "├", False)]
        below += [(child, inner, "└" if child == others[-1] else "├", True) for child in others]
        return [*below, (main, indent, "", True)]

    def rows(self, view: View, decode: Decode) -> tuple[TreeRow, ...]:
        """The lines for a page; `decode` makes a token id visible text."""
        leaf = view.leaf
        on_path = frozenset(self.tree.path(leaf)) if leaf is not None else frozenset()
        longest = max((line.node.completion_len for line in self.lines), default=0) or 1
        rows: list[TreeRow] = []
        for line in self.lines:
            shown = leaf if line.node.call_id in on_path else self.main_leaf(line.node.call_id)
            here = line.node.call_id in on_path
            if line.node.parent_id is None and line.node.prompt_len and here:
                rows.append(self._prompt_row(line.node, shown, view, decode))
            rows.append(self._row(line, shown, here, longest, view, decode))
        return tuple(rows)

    def _href(self, leaf: CallId | None, view: View, anchor: str) -> str:
        rollout_id = self.judged.record.rollout.rollout_id
        return f"{rollout_href(rollout_id, view.tab, branch=leaf, **view.state)}#{anchor}"

    def _prompt_row(
        self, node: Node, leaf: CallId | None, view: View, decode: Decode
    ) -> TreeRow:
        return TreeRow(
            call_id=node.call_id,
            label="0",
            role="prompt",
            words="prompt",
            glyph="",
            indent=0,
            forks=0,
            note="",
            rule="",
            why="the first prompt of this branch",
            sampled_tokens=node.prompt_len,
            trained_tokens=0,
            bar=0.0,
            href=self._href(leaf, view, "t0" if view.tab == "tokens" else "turn-1"),
            on_branch=True,
            broke=self._break_note(node, decode),
        )

    def _row(
        self,
        line: _Line,
        leaf: CallId | None,
        here: bool,
        longest: int,
        view: View,
        decode: Decode,
    ) -> TreeRow:
        node = line.node
        decision = self.judged.judgement.roles[node.call_id]
        headed = here and node.parent_id is None and node.prompt_len > 0
        anchor = f"t{node.prompt_len}" if view.tab == "tokens" else f"turn-{node.depth + 1}"
        return TreeRow(
            call_id=node.call_id,
            label=line.label,
            role=decision.role.value,
            words=f"{decision.role.value}{', ambiguous' if decision.ambiguous else ''}",
            glyph=line.glyph,
            indent=line.indent,
            forks=len(node.children) if len(node.children) > 1 else 0,
            note=self._note(node.call_id),
            rule=decision.rule,
            why=decision.why,
            sampled_tokens=node.completion_len,
            trained_tokens=self.judged.judgement.masks[node.call_id].supervised,
            bar=round(node.completion_len / longest, 3),
            href=self._href(leaf, view, anchor),
            on_branch=here,
            broke=None if headed else self._break_note(node, decode),
        )

    def _note(self, call_id: CallId) -> str:
        """The second line of a call that is not plainly the agent's."""
        decision, call = self.judged.judgement.roles[call_id], self.calls[call_id]
        if decision.role is Role.AGENT and not decision.ambiguous:
            return ""
        if decision.role is Role.FAILED and call.failure_kind is not None:
            return call.failure_kind.value.replace("_", " ")
        return decision.rule.replace("_", " ")

    def _break_note(self, node: Node, decode: Decode) -> BreakNote | None:
        if node.break_ is None or node.parent_id is not None:
            return None
        broke = node.break_
        unrelated = broke.cause is BreakCause.UNRELATED
        if unrelated and not self._numbering[node.call_id][0]:
            return None
        return BreakNote(
            offset=broke.offset,
            nearest=f"turn {self.labels.get(broke.nearest_call_id, words.UNKNOWN)}",
            expected=decode(broke.expected_id)
            if broke.expected_id is not None
            else "(its end)",
            actual=decode(broke.actual_id) if broke.actual_id is not None else "(its end)",
            cause=CAUSES[broke.cause],
            unrelated=unrelated,
        )

    def branches(self, view: View) -> tuple[BranchChoice, ...]:
        """Every branch, in the order of the lines."""
        choices = []
        leaves = [line.node.call_id for line in self.lines if not line.node.children]
        rollout_id = self.judged.record.rollout.rollout_id
        for number, end in enumerate(leaves, 1):
            role = self.judged.judgement.roles[end].role.value
            choices.append(
                BranchChoice(
                    leaf=end,
                    label=f"{number} · to {self.labels[end]} {role}",
                    href=rollout_href(rollout_id, view.tab, branch=end, **view.state),
                    current=end == view.leaf,
                )
            )
        return tuple(choices)


def _letters(number: int) -> str:
    """A, B … Z, AA, AB …"""
    name = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(65 + rest) + name
    return name


def _primes(count: int) -> str:
    return "′" * count if count < 4 else f"′{count}"


def _subtree_sizes(tree: Tree) -> dict[CallId, int]:
    sizes = dict.fromkeys(tree.nodes, 1)
    for node in reversed(list(tree.walk())):
        if node.parent_id is not None:
            sizes[node.parent_id] += sizes[node.call_id]
    return sizes
