"""Builds the list of calls and the page of one call with its raw bodies.

Owns: what is said about a call. Must not know: HTML, HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from explorer.errors import NotFound
from explorer.export.judged import Judged
from explorer.records import Body, BodyKind, Call, CallId
from explorer.store.interface import Store
from explorer.trace.token_in import reason_words
from explorer.web import words
from explorer.web.contexts import Frame
from explorer.web.contexts_requests import BodyView, CallRow, RequestPage
from explorer.web.contexts_rollout import Header
from explorer.web.conversation import failure_words
from explorer.web.frames import rollout_href
from explorer.web.key_diff import key_changes
from explorer.web.pretty import body_text, safe_text
from explorer.web.request_compare import (
    call_name,
    neighbour_diff,
    neighbour_of,
    sent_note,
    stream_frames,
)
from explorer.web.turn_tree import TurnTree, named_calls

PREVIEW_CHARS = 120
ROWS_PER_PAGE = 300

_BODY_TITLES = {
    BodyKind.REQUEST: "Request, as the harness asked",
    BodyKind.SUBMITTED: "Request, as sent to the engine",
    BodyKind.REPLY: "Reply of the engine",
}


def call_row(judged: Judged, call: Call, labels: Mapping[CallId, str]) -> CallRow:
    """One call as a line; `labels` are the turn tree's."""
    rollout_id = judged.record.rollout.rollout_id
    decision = judged.judgement.roles.get(call.call_id)
    mask = judged.judgement.masks.get(call.call_id)
    return CallRow(
        call_id=call.call_id,
        short_call=words.short_id(call.call_id),
        href=rollout_href(rollout_id, f"requests/{call.call_id}"),
        sequence=call.sequence,
        turn=labels.get(call.call_id, words.NONE),
        dialect=call.dialect.value,
        stream=call.stream,
        status=call.status.value,
        failure=failure_words(call),
        role=decision.role.value if decision else words.NONE,
        capture_level=call.capture_level.value,
        prompt_tokens=call.prompt_len,
        sampled_tokens=call.completion_len,
        trained_tokens=mask.supervised if mask else 0,
        finish_reason=call.finish_reason or words.UNKNOWN,
        duration_text=words.duration((call.ended_us - call.started_us) / 1000),
        retries=call.retry_count,
        preview=safe_text(call.preview[:PREVIEW_CHARS]),
    )


def compact(value: Any) -> str:
    """A recorded value in one line of JSON, keys in order."""
    if value in ({}, None, "", ()):
        return words.NONE
    return safe_text(orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str).decode())


def changed_sampling(call: Call) -> tuple[tuple[str, str, str], ...]:
    """Every sampling field that was asked or sent, with both values."""
    asked, sent = call.requested_sampling, call.submitted_sampling
    return tuple(
        (
            name,
            compact(asked[name]) if name in asked else words.NONE,
            compact(sent[name]) if name in sent else words.NONE,
        )
        for name in sorted({*asked, *sent})
    )


def versions_text(call: Call) -> str:
    """The weight version at start and end of a call."""
    first, last = call.weight_version_start, call.weight_version_end
    if first is None and last is None:
        return words.UNKNOWN
    if first == last:
        return str(first)
    return " → ".join(words.UNKNOWN if at is None else str(at) for at in (first, last))


def call_facts(call: Call) -> tuple[tuple[str, str], ...]:
    """Recorded facts of a call by name; "unknown" where nothing was recorded."""

    def known(value: object) -> str:
        return words.UNKNOWN if value in (None, "") else safe_text(str(value))

    cached, reasoning = call.usage_cached, call.usage_reasoning
    return (
        ("status", call.status.value),
        ("started", words.clock(call.started_us)),
        ("duration", words.duration((call.ended_us - call.started_us) / 1000)),
        ("engine time", words.duration(call.engine_ms)),
        ("wire", call.dialect.value + (", streamed" if call.stream else "")),
        ("HTTP status", known(call.http_status)),
        ("engine's status", known(call.upstream_status)),
        ("stopped", known(call.finish_reason)),
        ("stop reason", known(call.stop_reason)),
        ("capture level", call.capture_level.value),
        ("model asked", known(call.model_requested)),
        ("model served", known(call.model_served)),
        ("response id", known(call.response_id)),
        ("engine's id", known(call.upstream_id)),
        ("weight version", versions_text(call)),
        ("weight label", known(call.engine_weight_label)),
        ("tokens counted", f"{known(call.usage_prompt)} + {known(call.usage_completion)}"),
        ("cached, reasoning", f"{known(cached)}, {known(reasoning)}"),
        ("tools, messages", f"{call.n_tools}, {call.n_messages}"),
        ("constraints", ", ".join(call.constraints) or "none"),
        ("greedy", "yes" if call.greedy else "no"),
        ("claims", safe_text("; ".join(f"{n} {v}" for n, v in call.claims.items())) or "none"),
        ("token-in", token_in_fact(call)),
        ("notes", "; ".join(f"{n.code} {n.detail}".strip() for n in call.notes) or "none"),
    )


def token_in_fact(call: Call) -> str:
    """What was sent instead of the harness's messages, or why they were sent."""
    found = call.token_in
    if found is None:
        return "off"
    if not found.sent:
        if found.fallback is None:
            return "nothing to continue: messages were sent"
        reason = safe_text(found.fallback)
        return f"fell back to messages: {reason_words(reason)} ({reason})"
    said = f"{found.prefix_len} ids of an earlier call and its reply, then what is new"
    said += f", by {safe_text(str(found.how))}"
    if found.same is False:
        said += "; the engine read another prompt"
    if not found.compared:
        return said + "; rendering the messages was not tried"
    if found.differs_at is None:
        return said + "; rendering the messages gives the same"
    return said + f"; rendering the messages would differ from token {found.differs_at} on"


def body_view(rollout_id: str, body: Body, *, whole: bool) -> BodyView:
    """One raw body as text, cut unless asked for whole."""
    shown = body_text(body.data, whole=whole)
    page = rollout_href(rollout_id, f"requests/{body.call_id}", all=body.kind.value)
    return BodyView(
        kind=body.kind.value,
        title=_BODY_TITLES[body.kind],
        size_bytes=len(body.data),
        size_text=words.size(len(body.data)),
        sha256=hashlib.sha256(body.data).hexdigest(),
        headers=tuple((safe_text(name), safe_text(value)) for name, value in body.headers),
        text=shown.text,
        note=shown.note,
        cut_chars=shown.cut_chars,
        all_href=f"{page}#{body.kind.value}" if shown.cut_chars else None,
    )


def request_page(
    store: Store,
    judged: Judged,
    frame: Frame,
    header: Header,
    call_id: str,
    query: Mapping[str, str],
) -> RequestPage:
    """One call, raw.

    Args:
        query: `all`, the kind of the body to show whole; `against`, the call whose
            request this one's is compared with.

    Raises:
        NotFound: the rollout has no such call.
    """
    calls = judged.record.calls
    names = [str(call.call_id) for call in calls]
    if call_id not in names:
        raise NotFound(f"this rollout has no ended call “{call_id}”")
    at = names.index(call_id)
    call = calls[at]
    rollout_id = judged.record.rollout.rollout_id
    labels = TurnTree(judged).labels
    decision = judged.judgement.roles.get(call.call_id)
    mask = judged.judgement.masks.get(call.call_id)
    bodies = {body.kind: body for body in store.bodies(call.call_id)}
    before = neighbour_of(judged, call, query.get("against", ""))
    neighbour = neighbour_diff(store, call, before, bodies, labels)
    asked, sent = bodies.get(BodyKind.REQUEST), bodies.get(BodyKind.SUBMITTED)
    changes, note = key_changes(asked.data, sent.data) if asked and sent else ((), "")
    frames, frames_total, frames_note = stream_frames(bodies.get(BodyKind.REPLY))
    whole = query.get("all", "")
    tokens = rollout_href(rollout_id, "tokens", branch=call_id)
    return RequestPage(
        frame=frame,
        header=header,
        call=call_row(judged, call, labels),
        facts=call_facts(call),
        rule=decision.rule if decision else "",
        why=named_calls(decision.why, labels) if decision else "",
        changed=changed_sampling(call),
        bodies=tuple(
            body_view(rollout_id, bodies[kind], whole=whole == kind.value)
            for kind in _BODY_TITLES
            if kind in bodies
        ),
        sent=changes,
        sent_note=sent_note(call, note) if asked and sent else "",
        against=call_name(before, labels) if before and neighbour else "",
        against_href=(
            rollout_href(rollout_id, f"requests/{before.call_id}")
            if before and neighbour
            else ""
        ),
        neighbour=neighbour,
        frames=frames,
        frames_total=frames_total,
        frames_note=frames_note,
        tokens_href=f"{tokens}#t{mask.prompt_len}" if mask and mask.length else None,
        previous=rollout_href(rollout_id, f"requests/{names[at - 1]}") if at else None,
        following=(
            rollout_href(rollout_id, f"requests/{names[at + 1]}")
            if at + 1 < len(names)
            else None
        ),
    )
