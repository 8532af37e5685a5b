"""JSON of what an engine or a harness sent, written so that nothing of it is lost.

Owns: what is done with values that plain JSON cannot hold.
Must not know: any dialect.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from explorer.errors import BadRequest, EngineMalformed


def encode(value: Any) -> bytes:
    """`value` as JSON; NaN and infinities become null, lone surrogates leave as escapes.

    Raises:
        EngineMalformed: it is nested too deeply to be written.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        # Slower, and writes what the fast way refuses: surrogates, integers over 64 bits.
        finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(finite, separators=(",", ":")).encode()
    except RecursionError as error:
        raise EngineMalformed("the engine's reply is nested too deeply") from error


def read_object(raw: bytes) -> dict[str, Any]:
    """A request body, which must be a JSON object.

    Raises:
        BadRequest: it is not.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the request body must be a JSON object")
    return body
