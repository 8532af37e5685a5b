"""Routes of the drift check: `/api/v1/rollouts/{id}/drift`, and the part of the page.

Owns: addresses, how many calls one answer holds, and what they say.
Must not know: how a request is rendered.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from explorer.errors import InvalidValue
from explorer.export.drift import CallDrift, DriftChecker, DriftResult, Form, RolloutDrift, Side
from explorer.export.judged import Judged
from explorer.web.api_shapes import plain
from explorer.web.contexts_tabs import DriftPage, DriftRow, DriftSide
from explorer.web.frames import rollout_href
from explorer.web.header import rollout_frame
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of
from explorer.web.turn_tree import TurnTree

router = APIRouter(include_in_schema=False)
programs = APIRouter(prefix="/api/v1")

CALLS, MOST_CALLS = 20, 100
_BROKEN = 400


def checker_of(request: Request) -> DriftChecker:
    """The application's one checker; made when first asked for."""
    state = request.app.state
    if not hasattr(state, "drift"):
        services = services_of(request)
        settings = services.settings
        state.drift = DriftChecker(settings.tokenizer, settings.engine, services.store.bodies)
    return cast("DriftChecker", state.drift)


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidValue(f"`{name}` must be a whole number")
    return min(int(text), most)


@programs.get("/rollouts/{rollout_id}/drift")
async def show_drift(rollout_id: str, request: Request) -> JSONResponse:
    """Would a local rendering of each request equal the engine's prompt? `match`, `mismatch`
    or `not checkable`, call by call; never part of the verdict.

    `cursor` is the number of the first call, `limit` how many (20, at most 100).
    """
    judged = await judged_or_404(request, rollout_id)
    first = _number(request, "cursor", 0, 10**9)
    limit = max(1, _number(request, "limit", CALLS, MOST_CALLS))
    found = await asyncio.to_thread(checker_of(request).check, judged, first, limit)
    return JSONResponse(drift_json(found))


def drift_json(found: RolloutDrift) -> dict[str, Any]:
    """The answer of the API."""
    counts = {
        result.value.replace(" ", "_"): sum(call.result is result for call in found.calls)
        for result in DriftResult
    }
    made: dict[str, Any] = plain(found)
    made["counts"] = counts
    made["next"] = made.pop("following")
    return made


@page_and_twin(router, "/rollouts/{rollout_id}/drift")
async def drift(request: Request, rollout_id: str) -> Response:
    """The check of the next calls: a part of the provenance tab, or a page of its own."""
    judged = await judged_or_404(request, rollout_id)
    first = _number(request, "cursor", 0, 10**9)
    fragment = bool(request.headers.get("hx-request"))

    def work() -> DriftPage:
        found = checker_of(request).check(judged, first, CALLS)
        return _page(request, judged, found, first)

    return await respond(request, work, template="drift.html" if fragment else None)


def _page(request: Request, judged: Judged, found: RolloutDrift, first: int) -> DriftPage:
    rollout_id = judged.record.rollout.rollout_id
    labels = TurnTree(judged).labels
    more = None
    if found.following is not None:
        more = rollout_href(rollout_id, "drift", cursor=found.following)
    return DriftPage(
        frame=rollout_frame(request, judged, "provenance", last="template check"),
        renderer=found.renderer,
        template_sha256=found.template_sha256 or "",
        served_template=found.served_template_sha256 or "",
        same_template=found.same_template,
        rows=tuple(
            _row(rollout_id, call, labels.get(call.call_id, "–")) for call in found.calls
        ),
        first=first,
        total=found.total,
        more_href=more,
    )


def _row(rollout_id: str, call: CallDrift, label: str) -> DriftRow:
    form = call.nearest
    differs = form is not None and form.result is DriftResult.MISMATCH
    return DriftRow(
        turn=label,
        call_href=rollout_href(rollout_id, f"requests/{call.call_id}"),
        result=call.result.value,
        reason=safe_text(call.reason),
        arguments=_arguments(call.forms),
        prompt_tokens=call.prompt_tokens,
        position=form.position if form is not None else None,
        before=safe_text(form.before) if form is not None and differs else "",
        engine=_side(form.engine) if form is not None else None,
        rendered=_side(form.rendered) if form is not None else None,
    )


def _arguments(found: tuple[Form, ...]) -> str:
    """Which forms of the arguments match, in words; empty where there is one form only."""
    if len(found) < 2:
        return ""
    return ", ".join(f"{form.arguments.value}: {form.result.value}" for form in found)


def _side(side: Side | None) -> DriftSide | None:
    if side is None:
        return None
    if side.token_id is None:
        return DriftSide(token="(its end)", token_id=None, text="")
    return DriftSide(
        token=safe_text(side.token), token_id=side.token_id, text=safe_text(side.text)[:_BROKEN]
    )
