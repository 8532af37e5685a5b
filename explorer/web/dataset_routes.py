"""Datasets for programs: jobs and schedules under `/api/v1`.

Owns: their routes. Must not know: pages, how a job is worked on.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from explorer.access.calling import caller_of
from explorer.errors import InvalidValue
from explorer.web import dataset_actions as actions
from explorer.web.api_requests import only, read_object
from explorer.web.dataset_leave import desk_of, known_job, may_see_job, require_staff
from explorer.web.dataset_words import job_json, schedule_json
from explorer.web.gate import require_change

programs = APIRouter(prefix="/api/v1")
CanChange = Depends(require_change)

_GOING = {"target", "private", "confirm", "token"}
_BACK = {"reason", "confirm", "token"}


@programs.get("/datasets")
async def list_jobs(request: Request) -> JSONResponse:
    """Dataset jobs that the caller may see, the newest first."""
    caller = caller_of(request.scope)
    found = [job for job in desk_of(request).book.all if may_see_job(caller, job)]
    return JSONResponse({"datasets": [job_json(job) for job in found]})


@programs.post("/datasets", status_code=202, dependencies=[CanChange])
async def begin(request: Request) -> JSONResponse:
    """Begins a job for what a `view` or `query` shows: a dry run, unless `dry_run` is false.

    `{view | query, title, licence, licence_name?, licence_link?, description?, target?,
    private?, confirm?, gated?, gate_prompt?, formats?, bodies?, dry_run?, token?}`. A `token`
    is used for this job only and kept in memory.
    """
    body = read_object(await request.body())
    dry_run = body.pop("dry_run", True)
    if type(dry_run) is not bool:
        raise InvalidValue("`dry_run` is true or false", path="$.dry_run")
    job = await actions.begin(request, body, dry_run=dry_run)
    return JSONResponse(job_json(job), status_code=202, headers=_no_store())


@programs.get("/datasets/{job_id}")
async def show_job(job_id: str, request: Request) -> JSONResponse:
    """One job: how far it is, what it wrote, where it was published."""
    return JSONResponse(job_json(known_job(request, job_id)))


@programs.post("/datasets/{job_id}/publish", status_code=202, dependencies=[CanChange])
async def publish(job_id: str, request: Request) -> JSONResponse:
    """Publishes what a dry run wrote: `{target?, private?, confirm?, token?}`."""
    body = await _body(request, _GOING)
    job = await actions.publish(request, job_id, body)
    return JSONResponse(job_json(job), status_code=202, headers=_no_store())


@programs.post("/datasets/{job_id}/stop", status_code=202, dependencies=[CanChange])
async def stop(job_id: str, request: Request) -> JSONResponse:
    """Stops a job; what is under way ends at its next step."""
    return JSONResponse(job_json(await actions.stop(request, job_id)), status_code=202)


@programs.post("/datasets/{job_id}/go-on", status_code=202, dependencies=[CanChange])
async def go_on(job_id: str, request: Request) -> JSONResponse:
    """Lets a job that waits, failed or was stopped go on: `{token?}`."""
    body = await _body(request, _GOING)
    job = await actions.go_on(request, job_id, body)
    return JSONResponse(job_json(job), status_code=202, headers=_no_store())


@programs.post("/datasets/{job_id}/take-back", dependencies=[CanChange])
async def take_back(job_id: str, request: Request) -> JSONResponse:
    """Takes back what was published: yanks it, or with `confirm` (its name) deletes it.

    `{reason, confirm?, token?}`: readers see the reason where the data was.
    """
    body = await _body(request, _BACK)
    whole = "confirm" in body
    job = await actions.take_back(request, job_id, body, whole=whole)
    return JSONResponse(job_json(job), headers=_no_store())


@programs.delete("/datasets/{job_id}", status_code=204, dependencies=[CanChange])
async def remove(job_id: str, request: Request) -> Response:
    """Removes a job's files from this machine; `?forget=1` also takes the job off the list.

    What was published stays.
    """
    if request.query_params.get("forget") == "1":
        await actions.forget(request, job_id)
    else:
        await actions.remove_files(request, job_id)
    return Response(status_code=204)


@programs.get("/dataset-schedules")
async def list_schedules(request: Request) -> JSONResponse:
    """Saved views that publish themselves, the newest first."""
    require_staff(request, "schedules")
    found = [schedule_json(each) for each in desk_of(request).schedules.all]
    return JSONResponse({"schedules": found})


@programs.post("/dataset-schedules", status_code=201, dependencies=[CanChange])
async def make_schedule(request: Request) -> JSONResponse:
    """Lets a saved `view` publish itself when its rollouts close; fields as of a job.

    The token is kept in memory: after a restart the schedule is paused until somebody lets
    it go on.
    """
    body = read_object(await request.body())
    made = await actions.make_schedule(request, body)
    return JSONResponse(schedule_json(made), status_code=201, headers=_no_store())


@programs.post("/dataset-schedules/{schedule_id}/go-on", dependencies=[CanChange])
async def resume(schedule_id: str, request: Request) -> JSONResponse:
    """Lets a paused schedule go on, with the view as it is now: `{token?}`."""
    body = await _body(request, {"token"})
    made = await actions.resume(request, schedule_id, body)
    return JSONResponse(schedule_json(made), headers=_no_store())


@programs.post("/dataset-schedules/{schedule_id}/pause", dependencies=[CanChange])
async def pause(schedule_id: str, request: Request) -> JSONResponse:
    """Lets a schedule publish nothing until somebody lets it go on."""
    return JSONResponse(schedule_json(await actions.pause(request, schedule_id)))


@programs.delete("/dataset-schedules/{schedule_id}", status_code=204, dependencies=[CanChange])
async def drop_schedule(schedule_id: str, request: Request) -> Response:
    """Takes a schedule away; what it published stays."""
    await actions.drop_schedule(request, schedule_id)
    return Response(status_code=204)


async def _body(request: Request, known: set[str]) -> dict[str, Any]:
    body = read_object(await request.body())
    only(body, known)
    return body


def _no_store() -> dict[str, str]:
    return {"cache-control": "no-store"}
