"""Trainer logprobs for programs: posting them, asking the engine again, reading δ.

Owns: these routes and their shapes. Must not know: how δ is computed, SQL.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from explorer.capture.ids import now_us
from explorer.errors import NotFound
from explorer.export.deltas import DeltaSummaries
from explorer.export.telling import read_told, take
from explorer.records import RolloutId
from explorer.web import api_requests as requests
from explorer.web.api import CanChange, judged_or_404
from explorer.web.desk_access import ApiServices, api_services

programs = APIRouter(prefix="/api/v1")
Api = Annotated[ApiServices, Depends(api_services)]


@programs.post("/rollouts/{rollout_id}/trainer-logprobs", dependencies=[CanChange])
async def post_trainer_logprobs(rollout_id: str, request: Request, api: Api) -> JSONResponse:
    """Takes a trainer's logprobs of sampled ids, also after closing; all of them or none.

    `calls` lists `{call_id, per_token_logps}`, one number or null per sampled token;
    `completion_token_ids` are compared where they are given. Of equal call, kind, source and
    weight version the last word counts, and the same word again changes nothing.
    """
    known = requests.checked_id(rollout_id)
    told = await asyncio.to_thread(read_told, await request.body())
    judged = await judged_or_404(api, known)
    taken = await take(api.store, judged.record, told, now_us())
    await refresh(request, api, known)
    return JSONResponse(
        {"stored": taken.stored, "replaced": taken.replaced, "unchanged": taken.unchanged}
    )


async def refresh(request: Request, api: ApiServices, rollout_id: RolloutId) -> None:
    """The summary follows what was posted, by the verdict that holds when it is written."""
    summaries = cast("DeltaSummaries", request.app.state.deltas)
    judged = await judged_or_404(api, rollout_id)
    while True:
        await summaries.write(judged)
        again = await api.judged.get(rollout_id)
        if again is None:
            raise NotFound(f"there is no rollout {rollout_id}")
        if again is judged:
            return
        judged = again
