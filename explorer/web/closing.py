"""The request that closes a rollout, and what a runner may tell in it about the run.

Owns: names, types and size of these fields; they are kept as they came, but of a trajectory
only what is compared (`explorer.trace.atif_document`).
Must not know: routes, what is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import Request

from explorer.errors import BodyTooLarge, InvalidValue
from explorer.trace.atif_document import MAX_BYTES, read_trajectory
from explorer.trace.trajectory import PAYLOAD_KEY, PROBLEM_KEY
from explorer.web.api_requests import flag, only, read_object, text

CLOSING_FIELDS: dict[str, type | tuple[type, ...]] = {
    "terminal_call_id": str,
    "terminal_response_id": str,
    "exit_code": int,
    "signal": str,
    "forwarded_signal": str,
    "timed_out": bool,
    "killed": bool,
    "left_behind": bool,
    "duration_s": (int, float),
    "command": list,
    "stdout_tail": str,
    "stderr_tail": str,
    "harness": str,
    "harness_version": str,
    "wire": str,
    PROBLEM_KEY: str,
}
_LIMIT = 256 * 1024
MOST_CLOSING = MAX_BYTES + _LIMIT


@dataclass(frozen=True, slots=True)
class Closing:
    """How a rollout is closed; `payload` keeps what the harness declared."""

    ok: bool | None
    reason: str | None
    payload: dict[str, Any] = field(default_factory=dict)


async def closing_body(request: Request) -> bytes:
    """The body, up to what a trajectory and the other fields may take.

    Raises:
        BodyTooLarge: it is longer.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_CLOSING:
            raise BodyTooLarge(
                f"closing takes at most {MAX_BYTES} bytes; leave out `trajectory`, or its "
                "token ids"
            )
        parts.append(part)
    return b"".join(parts)


def read_close(raw: bytes) -> Closing:
    """`{ok?, reason?, terminal_call_id?, terminal_response_id?, exit_code?, …, trajectory?}`.

    Takes as long as the trajectory is large.

    Raises:
        InvalidValue: names the field.
    """
    trajectory = None
    if len(raw) > _LIMIT or b'"trajectory"' in raw:
        # Taken out before the others are looked at one by one: it may hold millions of ids.
        whole = _decoded(raw)
        trajectory = whole.pop(PAYLOAD_KEY, None)
        raw = json.dumps(whole).encode()
    body = read_object(raw)
    only(body, {"ok", "reason", *CLOSING_FIELDS})
    payload = _payload(body)
    if trajectory is not None:
        payload[PAYLOAD_KEY] = read_trajectory(trajectory).payload()
    return Closing(flag(body, "ok"), text(body, "reason"), payload)


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        whole = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Numbers that are none and lone surrogates, which harnesses write all the same.
        try:
            whole = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise InvalidValue(f"the body is not valid JSON: {error}") from error
    if not isinstance(whole, dict):
        raise InvalidValue("the body must be a JSON object")
    return whole


def _payload(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `body` that describe the run; an absent one and null are the same.

    Raises:
        InvalidValue: names the field.
    """
    payload = {key: body[key] for key in CLOSING_FIELDS if body.get(key) is not None}
    for key, value in payload.items():
        kind = CLOSING_FIELDS[key]
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is list:
            fits = fits and all(isinstance(item, str) for item in value)
        if not fits:
            raise InvalidValue(f"`{key}` has the wrong type", path=f"$.{key}")
    if len(json.dumps(payload)) > _LIMIT:
        raise InvalidValue(f"what is told about a run may take at most {_LIMIT} bytes")
    return payload
