"""Documents on their way through HTTP: the delivery of one, and cutting it short.

Owns: the parcel of a request and the response that sends it. Must not know: what is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import CancelScope
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Send

from explorer.access.delivery import DownloadStopped, Parcel
from explorer.access.policy import Kind
from explorer.errors import NoRule
from explorer.records import RolloutId
from explorer.web.gate import pass_of

if TYPE_CHECKING:
    from explorer.web.desk_access import ApiServices


def parcel_of(
    request: Request,
    rollout_id: str,
    name: str,
    etag: str = "",
    encoding: str = "identity",
) -> Parcel:
    """What the gate let a request take.

    Raises:
        NoRule: the route's rule does not hand out documents, a fault of ours.
    """
    held = pass_of(request)
    if held is None or held.rule.kind is None:
        raise NoRule("a route that hands out a document has a rule that does not say so")
    return Parcel(
        caller=held.caller,
        rollout_id=rollout_id,
        kind=Kind(held.rule.kind),
        name=name,
        grant_id=held.decision.grant_id,
        etag=etag,
        encoding=encoding,
    )


async def handed_out(
    api: ApiServices, request: Request, parcel: Parcel, chunks: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """The chunks as they may leave; the grant is spent before the first.

    Raises:
        SecretsUndecided: it may hold a secret that nobody let go to holders of grants.
        GrantNeeded: it may not be used now.
        StoreFailed: it cannot be written down, so nothing leaves.
    """
    held = pass_of(request)
    assert held is not None
    await require_released(request, parcel)
    delivery = await api.access.deliveries.begin(parcel, api.access.still(held, parcel))
    return delivery.send(chunks)


async def require_released(request: Request, parcel: Parcel) -> None:
    """That what is taken under a grant may leave: before its hash is told, too.

    Raises:
        SecretsUndecided: it may hold a secret that nobody let go to holders of grants.
    """
    scans = request.app.state.services.secrets
    if parcel.grant_id and scans is not None:
        await asyncio.to_thread(scans.require_released, RolloutId(parcel.rollout_id))


async def handed_bytes(
    api: ApiServices, request: Request, parcel: Parcel, data: bytes
) -> AsyncGenerator[bytes, None]:
    """A document that is whole in memory, as it may leave."""
    whole = replace(
        parcel,
        etag=hashlib.sha256(data).hexdigest(),
        encoding="identity",
        length=len(data),
    )
    return await handed_out(api, request, whole, _once(data))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    step = 256 * 1024
    for start in range(0, len(data), step):
        yield data[start : start + step]


class Handed(StreamingResponse):
    """A streamed document that can be cut: then its last part is never sent, so the
    server closes the connection and no reader takes the part for the whole."""

    async def stream_response(self, send: Send) -> None:
        """As the framework's, but the end of the delivery is always waited for."""
        body = self.body_iterator
        assert isinstance(body, AsyncGenerator)
        head = {"status": self.status_code, "headers": self.raw_headers}
        try:
            await send({"type": "http.response.start", **head})
            async for chunk in body:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except DownloadStopped:
            return
        finally:
            # Also when the reader went away: the row about what was sent is written now,
            # not when the collector comes by.
            with CancelScope(shield=True):
                await body.aclose()
