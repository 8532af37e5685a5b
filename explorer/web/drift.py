"""The drift check for programs: `/api/v1/rollouts/{id}/drift`.

Owns: its address and answer, how many calls one holds, and the application's one checker.
Must not know: how a request is rendered.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from explorer.errors import InvalidValue
from explorer.export.drift import DriftChecker, DriftResult, RolloutDrift
from explorer.web.api_shapes import plain
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of

router = APIRouter(prefix="/api/v1")

CALLS, MOST_CALLS = 20, 100


def checker_of(request: Request) -> DriftChecker:
    """The application's one checker; made when first asked for."""
    state = request.app.state
    if not hasattr(state, "drift"):
        services = services_of(request)
        settings = services.settings
        state.drift = DriftChecker(settings.tokenizer, settings.engine, services.store.bodies)
    return cast("DriftChecker", state.drift)


def number_of(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidValue(f"`{name}` must be a whole number")
    return min(int(text), most)


@router.get("/rollouts/{rollout_id}/drift")
async def show_drift(rollout_id: str, request: Request) -> JSONResponse:
    """Whether a local rendering of each request equals the engine's prompt; no verdict.

    Call by call `match`, `mismatch` or `not checkable`.

    `cursor` is the number of the first call, `limit` how many (20, at most 100).
    """
    judged = await judged_or_404(request, rollout_id)
    first = number_of(request, "cursor", 0, 10**9)
    limit = max(1, number_of(request, "limit", CALLS, MOST_CALLS))
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
