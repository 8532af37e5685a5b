"""What one request is compared with, and the events of a streamed reply.

Owns: which call's request stands beside another's, and how many events are shown.
Must not know: HTML, HTTP; how texts are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from explorer.errors import EngineMalformed, NotFound
from explorer.export.judged import Judged
from explorer.records import Body, BodyKind, Call, CallId, Dialect
from explorer.store.interface import Store
from explorer.web import words
from explorer.web.contexts_diff import TextDiff
from explorer.web.contexts_requests import StreamFrame
from explorer.web.pretty import safe_text
from explorer.web.text_diff import diff_bodies
from explorer.wire import sse

FRAMES: Final = 200
FRAME_CHARS: Final = 400
FRAME_BYTES: Final = 1024 * 1024


def stream_frames(body: Body | None) -> tuple[tuple[StreamFrame, ...], int, str]:
    """The events of a streamed reply as recorded, how many were read, and what was not."""
    if body is None or not body.data.lstrip()[:5].startswith((b"data:", b":", b"event")):
        return (), 0, ""
    note = ""
    if len(body.data) > FRAME_BYTES:
        note = f"Only the first {words.size(FRAME_BYTES)} were read. "
    try:
        events = sse.Decoder().feed(body.data[:FRAME_BYTES])
    except EngineMalformed as error:
        return (), 0, safe_text(error.message)
    if len(events) > FRAMES:
        note += f"Only the first {FRAMES} events are shown."
    frames = tuple(
        StreamFrame(
            number=number,
            name=safe_text(event.name),
            data=safe_text(event.data[:FRAME_CHARS]),
            cut_chars=max(0, len(event.data) - FRAME_CHARS),
        )
        for number, event in enumerate(events[:FRAMES], 1)
    )
    return frames, len(events), note.strip()


def neighbour_of(judged: Judged, call: Call, wanted: str) -> Call | None:
    """The call whose request is compared: the one named, else the one that this one goes
    on from or left, else the one before."""
    calls = {str(each.call_id): each for each in judged.record.calls}
    if wanted:
        if wanted not in calls:
            raise NotFound(f"this rollout has no ended call “{wanted}” to compare with")
        return calls[wanted]
    node = judged.judgement.tree.nodes.get(call.call_id)
    before = node.parent_id if node else None
    if before is None and node is not None and node.break_ is not None:
        before = node.break_.nearest_call_id
    if before is not None:
        return calls.get(str(before))
    earlier = [each for each in judged.record.calls if each.sequence < call.sequence]
    return earlier[-1] if earlier else None


def _asked_body(bodies: Mapping[BodyKind, Body]) -> Body | None:
    """The request as sent, which is one shape whatever the harness spoke."""
    return bodies.get(BodyKind.SUBMITTED) or bodies.get(BodyKind.REQUEST)


def neighbour_diff(
    store: Store,
    call: Call,
    before: Call | None,
    bodies: Mapping[BodyKind, Body],
    labels: Mapping[CallId, str],
) -> TextDiff | None:
    """What a request changed of another call's."""
    if before is None or before.call_id == call.call_id:
        return None
    mine = _asked_body(bodies)
    theirs = _asked_body({body.kind: body for body in store.bodies(before.call_id)})
    if mine is None or theirs is None:
        return None
    names = (call_name(before, labels), call_name(call, labels))
    return diff_bodies(theirs.data, mine.data, "Request against the one before", names)


def call_name(call: Call, labels: Mapping[CallId, str]) -> str:
    """`turn 3` where the call has a place in the tree, else its number."""
    label = labels.get(call.call_id)
    return f"turn {label}" if label else f"call {call.sequence}"


def sent_note(call: Call, note: str) -> str:
    """What the proxy did, with the caveat where it had to translate."""
    if call.dialect is Dialect.CHAT:
        return note
    said = f"The harness spoke {call.dialect.value}; the request was translated for the engine."
    return f"{said} {note}".strip()
