"""Trainer logprobs for programs: posting them, asking the engine again, reading δ.

Owns: these routes and their shapes. Must not know: how δ is computed, SQL.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound
from explorer.export.deltas import DeltaSummaries
from explorer.export.rescoring import Rescoring
from explorer.export.row_matching import Matched, TrainerRow, match, read_row
from explorer.export.telling import Told, head_of, read_json, read_told, take
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


@programs.post("/runs/{run:path}/trainer-logprobs", dependencies=[CanChange])
async def post_run_logprobs(run: str, request: Request, api: Api) -> JSONResponse:
    """Takes a trainer's sequences of a run, and finds the calls by their tokens.

    `rows` lists `{token_ids, logps, rollout_logps?, mask?, line?}` with one entry per token.
    A call is told of by a row that begins with exactly its prompt and sampled ids; where
    `rollout_logps` is given it must be what is on record. Nothing is stored of a body with an
    error; rows in which no call was found are named under `unmatched`.
    """
    raw = await request.body()
    head, rows = await asyncio.to_thread(_read_rows, raw)

    def work() -> Matched:
        runs = api.store.rollout_runs()
        named = [rollout_id for rollout_id, name in runs.items() if name == run]
        if not named:
            raise NotFound(f"there is no run {run[:80]!r}")
        # One at a time: a run may hold more than memory does.
        records = map(api.store.record, named)
        return match(rows, (record for record in records if record is not None))

    matched = await asyncio.to_thread(work)
    totals = {"stored": 0, "replaced": 0, "unchanged": 0}
    for rollout_id, calls in matched.calls.items():
        record = await asyncio.to_thread(api.store.record, rollout_id)
        if record is None:
            raise NotFound(f"there is no rollout {rollout_id} any more")
        taken = await take(api.store, record, replace(head, calls=calls), now_us())
        for name, count in asdict(taken).items():
            totals[name] += count
        await refresh(request, api, rollout_id)
    return JSONResponse(
        {**totals, "rollouts": len(matched.calls), "unmatched": list(matched.unmatched)}
    )


def _read_rows(raw: bytes) -> tuple[Told, list[TrainerRow]]:
    body = read_json(raw)
    if not isinstance(body, dict):
        raise InvalidValue("the body must be a JSON object")
    requests.only(body, {"weight_version", "source", "kind", "rows"})
    rows = body.get("rows")
    if not isinstance(rows, list) or not rows:
        raise InvalidValue("$.rows must be a list of at least one row", path="$.rows")
    read = [read_row(each, f"$.rows[{place}]", place) for place, each in enumerate(rows)]
    return head_of(body), read


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
