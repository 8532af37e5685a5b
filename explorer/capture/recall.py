"""Earlier calls that a request names instead of repeating them.

Owns: turning a stored call back into messages, for `previous_response_id` and
`item_reference`.
Must not know: dialects beyond their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from explorer.engine.reply import ParsedReply, parse_reply
from explorer.records import Body, BodyKind, CallId, CallStatus, RolloutId
from explorer.store.interface import Store
from explorer.wire import chat, sse
from explorer.wire.ids import with_our_ids
from explorer.wire.neutral import Earlier


def earlier_calls(
    store: Store, rollout_id: RolloutId, call_ids: Iterable[str]
) -> dict[str, Earlier]:
    """What was asked and answered in those calls of this rollout, up to the first that is
    none of it: a key opens its own rollout only, and one missing call refuses the request,
    which may name a great many. Blocks."""
    found = {}
    for call_id in call_ids:
        earlier = _earlier(store, rollout_id, CallId(call_id))
        if earlier is None:
            break
        found[call_id] = earlier
    return found


def _earlier(store: Store, rollout_id: RolloutId, call_id: CallId) -> Earlier | None:
    call = store.call(call_id)
    if call is None or call.rollout_id != rollout_id:
        return None
    if call.status is not CallStatus.COMMITTED:
        return None
    bodies = {body.kind: body for body in store.bodies(call_id)}
    submitted, reply = bodies.get(BodyKind.SUBMITTED), bodies.get(BodyKind.REPLY)
    if submitted is None or reply is None:
        return None
    asked = _object(submitted.data)
    parsed = read_stored_reply(reply)
    if parsed.body is None or not isinstance(asked.get("messages"), list):
        return None
    request = bodies.get(BodyKind.REQUEST)
    instructions = _object(request.data).get("instructions") if request is not None else None
    messages = without_instructions(asked["messages"], instructions)
    message = with_our_ids(parsed.body, call_id)["choices"][0]["message"]
    return Earlier(tuple(messages), message)


def read_stored_reply(reply: Body) -> ParsedReply:
    """A stored reply of an engine, streamed or not."""
    data = reply.data
    if not data.lstrip()[:5].startswith((b"data:", b":", b"event")):
        return parse_reply(200, data)
    merged = chat.merge_stream(sse.Decoder().feed(data))
    for key in ("_complete", "_error", "_unpaired"):
        merged.pop(key, None)
    return parse_reply(200, orjson.dumps(merged))


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def without_instructions(messages: list[Any], instructions: Any) -> list[Any]:
    """Instructions are said anew with each request, so the earlier ones do not count."""
    if not isinstance(instructions, str) or not instructions or not messages:
        return messages
    first = messages[0]
    content = first.get("content") if isinstance(first, dict) else None
    if not isinstance(content, str) or first.get("role") != "system":
        return messages
    if content == instructions:
        return messages[1:]
    if content.startswith(instructions + "\n\n"):
        return [{**first, "content": content[len(instructions) + 2 :]}, *messages[1:]]
    return messages
