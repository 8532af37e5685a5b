"""The reference worker: an HTTP front for vLLM that stages tokens and acknowledges.

Owns: what is asked of the engine for a captured call, and where coordinates stand in a reply.
Must not know: how calls are hashed or stored, the proxy's ledger.

A chat request with `ng_capture` is asked un-streamed with ids and logprobs, and its reply gets
`ng_commit_coords`. Everything else is passed on as it is. Whatever goes wrong with a capture,
the engine's reply is served: with `capture_failed`, or without coordinates where not even the
admission could be read. Stock vLLM has no `required_prefix_token_ids`, so the ids that a prompt
must begin with are not asked for but checked, and a prompt that does not begin with them is not
captured.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from explorer.custody.errors import RecordError
from explorer.custody.protocols import StagingSource
from explorer.custody.records import CaptureAdmission, CommitCoords
from explorer.custody.worker import ActiveCall, CaptureError, RolloutTokenCapture
from explorer.integrations.nemo_gym.front_http import (
    Forwarder,
    Gone,
    Refused,
    Reply,
    Request,
)
from explorer.integrations.nemo_gym.prefixes import Prefixes

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
CHAT = "/v1/chat/completions"
ADMISSION, COORDINATES = "ng_capture", "ng_commit_coords"
PREFIX = "required_prefix_token_ids"


@dataclass(frozen=True, slots=True)
class Begun:
    """A captured call on its way; `lost` where its prefix could not be had."""

    call: ActiveCall
    lost: bool = False


class WorkerFront:
    """The ASGI application.

    Args:
        engine: base address of an engine that speaks vLLM's dialect.
        source: the same storage as the capture's sink.
        sends_prefix: the engine takes `required_prefix_token_ids` (a patched vLLM).
        timeout_s: longest wait for one reply of the engine (seconds).
    """

    def __init__(
        self,
        engine: str,
        source: StagingSource,
        *,
        sends_prefix: bool = False,
        timeout_s: float = 900.0,
    ) -> None:
        self._http = Forwarder(engine, timeout_s)
        self._prefixes = Prefixes(source)
        self._sends_prefix = sends_prefix
        self._capture: RolloutTokenCapture | None = None

    def install_token_capture(self, capture: RolloutTokenCapture) -> None:
        """As `CaptureHost`."""
        self._capture = capture

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._http.lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            request = await Request.read(scope, receive)
            if request.method == "POST" and request.path == CHAT:
                body = _object(request.body)
                if body is not None and ADMISSION in body:
                    reply = await self._captured(request, body, receive)
                    await reply.send(send)
                    return
            await self._http.pass_on(request, receive, send)
        except Refused as error:
            await error.reply.send(send)
        except Gone:
            return

    async def _captured(
        self, request: Request, body: dict[str, Any], receive: Receive
    ) -> Reply:
        if body.get("stream"):
            raise Refused(400, "a captured call is asked for whole: send stream false")
        begun = await asyncio.to_thread(self._begin, body.pop(ADMISSION))
        asked = self._asked(body, begun)
        reply: Reply | None = None
        try:
            reply = await self._http.ask(request, _bytes(asked), receive)
        finally:
            # The call has one ending, also where the engine or the client went away.
            coordinates = await asyncio.to_thread(self._end, begun, reply)
        if coordinates is None or reply.status != 200:
            return reply
        return reply.with_body(with_coordinates(reply.body, coordinates))

    def _begin(self, payload: Any) -> Begun | None:
        """The call of an admission; None where it cannot be acknowledged at all."""
        if self._capture is None:
            log.error("no capture was installed")
            return None
        try:
            admission = CaptureAdmission.parse(payload)
            version = self._capture.begin(_root_of(admission)).weight_version
        except (RecordError, CaptureError, OSError, ValueError) as error:
            log.warning("a call is not captured: %s", error)
            return None
        try:
            prefix = self._prefixes.of(admission)
            return Begun(self._capture.begin(admission, prefix, weight_version=version))
        except Exception as error:  # noqa: BLE001
            # Storage is somebody else's and may raise anything; the reply is served.
            log.warning("call %s has no prefix: %s", admission.model_call_id, error)
            return Begun(ActiveCall(admission, np.zeros(0, np.uint64), version), lost=True)

    def _asked(self, body: dict[str, Any], begun: Begun | None) -> dict[str, Any]:
        body.pop(PREFIX, None)
        body.pop("stream_options", None)
        asked = body | {
            "stream": False,
            "logprobs": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        adapter = self._capture.adapter if self._capture is not None else None
        if self._sends_prefix and begun is not None and adapter is not None:
            asked = adapter.enter_prefix(asked, begun.call.prefix.tolist())
        return asked

    def _end(self, begun: Begun | None, reply: Reply | None) -> CommitCoords | None:
        if begun is None or self._capture is None:
            return None
        body = _object(reply.body) if reply is not None and reply.status == 200 else None
        if begun.lost or body is None:
            return self._capture.fail(begun.call)
        return self._capture.complete_from_reply(begun.call, body)


def _root_of(admission: CaptureAdmission) -> CaptureAdmission:
    """A root of the same ids: by it the weight version is read before anything is fetched."""
    return CaptureAdmission(
        rollout_id=admission.rollout_id, model_call_id=admission.model_call_id, mode="text"
    )


def _object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object of a body, if it is one; engines write NaN, too."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def _bytes(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(body).encode()


def with_coordinates(raw: bytes, coordinates: CommitCoords) -> bytes:
    """An engine's reply with coordinates before its other fields; those stay as they are.

    Coordinates of the engine's own are taken out: only this worker acknowledges.
    """
    body = _object(raw)
    if body is None:
        return raw
    if COORDINATES in body:
        del body[COORDINATES]
        raw = json.dumps(body).encode()
    told = orjson.dumps(coordinates.to_json())
    head, _, rest = raw.partition(b"{")
    comma = b"," if body else b""
    return head + b'{"' + COORDINATES.encode() + b'":' + told + comma + rest
