"""`/api/v1/weights`: a trainer says when it changes the engine's weights, and to which version.

Owns: the JSON shapes of the route, and their checks. Must not know: how calls are held back.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from explorer.access.audit import Entry, Event
from explorer.access.calling import caller_of
from explorer.capture.fence import Drain, Standing
from explorer.capture.fence_desk import FenceDesk
from explorer.capture.fence_orders import ReadyOrder, SyncOrder
from explorer.errors import BadRequest
from explorer.records import WeightUpdate
from explorer.web.api import Api, CanChange
from explorer.web.api_requests import read_object
from explorer.web.words import iso

programs = APIRouter(prefix="/api/v1")

LEASE_S, LONGEST_LEASE_S = 300.0, 24 * 3600.0
WAIT_S, LONGEST_WAIT_S = 30.0, 600.0
_GREATEST_VERSION = 2**53 - 1
_LONGEST_LABEL = 200
_FIELDS = {
    "syncing": {"state", "weight_version", "lease_s", "drain", "wait_s"},
    "ready": {"state", "weight_version", "weights_path", "engine_weight_label"},
}


@programs.get("/weights")
async def show_weights(
    request: Request, api: Api, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> JSONResponse:
    """How the weight fence stands, and what was told about the weights, newest first."""
    updates = await asyncio.to_thread(api.store.weight_updates, limit)
    told = _standing(api.fences)
    return JSONResponse({**told, "updates": [_update(each) for each in updates]})


@programs.post("/weights", dependencies=[CanChange])
async def tell_weights(request: Request, api: Api) -> JSONResponse:
    """A trainer's word: `syncing` shuts the weight fence, `ready` announces a version.

    `syncing` answers when calls in flight have ended, or after `wait_s`. With `weights_path`
    the built-in tiny engine loads that file first.
    """
    order = read_order(await request.body())
    fences = api.fences
    if isinstance(order, SyncOrder):
        standing = await fences.syncing(order, request.is_disconnected)
        detail: dict[str, Any] = {"lease_s": order.lease_s, "drain": order.drain.value}
        state, version = "syncing", order.coming
    else:
        standing = await fences.ready(order)
        detail = {"weights_path": str(order.path)} if order.path else {}
        state, version = "ready", order.version
    entry = Entry.by(
        caller_of(request.scope), Event.WEIGHTS_TOLD, f"weights {version}",
        reason=state, detail=detail,
    )  # fmt: skip
    await asyncio.to_thread(api.access.audit.append, entry)
    return JSONResponse(_shape(standing))


def read_order(raw: bytes) -> SyncOrder | ReadyOrder:
    """What a trainer says.

    Raises:
        BadRequest: names the field and says what may stand there.
    """
    body = read_object(raw)
    state = body.get("state")
    if state not in ("syncing", "ready"):
        raise BadRequest("`state` is `syncing` or `ready`", path="$.state")
    unknown = sorted(set(body) - _FIELDS[state])
    if unknown:
        known = ", ".join(f"`{name}`" for name in sorted(_FIELDS[state]))
        raise BadRequest(
            f"`{unknown[0][:80]}` is no field of `{state}`, which has {known}",
            path=f"$.{unknown[0][:80]}",
        )
    version = body.get("weight_version")
    if type(version) is not int or not 0 <= version <= _GREATEST_VERSION:
        raise BadRequest(
            "`weight_version` is a whole number from 0 up, such as the trainer's step",
            path="$.weight_version",
        )
    if state == "ready":
        return ReadyOrder(version, _label(body), _path(body))
    drain = body.get("drain", "wait")
    if not isinstance(drain, str) or drain not in set(Drain):
        raise BadRequest("`drain` is `wait`, `pause` or `none`", path="$.drain")
    return SyncOrder(
        version,
        _seconds(body, "lease_s", LEASE_S, 1.0, LONGEST_LEASE_S),
        Drain(drain),
        _seconds(body, "wait_s", WAIT_S, 0.0, LONGEST_WAIT_S),
    )


def _seconds(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name, default)
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise BadRequest(
            f"`{name}` is a number of seconds from {low:g} to {high:g}", path=f"$.{name}"
        )
    return float(value)


def _label(body: dict[str, Any]) -> str | None:
    label = body.get("engine_weight_label")
    if label is None:
        return None
    if not isinstance(label, str) or not 0 < len(label) <= _LONGEST_LABEL or "," in label:
        raise BadRequest(
            f"`engine_weight_label` is a text of 1 to {_LONGEST_LABEL} characters without a "
            "comma: what the engine itself calls these weights",
            path="$.engine_weight_label",
        )
    return label


def _path(body: dict[str, Any]) -> Path | None:
    path = body.get("weights_path")
    if path is None:
        return None
    if not isinstance(path, str) or "\0" in path or not Path(path).is_absolute():
        raise BadRequest(
            "`weights_path` is the absolute path of a `.safetensors` file, or of a folder with "
            "`model.safetensors`, on the server's machine",
            path="$.weights_path",
        )
    return Path(path)


def _standing(fences: FenceDesk) -> dict[str, Any]:
    return _shape(fences.standing()) | {"waiting": fences.waiting}


def _shape(standing: Standing) -> dict[str, Any]:
    return {
        "state": standing.state.value,
        "weight_version": standing.version,
        "coming": standing.coming,
        "lease_expires_at": iso(standing.lease_expires_us),
        "in_flight": standing.in_flight,
        "drained": standing.drained,
        "unknown_because": standing.doubt or None,
    }


def _update(update: WeightUpdate) -> dict[str, Any]:
    return {
        "number": update.number,
        "time": iso(update.time_us),
        "state": update.state,
        "weight_version": update.weight_version,
        "engine_weight_label": update.engine_weight_label,
        "detail": update.detail,
    }
