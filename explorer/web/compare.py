"""Builds the page of two to four rollouts side by side.

Owns: which facts are compared, where each pair parts, and which turns stand beside which.
Must not know: HTTP, HTML.

Turns stand beside each other by their number on each rollout's main branch. That is a
place, not a claim: only the shared prefix of a pair is proved, and nothing is aligned
again after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from explorer.export.judged import Judged
from explorer.records import BodyKind, Call, Grade, Role
from explorer.store.interface import Store
from explorer.web import words
from explorer.web.branches import Shown, shown_branch
from explorer.web.contexts import Frame
from explorer.web.contexts_compare import (
    Compared,
    ComparedPair,
    CompareFact,
    ComparePage,
    Divergence,
    TurnCell,
    TurnRow,
)
from explorer.web.contexts_messages import Message
from explorer.web.divergence import divergence
from explorer.web.frames import rollout_href
from explorer.web.header import outcome_words, verdict_of
from explorer.web.messages import message_of, plain_message, reply_message
from explorer.web.pretty import safe_text
from explorer.web.services import Services
from explorer.web.turn_tree import TurnTree

MOST: Final = 4
TURNS_PER_PAGE: Final = 12
ASKED_CHARS: Final = 600
NAMES: Final = "ABCD"


@dataclass(frozen=True, slots=True)
class Member:
    """One rollout with its main branch; `shown` is None without calls or tokens."""

    name: str
    judged: Judged
    tree: TurnTree
    shown: Shown | None

    @property
    def rollout_id(self) -> str:
        """Its public id."""
        return self.judged.record.rollout.rollout_id

    @property
    def path(self) -> tuple[str, ...]:
        """Calls of its main branch."""
        return self.shown.view.path if self.shown else ()

    @property
    def placed(self) -> bool:
        """Whether the ids of every call on the branch are on record."""
        nodes = self.tree.tree.nodes
        return self.shown is not None and all(nodes[c].has_ids for c in self.shown.view.path)


def compare_href(rollout_ids: Sequence[str], **query: str | int | None) -> str:
    """Address of the comparison of these rollouts."""
    given = "&".join(f"id={each}" for each in rollout_ids)
    more = "".join(f"&{name}={value}" for name, value in query.items() if value)
    return f"/compare?{given}{more}"


def member(services: Services, judged: Judged, name: str) -> Member:
    """One rollout with its main branch ready."""
    tree = TurnTree(judged)
    leaf = tree.default_leaf()
    shown = None if leaf is None else shown_branch(services, judged, tree, leaf)
    return Member(name, judged, tree, shown)


def compare_page(
    services: Services, judged: Sequence[Judged], frame: Frame, first: int
) -> ComparePage:
    """The page; `first` is the number of the first turn on it."""
    found = [member(services, each, name) for name, each in zip(NAMES, judged, strict=False)]
    pairs = tuple(pair(a, b) for a, b in combinations(found, 2))
    parted = {p.names[-1]: p.divergence for p in pairs if p.names[0] == NAMES[0]}
    total = max((len(each.path) for each in found), default=0)
    last = min(total, first + TURNS_PER_PAGE - 1)
    ids = [each.rollout_id for each in found]
    return ComparePage(
        frame=frame,
        rollouts=tuple(_compared(each, ids) for each in found),
        notices=notices(found),
        facts=tuple(facts(found)),
        pairs=pairs,
        turns=tuple(
            _turn(services.store, found, number, parted) for number in range(first, last + 1)
        ),
        total_turns=total,
        more_href=compare_href(ids, turn=last + 1) if last < total else None,
    )


def _compared(member: Member, ids: list[str]) -> Compared:
    rollout = member.judged.record.rollout
    attempt = "" if rollout.attempt is None else f"#{rollout.attempt} "
    others = [each for each in ids if each != rollout.rollout_id]
    return Compared(
        rollout_id=rollout.rollout_id,
        name=member.name,
        label=f"{attempt}{words.short_id(rollout.rollout_id)}",
        href=rollout_href(rollout.rollout_id, "tokens"),
        without_href=compare_href(others) if len(others) > 1 else None,
    )


def notices(found: Sequence[Member]) -> tuple[str, ...]:
    """What makes a comparison mean less than it seems to."""
    rollouts = [each.judged.record.rollout for each in found]
    told = []
    if len({(r.run, r.task, r.group) for r in rollouts}) > 1:
        told.append(
            "These rollouts are not samples of one task in one run: a difference between "
            "them may come from what they were asked."
        )
    if len({r.tokenizer_id for r in rollouts}) > 1:
        told.append(
            "They were made with different tokenizers: the same id means different text, "
            "so ids are not compared between those."
        )
    for each in found:
        left = _left_out(each)
        if left:
            told.append(
                f"Of {each.name} the branch that ends last is compared, {len(each.path)} of "
                f"its calls; {words.plural(left, 'call')} of its agent stand on other branches "
                "(a prefix broke, or there is a fork)."
            )
    if len({r.model for r in rollouts}) > 1:
        told.append("They were sampled by different models.")
    return tuple(told)


def _left_out(member: Member) -> int:
    """Calls of the agent that are not on the branch that is compared."""
    roles = member.judged.judgement.roles
    shown = set(member.path)
    return sum(d.role is Role.AGENT and c not in shown for c, d in roles.items())


def facts(found: Sequence[Member]) -> list[CompareFact]:
    """Named facts with one value per rollout."""
    columns = [_facts(each) for each in found]
    return [
        CompareFact(name, values, len(set(values)) == 1)
        for name in columns[0]
        for values in [tuple(column[name] for column in columns)]
    ]


def _facts(member: Member) -> dict[str, str]:
    record, judgement = member.judged.record, member.judged.judgement
    calls = record.calls
    grades = [finding.grade for finding in judgement.findings]
    last = member.shown.view.calls.get(member.shown.view.path[-1]) if member.shown else None
    begun = min((call.started_us for call in calls), default=0)
    ended = max((call.ended_us for call in calls), default=0)
    view = member.shown.view if member.shown else None
    roles = [decision.role.value for decision in judgement.roles.values()]
    return {
        "reward": words.reward_text(judgement.state.reward),
        "ended": outcome_words(judgement),
        "verdict": safe_text(verdict_of(judgement).text),
        "trainable tokens": f"{judgement.supervised_tokens:,}",
        "sampled tokens": f"{judgement.generated_tokens:,}",
        "tokens of the main branch": f"{view.length:,}" if view else words.NONE,
        "mean −logp": _mean(view.logprobs) if view else words.NONE,
        "turns of the main branch": f"{len(member.path):,}",
        "calls": f"{len(calls):,}",
        "discarded, failed": f"{roles.count('discarded')}, {roles.count('failed')}",
        "its last stop": (last.finish_reason or words.UNKNOWN) if last else words.NONE,
        "findings": f"{grades.count(Grade.FATAL)} fatal, "
        + words.plural(grades.count(Grade.WARN), "warning"),
        "time": words.duration((ended - begun) / 1000) if calls else words.NONE,
        "weight version": _versions(calls),
        "model": safe_text(record.rollout.model) or words.UNKNOWN,
        "harness": safe_text(record.rollout.harness or words.UNKNOWN),
    }


def _mean(logprobs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> str:
    known = logprobs[~np.isnan(logprobs)]
    return f"{-float(known.mean()):.3f}" if known.size else words.NONE


def _versions(calls: Sequence[Call]) -> str:
    seen = {v for c in calls for v in (c.weight_version_start, c.weight_version_end)}
    known = sorted(v for v in seen if v is not None)
    text = ", ".join(map(str, known))
    return text if known and None not in seen else f"{text}{', ' if text else ''}unknown"


def pair(a: Member, b: Member) -> ComparedPair:
    """Where two rollouts part, or why that cannot be told."""
    names = f"{a.name}{b.name}"
    problem = _pair_problem(a, b)
    if problem or a.shown is None or b.shown is None:
        return ComparedPair(names, problem, "", None, "", "")
    found = divergence(a.shown, b.shown)
    at = found.position if found else a.shown.view.length
    return ComparedPair(
        names=names,
        problem="",
        turn=f"turn {turn_at(a.shown, at) or turn_at(b.shown, at)}" if found else "",
        divergence=found,
        a_href=token_href(a, at),
        b_href=token_href(b, at),
    )


def _pair_problem(a: Member, b: Member) -> str:
    for each in (a, b):
        if each.shown is None:
            return f"{each.name} has no call yet."
        if not each.placed:
            return f"{each.name} has calls whose prompt ids are not on record."
    one, other = a.judged.record.rollout, b.judged.record.rollout
    if one.tokenizer_id != other.tokenizer_id:
        return "Different tokenizers: their ids cannot be compared."
    return ""


def turn_at(shown: Shown, at: int) -> int:
    """Number of the turn that holds a token; 0 where the row has ended before it."""
    if at >= shown.view.length:
        return 0
    return shown.view.turn_of(shown.view.segment_at(at).call_id)


def token_href(member: Member, at: int) -> str:
    """The tokens tab at a token, or at the last one where the row has ended."""
    assert member.shown is not None
    last = max(0, min(at, member.shown.view.length - 1))
    leaf = member.shown.view.leaf
    return f"{rollout_href(member.rollout_id, 'tokens', branch=leaf, t=last)}#t{last}"


def _turn(
    store: Store, found: Sequence[Member], number: int, parted: dict[str, Divergence | None]
) -> TurnRow:
    cells = tuple(_cell(store, each, number, parted.get(each.name)) for each in found)
    own = [_own_ids(each, number) for each in found]
    first = own[0]
    equal = first is not None and all(
        ids is not None and np.array_equal(first, ids) for ids in own[1:]
    )
    same_vocabulary = len({each.judged.record.rollout.tokenizer_id for each in found}) == 1
    placed = all(each.placed for each in found)
    return TurnRow(number, equal and same_vocabulary and placed, cells)


def _own_ids(member: Member, number: int) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
    """The ids that a turn added, None where there is no such turn."""
    if number > len(member.path) or member.shown is None:
        return None
    view = member.shown.view
    own = [s for s in view.segments if s.call_id == view.path[number - 1]]
    return view.ids[own[0].start : own[-1].end] if own else None


def _cell(store: Store, member: Member, number: int, parted: Divergence | None) -> TurnCell:
    if number > len(member.path) or member.shown is None:
        return TurnCell(False, "", "", "", "", "", "", (), 0, 0, 0, False)
    view = member.shown.view
    call = view.calls[view.path[number - 1]]
    mask = member.judged.judgement.masks[call.call_id]
    reply = _reply(store, call, member.shown)
    own = [s for s in view.segments if s.call_id == call.call_id]
    given = [s for s in own if s.kind != "completion"]
    asked = "".join(
        p.text if p.known else p.display
        for s in given
        for p in member.shown.pieces[s.start : min(s.end, s.start + ASKED_CHARS)]
    )
    start = own[-1].start if own else 0
    parts = parted is not None and bool(own) and own[0].start <= parted.position < own[-1].end
    return TurnCell(
        present=True,
        label=member.tree.labels[call.call_id],
        href=token_href(member, start),
        role=member.judged.judgement.roles[call.call_id].role.value,
        asked=safe_text(asked[:ASKED_CHARS]) + ("…" if len(asked) > ASKED_CHARS else ""),
        text=reply.text,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        cut_chars=reply.cut_chars,
        sampled_tokens=mask.length - mask.prompt_len,
        trained_tokens=mask.supervised,
        parts_here=parts,
    )


def _reply(store: Store, call: Call, shown: Shown) -> Message:
    """The reply as people read it: from its body, else from its tokens."""
    for body in store.bodies(call.call_id):
        if body.kind is BodyKind.REPLY:
            message = reply_message(body)
            if message is not None:
                return message_of(message)
    for segment in shown.view.segments:
        if segment.call_id == call.call_id and segment.kind == "completion":
            own = shown.pieces[segment.start : segment.end]
            return plain_message("assistant", "".join(p.text or p.display for p in own))
    return plain_message("assistant", call.preview)
