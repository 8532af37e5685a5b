"""Searches within a rollout and across rollouts.

Owns: what is looked through, in which order and how far, and what a hit says.
Must not know: HTML, HTTP, FTS5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from explorer.errors import InvalidValue
from explorer.export.judged import Judged
from explorer.records import CallId, MaskReason, RolloutId
from explorer.store.passages import Passage
from explorer.store.queries import Field, RolloutQuery, RolloutStatus, RolloutSummary, Term
from explorer.store.search_index import Found, Ranked, SearchIndex, match_of
from explorer.trace.mask import CallMask
from explorer.web.contexts_search import SearchHit
from explorer.web.conversation import message_href
from explorer.web.frames import rollout_href
from explorer.web.narrowing import NarrowStore
from explorer.web.passages import passages_of
from explorer.web.pretty import safe_text
from explorer.web.search_text import Needle, excerpt
from explorer.web.services import Services

HITS_PER_PAGE = 200
MOST_COUNTED = 10_000
ROLLOUTS_PER_PAGE = 20
HITS_PER_ROLLOUT = 3
# `contains` reads text, so it ends by the clock; the page says how far it came.
CONTAINS_SECONDS = 2.0
CONTAINS_AT_ONCE = 100
MOST_RANKED = 5_000
MOST_CANDIDATES = 500


@dataclass(frozen=True, slots=True)
class Hits:
    """Some hits of one rollout, and how many there are.

    `repeated` counts those in text that an earlier call said already.
    """

    shown: tuple[SearchHit, ...]
    total: int
    more: bool
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """One rollout with hits."""

    summary: RolloutSummary
    hits: tuple[SearchHit, ...]
    n_hits: int


@dataclass(frozen=True, slots=True)
class Results:
    """Rollouts with hits.

    Attributes:
        looked, candidates: rollouts looked through, of those that the filters leave.
        more: whether rollouts with hits may be among those that were not counted.
        cursor: where a search by the clock goes on.
    """

    shown: tuple[Result, ...]
    total: int
    more: bool
    looked: int
    candidates: int
    stopped: str = ""
    cursor: str | None = None


def hits_of(
    rollout_id: RolloutId,
    passages: Sequence[Passage],
    needle: Needle,
    window: tuple[int, int],
    masks: Mapping[CallId, CallMask] | None = None,
) -> Hits:
    """The hits of one rollout whose numbers are in `window`.

    Args:
        masks: say which tokens train; left out, hits do not say it.
    """
    first, after = window
    shown: list[SearchHit] = []
    number = 0
    for passage in passages:
        count = needle.count(passage.text)
        if number + count > first and number < after:
            for at, (start, end) in enumerate(needle.places(passage.text), number):
                if at >= after:
                    break
                if at >= first:
                    shown.append(hit_of(rollout_id, passage, start, end, masks))
        number += count
        if number > MOST_COUNTED:
            return Hits(tuple(shown), MOST_COUNTED, True)
    return Hits(tuple(shown), number, False)


def hit_of(
    rollout_id: RolloutId,
    passage: Passage,
    start: int,
    end: int,
    masks: Mapping[CallId, CallMask] | None = None,
) -> SearchHit:
    """One hit with its addresses."""
    stretch = passage.stretch_at(start)
    tokens = passage.tokens(start, end)
    part = excerpt(passage.text, start, end)
    call = passage.call_id
    turn_href = rollout_href(rollout_id, f"requests/{call}")
    if passage.turn:
        turn_href = rollout_href(rollout_id, "conversation", branch=call, turn=passage.turn)
        turn_href += f"#turn-{passage.turn}"
    if tokens is None:
        href = message_href(rollout_id, call, passage.message)
    else:
        href = rollout_href(rollout_id, "tokens", branch=call, t=tokens[0]) + f"#t{tokens[0]}"
    mask = None if masks is None else masks.get(call)
    return SearchHit(
        turn=passage.label,
        turn_number=passage.turn,
        call_id=call,
        role=safe_text(stretch.role),
        kind=safe_text(stretch.kind),
        before=part.before,
        match=part.match,
        after=part.after,
        token=None if tokens is None else tokens[0],
        token_end=None if tokens is None else tokens[1],
        trained=None if tokens is None or mask is None else _trained(mask, tokens),
        href=href,
        turn_href=turn_href,
    )


def _trained(mask: CallMask, tokens: tuple[int, int]) -> int:
    """How many of a hit's tokens train."""
    # Positions of both are those of the call's own row, as in a link to the token.
    start, end = tokens
    return sum(
        max(0, min(end, span.end) - max(start, span.start))
        for span in mask.own
        if span.reason is MaskReason.SAMPLED
    )


def within(
    services: Services, judged: Judged, needle: Needle, start: int, *, repeats: bool
) -> tuple[Hits, tuple[Passage, ...]]:
    """The hits of one rollout from number `start` on, and what was looked through; with
    `repeats` also in what was said before."""
    rollout = judged.record.rollout
    found = passages_of(services.store, judged, services.vocabulary(rollout.tokenizer_id))
    masks = judged.judgement.masks
    window = (start, start + HITS_PER_PAGE)
    looked = tuple(each for each in found if repeats or not each.repeated)
    hits = hits_of(rollout.rollout_id, looked, needle, window, masks)
    again = 0
    for each in found:
        if each.repeated and again < MOST_COUNTED:
            again += needle.count(each.text)
    return replace(hits, repeated=min(again, MOST_COUNTED)), looked


class Across:
    """One search across rollouts.

    Args:
        query: the filters and the order.
        judged: judges a rollout that the index does not have as of now.
    """

    def __init__(
        self,
        services: Services,
        query: RolloutQuery,
        judged: Callable[[RolloutId], Judged | None],
    ) -> None:
        self._services = services
        self._query = query
        self._judged = judged

    def nothing(self) -> Results:
        """What there is to be searched, before anything is."""
        return Results((), 0, False, 0, self._count())

    # -- ranked

    def ranked(self, text: str, start: int) -> Results:
        """The rollouts that have the words, the best first."""
        index = self._services.index
        match = match_of(text)
        if index is None or not index.usable or not match:
            return Results((), 0, False, 0, self._count())
        by_rollout: dict[RolloutId, list[Ranked]] = {}
        store = self._services.store
        # Else what is hidden would crowd out what is not, and `more` would tell of it.
        only = store.listed if isinstance(store, NarrowStore) else None
        rows = index.ranked(match, MOST_RANKED, only)
        for row in rows:
            by_rollout.setdefault(row.rollout_id, []).append(row)
        best = list(by_rollout)[:MOST_CANDIDATES]
        allowed = self._allowed(best)
        names = [name for name in best if name in allowed]
        shown = [
            self._ranked_result(index, match, allowed[name], by_rollout[name])
            for name in names[start : start + ROLLOUTS_PER_PAGE]
        ]
        more = len(rows) == MOST_RANKED or len(by_rollout) > len(best)
        candidates = self._count()
        return Results(
            shown=tuple(each for each in shown if each is not None),
            total=len(names),
            more=more,
            looked=candidates,
            candidates=candidates,
        )

    def _ranked_result(
        self, index: SearchIndex, match: str, summary: RolloutSummary, rows: list[Ranked]
    ) -> Result | None:
        ids = [row.passage_id for row in rows[:HITS_PER_ROLLOUT]]
        found: dict[int, Found] = index.found(match, ids)
        hits = tuple(
            hit_of(summary.rollout_id, found[each].passage, found[each].start, found[each].end)
            for each in ids
            if each in found
        )
        return Result(summary, hits, len(rows)) if hits else None

    def _allowed(self, names: Sequence[RolloutId]) -> dict[RolloutId, RolloutSummary]:
        """Those of the rollouts that exist and pass the filters: the store decides."""
        if not names:
            return {}
        term = Term(Field.ID, tuple(names))
        query = replace(
            self._query, terms=(*self._query.terms, term), cursor=None, limit=len(names)
        )
        # The index has a deleted rollout's words until its next round; no page shows them.
        return {
            row.rollout_id: row
            for row in self._services.store.list_rollouts(query).rows
            if row.status is not RolloutStatus.DELETED
        }

    def _count(self) -> int:
        query = replace(self._query, cursor=None, limit=1)
        return self._services.store.list_rollouts(query).total

    # -- contains

    def contains(self, needle: Needle, cursor: str | None) -> Results:
        """The rollouts that have the exact text, in the order of the list."""
        until = time.monotonic() + CONTAINS_SECONDS
        shown: list[Result] = []
        looked, candidates, stopped = 0, 0, ""
        place = cursor
        for summary, at, total in self._each(cursor):
            candidates = total
            if len(shown) == ROLLOUTS_PER_PAGE:
                stopped = f"the first {ROLLOUTS_PER_PAGE} with a hit are shown"
                break
            if looked and time.monotonic() > until:
                stopped = f"the {CONTAINS_SECONDS:g} s that a search may take were over"
                break
            found = self._passages(summary.rollout_id)
            if found is not None:
                hits = hits_of(summary.rollout_id, found, needle, (0, HITS_PER_ROLLOUT))
                if hits.total:
                    shown.append(Result(summary, hits.shown, hits.total))
            looked, place = looked + 1, at
        return Results(
            shown=tuple(shown),
            total=len(shown),
            more=bool(stopped),
            looked=looked,
            candidates=candidates,
            stopped=stopped,
            cursor=place if stopped else None,
        )

    def _each(self, cursor: str | None) -> Iterator[tuple[RolloutSummary, str, int]]:
        """Every rollout of the list, with the cursor of what follows it."""
        skip, at = _read_place(cursor)
        query = replace(self._query, cursor=at, limit=CONTAINS_AT_ONCE)
        while True:
            page = self._services.store.list_rollouts(query)
            for number, row in enumerate(page.rows):
                if number >= skip:
                    yield row, f"{number + 1}.{query.cursor or ''}", page.total
            if page.next_cursor is None:
                return
            query, skip = replace(query, cursor=page.next_cursor), 0

    def _passages(self, rollout_id: RolloutId) -> Sequence[Passage] | None:
        """From the index while it has them as of now, else from the calls themselves."""
        store, index = self._services.store, self._services.index
        if index is not None and index.usable:
            calls, events = store.record_stamp(rollout_id)
            found = index.passages(rollout_id, f"{calls}.{events}")
            if found is not None:
                return found
        judged = self._judged(rollout_id)
        if judged is None:
            return None
        tokenizer = judged.record.rollout.tokenizer_id
        read = passages_of(store, judged, self._services.vocabulary(tokenizer))
        return [each for each in read if not each.repeated]


def _read_place(cursor: str | None) -> tuple[int, str | None]:
    """The rows to skip of a page of the list, and the cursor of that page."""
    if not cursor:
        return 0, None
    skip, dot, rest = cursor.partition(".")
    if not (dot and skip.isdecimal() and skip.isascii() and len(skip) < 6):
        raise InvalidValue("the cursor is not one of ours", path="cursor")
    return int(skip), rest or None
