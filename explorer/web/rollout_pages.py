"""Routes of a rollout's tabs, except the tokens.

Owns: addresses and which context answers each. Must not know: how contexts are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound
from explorer.export.judged import Judged
from explorer.records import RolloutId
from explorer.store.interface import RolloutSummary
from explorer.web.branches import decode_one, leaf_of, shown_branch
from explorer.web.calls import ROWS_PER_PAGE, call_row, request_page
from explorer.web.contexts import Frame
from explorer.web.contexts_requests import RequestsPage
from explorer.web.contexts_rollout import Header
from explorer.web.contexts_tabs import ConversationPage, ConversationTurn
from explorer.web.conversation import Conversation
from explorer.web.custody_page import custody_page
from explorer.web.desk_access import api_services, require_change
from explorer.web.details import (
    findings_page,
    provenance_page,
)
from explorer.web.frames import rollout_href
from explorer.web.gate import who_of
from explorer.web.group import group_page, siblings
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.overriding import note_override, read_override_form
from explorer.web.pages import page_and_twin
from explorer.web.render import respond
from explorer.web.secret_part import secrets_part
from explorer.web.services import services_of
from explorer.web.timing import timing_page
from explorer.web.turn_tree import TurnTree, View
from explorer.web.version_words import line_now, shut_now
from explorer.web.workers import in_page_thread

router = APIRouter(include_in_schema=False)

Members = tuple[RolloutSummary, ...]
Build = Callable[[Judged, Frame, Header, Members], Any]


async def judged_or_404(request: Request, rollout_id: str) -> Judged:
    """The judged rollout.

    Raises:
        NotFound: unknown or deleted.
    """
    judged = await services_of(request).judged.get(RolloutId(rollout_id))
    if judged is None:
        raise NotFound(f"no rollout on this server has the id “{rollout_id}”")
    return judged


async def tab(request: Request, rollout_id: str, name: str, build: Build) -> Response:
    """Answer with one tab."""
    judged = await judged_or_404(request, rollout_id)
    store = services_of(request).store
    branch = request.query_params.get("branch")

    def work() -> Any:
        members = members_of(store, judged)
        noted = store.annotations(judged.record.rollout.rollout_id)
        line = line_now(store)
        header = rollout_header(judged, name, members, branch, notes=noted, line=line)
        return build(judged, rollout_frame(request, judged, name), header, members)

    return await respond(request, work)


@router.get("/rollouts/{rollout_id}")
async def rollout(request: Request, rollout_id: str) -> Response:
    """The rollout opens on its tokens, coloured as the address asks."""
    await judged_or_404(request, rollout_id)
    query = request.url.query
    place = rollout_href(rollout_id, "tokens") + (f"?{query}" if query else "")
    return RedirectResponse(place, status_code=303)


@page_and_twin(router, "/rollouts/{rollout_id}/conversation")
async def conversation(
    request: Request, rollout_id: str, branch: str = "", turn: int = 1
) -> Response:
    """Messages along one branch, a page of turns at a time."""
    judged = await judged_or_404(request, rollout_id)
    services = services_of(request)
    first = max(1, turn)
    fragment = request.headers.get("hx-request") and first > 1

    def work() -> ConversationPage:
        tree, line = TurnTree(judged), line_now(services.store)
        leaf = leaf_of(tree, branch)
        view = View(leaf, "conversation", {})
        members = members_of(services.store, judged)
        noted = services.store.annotations(judged.record.rollout.rollout_id)
        turns: list[ConversationTurn] = []
        following, total, broke = None, 0, None

        def decode(token: int | None) -> str:
            return decode_one(services, judged, token)

        if leaf is not None:
            broke = tree.root_break(leaf, decode)
            shown = shown_branch(services, judged, tree, leaf)
            total = len(shown.view.path)
            turns, following = Conversation(services.store, judged, shown, line).turns(first)
        more = None
        if following is not None:
            more = rollout_href(rollout_id, "conversation", branch=leaf, turn=following)
        return ConversationPage(
            frame=rollout_frame(request, judged, "conversation"),
            header=rollout_header(
                judged, "conversation", members, leaf, notes=noted, line=line
            ),
            tree=tree.rows(view, decode),
            branches=tree.branches(view),
            branch=leaf or "",
            broke=broke,
            turns=tuple(turns),
            total_turns=total,
            more_href=more,
        )

    return await respond(request, work, template="turns.html" if fragment else None)


@page_and_twin(router, "/rollouts/{rollout_id}/timing")
async def timing(request: Request, rollout_id: str, start: int = 0) -> Response:
    """A waterfall and its table."""
    return await tab(
        request,
        rollout_id,
        "timing",
        lambda judged, f, h, _: timing_page(
            judged, f, h, start, shut_now(services_of(request).store)
        ),
    )


@page_and_twin(router, "/rollouts/{rollout_id}/requests")
async def requests(request: Request, rollout_id: str, start: int = 0) -> Response:
    """Every call, a page at a time."""

    def build(judged: Judged, frame: Frame, header: Header, _: Members) -> RequestsPage:
        calls, labels = judged.record.calls, TurnTree(judged).labels
        first = max(0, start)
        last = first + ROWS_PER_PAGE
        return RequestsPage(
            frame=frame,
            header=header,
            rows=tuple(call_row(judged, call, labels) for call in calls[first:last]),
            total=len(calls),
            first=first,
            next_href=(
                rollout_href(rollout_id, "requests", start=last) if last < len(calls) else None
            ),
            open_calls=len(judged.record.open_calls),
        )

    return await tab(request, rollout_id, "requests", build)


@page_and_twin(router, "/rollouts/{rollout_id}/requests/{call_id}")
async def request_detail(request: Request, rollout_id: str, call_id: str) -> Response:
    """One call, raw."""
    judged = await judged_or_404(request, rollout_id)
    store = services_of(request).store
    query = dict(request.query_params)

    def work() -> Any:
        noted = store.annotations(judged.record.rollout.rollout_id)
        header = rollout_header(
            judged,
            "requests",
            members_of(store, judged),
            notes=noted,
            line=line_now(store),
        )
        frame = rollout_frame(request, judged, "requests", last=f"call {call_id[:12]}")
        return request_page(store, judged, frame, header, call_id, query)

    return await respond(request, work)


@page_and_twin(router, "/rollouts/{rollout_id}/group")
async def group(request: Request, rollout_id: str) -> Response:
    """The samples of the same task, and where each parts from this one."""
    judged = await judged_or_404(request, rollout_id)
    services = services_of(request)
    members = await in_page_thread(lambda: members_of(services.store, judged))
    near = siblings(judged.record.rollout.rollout_id, members)
    found = [await services.judged.get(each.rollout_id) for each in near]
    every = [judged, *(each for each in found if each is not None)]

    def work() -> Any:
        # Read again: judging the siblings may have changed what the list says of them.
        members = members_of(services.store, judged)
        noted = services.store.annotations(judged.record.rollout.rollout_id)
        line = line_now(services.store)
        header = rollout_header(judged, "group", members, notes=noted, line=line)
        outline = rollout_frame(request, judged, "group")
        return group_page(services, outline, header, every, members)

    return await respond(request, work)


@page_and_twin(router, "/rollouts/{rollout_id}/provenance")
async def provenance(request: Request, rollout_id: str) -> Response:
    """What made these tokens."""
    return await tab(
        request,
        rollout_id,
        "provenance",
        lambda judged, f, h, _: provenance_page(
            judged, f, h, line_now(services_of(request).store)
        ),
    )


@page_and_twin(router, "/rollouts/{rollout_id}/findings")
async def findings(request: Request, rollout_id: str) -> Response:
    """What was found, worst first."""
    query = dict(request.query_params)
    return await tab(
        request,
        rollout_id,
        "findings",
        lambda judged, f, h, _: findings_page(
            judged, f, h, query, secrets_part(request, judged)
        ),
    )


@router.post("/rollouts/{rollout_id}/overrides", dependencies=[Depends(require_change)])
async def decide(request: Request, rollout_id: str) -> Response:
    """Records a person's decision from the page's form."""
    judged = await judged_or_404(request, rollout_id)
    try:
        wanted = read_override_form(await request.body(), judged.record, now_us())
    except InvalidValue as error:
        back = "Your browser's Back leads to the form, as you filled it."
        raise InvalidValue(f"{error.message}. {back}", **error.details) from error
    signed = replace(wanted, who=who_of(request, wanted.who))
    await api_services(request).desk.override(judged.record.rollout.rollout_id, signed)
    await note_override(request, rollout_id, signed)
    await services_of(request).judged.get(judged.record.rollout.rollout_id)
    return RedirectResponse(rollout_href(rollout_id, "findings") + "#decisions", 303)


@page_and_twin(router, "/rollouts/{rollout_id}/custody")
async def custody(request: Request, rollout_id: str) -> Response:
    """The hash chain and the receipts; with `check=1` every link is made again."""
    judged = await judged_or_404(request, rollout_id)
    sealing = services_of(request).sealing
    found = None
    if sealing is not None and judged.cover is None:
        found = await sealing.issue(judged.record.rollout.rollout_id)
    check = request.query_params.get("check") == "1"
    return await tab(
        request,
        rollout_id,
        "custody",
        lambda judged, f, h, _: custody_page(judged, f, h, found, check=check),
    )
