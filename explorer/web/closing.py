"""What a runner may tell about the run whose rollout it closes.

Owns: names, types and size of these fields; they are kept as they came.
Must not know: routes, what is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from explorer.errors import InvalidValue

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


def closing_payload(body: Mapping[str, Any]) -> dict[str, Any]:
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
