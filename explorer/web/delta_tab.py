"""The tab about a trainer's logprobs, and its facts for programs.

Owns: its addresses. Must not know: how δ is computed or reads.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from explorer.errors import NotFound
from explorer.export.deltas import compare, limits_of, sets_of, usual_set
from explorer.export.judged import Judged
from explorer.export.run_deltas import run_delta
from explorer.web import api_shapes as shapes
from explorer.web.api import judged_or_404 as judged_for_programs
from explorer.web.contexts import Frame
from explorer.web.contexts_delta import DeltaPage
from explorer.web.contexts_rollout import Header
from explorer.web.delta_page import delta_facts, delta_page, set_key
from explorer.web.desk_access import ApiServices, api_services
from explorer.web.pages import page_and_twin
from explorer.web.rollout_pages import Members, tab
from explorer.web.services import services_of

router = APIRouter(include_in_schema=False)
programs = APIRouter(prefix="/api/v1")
Api = Annotated[ApiServices, Depends(api_services)]


@page_and_twin(router, "/rollouts/{rollout_id}/delta")
async def delta(request: Request, rollout_id: str) -> Response:
    """How far a trainer's logprobs are from those that the engine sampled with."""
    services = services_of(request)
    wanted = request.query_params.get("set", "")
    base = (services.settings.public_url or str(request.base_url)).rstrip("/")

    def build(judged: Judged, frame: Frame, header: Header, _: Members) -> DeltaPage:
        rollout = judged.record.rollout
        sets = sets_of(services.store.trainer_logps(rollout.rollout_id))
        vocabulary = services.vocabulary(rollout.tokenizer_id)
        parts = (limits_of(services.settings), vocabulary, base)
        return delta_page(judged, frame, header, sets, wanted, parts)

    return await tab(request, rollout_id, "delta", build)


@programs.get("/rollouts/{rollout_id}/delta")
async def rollout_delta(
    rollout_id: str, request: Request, api: Api, set: str = ""
) -> JSONResponse:
    """How far a trainer's logprobs are from those that the rollout's tokens train with.

    Quantiles, share outside the band, worst tokens, sequences, weights, splits and the measured
    noise floor. `set` names what to compare with (see `sets`); by default what a trainer told
    last. `delta` is null where nothing was told.
    """
    judged = await judged_for_programs(api, rollout_id)
    vocabulary = services_of(request).vocabulary(judged.record.rollout.tokenizer_id)

    def work() -> dict[str, object]:
        limits = limits_of(api.settings)
        sets = sets_of(api.store.trainer_logps(judged.record.rollout.rollout_id))
        chosen = next((each for each in sets if set_key(each) == set), None) or usual_set(sets)
        facts = None
        if chosen is not None:
            found = compare(judged, sets, chosen, limits)
            facts = shapes.plain(delta_facts(judged, found, limits, vocabulary))
        return {
            "sets": [
                {
                    "set": set_key(each),
                    "kind": each.kind.value,
                    "source": each.source,
                    "weight_version": each.weight_version,
                    "time_us": each.time_us,
                    "call_ids": sorted(each.logps),
                }
                for each in sets
            ],
            "set": None if chosen is None else set_key(chosen),
            "delta": facts,
        }

    return JSONResponse(await asyncio.to_thread(work))


@programs.get("/runs/{run:path}/delta")
async def delta_of_run(run: str, api: Api) -> JSONResponse:
    """The same of a run, added up from the summaries of its rollouts.

    Quantiles lie between the two bounds of a bin, about 15 % apart; counts, shares and the
    greatest |δ| are exact.
    """
    if await asyncio.to_thread(api.store.run_summary, run) is None:
        raise NotFound(f"there is no run {run[:80]!r}")
    found = await asyncio.to_thread(api.store.run_deltas, run)
    return JSONResponse(shapes.plain(run_delta(found)))
