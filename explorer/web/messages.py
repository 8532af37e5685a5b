"""Reads chat messages out of raw bodies and makes them readable.

Owns: which messages a request and a reply have, and where their text is cut.
Must not know: turns, HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from explorer.capture.recall import read_stored_reply
from explorer.errors import EngineMalformed
from explorer.records import Body, BodyKind, Call, Dialect
from explorer.web import words
from explorer.web.contexts_messages import Message, Picture, ToolCall
from explorer.web.contexts_tabs import EarlierMessage
from explorer.web.pictures import picture_address, picture_bytes, picture_parts, picture_words
from explorer.web.pretty import PARSE_BYTES, Pairs, dumps, loads, safe_text
from explorer.web.terminal import terminal_runs
from explorer.web.tool_kinds import tool_call
from explorer.wire.jsonbytes import encode

MESSAGE_CHARS = 3_000
LINE_CHARS = 140
UNPAIRED = "unpaired result"


def asked_messages(call: Call, bodies: dict[BodyKind, Body]) -> list[Any] | None:
    """The messages of the request, None when no readable body has them."""
    candidates = [bodies.get(BodyKind.SUBMITTED)]
    if call.dialect is Dialect.CHAT:
        candidates.append(bodies.get(BodyKind.REQUEST))
    for body in candidates:
        if body is None or not body.data or len(body.data) > PARSE_BYTES:
            continue
        try:
            read = loads(body.data)
        except ValueError:
            continue
        if not isinstance(read, Pairs):
            continue
        messages = read.get("messages")
        if isinstance(messages, list) and not isinstance(messages, Pairs):
            return messages
        if call.dialect is Dialect.COMPLETIONS and read.get("prompt") is not None:
            return [Pairs([("role", "prompt"), ("content", read.get("prompt"))])]
    return None


def reply_message(body: Body | None) -> Pairs | None:
    """The engine's message, None when the reply cannot be read."""
    if body is None or len(body.data) > PARSE_BYTES:
        return None
    try:
        read = loads(body.data)
    except ValueError:
        read = _streamed(body)
    choices = read.get("choices") if isinstance(read, Pairs) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Pairs) else None
    if isinstance(message, Pairs):
        return message
    if isinstance(first, Pairs) and _is_text(first.get("text")):
        # A plain completion has a text and nobody who says it.
        return Pairs([("role", "assistant"), ("content", first.get("text"))])
    return None


def _streamed(body: Body) -> Any:
    """A reply that was passed on as a stream, as the whole it makes."""
    try:
        whole = read_stored_reply(body).body
        return None if whole is None else loads(encode(whole))
    except (EngineMalformed, ValueError):
        return None


def plain_message(role: str, text: str) -> Message:
    """A message that is only text."""
    shown, cut = shorten(text)
    return Message(
        role=role,
        name="",
        text=shown,
        runs=(),
        reasoning="",
        tool_calls=(),
        pictures=(),
        cut_chars=cut,
        note="",
        raw_href="",
    )


def message_of(item: Any, note: str = "", raw_href: str = "") -> Message:
    """One chat message as people read it; what it is not is shown as it came.

    Args:
        raw_href: address of the message whole; its pictures are found below it.
    """
    if not isinstance(item, Pairs):
        return replace(plain_message("unknown", dumps(item)), raw_href=raw_href)
    content = content_text(item.get("content"))
    text, cut = shorten(content)
    reasoning, cut_too = shorten(reasoning_text(item))
    calls = item.get("tool_calls")
    tools: list[ToolCall] = []
    for entry in calls if isinstance(calls, list) else ():
        function = entry.get("function") if isinstance(entry, Pairs) else None
        if isinstance(function, Pairs):
            given = function.get("arguments", "")
            arguments = given if _is_text(given) else dumps(given)
            made, left = tool_call(str(function.get("name", "")), arguments)
            cut += left
            tools.append(made)
    name = item.get("name") or item.get("tool_call_id") or ""
    role = item.get("role")
    if role == "tool" and not item.get("tool_call_id"):
        # By its place or name it could only be guessed which call it answers.
        note = note or UNPAIRED
    return Message(
        role=safe_text(role) if isinstance(role, str) else words.UNKNOWN,
        name=safe_text(str(name))[:80],
        text=text,
        runs=terminal_runs(content[:MESSAGE_CHARS]),
        reasoning=reasoning,
        tool_calls=tuple(tools),
        pictures=tuple(pictures_of(item, raw_href)),
        cut_chars=cut + cut_too,
        note=note,
        raw_href=raw_href,
    )


def pictures_of(item: Any, raw_href: str) -> Iterator[Picture]:
    """The pictures of a message; only one whose bytes are what it claims has an address."""
    for place, url in picture_parts(item):
        shown = raw_href and picture_bytes(url) is not None
        href = raw_href.replace("/message?", "/picture?", 1) + f"&part={place}"
        yield Picture(picture_words(url), href if shown else None)


def in_one_line(item: Any) -> EarlierMessage:
    """A message that was shown before: who spoke, and how it begins."""
    message = message_of(item)
    calls = " ".join(f"{call.name} {call.arguments}" for call in message.tool_calls)
    text = " ".join((message.text or calls or message.reasoning)[: 4 * LINE_CHARS].split())
    cut = len(text) > LINE_CHARS
    return EarlierMessage(message.role, text[:LINE_CHARS] + "…" * cut if text else "(empty)")


def reasoning_text(item: Any) -> str:
    """Reasoning of a message, under whichever name it came."""
    if not isinstance(item, Pairs):
        return ""
    return content_text(item.get("reasoning_content") or item.get("reasoning"))


def _is_text(value: Any) -> bool:
    return type(value) is str


def content_text(content: Any) -> str:
    """Text of a message's content; parts that are no text show as their source."""
    if content is None:
        return ""
    if _is_text(content):
        return str(content)
    if isinstance(content, list) and not isinstance(content, Pairs):
        parts = []
        for part in content:
            text = part.get("text") if isinstance(part, Pairs) else None
            url = picture_address(part)
            other = dumps(part) if url is None else picture_words(url)
            parts.append(str(text) if _is_text(text) else other)
        return "\n".join(parts)
    return dumps(content)


def shorten(text: str) -> tuple[str, int]:
    """The beginning of a text, made safe, and how many characters were left out."""
    if len(text) <= MESSAGE_CHARS:
        return safe_text(text), 0
    return safe_text(text[:MESSAGE_CHARS]), len(text) - MESSAGE_CHARS
