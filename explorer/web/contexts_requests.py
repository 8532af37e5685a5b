"""What the requests tab says, every field documented.

Owns: the contexts of the list of calls and of one call with its raw bodies.
Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, page, said
from explorer.web.contexts_diff import TextDiff
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key that the proxy changed between the harness and the engine."""

    path: str = said("Where it is in the body.")
    kind: str = said("`added`, `removed` or `changed`.")
    asked: str = said("The value as the harness asked, in its own spelling, cut.")
    sent: str = said("The value as sent to the engine, likewise.")


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One event of a streamed reply."""

    number: int = said("Its number, from 1.")
    name: str = said("Its name, `message` when it has none.")
    data: str = said("Its data, cut.")
    cut_chars: int = said("Characters left out.")


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call as a line."""

    call_id: str = said("The call.")
    short_call: str = said("Its id, shortened.")
    href: str = said("Address of its request.")
    sequence: int = said("Number in admission order.")
    turn: str = said("Its number in the turn tree, `–` when it is not in it.")
    dialect: str = said("Wire dialect.")
    stream: bool = said("Whether the harness asked for a stream.")
    status: str = said("Where its life ended.")
    failure: str = said("What went wrong, empty when nothing did.")
    role: str = said("Role of the call, `–` for a refused one.")
    capture_level: str = said("What its record can support.")
    prompt_tokens: int | None = said("Prompt tokens, null when unknown.")
    sampled_tokens: int | None = said("Sampled tokens, null when unknown.")
    trained_tokens: int = said("Of these, tokens that train.")
    finish_reason: str = said("Why the engine stopped.")
    duration_text: str = said("Duration seen by the harness.")
    retries: int = said("Retries joined to it.")
    preview: str = said("Beginning of the reply.")


@page
@dataclass(frozen=True, slots=True)
class RequestsPage:
    """`/rollouts/{rollout_id}/requests`: every call."""

    template: ClassVar[str] = "requests.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    rows: tuple[CallRow, ...] = said("Calls of this page, in admission order.")
    total: int = said("Calls that ended.")
    first: int = said("Place of the first one listed, from 0.")
    next_href: str | None = said("Address of the next page, null on the last.")
    open_calls: int = said("Calls still in flight, not listed.")


@dataclass(frozen=True, slots=True)
class BodyView:
    """One raw body, as text."""

    kind: str = said("`request`, `submitted` or `reply`.")
    title: str = said("What it is.")
    size_bytes: int = said("Its size.")
    size_text: str = said("The size as shown.")
    sha256: str = said("SHA-256 of the exact bytes.")
    headers: tuple[tuple[str, str], ...] = said("Headers, without credentials.")
    text: str = said("The body, indented, numbers in their original spelling.")
    note: str = said("What was done to show it.")
    cut_chars: int = said("Characters left out.")
    all_href: str | None = said("Address that shows it whole, null when it is.")


@page
@dataclass(frozen=True, slots=True)
class RequestPage:
    """`/rollouts/{rollout_id}/requests/{call_id}`: one call, raw."""

    template: ClassVar[str] = "request.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    call: CallRow = said("The call.")
    facts: tuple[tuple[str, str], ...] = said("Recorded facts by name.")
    rule: str = said("Rule that decided its role.")
    why: str = said("The evidence for the role.")
    changed: tuple[tuple[str, str, str], ...] = said("Sampling fields: name, asked, sent.")
    bodies: tuple[BodyView, ...] = said("Its raw bodies.")
    sent: tuple[KeyChange, ...] = said("What the proxy changed on the way, key by key.")
    sent_note: str = said("What is to be known of that comparison, empty without one.")
    against: str = said("Call that its request is compared with, as shown, empty for none.")
    against_href: str = said("Address of that call.")
    neighbour: TextDiff | None = said("What its request changed of that call's.")
    frames: tuple[StreamFrame, ...] = said("Events of a streamed reply, as recorded.")
    frames_total: int = said("Events that were read.")
    frames_note: str = said("What was left out of the events, empty when nothing was.")
    tokens_href: str | None = said("Address of its tokens, null when it has none.")
    previous: str | None = said("Address of the call before.")
    following: str | None = said("Address of the call after.")
