"""What the comparing pages say, every field documented.

Owns: the contexts of two calls side by side and of two to four rollouts aligned by turn.
Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Choice, Frame, markup, page, said
from explorer.web.contexts_diff import TextDiff
from explorer.web.contexts_messages import ToolCall
from explorer.web.contexts_rollout import Header, Legend


@dataclass(frozen=True, slots=True)
class SideToken:
    """One side of the first difference between two rows of tokens."""

    piece: str = said("The token there, decoded, or that the side ends.")
    token_id: int | None = said("Its id, null where the side ends.")
    sampled: bool = said("Whether the engine sampled it; prompt text was given to it.")
    logprob: float | None = said("Its recorded logprob, null without one.")
    probability_text: str = said("exp(logprob) as shown, else why there is none.")
    css: str = said("Class of its bin of −logp.")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two rows first differ; nothing is aligned after it."""

    position: int = said("The first token that differs, which is also how many are shared.")
    hash_a: str = said("Cumulative hash of the shared ids, of the first side.")
    hash_b: str = said("The same of the second side, computed from its own ids.")
    proved: bool = said("Whether both hashes are equal.")
    a: SideToken = said("The first side's token there.")
    b: SideToken = said("The second side's.")


@dataclass(frozen=True, slots=True)
class ForkPart:
    """A run of tokens of one kind after the difference."""

    title: str = said("Who speaks, and in which turn.")
    css: str = said("Role that colours its rule.")
    hatched: bool = said("Whether all of it is sampled and masked.")
    start: int = said("Position of its first token shown.")
    count: int = said("Tokens shown.")
    sampled: int = said("Of these, tokens the engine sampled.")
    trained: int = said("Of these, tokens that train.")
    token_ids: list[int] = said("Their ids.")
    blocks: str = markup("The tokens, marked up; not in the twin, which has the ids.")


@dataclass(frozen=True, slots=True)
class ForkSide:
    """One of two calls: what its row says after the shared prefix."""

    call_id: str = said("The call.")
    short_call: str = said("Its id, shortened.")
    call_href: str = said("Address of its request.")
    tokens_href: str = said("Address of its row in the tokens tab, at the first difference.")
    label: str = said("Its number in the turn tree.")
    role: str = said("Role of the call.")
    rule: str = said("Rule that decided the role.")
    why: str = said("The evidence for the role.")
    total: int = said("Tokens of its row: prompt and reply.")
    after: int = said("Tokens after the shared prefix.")
    trained: int = said("Of these, tokens that train.")
    mean_text: str = said("Mean −logp of its sampled tokens after the shared prefix.")
    parts: tuple[ForkPart, ...] = said("The tokens after the shared prefix, cut.")
    shown: int = said("Tokens shown.")
    all_href: str | None = said("Address that shows more, null when all are shown.")


@page
@dataclass(frozen=True, slots=True)
class ForkPage:
    """`/rollouts/{rollout_id}/compare`: two calls of one rollout, token by token."""

    template: ClassVar[str] = "fork.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    calls: tuple[Choice, ...] = said("Every call that can be chosen.")
    left: str = said("The call on the left.")
    right: str = said("The call on the right.")
    problem: str = said("Why nothing is compared, empty when something is.")
    cause: str = said("Why the right one left the left one, as the turn tree says it.")
    sides: tuple[ForkSide, ...] = said("Both calls, or none.")
    divergence: Divergence | None = said("The first difference, null when there is none.")
    shared: int = said("Leading tokens that both rows have.")
    tail: str = said("How the shared prefix ends, decoded.")
    swap_href: str = said("Address with the sides exchanged.")
    legend: Legend | None = said("What the colours mean, null when nothing is compared.")
    system: TextDiff | None = said("What changed in the system messages, null when nothing.")


@dataclass(frozen=True, slots=True)
class CompareFact:
    """One fact of each rollout."""

    name: str = said("What it is.")
    values: tuple[str, ...] = said("One value per rollout, as shown.")
    equal: bool = said("Whether all are the same.")


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the rollouts."""

    rollout_id: str = said("Public id.")
    name: str = said("Letter that stands for it on the page.")
    label: str = said("Attempt and shortened id.")
    href: str = said("Address of its tokens.")
    without_href: str | None = said("Address without it, null when two are left.")


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """Where two of the rollouts part."""

    names: str = said("Letters of both.")
    problem: str = said("Why they are not compared, empty when they are.")
    turn: str = said("The turn in which they part.")
    divergence: Divergence | None = said("The first difference, null when there is none.")
    a_href: str = said("Address of the first one's token there.")
    b_href: str = said("Address of the second one's.")


@dataclass(frozen=True, slots=True)
class GroupPair:
    """The rollout at hand beside one other sample of its group."""

    rollout_id: str = said("The other sample.")
    label: str = said("Its attempt and shortened id.")
    reward_text: str = said("Its reward as shown.")
    href: str = said("Address of both side by side.")
    pair: ComparedPair = said("Where they part.")


@dataclass(frozen=True, slots=True)
class TurnCell:
    """What one rollout did in one turn."""

    present: bool = said("Whether it has such a turn.")
    label: str = said("The turn in its own turn tree.")
    href: str = said("Address of its tokens there.")
    role: str = said("Role of the call.")
    asked: str = said("What came before the reply: the new messages, cut.")
    text: str = said("The reply's text, cut.")
    reasoning: str = said("Its reasoning, cut.")
    tool_calls: tuple[ToolCall, ...] = said("Its tool calls.")
    cut_chars: int = said("Characters left out.")
    sampled_tokens: int = said("Tokens the engine sampled.")
    trained_tokens: int = said("Of these, tokens that train.")
    parts_here: bool = said("Whether this turn holds its first difference from the first one.")


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn of each rollout."""

    turn: int = said("Number of the turn, from 1.")
    equal: bool = said("Whether all have the same ids in it.")
    cells: tuple[TurnCell, ...] = said("One cell per rollout.")


@page
@dataclass(frozen=True, slots=True)
class ComparePage:
    """`/compare`: two to four rollouts aligned by turn."""

    template: ClassVar[str] = "compare.html"
    frame: Frame = said("What surrounds the page.")
    rollouts: tuple[Compared, ...] = said("The rollouts.")
    notices: tuple[str, ...] = said("What a reader must know before comparing them.")
    facts: tuple[CompareFact, ...] = said("Facts side by side.")
    pairs: tuple[ComparedPair, ...] = said("Each pair, and where it parts.")
    turns: tuple[TurnRow, ...] = said("Turns on this page.")
    total_turns: int = said("Turns of the longest one.")
    more_href: str | None = said("Address of the next turns, null at the end.")
