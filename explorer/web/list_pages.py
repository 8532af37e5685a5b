"""Routes of the rollout list, its files, and runs.

Owns: addresses and which context answers each. Must not know: how contexts are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from explorer.capture.ids import now_us
from explorer.errors import NotFound
from explorer.store.interface import Store
from explorer.store.queries import RolloutQuery, RunSummary
from explorer.web.contexts import Crumb
from explorer.web.frames import frame
from explorer.web.list_files import csv_lines, parquet_parts
from explorer.web.list_page import PATH, rollout_list
from explorer.web.list_query import checked, href, read_address
from explorer.web.pages import page_and_twin
from explorer.web.render import respond, wants_twin
from explorer.web.run_grid import run_page, runs_page, stamp_of
from explorer.web.services import services_of

router = APIRouter(include_in_schema=False)


@page_and_twin(router, "/runs")
async def runs(request: Request) -> Response:
    """Every run with its counts, by a sort key."""
    outline = frame(request, title="Runs", section="runs", crumbs=())
    store, query = services_of(request).store, dict(request.query_params)
    return await respond(request, partial(runs_page, store, outline, query))


@page_and_twin(router, "/runs/{run:path}")
async def run(request: Request, run: str) -> Response:
    """Groups × samples of one run; 204 when nothing was stored `since` a page's stamp."""
    crumbs = (Crumb("Runs", "/runs"), Crumb(run, None))
    outline = frame(request, title=f"Run {run}", section="runs", crumbs=crumbs)
    store, query = services_of(request).store, dict(request.query_params)

    def summary_of() -> RunSummary:
        summary = store.run_summary(run)
        if summary is None:
            raise NotFound(f"no run on this server is called “{run}”")
        return summary

    since = query.pop("since", "")
    if since and since == await asyncio.to_thread(lambda: stamp_of(store, summary_of())):
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    return await respond(request, lambda: run_page(store, outline, summary_of(), query))


@page_and_twin(router, PATH)
async def rollouts(request: Request) -> Response:
    """The rollout list, filtered by the address."""
    address = read_address(request.query_params.multi_items(), now_us())
    if address.typed and not wants_twin(request):
        # What was typed becomes the same parameters that facets make: one address a list.
        return RedirectResponse(href(PATH, (*address.pairs, *address.unread)), 303)
    outline = frame(request, title="Rollouts", section="rollouts", crumbs=())
    services = services_of(request)
    base = (services.settings.public_url or str(request.base_url)).rstrip("/")
    return await respond(request, partial(rollout_list, services.store, outline, address, base))


@router.get(f"{PATH}.csv", include_in_schema=False)
async def as_csv(request: Request) -> Response:
    """Every rollout of the list as CSV, streamed."""
    return _file(request, csv_lines, "text/csv; charset=utf-8", "rollouts.csv")


@router.get(f"{PATH}.parquet", include_in_schema=False)
async def as_parquet(request: Request) -> Response:
    """Every rollout of the list as Parquet, streamed."""
    return _file(request, parquet_parts, "application/vnd.apache.parquet", "rollouts.parquet")


def _file(
    request: Request,
    parts: Callable[[Store, RolloutQuery], Iterator[bytes]],
    media_type: str,
    name: str,
) -> Response:
    """All rows of a list; like a program, its reader is refused what cannot be read.

    Raises:
        InvalidValue: names the parameter.
    """
    address = checked(read_address(request.query_params.multi_items(), now_us()))
    found = parts(services_of(request).store, address.query(1))
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "cache-control": "private, no-cache",
    }
    return StreamingResponse(_threaded(found), media_type=media_type, headers=headers)


async def _threaded(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each part is made in a worker thread, when it is asked for."""
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        if part:
            yield part
