"""Labels and notes: their routes for programs, and the notes tab.

Owns: addresses, and how an annotation reads. Must not know: rows, masks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound
from explorer.export.judged import Judged
from explorer.records import CallStatus
from explorer.store.interface import Store
from explorer.store.remarks import Annotation
from explorer.web import api, words
from explorer.web import api_shapes as shapes
from explorer.web.annotating import (
    FIELDS,
    annotation_of,
    read_annotation,
    read_annotation_form,
    read_fields,
    read_form,
    withdrawal,
)
from explorer.web.api_requests import only, read_object
from explorer.web.contexts import Choice
from explorer.web.contexts_notes import NoteForm, NoteRow, NotesPage
from explorer.web.desk_access import require_change
from explorer.web.frames import list_href, rollout_href
from explorer.web.gate import who_of
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of
from explorer.web.turn_tree import TurnTree
from explorer.web.version_words import line_now

programs = APIRouter(prefix="/api/v1")
router = APIRouter(include_in_schema=False)
CanChange = Depends(require_change)
MOST_LABELLED = 200


@programs.get("/rollouts/{rollout_id}/annotations")
async def list_annotations(rollout_id: str, services: api.Api) -> JSONResponse:
    """Labels and notes that stand, in the order they were written."""
    judged = await api.judged_or_404(services, rollout_id)
    found = await asyncio.to_thread(
        services.store.annotations, judged.record.rollout.rollout_id
    )
    return JSONResponse({"annotations": [shapes.plain(item) for item in found]})


@programs.post("/rollouts/{rollout_id}/annotations", status_code=201, dependencies=[CanChange])
async def annotate(rollout_id: str, request: Request, services: api.Api) -> JSONResponse:
    """Adds a label, a note or both to a rollout, a call or a span of its tokens."""
    judged = await api.judged_or_404(services, rollout_id)
    wanted = signed(request, read_annotation(await request.body(), judged.record, now_us()))
    await services.store.add_annotation(wanted)
    return JSONResponse(shapes.plain(wanted), status_code=201)


@programs.delete(
    "/rollouts/{rollout_id}/annotations/{annotation_id}",
    status_code=204,
    dependencies=[CanChange],
)
async def withdraw(
    rollout_id: str, annotation_id: str, request: Request, services: api.Api
) -> Response:
    """Takes an annotation back; its row stays in the store."""
    await _withdraw(services.store, rollout_id, annotation_id, who_of(request))
    return Response(status_code=204)


@programs.get("/labels")
async def list_labels(services: api.Api) -> JSONResponse:
    """Every label in use, with the number of rollouts that carry it."""
    found = await asyncio.to_thread(services.store.labels)
    return JSONResponse({"labels": [shapes.plain(item) for item in found]})


@programs.post("/labels", status_code=201, dependencies=[CanChange])
async def label(request: Request, services: api.Api) -> JSONResponse:
    """As a rollout's `annotations`, with `rollout_id` in the body."""
    body = dict(read_object(await request.body()))
    only(body, FIELDS | {"rollout_id"})
    judged = await api.judged_or_404(services, str(body.pop("rollout_id", "")))
    wanted = signed(request, annotation_of(body, judged.record, now_us()))
    await services.store.add_annotation(wanted)
    return JSONResponse(shapes.plain(wanted), status_code=201)


def signed(request: Request, annotation: Annotation) -> Annotation:
    """With the name of who is signed in; the operator may name somebody."""
    return replace(annotation, who=who_of(request, annotation.who))


async def _withdraw(store: Store, rollout_id: str, annotation_id: str, who: str) -> None:
    found = await asyncio.to_thread(store.annotation, annotation_id)
    if found is None or found.rollout_id != rollout_id:
        raise NotFound("this rollout has no such annotation; it may be withdrawn already")
    await store.add_annotation(withdrawal(found, who, now_us()))


@page_and_twin(router, "/rollouts/{rollout_id}/notes")
async def notes(request: Request, rollout_id: str) -> Response:
    """What people wrote, and the form to write more."""
    judged = await judged_or_404(request, rollout_id)
    store = services_of(request).store
    query = dict(request.query_params)

    def work() -> NotesPage:
        found = store.annotations(judged.record.rollout.rollout_id)
        tree = TurnTree(judged)
        return NotesPage(
            frame=rollout_frame(request, judged, "notes"),
            header=rollout_header(
                judged,
                "notes",
                members_of(store, judged),
                notes=found,
                line=line_now(store),
            ),
            notes=tuple(note_row(judged, tree, item) for item in found),
            form=note_form(judged, tree, store, query),
        )

    return await respond(request, work)


@router.post("/rollouts/{rollout_id}/notes", dependencies=[CanChange])
async def write(request: Request, rollout_id: str) -> Response:
    """Adds a label or a note from the page's form."""
    judged = await judged_or_404(request, rollout_id)
    try:
        read = read_annotation_form(await request.body(), judged.record, now_us())
    except InvalidValue as error:
        back = "Your browser's Back leads to the form, as you filled it."
        raise InvalidValue(f"{error.message}. {back}", **error.details) from error
    wanted = signed(request, read)
    await services_of(request).store.add_annotation(wanted)
    return RedirectResponse(rollout_href(rollout_id, "notes") + f"#{wanted.annotation_id}", 303)


@router.post("/rollouts/labels", dependencies=[CanChange])
async def label_several(request: Request) -> Response:
    """Labels the rollouts that were ticked in a list, and shows those with the label."""
    given = read_fields(await request.body(), most=MOST_LABELLED + 2)
    wanted = list(dict.fromkeys(given.get("id", [])))
    if not wanted:
        raise InvalidValue("no rollout was ticked; your browser's Back leads to the list")
    body = {name: given[name][0] for name in ("label", "who") if given.get(name)}
    if "label" not in body:
        raise InvalidValue(
            "give a `label`. Your browser's Back leads to the list", path="label"
        )
    judged = [await judged_or_404(request, rollout_id) for rollout_id in wanted]
    store = services_of(request).store
    for each in [annotation_of(body, item.record, now_us()) for item in judged]:
        await store.add_annotation(signed(request, each))
    return RedirectResponse(list_href(label=f'"{body["label"]}"'), 303)


@router.post("/rollouts/{rollout_id}/notes/{annotation_id}", dependencies=[CanChange])
async def take_back(request: Request, rollout_id: str, annotation_id: str) -> Response:
    """Takes one back from the page's button."""
    given = read_form(await request.body())
    store = services_of(request).store
    who = who_of(request, given.get("who", "operator")[:200])
    await _withdraw(store, rollout_id, annotation_id, who)
    return RedirectResponse(rollout_href(rollout_id, "notes"), 303)


def note_row(judged: Judged, tree: TurnTree, item: Annotation) -> NoteRow:
    """One annotation as the page shows it."""
    rollout_id = judged.record.rollout.rollout_id
    concerns, href = "the rollout", None
    if item.call_id is not None:
        known = item.call_id in tree.tree.nodes
        name = tree.labels.get(item.call_id, words.short_id(item.call_id))
        concerns = f"turn {name}" + span_words(item.start, item.end)
        href = rollout_href(rollout_id, f"requests/{item.call_id}")
        if known and item.start is not None:
            href = rollout_href(rollout_id, "tokens", branch=item.call_id, t=item.start)
            href += f"#t{item.start}"
    base = rollout_href(rollout_id, f"notes/{item.annotation_id}")
    return NoteRow(
        annotation_id=item.annotation_id,
        label=safe_text(item.label or ""),
        label_href=list_href(label=item.label) if item.label else None,
        note=safe_text(item.note or ""),
        who=safe_text(item.who),
        when=words.clock(item.time_us),
        concerns=concerns,
        href=href,
        withdraw_href=base,
    )


def span_words(start: int | None, end: int | None) -> str:
    """`, token 5` or `, tokens 5–9`; empty for a whole call."""
    if start is None or end is None:
        return ""
    if end - start == 1:
        return f", token {start:,}"
    return f", tokens {start:,}–{end - 1:,}"


def note_form(
    judged: Judged, tree: TurnTree, store: Store, query: Mapping[str, str]
) -> NoteForm:
    """The form, filled from the address where a link led here from a token or a call."""
    calls = tuple(
        Choice(
            str(call.call_id),
            f"turn {tree.labels[call.call_id]}"
            if call.call_id in tree.labels
            else f"call {words.short_id(call.call_id)}, {call.status.value}",
        )
        for call in judged.record.calls
        if call.status is not CallStatus.OPEN
    )
    chosen = query.get("call", "")
    known = any(choice.value == chosen for choice in calls)
    start, end = query.get("start", ""), query.get("end", "")
    spans = known and start.isdecimal() and end.isdecimal()
    return NoteForm(
        action=rollout_href(judged.record.rollout.rollout_id, "notes"),
        calls=calls,
        call=chosen if known else "",
        start=start if spans else "",
        end=end if spans else "",
        decide_href=rollout_href(judged.record.rollout.rollout_id, "findings") + "#decide",
        labels=tuple(item.label for item in store.labels()[:200]),
    )
