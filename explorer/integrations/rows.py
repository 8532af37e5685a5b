"""Training rows of a trace: which branch becomes the row, and its aligned arrays.

Owns: the choice of the branch, and that ids, logprobs and mask of a row have one length.
Must not know: TRL, torch, HTTP.

A trainer that takes one sequence a rollout cannot take a tree. One branch is chosen by a
fixed rule, and what the others hold is named, never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np

from explorer.integrations.contract import Trace, Turn

BranchRule = Literal["most_supervised", "last"]
BRANCH_RULES: tuple[BranchRule, ...] = ("most_supervised", "last")


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence: a prompt, then sampled tokens and what came between them.

    Cannot be made with arrays that do not fit together.

    Attributes:
        logprobs: the engine's own for sampled tokens; 0.0 for the others, which have none
            and whose mask is 0.
        env_mask: 1 where a token trains.
        node_ids: the calls in it, in order.
        left_out: the calls of other branches, and how many of their tokens would train.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    env_mask: tuple[int, ...]
    node_ids: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    left_out_tokens: int = 0

    def __post_init__(self) -> None:
        length = len(self.completion_ids)
        if not self.prompt_ids or not length:
            raise ValueError("a row needs a prompt and a completion")
        if len(self.logprobs) != length or len(self.env_mask) != length:
            raise ValueError(
                f"a row has {length} tokens, {len(self.logprobs)} logprobs and "
                f"{len(self.env_mask)} mask bits"
            )
        if not set(self.env_mask) <= {0, 1}:
            raise ValueError("a mask holds 0 and 1 only")

    @property
    def supervised(self) -> int:
        """How many of its tokens train."""
        return sum(self.env_mask)


def branches(trace: Trace) -> list[tuple[Turn, ...]]:
    """Every root-to-leaf path, as the tokens have it.

    A call continues the call whose prompt and completion are the longest beginning of its
    prompt; links in the metadata are not believed.
    """
    turns = trace.turns
    held = [_bytes((*turn.prompt_ids, *turn.completion_ids)) for turn in turns]
    by_length = sorted(range(len(turns)), key=lambda place: -len(held[place]))
    parents: list[int | None] = []
    for place, turn in enumerate(turns):
        prompt = _bytes(turn.prompt_ids)
        parents.append(
            next(
                (
                    other
                    for other in by_length
                    if other != place
                    and len(held[other]) <= len(prompt)
                    and prompt.startswith(held[other])
                    # An empty completion could make two calls each other's beginning.
                    and (len(held[other]) < len(held[place]) or other < place)
                ),
                None,
            )
        )
    inner = set(parents)
    found = []
    for leaf in range(len(turns)):
        if leaf not in inner:
            path = [leaf]
            while (parent := parents[path[-1]]) is not None:
                path.append(parent)
            found.append(tuple(turns[place] for place in reversed(path)))
    return found


def choose_row(trace: Trace, rule: BranchRule = "most_supervised") -> Row:
    """The row of one branch.

    Args:
        rule: "most_supervised" takes the branch with the most tokens that train, and of
            equal ones the one that ended last; "last" takes the one that ended last of
            those in which a token trains.
    """
    paths = [path for path in branches(trace) if any(turn.supervised for turn in path)]
    if not paths:
        raise ValueError("no branch has a token that trains")
    arrival = {turn.node_id: _arrival(turn, n) for n, turn in enumerate(trace.turns)}

    def rank(path: Sequence[Turn]) -> tuple[bool, int, int]:
        # A subagent's conversation is the main one of no rollout.
        main = all(turn.metadata.get("role") != "subagent" for turn in path)
        supervised = sum(turn.supervised for turn in path)
        ended = arrival[path[-1].node_id]
        return main, supervised if rule == "most_supervised" else 0, ended

    path = max(paths, key=rank)
    used = {turn.node_id for turn in path}
    others = [turn for turn in trace.turns if turn.node_id not in used]
    return _row(path, others)


def all_rows(trace: Trace) -> list[Row]:
    """One row for every branch in which a token trains; a call that branches share trains
    in the first of them and is context in the others."""
    owned: set[str] = set()
    rows = []
    for path in branches(trace):
        new = {turn.node_id for turn in path if turn.supervised} - owned
        if new:
            used = {turn.node_id for turn in path}
            others = [turn for turn in trace.turns if turn.node_id not in used]
            rows.append(_row(path, others, owned))
            owned |= new
    if sum(row.supervised for row in rows) != trace.supervised:
        raise ValueError("a token of the rollout was lost or counted twice")
    return rows


def _row(path: Sequence[Turn], others: Sequence[Turn], context: Set[str] = frozenset()) -> Row:
    """The row of a path; the calls of `context` do not train in it."""
    sampled = [turn for turn in path if turn.completion_ids]
    first = sampled[0]
    ids: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    for turn in sampled:
        # What the environment added since the last sampled token: context, no logprob.
        between = turn.prompt_ids[len(first.prompt_ids) + len(ids) :]
        ids += (*between, *turn.completion_ids)
        logprobs += (*(0.0 for _ in between), *turn.logprobs)
        own = (0,) * len(turn.completion_ids) if turn.node_id in context else None
        mask += (*(0 for _ in between), *(own or turn.completion_mask))
    row = Row(
        prompt_ids=first.prompt_ids,
        completion_ids=tuple(ids),
        logprobs=tuple(logprobs),
        env_mask=tuple(mask),
        node_ids=tuple(turn.node_id for turn in path),
        left_out=tuple(turn.node_id for turn in others),
        left_out_tokens=sum(turn.supervised for turn in others),
    )
    last = sampled[-1]
    whole = row.prompt_ids + row.completion_ids
    if whole != last.prompt_ids + last.completion_ids:
        raise ValueError(f"the calls before {last.node_id} are not the beginning of its prompt")
    wanted = sum(turn.supervised for turn in path if turn.node_id not in context)
    if row.supervised != wanted:
        raise ValueError("a token of the branch was lost or counted twice")
    return row


def _arrival(turn: Turn, place: int) -> int:
    index = turn.metadata.get("index")
    return index if type(index) is int else place


def _bytes(ids: Sequence[int]) -> bytes:
    return np.array(ids, np.int32).tobytes()
