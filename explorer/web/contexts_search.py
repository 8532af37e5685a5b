"""What the pages of the search say.

Owns: the contexts of a search within a rollout and across rollouts.
Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Choice, Frame, RolloutRow, page, said
from explorer.web.contexts_lists import Chip
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One place where the text stands."""

    turn: str = said("Turn of the call that added the text, as the turn tree names it.")
    turn_number: int = said("The turn's number along its branch; 0 when it is in no tree.")
    call_id: str = said("The call.")
    role: str = said("Who says it in the messages, empty where no message has it.")
    kind: str = said(
        "What it is: prompt, environment, system, user, tool output, sampled or reply."
    )
    before: str = said("What stands before the hit, hidden characters spelled out.")
    match: str = said("The hit.")
    after: str = said("What stands after it.")
    token: int | None = said("First token of the hit in its branch, null without tokens.")
    token_end: int | None = said("The token after its last one.")
    trained: int | None = said("How many of those tokens train; null when not looked at.")
    href: str = said("Address of the first token, or of the message.")
    turn_href: str = said("Address of the turn in the conversation.")


@page
@dataclass(frozen=True, slots=True)
class RolloutSearchPage:
    """`/rollouts/{id}/search`: every place of one rollout where a text stands."""

    template: ClassVar[str] = "search_rollout.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("Header of the rollout.")
    q: str = said("Text that is searched for; empty before anything is.")
    asked: str = said("The same as shown, hidden characters spelled out.")
    case: bool = said("Whether capital letters count.")
    hits: tuple[SearchHit, ...] = said("The hits of this page, in the order of the calls.")
    total: int = said("Hits that were counted.")
    more: bool = said("Whether counting stopped there, so that there are more.")
    first: int = said("Number of the first hit of this page, from 1; 0 without hits.")
    last: int = said("Number of the last hit of this page.")
    repeats: bool = said("Whether text that an earlier call said already is listed, too.")
    repeated: int = said("Hits in such text.")
    repeats_href: str = said("Address of the same search with, or without, such text.")
    n_calls: int = said("Calls of the rollout that were looked through.")
    n_characters: int = said("Characters that were looked through.")
    next_href: str | None = said("Address of the following hits.")
    previous_href: str | None = said("Address of the hits before.")
    across_href: str = said("Address of the same search across rollouts.")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One rollout with hits."""

    row: RolloutRow = said("The rollout.")
    hits: tuple[SearchHit, ...] = said("Its first or best hits.")
    n_hits: int | None = said("Hits in it, or passages in the ranked search.")
    within_href: str = said("Address of all its hits.")


@page
@dataclass(frozen=True, slots=True)
class SearchPage:
    """`/search`: rollouts that say something, by exact text or ranked by words."""

    template: ClassVar[str] = "search.html"
    frame: Frame = said("What surrounds the page.")
    q: str = said("Text that is searched for; empty before anything is.")
    asked: str = said("The same as shown, hidden characters spelled out.")
    mode: str = said("`ranked` by words, or `contains` the exact text.")
    case: bool = said("Whether capital letters count; only for `contains`.")
    within: str = said("Text of the filter box.")
    kept: tuple[Choice, ...] = said("Filters of the address that the form keeps.")
    chips: tuple[Chip, ...] = said("Filters in force.")
    problems: tuple[str, ...] = said("Filters that could not be read.")
    results: tuple[SearchResult, ...] = said("Rollouts with hits, the best first.")
    total: int = said("Rollouts with hits that were counted.")
    more: bool = said("Whether there are more that were not counted.")
    first: int = said("Number of the first rollout of this page, from 1; 0 without any.")
    last: int = said("Number of the last rollout of this page.")
    looked: int = said("Rollouts that were looked through.")
    candidates: int = said("Rollouts that the filters leave.")
    stopped: str = said("Why not all of them were looked through, empty when all were.")
    next_href: str | None = said("Address of the following rollouts.")
    previous_href: str | None = said("Address of the rollouts before.")
    other_href: str = said("Address of the same search in the other mode.")
    indexed: int = said("Rollouts whose text the index has as of now.")
    on_record: int = said("Rollouts on record.")
    waiting: int = said("Rollouts that the index does not have as of now.")
    index_note: str = said("What happened to the index, empty when nothing did.")
    index_problem: str = said("Why there is no ranked search, empty when there is.")
