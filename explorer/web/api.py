"""The programs' surface: `/api/v1` routes, health and metrics.

Owns: the JSON shapes of the API and who may call what.
Must not know: SQL, engines' bytes, page templates.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from explorer.access.audit import Entry, Event
from explorer.access.calling import caller_of
from explorer.capture.ids import is_id, now_us
from explorer.errors import InvalidValue, NotFound
from explorer.export.judged import Judged
from explorer.records import BodyKind, Call, Finding, RolloutId
from explorer.web import api_requests as requests
from explorer.web import api_shapes as shapes
from explorer.web.closing import closing_body, read_close
from explorer.web.desk_access import ApiServices, api_services, require_change
from explorer.web.fence_words import fence_metrics
from explorer.web.gate import who_of
from explorer.web.handing import Handed, handed_bytes, parcel_of
from explorer.web.list_query import read_query
from explorer.web.overriding import note_override, read_override

router = APIRouter(prefix="/api/v1")
probes = APIRouter()
description = APIRouter(include_in_schema=False)

Api = Annotated[ApiServices, Depends(api_services)]
CanChange = Depends(require_change)


async def judged_or_404(api: ApiServices, rollout_id: str) -> Judged:
    """The judged rollout.

    Raises:
        NotFound: unknown, deleted, or not an id at all.
    """
    judged = await api.judged.get(RolloutId(rollout_id)) if is_id(rollout_id) else None
    if judged is None:
        raise NotFound(f"there is no rollout {rollout_id[:80]}")
    return judged


@router.post("/rollouts", status_code=201, dependencies=[CanChange])
async def create_rollout(request: Request, api: Api) -> JSONResponse:
    """A new rollout; the capture key is in this answer and nowhere else."""
    body = await request.body()
    wanted = requests.read_new_rollout(body, token_in=api.settings.token_in)
    if wanted.token_in and api.settings.custody == "external":
        raise InvalidValue(
            "`token_in` cannot be used here: with external custody the inference worker keeps "
            "the tokens, so no ids are known to continue a prompt with",
            path="$.token_in",
        )
    await api.public.require()
    rollout, key = await api.desk.create(api.template(wanted))
    base = api.base_url(request)
    answer = {
        "rollout_id": rollout.rollout_id,
        "capture_key": key,
        "base_urls": {
            "openai": f"{base}/k/{key}/v1",
            "anthropic": f"{base}/k/{key}",
            "google": f"{base}/k/{key}",
        },
        "url": f"{base}/rollouts/{rollout.rollout_id}",
    }
    return JSONResponse(answer, status_code=201, headers={"cache-control": "no-store"})


@router.get("/rollouts")
async def list_rollouts(request: Request, api: Api) -> JSONResponse:
    """Summaries, newest first; the filters of the page, keyset paging by `cursor`."""
    query = read_query(request.query_params.multi_items(), now_us())
    page = await asyncio.to_thread(api.store.list_rollouts, query)
    return JSONResponse(
        {
            "rollouts": [shapes.summary_json(row) for row in page.rows],
            "total": page.total,
            "next": page.next_cursor,
            "previous": page.previous_cursor,
        }
    )


@router.get("/runs")
async def list_runs(api: Api) -> JSONResponse:
    """Every run with its counts."""
    runs = await asyncio.to_thread(api.store.list_runs)
    return JSONResponse({"runs": [shapes.plain(run) for run in runs]})


@router.get("/rollouts/{rollout_id}")
async def show_rollout(rollout_id: str, api: Api) -> JSONResponse:
    """Status, counts and the verdict with its reasons."""
    judged = await judged_or_404(api, rollout_id)
    state = await asyncio.to_thread(api.store.rollout_state, RolloutId(rollout_id))
    return JSONResponse(shapes.rollout_json(judged, state))


@router.get("/rollouts/{rollout_id}/tree")
async def show_tree(rollout_id: str, api: Api) -> JSONResponse:
    """The turn tree: every node with parent, role, rule and where its prefix broke."""
    return JSONResponse(shapes.tree_json(await judged_or_404(api, rollout_id)))


@router.get("/rollouts/{rollout_id}/calls")
async def list_calls(
    rollout_id: str,
    api: Api,
    cursor: Annotated[int, Query(ge=0)] = 0,
    limit: int = 200,
) -> JSONResponse:
    """Calls in arrival order; `next` is the cursor of the following page, or null."""
    judged = await judged_or_404(api, rollout_id)
    calls = judged.record.calls
    limit = max(1, min(limit, 1000))
    page = calls[cursor : cursor + limit]
    following = cursor + limit if cursor + limit < len(calls) else None
    return JSONResponse(
        {"calls": [shapes.call_json(judged, call) for call in page], "next": following}
    )


def _call_of(judged: Judged, call_id: str) -> Call:
    for call in judged.record.calls:
        if call.call_id == call_id:
            return call
    raise NotFound(f"this rollout has no call {call_id[:80]}")


@router.get("/rollouts/{rollout_id}/calls/{call_id}")
async def show_call(rollout_id: str, call_id: str, request: Request, api: Api) -> Response:
    """One call whole: ids, logprobs (null stays null), mask spans with reasons."""
    judged = await judged_or_404(api, rollout_id)
    call = _call_of(judged, call_id)
    made = JSONResponse(await asyncio.to_thread(shapes.call_detail_json, judged, call))
    parcel = parcel_of(request, rollout_id, f"{call.call_id}.json")
    body = await handed_bytes(api, request, parcel, bytes(made.body))
    return Handed(
        body,
        media_type="application/json",
        headers={"content-length": made.headers["content-length"]},
    )


@router.get("/rollouts/{rollout_id}/findings")
async def list_findings(rollout_id: str, api: Api) -> JSONResponse:
    """Graded facts, worst first."""
    judged = await judged_or_404(api, rollout_id)
    found: tuple[Finding, ...] = judged.judgement.findings
    return JSONResponse({"findings": [shapes.finding_json(finding) for finding in found]})


@router.get("/rollouts/{rollout_id}/raw/{call_id}")
async def raw_body(
    rollout_id: str,
    call_id: str,
    request: Request,
    api: Api,
    kind: BodyKind = BodyKind.REPLY,
) -> Response:
    """The exact bytes of one direction of a call: `request`, `submitted` or `reply`."""
    judged = await judged_or_404(api, rollout_id)
    call = _call_of(judged, call_id)
    for body in await asyncio.to_thread(api.store.bodies, call.call_id):
        if body.kind is kind:
            name = f"{call.call_id}.{kind.value}.json"
            parcel = parcel_of(request, rollout_id, name)
            return Handed(
                await handed_bytes(api, request, parcel, body.data),
                media_type="application/octet-stream",
                headers=shapes.download_headers(name, None)
                | {"content-length": str(len(body.data))},
            )
    raise NotFound(f"call {call_id} has no {kind.value} body")


@router.post("/rollouts/{rollout_id}/reward", dependencies=[CanChange])
async def reward_rollout(rollout_id: str, request: Request, api: Api) -> JSONResponse:
    """Records a reward; the latest one counts, earlier ones stay on the record."""
    wanted = requests.read_reward(await request.body())
    known = requests.checked_id(rollout_id)
    event = await api.desk.reward(known, wanted.reward, wanted.payload, wanted.ok)
    if (await api.desk.live(known)).closed:
        # Listings show the verdict's summary: it follows what changed.
        await api.judged.get(known)
    return JSONResponse({"sequence": event.sequence, "reward": event.reward})


@router.post("/rollouts/{rollout_id}/close", dependencies=[CanChange])
async def close_rollout(rollout_id: str, request: Request, api: Api) -> JSONResponse:
    """Seals the rollout; later calls are refused with a status SDKs do not retry.

    `trajectory` may hold the harness's own trajectory (ATIF), which is compared with the
    calls; only its counts and ids are kept.
    """
    wanted = await asyncio.to_thread(read_close, await closing_body(request))
    known = requests.checked_id(rollout_id)
    await api.desk.close(known, wanted.ok, wanted.reason, wanted.payload)
    judged = await judged_or_404(api, rollout_id)
    state = await asyncio.to_thread(api.store.rollout_state, known)
    return JSONResponse(shapes.rollout_json(judged, state))


@router.post("/rollouts/{rollout_id}/overrides", status_code=201, dependencies=[CanChange])
async def override_rollout(rollout_id: str, request: Request, api: Api) -> JSONResponse:
    """Records a person's decision with its reason; it travels with every export.

    It may set a role, exclude a call or a span, accept logprobs or weight versions.
    """
    judged = await judged_or_404(api, rollout_id)
    wanted = read_override(await request.body(), judged.record, now_us())
    signed = replace(wanted, who=who_of(request, wanted.who))
    event = await api.desk.override(requests.checked_id(rollout_id), signed)
    await note_override(request, rollout_id, signed)
    after = await judged_or_404(api, rollout_id)
    answer = {"sequence": event.sequence, "verdict": shapes.verdict_json(after)}
    return JSONResponse(answer, status_code=201)


@router.delete("/rollouts/{rollout_id}", status_code=204, dependencies=[CanChange])
async def delete_rollout(rollout_id: str, request: Request, api: Api) -> Response:
    """Deletes the rollout everywhere at once, but for its bytes: `compact` removes those."""
    known = requests.checked_id(rollout_id)
    await api.remove(known, Entry.by(caller_of(request.scope), Event.ROLLOUT_DELETED, known))
    return Response(status_code=204)


@router.post("/backup", dependencies=[CanChange])
async def backup_store(request: Request, api: Api) -> JSONResponse:
    """Copies the open store to `target`, a path on the server's machine; never overwrites."""
    target = requests.read_target(await request.body())
    report = await asyncio.to_thread(api.store.backup, target)
    return JSONResponse(shapes.plain(report))


@router.get("/engine")
async def show_engine(api: Api) -> JSONResponse:
    """The engine's certificate: what it returns and what its logprobs are."""
    certificate = api.certificate()
    return JSONResponse(shapes.certificate_json(certificate))


@description.get("/openapi.json")
async def describe(request: Request) -> JSONResponse:
    """The API in OpenAPI form."""
    return JSONResponse(request.app.openapi())


@probes.get("/healthz")
async def healthz(api: Api) -> JSONResponse:
    """Alive; `instance` is this process's own number."""
    return JSONResponse({"status": "ok", "instance": api.public.instance})


@probes.get("/readyz")
async def readyz(api: Api) -> JSONResponse:
    """Ready to record: the store writes and the engine answered its probe."""
    health = await asyncio.to_thread(api.store.health)
    certificate = api.certificate()
    reached = certificate is not None and certificate.engine_name != "unreachable"
    well = not api.desk.watch.reason
    ready = not health.spilling and not health.refused_for_space and reached and well
    body = {
        "ready": ready,
        "store": "spilling" if health.spilling else ("read_only" if health.read_only else "ok"),
        "space": "refused" if health.refused_for_space else "ok",
        "engine": ("certified" if well else "set up wrongly") if reached else "unreachable",
    }
    return JSONResponse(body, status_code=200 if ready else 503)


@probes.get("/metrics")
async def metrics(api: Api) -> PlainTextResponse:
    """Gauges in Prometheus text form."""
    health = await asyncio.to_thread(api.store.health)
    return PlainTextResponse(
        shapes.metrics_text(
            health, api.in_flight(), api.desk.unknown_keys, api.desk.watch.found
        )
        + fence_metrics(api.fences)
    )
