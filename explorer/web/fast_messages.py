"""The messages of a request and a reply, for reading every call of a rollout at once.

Owns: the quick way to what `messages` reads. Must not know: what is done with them.

A long rollout has hundreds of megabytes of bodies, and most of each is what the one before
had. They are parsed by orjson here, and only the messages that are looked at become the
`Pairs` that `messages` works on. Numbers inside them lose their spelling; a body that orjson
refuses (half a character, a NaN) is read the careful way.
"""

from __future__ import annotations

from typing import Any

import orjson

from explorer.records import Body, BodyKind, Call, Dialect
from explorer.web.messages import asked_messages, reply_message
from explorer.web.pretty import MOST_LEVELS, PARSE_BYTES, Pairs


def in_pairs(value: Any, depth: int = 0) -> Any:
    """A parsed value with its objects as `Pairs`; what is nested too deeply is its texts."""
    if isinstance(value, Pairs):
        return value
    if isinstance(value, dict | list) and depth >= MOST_LEVELS:
        return _texts(value)
    if isinstance(value, dict):
        return Pairs((name, in_pairs(item, depth + 1)) for name, item in value.items())
    if isinstance(value, list):
        return [in_pairs(item, depth + 1) for item in value]
    return value


def _texts(value: Any) -> str:
    """Every name and text in it, one a line."""
    found: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += item
            left += reversed(item.values())
        elif isinstance(item, list):
            left += reversed(item)
        elif item is not None:
            found.append(str(item))
    return "\n".join(found)


def fast_messages(call: Call, bodies: dict[BodyKind, Body]) -> list[Any] | None:
    """As `messages.asked_messages`; each message still has to go through `in_pairs`."""
    submitted = bodies.get(BodyKind.SUBMITTED)
    candidates = [submitted]
    if call.dialect is Dialect.CHAT:
        candidates.append(bodies.get(BodyKind.REQUEST))
    for body in candidates:
        if body is None or not body.data or len(body.data) > PARSE_BYTES:
            continue
        try:
            read = orjson.loads(body.data)
        except ValueError:
            return asked_messages(call, bodies)
        messages = read.get("messages") if isinstance(read, dict) else None
        if isinstance(messages, list):
            return messages
    return asked_messages(call, bodies)


def fast_reply(body: Body | None) -> Pairs | None:
    """As `messages.reply_message`."""
    if body is None or len(body.data) > PARSE_BYTES:
        return None
    try:
        read = orjson.loads(body.data)
    except ValueError:
        return reply_message(body)
    choices = read.get("choices") if isinstance(read, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    return in_pairs(message) if isinstance(message, dict) else reply_message(body)
