"""Google requests and turns, as the tests of this dialect make them."""

from __future__ import annotations

from typing import Any

import orjson

from explorer.wire import google
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import Target

EVENTS = Target(model="policy", stream=True, sse=True)
ARRAY = Target(model="policy", stream=True, sse=False)
GO: dict[str, Any] = {"role": "user", "parts": [{"text": "go"}]}


def ask(target: Target = EVENTS, **fields: Any) -> NeutralRequest:
    return google.parse_request(orjson.dumps({"contents": [GO]} | fields), target)


def turns(*contents: Any, **fields: Any) -> list[Any]:
    return ask(contents=list(contents), **fields).messages


def call(name: str, args: Any, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args} | more}


def answer(name: str, response: Any, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response} | more}
