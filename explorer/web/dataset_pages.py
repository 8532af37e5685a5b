"""The pages about datasets: what was published, the form, and one job as it goes.

Owns: their addresses and forms. Must not know: how a job is worked on, JSON of the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from explorer.access.calling import caller_of
from explorer.access.delivery import Parcel
from explorer.access.policy import Kind
from explorer.errors import ExplorerError, InvalidValue, NotFound
from explorer.export.dataset.archive import zip_pieces
from explorer.export.dataset.manifest import read_manifest
from explorer.export.publishing.jobs import Job
from explorer.web import dataset_actions as actions
from explorer.web.access import access_of
from explorer.web.annotating import read_fields
from explorer.web.contexts import Crumb
from explorer.web.dataset_leave import desk_of, known_job, require_staff
from explorer.web.dataset_orders import form_body
from explorer.web.dataset_views import (
    datasets_page,
    job_page,
    new_dataset_page,
    undecided_of,
)
from explorer.web.frames import frame
from explorer.web.gate import require_change
from explorer.web.handing import Handed
from explorer.web.pages import page_and_twin
from explorer.web.render import respond
from explorer.web.services import services_of

router = APIRouter(include_in_schema=False)
CanChange = Depends(require_change)
CRUMB = Crumb("Datasets", "/datasets")
BACK = "Your browser's Back leads to the form, as you filled it."


@page_and_twin(router, "/datasets")
async def datasets(request: Request) -> Response:
    """Every job and schedule that the reader may see."""
    outline = frame(request, title="Datasets", section="datasets", crumbs=())
    return await respond(request, lambda: datasets_page(request, outline))


@page_and_twin(router, "/datasets/publish")
async def form(request: Request) -> Response:
    """What a dataset of a filter would hold, and the form for it."""
    pairs = [(name, value) for name, value in request.query_params.multi_items()]
    view = next((value for name, value in pairs if name == "view"), "")
    rest = [(name, value) for name, value in pairs if name != "view"]
    seen = await actions.found(request, view, actions.written(rest))
    crumbs = (CRUMB, Crumb("Publish", None))
    outline = frame(request, title="Publish a dataset", section="datasets", crumbs=crumbs)
    return await respond(request, lambda: new_dataset_page(request, outline, seen))


@page_and_twin(router, "/datasets/{job_id}")
async def one_job(request: Request, job_id: str) -> Response:
    """One job: how far it is, what it wrote, and what can be done."""
    return await _job(request, job_id, None)


@router.get("/datasets/{job_id}/progress")
async def progress(request: Request, job_id: str) -> Response:
    """The part of a job's page that changes; when the job ended, the page is asked for."""
    response = await _job(request, job_id, "dataset_progress.html")
    if not known_job(request, job_id).active:
        response.headers["hx-refresh"] = "true"
    return response


async def _job(request: Request, job_id: str, template: str | None) -> Response:
    job = known_job(request, job_id)
    crumbs = (CRUMB, Crumb(job.job_id, None))
    title = str(job.choices.card.get("title") or "Dataset")
    outline = frame(request, title=title, section="datasets", crumbs=crumbs)
    undecided = []
    if not job.active:
        judged = services_of(request).judged
        undecided = [
            each for name in undecided_of(job) if (each := await judged.get(name)) is not None
        ]
    return await respond(
        request, lambda: job_page(request, outline, job, undecided), template=template
    )


# -- forms


async def _form(request: Request) -> dict[str, Any]:
    return form_body(read_fields(await request.body(), most=80))


async def _then(work: Awaitable[Any], href: str | Callable[[Any], str]) -> Response:
    """On to a page when it was done; else the error, with the way back to the form."""
    try:
        made = await work
    except InvalidValue as error:
        raise InvalidValue(f"{error.message}. {BACK}", **error.details) from error
    except ExplorerError as error:
        error.message = f"{error.message}. {BACK}"
        raise
    return RedirectResponse(href if isinstance(href, str) else href(made), 303)


def _href(job: Job) -> str:
    return f"/datasets/{job.job_id}"


@router.post("/datasets", dependencies=[CanChange])
async def begin(request: Request) -> Response:
    """A dry run from the page's form."""
    body = await _form(request)
    return await _then(actions.begin(request, body, dry_run=True), _href)


@router.post("/datasets/{job_id}/publish", dependencies=[CanChange])
async def publish(request: Request, job_id: str) -> Response:
    """Publishes what a dry run wrote."""
    return await _then(actions.publish(request, job_id, await _form(request)), _href)


@router.post("/datasets/{job_id}/go-on", dependencies=[CanChange])
async def go_on(request: Request, job_id: str) -> Response:
    """Lets a job go on."""
    return await _then(actions.go_on(request, job_id, await _form(request)), _href)


@router.post("/datasets/{job_id}/stop", dependencies=[CanChange])
async def stop(request: Request, job_id: str) -> Response:
    """Stops a job."""
    return await _then(actions.stop(request, job_id), _href)


@router.post("/datasets/{job_id}/remove", dependencies=[CanChange])
async def remove(request: Request, job_id: str) -> Response:
    """Removes a job's files from this machine."""
    return await _then(actions.remove_files(request, job_id), _href)


@router.post("/datasets/{job_id}/forget", dependencies=[CanChange])
async def forget(request: Request, job_id: str) -> Response:
    """Takes a job that published nothing off the list, with its files."""
    return await _then(actions.forget(request, job_id), "/datasets")


@router.post("/datasets/{job_id}/yank", dependencies=[CanChange])
async def yank(request: Request, job_id: str) -> Response:
    """Takes the files back and says why, where they were."""
    body = await _form(request)
    return await _then(actions.take_back(request, job_id, body, whole=False), _href)


@router.post("/datasets/{job_id}/delete", dependencies=[CanChange])
async def delete(request: Request, job_id: str) -> Response:
    """Deletes what was published, with its place."""
    body = await _form(request)
    return await _then(actions.take_back(request, job_id, body, whole=True), _href)


@router.post("/datasets/schedules", dependencies=[CanChange])
async def schedule(request: Request) -> Response:
    """Lets a saved view publish itself."""
    body = await _form(request)
    return await _then(actions.make_schedule(request, body), "/datasets#schedules")


@router.post("/datasets/schedules/{schedule_id}/{change}", dependencies=[CanChange])
async def change_schedule(request: Request, schedule_id: str, change: str) -> Response:
    """Lets a schedule go on, pauses it, or takes it away."""
    body = await _form(request)
    work: Mapping[str, Callable[[], Awaitable[Any]]] = {
        "go-on": lambda: actions.resume(request, schedule_id, body),
        "pause": lambda: actions.pause(request, schedule_id),
        "drop": lambda: actions.drop_schedule(request, schedule_id),
    }
    if change not in work:
        raise NotFound("a schedule can go on, be paused or be dropped")
    return await _then(work[change](), "/datasets#schedules")


# -- files


@router.get("/datasets/{job_id}/files.zip")
async def files(request: Request, job_id: str) -> Response:
    """Every file of a job as one zip; written down like each document that leaves."""
    job = known_job(request, job_id)
    caller = require_staff(request, "taking the files of a dataset")
    folder = desk_of(request).folder(job.job_id)
    if not job.files or job.active:
        raise NotFound("the files of this job are not on this machine, or not whole yet")
    manifest = await asyncio.to_thread(read_manifest, folder)
    name = f"{job.job_id}.zip"
    access = access_of(request)
    about = f"dataset {job.job_id}"
    parcel = Parcel(caller_of(request.scope), "", Kind.RAW, name, about=about)
    delivery = await access.deliveries.begin(parcel, lambda: access.identity.ended(caller))
    pieces = zip_pieces(folder, manifest)

    async def chunks() -> AsyncIterator[bytes]:
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "cache-control": "no-store",
    }
    return Handed(delivery.send(chunks()), media_type="application/zip", headers=headers)
