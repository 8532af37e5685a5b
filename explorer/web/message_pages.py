"""Routes of one message: whole and raw, and a picture in it when a person asks.

Owns: addresses, the headers of a picture. Must not know: how messages are read.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from explorer.errors import NotFound
from explorer.export.judged import Judged
from explorer.records import BodyKind
from explorer.store.interface import Store
from explorer.web.contexts_messages import MessagePage
from explorer.web.conversation import REPLY, message_href
from explorer.web.frames import rollout_href
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.messages import (
    asked_messages,
    content_text,
    pictures_of,
    reasoning_text,
    reply_message,
)
from explorer.web.pages import page_and_twin
from explorer.web.pictures import picture_bytes, picture_parts
from explorer.web.pretty import Pairs, dumps, safe_text
from explorer.web.render import respond
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of
from explorer.web.terminal import terminal_runs
from explorer.web.version_words import line_now
from explorer.web.workers import in_page_thread

router = APIRouter(include_in_schema=False)

WHOLE_CHARS = 1_000_000
# A picture is a document of its own that may load and do nothing.
PICTURE_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}


def find_message(store: Store, judged: Judged, call_id: str, number: str) -> Any:
    """One message of a call: `reply`, or its place among those of the request.

    Raises:
        NotFound: no such call, or no such message in a readable body.
    """
    calls = {str(call.call_id): call for call in judged.record.calls}
    if call_id not in calls:
        raise NotFound(f"this rollout has no ended call “{call_id}”")
    call = calls[call_id]
    bodies = {body.kind: body for body in store.bodies(call.call_id)}
    if number == REPLY:
        found = reply_message(bodies.get(BodyKind.REPLY))
    else:
        asked = asked_messages(call, bodies) or []
        place = int(number) if number.isdecimal() and len(number) < 9 else len(asked)
        found = asked[place] if place < len(asked) else None
    if found is None:
        raise NotFound(f"this call has no message “{number}” that can be read")
    return found


@page_and_twin(router, "/rollouts/{rollout_id}/message")
async def message(request: Request, rollout_id: str, call: str = "", n: str = "") -> Response:
    """One message, whole and raw."""
    judged = await judged_or_404(request, rollout_id)
    store = services_of(request).store

    def work() -> MessagePage:
        item = find_message(store, judged, call, n)
        text = content_text(item.get("content")) if isinstance(item, Pairs) else ""
        reasoning, raw = reasoning_text(item), dumps(item)
        role = item.get("role") if isinstance(item, Pairs) else None
        cut = sum(max(0, len(each) - WHOLE_CHARS) for each in (text, reasoning, raw))
        href = message_href(rollout_id, judged_call(judged, call), n)
        name = "the reply" if n == REPLY else f"message {n}"
        return MessagePage(
            frame=rollout_frame(request, judged, "conversation", last=name),
            header=rollout_header(
                judged,
                "conversation",
                members_of(store, judged),
                notes=store.annotations(judged.record.rollout.rollout_id),
                line=line_now(store),
            ),
            title=f"{name[0].upper()}{name[1:]} of call {call_number(judged, call)}",
            role=safe_text(role) if isinstance(role, str) else "",
            call_href=rollout_href(rollout_id, f"requests/{call}"),
            text=safe_text(text[:WHOLE_CHARS]),
            runs=terminal_runs(text[:WHOLE_CHARS]),
            reasoning=safe_text(reasoning[:WHOLE_CHARS]),
            pictures=tuple(pictures_of(item, href)),
            raw=safe_text(raw[:WHOLE_CHARS]),
            cut_chars=cut,
        )

    return await respond(request, work)


def judged_call(judged: Judged, call_id: str) -> Any:
    """The id of a call that was found before."""
    return next(c.call_id for c in judged.record.calls if str(c.call_id) == call_id)


def call_number(judged: Judged, call_id: str) -> int:
    """Its number in admission order."""
    return next(c.sequence for c in judged.record.calls if str(c.call_id) == call_id)


@router.get("/rollouts/{rollout_id}/picture")
async def picture(
    request: Request, rollout_id: str, call: str = "", n: str = "", part: int = 0
) -> Response:
    """One picture's bytes, for a person who asked for it."""
    judged = await judged_or_404(request, rollout_id)
    store = services_of(request).store

    def work() -> Response:
        item = find_message(store, judged, call, n)
        for place, url in picture_parts(item):
            found = picture_bytes(url) if place == part else None
            if found is not None:
                kind, raw = found
                name = f"{hashlib.sha256(raw).hexdigest()[:12]}.{kind.partition('/')[2]}"
                headers = {
                    **PICTURE_HEADERS,
                    "Content-Disposition": f'inline; filename="{name}"',
                }
                return Response(raw, media_type=kind, headers=headers)
        raise NotFound("no picture here that may be shown; its message has it as text")

    return await in_page_thread(work)
