"""Routes of the search, for people and for programs.

Owns: addresses, and how a search reads as a page or as JSON.
Must not know: what is looked through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from explorer.capture.ids import now_us
from explorer.errors import InvalidValue
from explorer.export.judged import Judged
from explorer.records import RolloutId
from explorer.store.passages import Passage
from explorer.web import api, filters
from explorer.web import api_shapes as shapes
from explorer.web.contexts import Choice, Frame
from explorer.web.contexts_lists import Chip
from explorer.web.contexts_search import RolloutSearchPage, SearchPage, SearchResult
from explorer.web.frames import frame, rollout_href, with_query
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.list_query import ListAddress, checked, href, read_address
from explorer.web.lists import rollout_row
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import plain, respond, wants_twin
from explorer.web.rollout_pages import judged_or_404
from explorer.web.search_text import Needle, read_search
from explorer.web.searching import (
    HITS_PER_PAGE,
    ROLLOUTS_PER_PAGE,
    Across,
    Hits,
    Results,
    within,
)
from explorer.web.services import Services, services_of
from explorer.web.version_words import line_now
from explorer.web.workers import in_page_thread

router = APIRouter(include_in_schema=False)
programs = APIRouter(prefix="/api/v1")

PATH = "/search"
RANKED, CONTAINS = "ranked", "contains"
OWN = ("q", "mode", "case", "within", "start", "cursor")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks for."""

    q: str
    mode: str
    case: bool
    within: str
    start: int
    cursor: str | None
    filters: ListAddress

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The state of the search, without the page of it."""
        own = (("q", self.q), ("mode", self.mode if self.mode == CONTAINS else ""))
        case = (("case", "1" if self.case else ""), ("within", self.within))
        return (*own, *case, *self.kept)

    @property
    def kept(self) -> tuple[tuple[str, str], ...]:
        """Filters that stand in parameters of their own."""
        typed = filters.typed_terms(self.within)[0]
        return tuple(pair for pair in self.filters.given if pair not in typed)


def read_asked(pairs: Iterable[tuple[str, str]]) -> Asked:
    """What the parameters of a search across rollouts ask for.

    Raises:
        InvalidValue: a search that cannot be made; of filters, the address says it.
    """
    own: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in pairs:
        if name in OWN:
            own[name] = value
        else:
            others.append((name, value))
    mode = own.get("mode") or RANKED
    if mode not in (RANKED, CONTAINS):
        raise InvalidValue(f"`mode` must be {RANKED} or {CONTAINS}", path="mode")
    box = own.get("within", "").strip()
    return Asked(
        q=read_search(own.get("q", "")),
        mode=mode,
        case=own.get("case", "") == "1",
        within=box,
        start=_start(own.get("start", "")),
        cursor=own.get("cursor") or None,
        filters=read_address([*others, ("q", box)], now_us()),
    )


def _start(text: str) -> int:
    if not text:
        return 0
    if not (text.isdecimal() and text.isascii() and len(text) < 7):
        raise InvalidValue("`start` must be the number of a hit, from 0", path="start")
    return int(text)


def _judging(request: Request) -> Callable[[RolloutId], Judged | None]:
    """Judges on the event loop, for a worker thread that waits."""
    loop, judged = asyncio.get_running_loop(), services_of(request).judged

    def get(rollout_id: RolloutId) -> Judged | None:
        return asyncio.run_coroutine_threadsafe(judged.get(rollout_id), loop).result()

    return get


def search(
    services: Services, asked: Asked, judging: Callable[[RolloutId], Judged | None]
) -> Results:
    """The results of one address."""
    query = asked.filters.query(1)
    across = Across(services, query, judging)
    if not asked.q:
        return across.nothing()
    if asked.mode == CONTAINS:
        return across.contains(Needle(asked.q, case=asked.case), asked.cursor)
    return across.ranked(asked.q, asked.start)


@page_and_twin(router, PATH)
async def search_page(request: Request) -> Response:
    """Rollouts that say something."""
    asked = read_asked(request.query_params.multi_items())
    if wants_twin(request):
        checked(asked.filters)
    services = services_of(request)
    title = f"Search: {asked.q[:60]}" if asked.q else "Search"
    outline = frame(request, title=safe_text(title), section="search", crumbs=())
    judging = _judging(request)
    return await respond(request, lambda: _page(services, outline, asked, judging))


def _page(
    services: Services,
    outline: Frame,
    asked: Asked,
    judging: Callable[[RolloutId], Judged | None],
) -> SearchPage:
    found = search(services, asked, judging)
    now = now_us()
    ranked = asked.mode == RANKED
    # The clock's search goes on where it stopped, so it does not know how many came before.
    first = asked.start + 1 if ranked else 1
    other = replace(asked, mode=CONTAINS if ranked else RANKED)
    return SearchPage(
        frame=outline,
        q=asked.q,
        asked=safe_text(asked.q),
        mode=asked.mode,
        case=asked.case,
        within=asked.within,
        kept=tuple(Choice(name, value) for name, value in asked.kept),
        chips=tuple(_chips(asked)),
        problems=tuple(safe_text(problem.message) for problem in asked.filters.problems),
        results=tuple(
            SearchResult(
                row=rollout_row(each.summary, now),
                hits=each.hits,
                n_hits=each.n_hits,
                within_href=rollout_href(
                    each.summary.rollout_id,
                    "search",
                    # Words may stand apart, but a search within looks for one text.
                    q=each.hits[0].match if ranked else asked.q,
                    case="1" if asked.case and not ranked else None,
                ),
            )
            for each in found.shown
        ),
        total=found.total,
        more=found.more,
        first=first if found.shown else 0,
        last=first + len(found.shown) - 1 if found.shown else 0,
        looked=found.looked,
        candidates=found.candidates,
        stopped=found.stopped,
        **_pager(asked, found),
        other_href=href(PATH, other.pairs),
        **_index_facts(services),
    )


def _chips(asked: Asked) -> Iterable[Chip]:
    for name, value in asked.filters.filter_pairs:
        shown = f"text “{value}”" if name == "q" else f"{name}: {value}"
        rest = tuple(pair for pair in asked.filters.given if pair != (name, value))
        text = "" if name == "q" else asked.filters.text
        own = tuple(pair for pair in asked.pairs if pair[0] in OWN and pair[0] != "within")
        yield Chip(name, safe_text(shown), href(PATH, (*own, ("within", text), *rest)))


def _pager(asked: Asked, found: Results) -> dict[str, Any]:
    pairs = asked.pairs
    if asked.mode == CONTAINS:
        following = href(PATH, (*pairs, ("cursor", found.cursor))) if found.cursor else None
        return {
            "next_href": following,
            "previous_href": href(PATH, pairs) if asked.cursor else None,
        }
    after = asked.start + ROLLOUTS_PER_PAGE
    before = max(0, asked.start - ROLLOUTS_PER_PAGE)
    return {
        "next_href": href(PATH, (*pairs, ("start", str(after))))
        if after < found.total
        else None,
        "previous_href": href(PATH, (*pairs, ("start", str(before) if before else "")))
        if asked.start
        else None,
    }


def _index_facts(services: Services) -> dict[str, Any]:
    stamps = services.store.record_stamps()
    index = services.index
    if index is None or not index.usable:
        why = "this server keeps no search index" if index is None else index.problem
        return {
            "indexed": 0,
            "on_record": len(stamps),
            "waiting": len(stamps),
            "index_note": "",
            "index_problem": safe_text(why),
        }
    known = index.indexed()
    fresh = sum(
        stamp.rollout_id in known and known[stamp.rollout_id].stamp == stamp.text
        for stamp in stamps
    )
    return {
        "indexed": fresh,
        "on_record": len(stamps),
        "waiting": len(stamps) - fresh,
        "index_note": safe_text(index.note),
        "index_problem": "",
    }


@page_and_twin(router, "/rollouts/{rollout_id}/search")
async def rollout_search(request: Request, rollout_id: str) -> Response:
    """Every place of one rollout where a text stands."""
    judged = await judged_or_404(request, rollout_id)
    services = services_of(request)
    query = request.query_params
    q, case = read_search(query.get("q", "")), query.get("case", "") == "1"
    start, repeats = _start(query.get("start", "")), query.get("repeats", "") == "1"

    def work() -> RolloutSearchPage:
        found = Hits((), 0, False)
        passages: tuple[Passage, ...] = ()
        if q:
            found, passages = within(
                services, judged, Needle(q, case=case), start, repeats=repeats
            )
        store = services.store
        noted = store.annotations(judged.record.rollout.rollout_id)
        members, line = members_of(store, judged), line_now(store)

        def at(place: int, *, again: bool = repeats) -> str:
            return rollout_href(
                rollout_id,
                "search",
                q=q,
                case="1" if case else None,
                repeats="1" if again else None,
                start=place or None,
            )

        last = start + len(found.shown)
        outline = rollout_frame(request, judged, "conversation", last="search")
        # Neighbours of the group are searched for the same.
        kept = urlencode({"q": q} | ({"case": "1"} if case else {})) if q else ""
        return RolloutSearchPage(
            frame=replace(outline, title=safe_text(f"Search: {q[:60]}" if q else "Search")),
            header=rollout_header(
                judged, "search", members, query=kept, notes=noted, line=line
            ),
            q=q,
            asked=safe_text(q),
            case=case,
            hits=found.shown,
            total=found.total,
            more=found.more,
            first=start + 1 if found.shown else 0,
            last=last if found.shown else 0,
            repeats=repeats,
            repeated=found.repeated,
            repeats_href=at(0, again=not repeats),
            n_calls=len(judged.record.calls),
            n_characters=sum(len(each.text) for each in passages),
            next_href=at(last) if found.shown and last < found.total else None,
            previous_href=at(max(0, start - HITS_PER_PAGE)) if start else None,
            across_href=with_query(PATH, q=q, mode=CONTAINS, case="1" if case else None),
        )

    return await respond(request, work)


# -- for programs


@programs.get("/rollouts/{rollout_id}/search")
async def search_rollout(request: Request, rollout_id: str, services: api.Api) -> JSONResponse:
    """Places of one rollout where `q` stands: turn, kind, text around it, token index.

    200 at a time from number `start`; `case=1` for exact letters, `repeats=1` also what later
    prompts repeat.
    """
    judged = await api.judged_or_404(services, rollout_id)
    query = request.query_params
    q, case = read_search(query.get("q", "")), query.get("case", "") == "1"
    start = _start(query.get("start", ""))
    if not q:
        raise InvalidValue("`q` says what to search for", path="q")
    found, _ = await in_page_thread(
        partial(
            within,
            services_of(request),
            judged,
            Needle(q, case=case),
            start,
            repeats=query.get("repeats", "") == "1",
        )
    )
    after = start + len(found.shown)
    following = after if found.shown and after < found.total else None
    return JSONResponse(
        {
            "q": q,
            "case": case,
            "hits": [plain(hit) for hit in found.shown],
            "total": found.total,
            "more": found.more,
            "repeated": found.repeated,
            "next": following,
        }
    )


@programs.get("/search")
async def search_rollouts(request: Request) -> JSONResponse:
    """Rollouts that say `q`: `mode=ranked` by words, `mode=contains` the exact text.

    The filters of the list narrow it; `next` is the address of what follows.
    """
    asked = read_asked(request.query_params.multi_items())
    checked(asked.filters)
    if not asked.q:
        raise InvalidValue("`q` says what to search for", path="q")
    services, judging = services_of(request), _judging(request)

    def work() -> dict[str, Any]:
        found = search(services, asked, judging)
        following = _pager(asked, found)["next_href"]
        return {
            "q": asked.q,
            "mode": asked.mode,
            "results": [
                {
                    "rollout": shapes.summary_json(each.summary),
                    "hits": [plain(hit) for hit in each.hits],
                    "n_hits": each.n_hits,
                }
                for each in found.shown
            ],
            "total": found.total,
            "more": found.more,
            "looked": found.looked,
            "candidates": found.candidates,
            "stopped": found.stopped,
            "next": following and f"/api/v1{following}",
            **_index_facts(services),
        }

    return JSONResponse(await in_page_thread(work))
