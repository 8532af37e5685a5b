"""The addresses of the live tail.

Owns: `/events` for programs and `/live` for pages: the same stream.
Must not know: what a message holds.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from explorer.access.calling import caller_of
from explorer.access.limits import address_key
from explorer.access.people import Caller, Role
from explorer.export.judged import Judged, JudgedSource
from explorer.records import RolloutId
from explorer.web.access import Access
from explorer.web.api import Api, judged_or_404
from explorer.web.gate import Pass, pass_of
from explorer.web.live import Position, read_position

router = APIRouter()


class WhileLetIn:
    """Verdicts for as long as a reader may look; then the rollout is not there."""

    def __init__(self, judged: JudgedSource, access: Access, held: Pass | None) -> None:
        self._judged = judged
        self._access = access
        self._held = held

    async def get(self, rollout_id: RolloutId) -> Judged | None:
        """The judged rollout, or None when there is none for this reader any more."""
        if self._held is None:
            return None
        found = await self._judged.get(rollout_id)
        # Asked last: what was read may be newer than a leave that was asked for before.
        return found if await self._access.stands(self._held) else None


@router.get("/api/v1/rollouts/{rollout_id}/events")
@router.get("/rollouts/{rollout_id}/live", include_in_schema=False)
async def follow(rollout_id: str, request: Request, api: Api) -> Response:
    """A rollout as server-sent events: `event`, `call`, `state`, and `end` when it is closed.

    `Last-Event-ID` (else `?since=`) goes on from a position; without one it begins at the
    start. No message comes twice or is left out, also after a restart of the server.
    """
    await judged_or_404(api, rollout_id)
    told = request.headers.get("last-event-id") or request.query_params.get("since") or ""
    since = read_position(told) if told else Position()
    source = WhileLetIn(api.judged, api.access, pass_of(request))
    reader = _reader(caller_of(request.scope))
    messages = await api.live.stream(RolloutId(rollout_id), since, source, reader)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(messages, media_type="text/event-stream", headers=headers)


def _reader(caller: Caller) -> str:
    """Whom a stream counts for; nobody where a role is trusted with every place."""
    if caller.role >= Role.CURATOR:
        return ""
    return caller.subject if caller.person is not None else address_key(caller.address)
