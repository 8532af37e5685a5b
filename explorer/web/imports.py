"""Import of foreign captures for programs: `/api/v1/imports`.

Owns: its address, the size it takes, and its answer.
Must not know: formats, how a rollout is written.
"""

from __future__ import annotations

import asyncio
from typing import cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from explorer.capture.ids import now_us
from explorer.errors import AccessDenied, BodyTooLarge, InvalidValue
from explorer.export.importing import import_bytes
from explorer.export.readers.values import name
from explorer.web.api_requests import run_name
from explorer.web.desk_access import api_services, require_change

router = APIRouter(prefix="/api/v1")


@router.post("/imports", status_code=201, dependencies=[Depends(require_change)])
async def import_file(request: Request) -> JSONResponse:
    """A file of another system becomes rollouts that can be read and never train.

    The body is the file. `format` is auto (default), openenv, verifiers, atif, harbor or trl;
    `run` names the run (default: imported), `file` the file. The same file again imports
    nothing; its rollouts are then in `known`. Nothing is written of a file with an error.
    """
    if not api_services(request).settings.imports:
        raise AccessDenied("imports are off on this server (ROLLOUT_EXPLORER_IMPORTS)")
    given = request.query_params
    for key in given:
        if key not in ("format", "run", "file"):
            raise InvalidValue(
                f"there is no parameter `{key}` here; there are format, run, file"
            )
    api = api_services(request)
    run = run_name({"run": given.get("run") or "imported"})
    data = await _body(request, api.settings.max_body_bytes)
    # What a second import of the same file takes for left behind may be still in the making.
    async with _lock_of(request):
        report = await import_bytes(
            api.store,
            data,
            file=name(given.get("file")) or "unnamed",
            format_=given.get("format") or "auto",
            run=run,
            now_us=now_us(),
        )
    for rollout_id in report.imported:
        # Listings show the summary of the verdict.
        await api.judged.get(rollout_id)
    answer = {
        "format": report.format,
        "sha256": report.sha256,
        "imported": list(report.imported),
        "known": list(report.known),
    }
    return JSONResponse(answer, status_code=201 if report.imported else 200)


def _lock_of(request: Request) -> asyncio.Lock:
    """The lock of this application's imports: one at a time."""
    state = request.app.state
    if not hasattr(state, "importing"):
        state.importing = asyncio.Lock()
    return cast("asyncio.Lock", state.importing)


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise BodyTooLarge(
                f"the file has more than {most} bytes; split it, or raise "
                "ROLLOUT_EXPLORER_MAX_BODY_BYTES"
            )
        parts.append(chunk)
    return b"".join(parts)
