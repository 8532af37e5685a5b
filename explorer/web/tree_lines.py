"""Order, indentation and labels of the turn tree's lines.

Owns: which line follows which, the rails in front of it, and what each call is named.
Must not know: HTML, pages, what else a line says.

A chain of calls is not indented. Under a fork the continuations stand one step in, each
with what follows it. What follows the main one returns to the fork's own level where it
is the only one that goes on or is long, so that a long rollout stays one column; its next
line then says which call it continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from explorer.records import CallId, Role
from explorer.trace.causes import BreakCause
from explorer.trace.roles import RoleDecision
from explorer.trace.tree import Node, Tree

# Deeper rails are not drawn: the lines say in words what they follow.
MAX_RAILS = 6
# A main continuation with more lines comes after its alternatives, at the fork's level.
SHORT_LINES = 8

Roles = Mapping[CallId, RoleDecision]


@dataclass(frozen=True, slots=True)
class Line:
    """One call's place: `rails` has a character for each step of indentation.

    `after` is the call it continues where neither the line above nor the rails show it.
    """

    node: Node
    rails: str
    label: str
    after: CallId | None


@dataclass(frozen=True, slots=True)
class _Place:
    call_id: CallId
    rails: str
    follow: bool = True
    """Whether its continuations come right below."""
    resumed: bool = False
    """It has its line already; only its continuations are wanted."""


class TreeLines:
    """The lines of one tree, in the order they are drawn."""

    def __init__(self, tree: Tree, roles: Roles, main: CallId | None) -> None:
        """`main` is the end of the branch whose turns carry no letter."""
        self._tree = tree
        self._roles = roles
        self._sizes = _subtree_sizes(tree)
        self._trunk = frozenset() if main is None else frozenset(tree.path(main))
        self._numbering = self._number_roots(main)
        self.labels = self._labels(main)
        self.lines = tuple(self._lines())

    def lettered(self, root: CallId) -> bool:
        """Whether a root stands apart from the main conversation."""
        return bool(self._numbering[root][0])

    def main_leaf(self, call_id: CallId) -> CallId:
        """The end of the main continuation of a call."""
        node = self._tree.nodes[call_id]
        while node.children:
            node = self._tree.nodes[self._main_child(node)]
        return node.call_id

    def main_child(self, call_id: CallId) -> CallId:
        """The continuation of a call that its main branch takes; it must have one."""
        return self._main_child(self._tree.nodes[call_id])

    def _main_child(self, node: Node) -> CallId:
        """The one on the main branch, else the longest that was not thrown away."""

        def weight(call_id: CallId) -> tuple[bool, bool, int, int]:
            trunk = call_id in self._trunk
            kept = self._roles[call_id].role not in (Role.DISCARDED, Role.FAILED)
            return trunk, kept, self._sizes[call_id], -self._tree.nodes[call_id].sequence

        return max(node.children, key=weight)

    def _number_roots(self, leaf: CallId | None) -> dict[CallId, tuple[str, int]]:
        """Letter and first turn number of each root.

        A prompt that left its sequence goes on with the numbers of the call it left; one
        that was asked again has that call's number. A conversation of its own begins at
        1, with a letter unless it is the main one.
        """
        main = None if leaf is None else self._origin(self._tree.nodes[leaf].root_id)
        numbering: dict[CallId, tuple[str, int]] = {}
        apart = 0
        for root in self._tree.roots:
            left = self._left(root)
            if left is not None and left.root_id in numbering:
                letter, first = numbering[left.root_id]
                numbering[root] = (letter, first + left.depth + (not self._again(root)))
                continue
            name = "" if root == main else f"{_letters(apart)}."
            apart += root != main
            numbering[root] = (name, 1)
        return numbering

    def _again(self, root: CallId) -> bool:
        broke = self._tree.nodes[root].break_
        return broke is not None and broke.cause is BreakCause.SAME_PROMPT

    def _left(self, root: CallId) -> Node | None:
        """The call whose sequence a root's prompt left, if it was the same conversation.

        A side call leaves no sequence, and none is left for another: where a side call is
        the nearest one, what that one left counts.
        """
        if self._roles[root].role is Role.AUXILIARY:
            return None
        nodes = self._tree.nodes
        node = nodes[root]
        while node.break_ is not None and node.break_.cause is not BreakCause.UNRELATED:
            left = nodes.get(node.break_.nearest_call_id)
            if left is None or left.sequence >= node.sequence:
                return None
            if self._roles[left.call_id].role is not Role.AUXILIARY:
                earlier = (
                    self._tree.nodes[left.root_id].sequence < self._tree.nodes[root].sequence
                )
                return left if earlier else None
            node = left
        return None

    def _origin(self, root: CallId) -> CallId:
        """The root where the conversation of a root began."""
        left = self._left(root)
        while left is not None:
            root = left.root_id
            left = self._left(root)
        return root

    def _labels(self, leaf: CallId | None) -> dict[CallId, str]:
        """A number on its path for each call; a prime marks each alternative.

        The main branch comes first, so that it has no primes.
        """
        marks: dict[tuple[str, int], int] = {}
        labels: dict[CallId, str] = {}
        numbers = self._numbers()
        trunk = None if leaf is None else self._tree.nodes[leaf].root_id
        stack = sorted(reversed(self._tree.roots), key=lambda root: root == trunk)
        while stack:
            node = self._tree.nodes[stack.pop()]
            letter, number = self._numbering[node.root_id][0], numbers[node.call_id]
            primes = marks.get((letter, number), 0)
            marks[letter, number] = primes + 1
            labels[node.call_id] = f"{letter}{number}{_primes(primes)}"
            if node.children:
                main = self._main_child(node)
                stack.extend(child for child in reversed(node.children) if child != main)
                stack.append(main)
        return labels

    def _numbers(self) -> dict[CallId, int]:
        """The turn number of each call.

        One more than its parent's; than that of the call whose turn was rendered anew,
        where the prompt left it inside that turn.
        """
        numbers: dict[CallId, int] = {}
        for node in self._tree.walk():
            before = node.parent_id
            if node.break_ is not None and rendered_anew(node):
                before = node.break_.nearest_call_id
            if node.parent_id is None:
                numbers[node.call_id] = self._numbering[node.root_id][1]
            else:
                numbers[node.call_id] = numbers.get(before or node.parent_id, 0) + 1
        return numbers

    def _lines(self) -> Iterator[Line]:
        """Depth first with an explicit stack: a chain may be thousands of calls deep."""
        above: CallId | None = None
        rails: dict[CallId, str] = {}
        stack = [_Place(root, "") for root in reversed(self._tree.roots)]
        while stack:
            place = stack.pop()
            node = self._tree.nodes[place.call_id]
            if not place.resumed:
                rails[node.call_id] = place.rails
                parent = node.parent_id
                step = 0 if parent is None else len(place.rails) - len(rails[parent])
                seen = step > 0 or (step == 0 and parent == above)
                after = None if seen else parent
                yield Line(node, place.rails, self.labels[node.call_id], after)
                above = node.call_id
            if place.follow:
                stack.extend(reversed(self._below(node, place.rails)))

    def _below(self, node: Node, rails: str) -> list[_Place]:
        """What comes after a line: its continuations and theirs."""
        if not node.children:
            return []
        inner = rails.replace("├", "│").replace("└", " ")
        if len(node.children) == 1:
            return [_Place(node.children[0], inner)]
        main = self._main_child(node)
        others = [child for child in node.children if child != main]
        room = inner[: MAX_RAILS - 1]
        again = rendered_anew(self._tree.nodes[main])
        if again or any(self._tree.nodes[child].children for child in others):
            return self._several_go_on(main, others, room, inner)
        last = others.pop()
        return [
            _Place(main, f"{room}├", follow=False),
            *(_Place(child, f"{room}├") for child in others),
            _Place(last, f"{room}└"),
            _Place(main, inner, resumed=True),
        ]

    def _several_go_on(
        self, main: CallId, others: list[CallId], room: str, inner: str
    ) -> list[_Place]:
        if self._sizes[main] > SHORT_LINES or rendered_anew(self._tree.nodes[main]):
            return [
                *(_Place(child, f"{room}├") for child in others),
                _Place(main, f"{room}└", follow=False),
                _Place(main, inner, resumed=True),
            ]
        last = others.pop()
        return [
            *(_Place(child, f"{room}├") for child in (main, *others)),
            _Place(last, f"{room}└"),
        ]


def rendered_anew(node: Node) -> bool:
    """Whether a call goes on from a sibling whose messages came back in other tokens.

    Nobody chose to branch there: the template rendered the turn in another way.
    """
    broke = node.break_
    return node.parent_id is not None and broke is not None and broke.rendered_anew


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
