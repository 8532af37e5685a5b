"""The turn tree as lines: every call, its role and the rule that decided it.

Owns: what each line says, where a prompt left its history, and the list of branches.
Must not know: HTML, tokens beyond their counts, the order of the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from explorer.export.judged import Judged
from explorer.records import CallId, Role
from explorer.trace.breaks import PrefixBreak
from explorer.trace.causes import BreakCause
from explorer.trace.tree import Node, Tree
from explorer.web import words
from explorer.web.contexts_rollout import (
    BranchChoice,
    BreakNote,
    TreeRow,
)
from explorer.web.frames import rollout_href
from explorer.web.tree_lines import Line, TreeLines, rendered_anew

CAUSES = {
    BreakCause.SAME_PROMPT: "The prompt is the same; it was asked again.",
    BreakCause.SYSTEM_CHANGED: "The system prompt changed.",
    BreakCause.TOOLS_CHANGED: "The tools changed.",
    BreakCause.COMPACTION: "The harness shortened the history.",
    BreakCause.HISTORY_REWRITTEN: "Earlier messages were rewritten.",
    BreakCause.REASONING_DROPPED: "The reasoning of an earlier turn was dropped.",
    BreakCause.TEMPLATE_BOUNDARY: "The template wrote the edge of a turn otherwise.",
    BreakCause.RESERIALISED_ARGUMENTS: "The arguments of a tool call were written anew.",
    BreakCause.UNRELATED: "A conversation of its own",
    BreakCause.UNKNOWN: "The cause is unknown.",
}

_CALL = re.compile(r"\b(?:[Cc]all )?([0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32})\b")

Decode = Callable[[int | None], str]


@dataclass(frozen=True, slots=True)
class View:
    """The branch shown, the tab that links go to, and the view state they keep."""

    leaf: CallId | None
    tab: str
    state: dict[str, str]


class TurnTree:
    """The lines and branches of one judged rollout."""

    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        self.tree: Tree = judged.judgement.tree
        self.calls = {call.call_id: call for call in judged.record.calls}
        self._drawn = TreeLines(self.tree, judged.judgement.roles, self.default_leaf())
        self.lines = self._drawn.lines
        self.labels = self._drawn.labels

    def main_leaf(self, call_id: CallId) -> CallId:
        """The end of the main continuation of a call."""
        return self._drawn.main_leaf(call_id)

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
            rails="",
            indent=0,
            after="",
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
            compare_href=None,
            compare_label="",
        )

    def _row(
        self,
        line: Line,
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
        compare_href, compare_label = self._compare(node)
        return TreeRow(
            call_id=node.call_id,
            label=line.label,
            role=decision.role.value,
            words=f"{decision.role.value}{', ambiguous' if decision.ambiguous else ''}",
            rails=line.rails,
            indent=len(line.rails),
            after="" if line.after is None else self.labels[line.after],
            forks=len(node.children) if len(node.children) > 1 else 0,
            note=self._note(node.call_id),
            rule=decision.rule,
            why=named_calls(decision.why, self.labels),
            sampled_tokens=node.completion_len,
            trained_tokens=self.judged.judgement.masks[node.call_id].supervised,
            bar=round(node.completion_len / longest, 3),
            href=self._href(leaf, view, anchor),
            on_branch=here,
            broke=None if headed else self._break_note(node, decode),
            compare_href=compare_href,
            compare_label=compare_label,
        )

    def counterpart(self, node: Node) -> tuple[CallId, str] | None:
        """The call to compare one with, and why: the sibling that the main branch goes on
        from, or the call whose sequence its prompt left."""
        broke = node.break_
        if broke is not None and (rendered_anew(node) or node.parent_id is None):
            if self._break_kind(node, broke.cause) == "apart":
                return None
            return broke.nearest_call_id, "break"
        if node.parent_id is None:
            return None
        main = self._drawn.main_child(node.parent_id)
        return None if main == node.call_id else (main, "fork")

    def _compare(self, node: Node) -> tuple[str | None, str]:
        found = self.counterpart(node)
        if found is None:
            return None, ""
        rollout_id = self.judged.record.rollout.rollout_id
        href = rollout_href(rollout_id, "compare", a=found[0], b=node.call_id)
        known = self.labels.get(found[0], words.UNKNOWN)
        return href, f"compare {known} | {self.labels[node.call_id]}"

    def _note(self, call_id: CallId) -> str:
        """The second line of a call that is not plainly the agent's."""
        decision, call = self.judged.judgement.roles[call_id], self.calls[call_id]
        if decision.role is Role.AGENT and not decision.ambiguous:
            return ""
        if decision.role is Role.FAILED and call.failure_kind is not None:
            return call.failure_kind.value.replace("_", " ")
        return decision.rule.replace("_", " ")

    def _break_note(self, node: Node, decode: Decode) -> BreakNote | None:
        broke = node.break_
        if broke is None:
            return None
        kind = self._break_kind(node, broke.cause)
        if kind == "apart" and not self._drawn.lettered(node.root_id):
            return None

        def token(token_id: int | None) -> str:
            return "(its end)" if token_id is None else decode(token_id)

        return BreakNote(
            kind=kind,
            offset=broke.offset,
            nearest=f"turn {self.labels.get(broke.nearest_call_id, words.UNKNOWN)}",
            expected=token(broke.expected_id),
            actual=token(broke.actual_id),
            cause="" if kind == "fork" else CAUSES[broke.cause],
            href=self._token_href(broke),
        )

    def _break_kind(self, node: Node, cause: BreakCause) -> str:
        """What a difference from the nearest earlier sequence means for the reader."""
        if cause is BreakCause.SAME_PROMPT:
            return "again"
        if node.parent_id is None and cause is BreakCause.UNRELATED:
            return "apart"
        if self.judged.judgement.roles[node.call_id].role is Role.AUXILIARY:
            return "fork"
        return "break" if node.parent_id is None or rendered_anew(node) else "fork"

    def _token_href(self, broke: PrefixBreak) -> str:
        """The place where the nearest call went on in its own way, or its end."""
        rollout_id = self.judged.record.rollout.rollout_id
        at = broke.offset if broke.expected_id is not None else max(0, broke.offset - 1)
        page = rollout_href(rollout_id, "tokens", branch=broke.nearest_call_id, t=at)
        return f"{page}#t{at}"

    def root_break(self, leaf: CallId, decode: Decode) -> BreakNote | None:
        """Where the branch that ends in `leaf` left an earlier conversation, if it did."""
        root = self.tree.nodes[self.tree.nodes[leaf].root_id]
        note = self._break_note(root, decode)
        return None if note is None or note.kind == "apart" else note

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


def named_calls(text: str, labels: Mapping[CallId, str]) -> str:
    """A text about calls with their turn numbers in place of their ids."""

    def name(found: re.Match[str]) -> str:
        label = labels.get(CallId(found[1]))
        return found[0] if label is None else f"turn {label}"

    return _CALL.sub(name, text)
