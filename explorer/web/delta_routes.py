"""Trainer logprobs for programs: posting them, asking the engine again, reading δ.

Owns: these routes and their shapes. Must not know: how δ is computed, SQL.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from explorer.capture.ids import now_us
from explorer.errors import NotFound
from explorer.export.deltas import DeltaSummaries
from explorer.export.rescoring import Rescoring
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


@programs.post("/rollouts/{rollout_id}/rescore", dependencies=[CanChange])
async def rescore_rollout(rollout_id: str, request: Request, api: Api) -> JSONResponse:
    """Has the engine score again what it sampled, while it still has the same weights.

    What comes back is the noise floor of the engine: stored as kind `rescored`, with the
    engine as the source. Calls that cannot be compared are left out, each with the reason;
    where none can be, nothing is asked and the answer is 409.
    """
    known = requests.checked_id(rollout_id)
    judged = await judged_or_404(api, known)
    again = await cast("Rescoring", request.app.state.rescoring)(judged)
    taken = await take(api.store, judged.record, again.told, now_us())
    await refresh(request, api, known)
    return JSONResponse(
        {
            "stored": taken.stored,
            "replaced": taken.replaced,
            "unchanged": taken.unchanged,
            "source": again.told.source,
            "weight_version": again.told.weight_version,
            "skipped": [asdict(each) for each in again.skipped],
            "tokens_read": again.tokens,
        }
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
