"""The book of a rollout that left memory, read back from its stored bodies.

Owns: what of a stored call lets it be continued again.
Must not know: dialects; what was sent to the engine is read, which has one shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from explorer.capture.recall import read_stored_reply
from explorer.capture.token_in import Book
from explorer.capture.token_in_digest import Conversation, conversation, only_text
from explorer.records import BodyKind, Call, CallStatus, RolloutRecord
from explorer.store.interface import Store
from explorer.wire.ids import with_our_ids


def stored_book(store: Store, record: RolloutRecord) -> Book:
    """Every answered call of the record, as far as its bodies can be read. Blocks."""
    book = Book()
    for call in sorted(record.calls, key=lambda call: (call.sequence, call.call_id)):
        said, reply = None, None
        if call.status is CallStatus.COMMITTED:
            said, reply = _said(store, call)
        book.add(call, said, reply)
    return book


def _said(store: Store, call: Call) -> tuple[Conversation | None, Mapping[str, Any] | None]:
    bodies = {body.kind: body for body in store.bodies(call.call_id)}
    submitted, reply = bodies.get(BodyKind.SUBMITTED), bodies.get(BodyKind.REPLY)
    if submitted is None or reply is None:
        return None, None
    try:
        asked = orjson.loads(submitted.data)
    except orjson.JSONDecodeError:
        return None, None
    messages = asked.get("messages") if isinstance(asked, dict) else None
    parsed = read_stored_reply(reply)
    # What was sent by plain completions has no messages any more: it is not continued.
    if not isinstance(messages, list) or not only_text(messages) or parsed.body is None:
        return None, None
    message = with_our_ids(parsed.body, call.call_id)["choices"][0]["message"]
    return conversation(asked), message
