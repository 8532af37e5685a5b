"""The request that closes a rollout, and what a runner may tell in it about the run.

Owns: names, types and size of these fields; they are kept as they came.
Must not know: routes, what is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.errors import InvalidValue
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
}
_LIMIT = 256 * 1024


@dataclass(frozen=True, slots=True)
class Closing:
    """How a rollout is closed; `payload` keeps what the harness declared."""

    ok: bool | None
    reason: str | None
    payload: dict[str, Any] = field(default_factory=dict)


def read_close(raw: bytes) -> Closing:
    """`{ok?, reason?, terminal_call_id?, terminal_response_id?, exit_code?, …}`.

    Raises:
        InvalidValue: names the field.
    """
    body = read_object(raw)
    only(body, {"ok", "reason", *CLOSING_FIELDS})
    return Closing(flag(body, "ok"), text(body, "reason"), _payload(body))


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
