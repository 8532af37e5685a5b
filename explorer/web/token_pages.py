"""Routes of the tokens tab: the page, its columns, the inspector and folded parts.

Owns: addresses and view state. Must not know: how sections are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from explorer.errors import InvalidValue, NotFound
from explorer.export.judged import Judged
from explorer.web.branch import METRICS
from explorer.web.branches import Shown, decode_one, leaf_of, shown_branch
from explorer.web.contexts_rollout import (
    InspectPage,
    SectionPart,
    TokensPage,
    TurnSection,
)
from explorer.web.delta_pane import delta_words
from explorer.web.delta_worst import furthest_tokens
from explorer.web.frames import rollout_href
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.inspector import token_facts
from explorer.web.legends import legend
from explorer.web.markup import Look, TokenMarkup
from explorer.web.pages import page_and_twin
from explorer.web.render import accepts_gzip, packed, respond
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import Services, services_of
from explorer.web.tokens import PART, Sections, Window, minimap, windows
from explorer.web.turn_tree import TurnTree, View
from explorer.web.version_words import line_now
from explorer.web.workers import in_page_thread
from explorer.web.worst import turn_numbers, turns_left_out, worst_elsewhere, worst_tokens

router = APIRouter(include_in_schema=False)
VALUES = {"logprob-values": "logprobs", "entropy-values": "entropies", "delta-values": "deltas"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The view state in the address of the tokens tab."""

    branch: str
    metric: str
    mask: bool
    whitespace: bool
    ids: bool
    token: int | None

    def state(self) -> dict[str, str]:
        """What links inside the tab keep; defaults stay out of the address."""
        found = {}
        if self.metric != "logprob":
            found["m"] = self.metric
        if not self.mask:
            found["mask"] = "0"
        if not self.whitespace:
            found["ws"] = "0"
        if self.ids:
            found["ids"] = "1"
        return found


def read_state(query: Mapping[str, str]) -> Asked:
    """The view state; what cannot be read falls back to the default."""
    metric = query.get("m", "logprob")
    token = query.get("t", "")
    return Asked(
        branch=query.get("branch", ""),
        metric=metric if metric in METRICS else "logprob",
        mask=query.get("mask", "1") != "0",
        whitespace=query.get("ws", "1") != "0",
        ids=query.get("ids", "0") == "1",
        token=int(token) if token.isdecimal() and len(token) < 10 else None,
    )


@page_and_twin(router, "/rollouts/{rollout_id}/tokens")
async def tokens(request: Request, rollout_id: str) -> Response:
    """The rollout token by token."""
    judged = await judged_or_404(request, rollout_id)
    services = services_of(request)
    asked = read_state(request.query_params)
    return await respond(request, lambda: tokens_page(request, services, judged, asked))


def tokens_page(
    request: Request, services: Services, judged: Judged, asked: Asked
) -> TokensPage:
    """The context of the tokens tab."""
    rollout_id = judged.record.rollout.rollout_id
    tree = TurnTree(judged)
    leaf = leaf_of(tree, asked.branch)
    shown = shown_branch(services, judged, tree, leaf) if leaf is not None else None
    if shown is not None and not shown.view.length:
        shown = None
    view = View(leaf, "tokens", asked.state())
    at = asked.token
    if shown is None or (at is not None and at >= shown.view.length):
        at = None
    sections: tuple[TurnSection, ...] = ()
    if shown is not None:
        sections = finished_sections(judged, shown, Look(asked.metric, asked.ids, at))

    decode = partial(decode_one, services, judged)
    view_or_none = shown.view if shown else None
    notes, line = services.store.annotations(rollout_id), line_now(services.store)
    neighbours = {name: value for name, value in asked.state().items() if name != "branch"}
    return TokensPage(
        frame=rollout_frame(request, judged, "tokens"),
        header=rollout_header(
            judged,
            "tokens",
            members_of(services.store, judged),
            leaf,
            "&".join(f"{name}={value}" for name, value in neighbours.items()),
            notes,
            line,
        ),
        tree=tree.rows(view, decode),
        branches=tree.branches(view),
        branch=leaf or "",
        metric=asked.metric,
        mask=asked.mask,
        whitespace=asked.whitespace,
        ids=asked.ids,
        base=rollout_href(rollout_id),
        total_tokens=shown.view.length if shown else 0,
        sampled_tokens=int(np.count_nonzero(shown.view.sampled)) if shown else 0,
        trained_tokens=int(np.count_nonzero(shown.view.trained)) if shown else 0,
        outliers=int(np.count_nonzero(shown.view.outliers)) if shown else 0,
        far_off=int(np.count_nonzero(shown.view.far_off)) if shown else 0,
        shown_tokens=sum(section.shown for section in sections),
        broke=tree.root_break(leaf, decode) if leaf is not None else None,
        sections=sections,
        minimap=minimap(shown.view) if shown else (),
        worst=worst_tokens(judged, shown) if shown else (),
        furthest=furthest_tokens(judged, shown) if shown else (),
        elsewhere=worst_elsewhere(judged, tree, shown) if shown else None,
        turns=turn_numbers(shown) if shown else (),
        turns_left_out=turns_left_out(shown) if shown else 0,
        legend=legend(judged, view_or_none, delta_words(judged, shown, services.store)),
        problem="" if shown else no_tokens(judged, leaf is not None),
        inspected=token_facts(judged, shown, at, notes, line)
        if shown and at is not None
        else None,
    )


def finished_sections(judged: Judged, shown: Shown, look: Look) -> tuple[TurnSection, ...]:
    """The sections of a branch, kept unless they are made for one token's address."""
    kept = shown.sections.get(look)
    if kept is not None:
        return kept
    maker = Sections(judged, shown, TokenMarkup(shown.view, shown.pieces, look))
    made = tuple(maker.make(window) for window in windows(shown.view, look.anchor))
    if look.anchor is None:
        shown.sections[look] = made
    return made


def no_tokens(judged: Judged, has_calls: bool) -> str:
    """Why there is nothing to show."""
    if not has_calls:
        waiting = len(judged.record.open_calls)
        if waiting:
            return "No call has ended yet; the first is still in flight. Reload to see it."
        return "No call was made under this rollout yet."
    return (
        "No token ids were captured on this branch, so there is nothing to show token by "
        "token; the conversation and the requests have what was recorded."
    )


async def shown_or_404(request: Request, rollout_id: str) -> tuple[Judged, Shown]:
    """The branch that the address names, off the event loop.

    Raises:
        NotFound: no such rollout or call, or nothing was captured.
    """
    judged = await judged_or_404(request, rollout_id)
    services = services_of(request)
    branch = request.query_params.get("branch", "")

    def work() -> Shown:
        tree = TurnTree(judged)
        leaf = leaf_of(tree, branch)
        if leaf is None:
            raise NotFound("this rollout has no calls yet")
        return shown_branch(services, judged, tree, leaf)

    return judged, await in_page_thread(work)


def index_asked(request: Request, shown: Shown) -> int:
    """The token that `t` names.

    Raises:
        InvalidValue: no such token on this branch.
    """
    at = read_state(request.query_params).token
    if at is None or at >= shown.view.length:
        raise InvalidValue(f"t must name a token of this branch, 0 to {shown.view.length - 1}")
    return at


@page_and_twin(router, "/rollouts/{rollout_id}/tokens/inspect")
async def inspect(request: Request, rollout_id: str) -> Response:
    """Everything recorded about one token."""
    judged, shown = await shown_or_404(request, rollout_id)
    at = index_asked(request, shown)
    fragment = request.headers.get("hx-request")
    return await respond(
        request,
        lambda: InspectPage(
            frame=rollout_frame(request, judged, "tokens", last=f"token {at}"),
            token=token_facts(
                judged,
                shown,
                at,
                services_of(request).store.annotations(judged.record.rollout.rollout_id),
                line_now(services_of(request).store),
            ),
        ),
        template="inspect.html" if fragment else None,
    )


@page_and_twin(router, "/rollouts/{rollout_id}/tokens/section")
async def section(request: Request, rollout_id: str) -> Response:
    """The part of a folded section that begins at token `t`."""
    judged, shown = await shown_or_404(request, rollout_id)
    at = index_asked(request, shown)
    asked = read_state(request.query_params)
    if not request.headers.get("hx-request") and not request.url.path.endswith(".json"):
        page = rollout_href(rollout_id, "tokens", branch=shown.view.leaf, t=at)
        return RedirectResponse(f"{page}#t{at}", status_code=303)

    def work() -> SectionPart:
        segment = shown.view.segment_at(at)
        markup = TokenMarkup(shown.view, shown.pieces, Look(asked.metric, asked.ids))
        maker = Sections(judged, shown, markup)
        window = Window(segment, PART, on_sight=segment.kind == "completion")
        return SectionPart(
            frame=rollout_frame(request, judged, "tokens"),
            section=maker.make(window, at - segment.start),
        )

    return await respond(request, work)


@router.get("/rollouts/{rollout_id}/columns/{metric}")
async def column(request: Request, rollout_id: str, metric: str) -> Response:
    """One metric of every token of a branch.

    A byte each; ids and values four, little-endian, and a value that is not there is NaN.
    """
    known = (*METRICS, *VALUES, "ids")
    if metric not in known:
        raise NotFound(f"columns are {', '.join(known)}")
    _, shown = await shown_or_404(request, rollout_id)
    compress = accepts_gzip(request)

    def work() -> Response:
        if metric == "ids":
            data = shown.view.ids.astype("<i4").tobytes()
        elif metric in VALUES:
            data = getattr(shown.view, VALUES[metric]).astype("<f4").tobytes()
        else:
            data = shown.view.column(metric).tobytes()
        return packed(data, "application/octet-stream", compress=compress)

    return await in_page_thread(work)
