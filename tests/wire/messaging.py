"""Messages requests and turns, as the tests of this dialect make them."""

from __future__ import annotations

from typing import Any

import orjson

from explorer.wire import messages
from explorer.wire.neutral import NeutralRequest


def ask(**fields: Any) -> NeutralRequest:
    body = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "go"}]}
    return messages.parse_request(orjson.dumps(body | fields))


def turns(*sent: dict[str, Any], **fields: Any) -> list[Any]:
    return ask(messages=list(sent), **fields).messages


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value} | more


def result(tool_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_id, "content": content} | more
