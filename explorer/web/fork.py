"""Builds the page of two calls of one rollout side by side.

Owns: which two calls, their tokens after the shared prefix, and where these are cut.
Must not know: HTTP; how tokens are marked up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from markupsafe import Markup

from explorer.export.judged import Judged
from explorer.records import BodyKind, CallId, Role
from explorer.store.interface import Store
from explorer.trace.branch import Segment
from explorer.web import words
from explorer.web.branches import Shown, shown_branch
from explorer.web.contexts import Choice, Frame
from explorer.web.contexts_compare import ForkPage, ForkPart, ForkSide
from explorer.web.contexts_diff import TextDiff
from explorer.web.contexts_rollout import Header
from explorer.web.divergence import divergence
from explorer.web.frames import rollout_href
from explorer.web.legends import legend
from explorer.web.markup import Look, TokenMarkup
from explorer.web.messages import asked_messages, content_text
from explorer.web.pretty import Pairs, safe_text
from explorer.web.services import Services
from explorer.web.text_diff import diff_lines
from explorer.web.turn_tree import CAUSES, TurnTree, named_calls

SHOWN: Final = 400
SHOWN_ALL: Final = 12_000
TAIL: Final = 160
_ANCHOR: Final = re.compile(r"<i id=t(\d+)")
_BOTH: Final = "both"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for; `whole` names the side to show whole, or both."""

    left: str = ""
    right: str = ""
    whole: str = ""


def read_wanted(query: Mapping[str, str]) -> Wanted:
    """The two calls and the side to show whole."""
    return Wanted(query.get("a", ""), query.get("b", ""), query.get("all", ""))


class ForkCompare:
    """Two calls of one judged rollout."""

    def __init__(self, services: Services, judged: Judged) -> None:
        self._services = services
        self._judged = judged
        self._tree = TurnTree(judged)
        self._rollout_id = judged.record.rollout.rollout_id

    def page(self, frame: Frame, header: Header, wanted: Wanted) -> ForkPage:
        """The page; what cannot be compared says why."""
        left, right = self._chosen(wanted)
        problem = self._problem(left, right)
        if problem or left is None or right is None:
            return ForkPage(
                frame=frame,
                header=header,
                calls=self._choices(),
                left=left or "",
                right=right or "",
                problem=problem,
                cause="",
                sides=(),
                divergence=None,
                shared=0,
                tail="",
                swap_href="",
                legend=None,
                system=None,
            )
        wanted = replace(wanted, left=left, right=right)
        shown = {call: self._shown(call) for call in (left, right)}
        found = divergence(shown[left], shown[right])
        shared = found.position if found else shown[left].view.length
        return ForkPage(
            frame=frame,
            header=header,
            calls=self._choices(),
            left=left,
            right=right,
            problem="",
            cause=self._cause(left, right),
            sides=(
                self._side(left, shown[left], shared, "a", wanted),
                self._side(right, shown[right], shared, "b", wanted),
            ),
            divergence=found,
            shared=shared,
            tail=_tail(shown[left], shared),
            swap_href=self._href(right, left, ""),
            legend=legend(self._judged, shown[right].view),
            system=system_diff(
                self._services.store, self._judged, left, right, self._tree.labels
            ),
        )

    def _shown(self, call_id: CallId) -> Shown:
        return shown_branch(self._services, self._judged, self._tree, call_id)

    def _chosen(self, wanted: Wanted) -> tuple[CallId | None, CallId | None]:
        """The calls named; without any, the first pair that the turn tree offers."""
        if not wanted.left and not wanted.right:
            return next(
                (
                    (pair[0], line.node.call_id)
                    for line in self._tree.lines
                    if (pair := self._tree.counterpart(line.node)) is not None
                ),
                (None, None),
            )
        return CallId(wanted.left) or None, CallId(wanted.right) or None

    def _problem(self, left: CallId | None, right: CallId | None) -> str:
        nodes = self._tree.tree.nodes
        if left is None or right is None:
            if len(nodes) < 2:
                return "This rollout has fewer than two calls in its tree: nothing to compare."
            return "No call left another one here. Choose any two calls to compare them."
        for name, call in (("a", left), ("b", right)):
            if call not in nodes:
                return (
                    f"This rollout has no call “{safe_text(call)}” in its tree ({name}). "
                    "Choose two of those below."
                )
        if left == right:
            return "Both sides are the same call. Choose two different ones."
        for call in (left, right):
            if not all(nodes[each].has_ids for each in self._tree.tree.path(call)):
                return (
                    f"Turn {self._tree.labels[call]} was placed by its messages: the ids of "
                    "its prompt are not on record, so no shared prefix can be proved. Its "
                    "request can be compared on the requests tab."
                )
        return ""

    def _choices(self) -> tuple[Choice, ...]:
        roles = self._judged.judgement.roles
        return tuple(
            Choice(
                line.node.call_id,
                f"{line.label} {roles[line.node.call_id].role.value} · "
                f"call {line.node.sequence} · {line.node.completion_len:,} sampled",
            )
            for line in self._tree.lines
        )

    def _cause(self, left: CallId, right: CallId) -> str:
        """What the tree says of the difference, where it is about these two."""
        for mine, other in ((right, left), (left, right)):
            broke = self._tree.tree.nodes[mine].break_
            if broke is not None and broke.nearest_call_id == other:
                return f"Turn {self._tree.labels[mine]}: {CAUSES[broke.cause]}"
        return ""

    def _href(self, left: str, right: str, whole: str) -> str:
        return rollout_href(self._rollout_id, "compare", a=left, b=right, all=whole)

    def _side(
        self, call_id: CallId, shown: Shown, shared: int, name: str, wanted: Wanted
    ) -> ForkSide:
        decision = self._judged.judgement.roles[call_id]
        view = shown.view
        limit = SHOWN_ALL if wanted.whole in (name, _BOTH) else SHOWN
        end = min(view.length, shared + limit)
        after = slice(shared, view.length)
        logprobs = view.logprobs[after][~np.isnan(view.logprobs[after])]
        tokens = rollout_href(self._rollout_id, "tokens", branch=call_id, t=shared)
        more = None
        if end < view.length:
            whole = _BOTH if wanted.whole and wanted.whole != name else name
            more = (
                f"{tokens}#t{shared}"
                if wanted.whole in (name, _BOTH)
                else self._href(wanted.left, wanted.right, whole)
            )
        return ForkSide(
            call_id=call_id,
            short_call=words.short_id(call_id),
            call_href=rollout_href(self._rollout_id, f"requests/{call_id}"),
            tokens_href=f"{tokens}#t{min(shared, max(0, view.length - 1))}",
            label=self._tree.labels[call_id],
            role=decision.role.value,
            rule=decision.rule,
            why=named_calls(decision.why, self._tree.labels),
            total=view.length,
            after=view.length - shared,
            trained=int(np.count_nonzero(view.trained[after])),
            mean_text=f"{-float(logprobs.mean()):.3f}" if logprobs.size else words.NONE,
            parts=self._parts(shown, shared, end, name),
            shown=end - shared,
            all_href=more,
        )

    def _parts(self, shown: Shown, first: int, last: int, side: str) -> tuple[ForkPart, ...]:
        markup = TokenMarkup(shown.view, shown.pieces, Look("logprob", anchor=first))
        return tuple(
            self._part(shown, segment, markup, max(first, segment.start), last, side)
            for segment in shown.view.segments
            if segment.end > first and segment.start < last
        )

    def _part(
        self,
        shown: Shown,
        segment: Segment,
        markup: TokenMarkup,
        start: int,
        last: int,
        side: str,
    ) -> ForkPart:
        view, end = shown.view, min(segment.end, last)
        role = self._judged.judgement.roles[segment.call_id].role
        sampled = segment.kind == "completion"
        hatched = sampled and not view.trained[segment.start : segment.end].any()
        blocks = markup.section(start, end, hatched=bool(hatched))
        who: str = segment.kind
        if sampled:
            who = "assistant" if role is Role.AGENT else f"assistant ({role.value})"
        return ForkPart(
            title=f"{who} · turn {shown.labels[segment.call_id]}",
            css=role.value if sampled else segment.kind,
            hatched=bool(hatched),
            start=start,
            count=end - start,
            sampled=int(np.count_nonzero(view.sampled[start:end])),
            trained=int(np.count_nonzero(view.trained[start:end])),
            token_ids=view.ids[start:end].tolist(),
            # Both sides have the same positions; only one element may have each id.
            blocks=Markup(_ANCHOR.sub(rf"<i id={side}\1", str(blocks))),  # noqa: S704
        )


def _tail(shown: Shown, end: int) -> str:
    """How the shared prefix ends."""
    start = max(0, end - TAIL)
    text = "".join(p.text if p.known else p.display for p in shown.pieces[start:end])
    return ("… " if start else "") + safe_text(text)


def system_diff(
    store: Store, judged: Judged, left: CallId, right: CallId, labels: Mapping[CallId, str]
) -> TextDiff | None:
    """What changed between the system messages of two requests, None when nothing did."""
    calls = {call.call_id: call for call in judged.record.calls}
    if calls[left].system_digest == calls[right].system_digest:
        return None
    texts = []
    for call_id in (left, right):
        bodies = {body.kind: body for body in store.bodies(call_id)}
        asked = asked_messages(calls[call_id], bodies)
        if asked is None and not bodies.get(BodyKind.REQUEST):
            return None
        texts.append(_system_text(asked or []))
    names = (f"turn {labels[left]}", f"turn {labels[right]}")
    found = diff_lines(
        texts[0].split("\n"), texts[1].split("\n"), "System messages of the requests", names
    )
    return None if found.equal else found


def _system_text(asked: list[object]) -> str:
    """Text of the system messages, wherever they stand."""
    return "\n".join(
        content_text(item.get("content"))
        for item in asked
        if isinstance(item, Pairs) and item.get("role") in ("system", "developer")
    )
