"""Routes of what looks like a secret: findings for programs, and decisions about them.

Owns: addresses, JSON shapes, and how a decision is read from a request.
Must not know: how a secret is found, what is hidden because of it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from explorer.access.audit import Event
from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound
from explorer.export.secret_review import DECISIONS, Review, Reviewed
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId
from explorer.store.secret_marks import SecretDecision
from explorer.web import api
from explorer.web.access import note_down
from explorer.web.annotating import read_form
from explorer.web.api_requests import only, read_object, text
from explorer.web.desk_access import require_change
from explorer.web.frames import rollout_href
from explorer.web.gate import who_of
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of

programs = APIRouter(prefix="/api/v1")
router = APIRouter(include_in_schema=False)
CanChange = Depends(require_change)


def scans_of(request: Request) -> SecretScans:
    """The scans of the application.

    Raises:
        NotFound: an application of pages alone has none.
    """
    found = services_of(request).secrets
    if found is None:
        raise NotFound("this server does not look for secrets")
    return found


@programs.get("/rollouts/{rollout_id}/secrets")
async def list_secrets(rollout_id: str, request: Request, services: api.Api) -> JSONResponse:
    """What looks like a secret, with what people decided; never the secret itself."""
    await api.judged_or_404(services, rollout_id)
    review = await _review(request, rollout_id)
    return JSONResponse(
        {
            "rollout_id": rollout_id,
            "state": review.state,
            "refusal": review.refusal,
            "paths": review.n_paths,
            "findings": [_plain(item) for item in review.items],
        }
    )


@programs.post(
    "/rollouts/{rollout_id}/secrets/{finding_id}", status_code=201, dependencies=[CanChange]
)
async def decide(
    rollout_id: str, finding_id: str, request: Request, services: api.Api
) -> JSONResponse:
    """Decides about a finding: `{decision: not_a_secret | release | withhold, reason}`."""
    await api.judged_or_404(services, rollout_id)
    body = read_object(await request.body())
    only(body, {"decision", "reason", "who"})
    made = await _decided(request, _decision(request, RolloutId(rollout_id), finding_id, body))
    return JSONResponse(_told(made), status_code=201)


@router.post("/rollouts/{rollout_id}/secrets", dependencies=[CanChange])
async def decide_on_page(request: Request, rollout_id: str) -> Response:
    """The same from the page's form."""
    await judged_or_404(request, rollout_id)
    try:
        body = read_form(await request.body())
        only(body, {"finding_id", "decision", "reason", "who"})
        wanted = _decision(request, RolloutId(rollout_id), body.get("finding_id", ""), body)
    except InvalidValue as error:
        back = "Your browser's Back leads to the form, as you filled it."
        raise InvalidValue(f"{error.message}. {back}", **error.details) from error
    await _decided(request, wanted)
    return RedirectResponse(rollout_href(rollout_id, "findings") + "#secrets", 303)


async def _decided(request: Request, wanted: SecretDecision) -> SecretDecision:
    """The decision as it was kept; what may leave changes, so the audit log tells of it."""
    made = await scans_of(request).decide(wanted)
    await note_down(
        request,
        Event.SECRET_DECIDED,
        f"rollout {wanted.rollout_id}",
        wanted.reason,
        finding=wanted.finding_id,
        decision=wanted.decision,
    )
    return made


async def _review(request: Request, rollout_id: str) -> Review:
    review = await asyncio.to_thread(scans_of(request).review, RolloutId(rollout_id))
    if review is None:
        raise NotFound(f"there is no rollout {rollout_id[:80]}")
    return review


def _decision(
    request: Request, rollout_id: RolloutId, finding_id: str, body: Mapping[str, Any]
) -> SecretDecision:
    """The decision that the fields of `body` describe; who decides is who signed in.

    Raises:
        InvalidValue: names the field.
    """
    decision = body.get("decision")
    if decision not in DECISIONS:
        raise InvalidValue(
            f"`decision` must be one of {', '.join(DECISIONS)}", path="$.decision"
        )
    reason = text(body, "reason")
    if reason is None:
        raise InvalidValue("give `reason`: it is kept and shown", path="$.reason")
    return SecretDecision(
        decision_id=f"sd_{secrets.token_hex(16)}",
        rollout_id=rollout_id,
        finding_id=finding_id,
        time_us=now_us(),
        decision=str(decision),
        who=who_of(request, text(body, "who") or "operator"),
        reason=reason,
    )


def _plain(item: Reviewed) -> dict[str, Any]:
    found = item.finding
    return {
        "finding_id": found.finding_id,
        "kind": found.kind,
        "looks_like": found.title,
        "preview": found.preview,
        "length": found.length,
        "blocks": found.blocks,
        "hidden": item.hidden,
        "n_places": found.n_places,
        "places": [
            {"source": p.source, "call_id": p.call_id, "start": p.start, "end": p.end}
            for p in found.places
        ],
        "decision": None if item.decision is None else _told(item.decision),
    }


def _told(decision: SecretDecision) -> dict[str, Any]:
    return {
        "finding_id": decision.finding_id,
        "decision": decision.decision,
        "who": decision.who,
        "reason": decision.reason,
        "time_us": decision.time_us,
    }
