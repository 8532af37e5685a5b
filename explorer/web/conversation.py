"""Builds the conversation tab: what each call added, then its reply.

Owns: which messages are new, and where they are cut.
Must not know: HTML, HTTP.

Messages come from the body as sent to the engine, which is a chat request whatever the
harness spoke; where there is none, the tokens are decoded instead and the page says so.
"""

from __future__ import annotations

from typing import Any

from explorer.export.judged import Judged
from explorer.records import Body, BodyKind, Call, Dialect
from explorer.store.interface import Store
from explorer.trace.branch import Segment
from explorer.web import words
from explorer.web.branches import Shown
from explorer.web.contexts_tabs import (
    ConversationTurn,
    Message,
    ToolCall,
)
from explorer.web.frames import rollout_href
from explorer.web.pretty import PARSE_BYTES, Pairs, dumps, loads, safe_text

TURNS_PER_PAGE = 12
CHARS_PER_PAGE = 110_000
MESSAGE_CHARS = 3_000
MESSAGES_PER_TURN = 10


class Conversation:
    """The turns of one branch."""

    def __init__(self, store: Store, judged: Judged, shown: Shown) -> None:
        self._store = store
        self._judged = judged
        self._shown = shown
        self._rollout_id = judged.record.rollout.rollout_id

    def turns(self, first: int) -> tuple[list[ConversationTurn], int | None]:
        """Turns from number `first` on, and the first one of the next page."""
        path = self._shown.view.path
        made: list[ConversationTurn] = []
        chars = 0
        for number in range(first, len(path) + 1):
            if len(made) == TURNS_PER_PAGE or (made and chars > CHARS_PER_PAGE):
                return made, number
            turn = self._turn(number)
            chars += sum(
                len(m.text) + len(m.reasoning) + sum(len(c.arguments) for c in m.tool_calls)
                for m in turn.messages
            )
            made.append(turn)
        return made, None

    def _turn(self, number: int) -> ConversationTurn:
        path = self._shown.view.path
        call = self._shown.view.calls[path[number - 1]]
        before = self._shown.view.calls[path[number - 2]] if number > 1 else None
        messages, skipped, source = self._messages(call, before)
        judgement = self._judged.judgement
        mask = judgement.masks[call.call_id]
        tokens = rollout_href(self._rollout_id, "tokens", branch=self._shown.view.leaf)
        return ConversationTurn(
            turn=number,
            label=self._shown.labels[call.call_id],
            call_id=call.call_id,
            short_call=words.short_id(call.call_id),
            call_href=rollout_href(self._rollout_id, f"requests/{call.call_id}"),
            tokens_href=f"{tokens}#t{mask.prompt_len}",
            role=judgement.roles[call.call_id].role.value,
            sampled_tokens=mask.length - mask.prompt_len,
            trained_tokens=mask.supervised,
            finish_reason=call.finish_reason or words.UNKNOWN,
            source=source,
            skipped=skipped,
            messages=tuple(messages),
            problem=failure_words(call),
        )

    def _messages(self, call: Call, before: Call | None) -> tuple[list[Message], int, str]:
        bodies = {body.kind: body for body in self._store.bodies(call.call_id)}
        asked = asked_messages(call, bodies)
        if asked is None:
            return self._from_tokens(call)
        new = asked[known_messages(call, before, len(asked)) :]
        skipped = max(0, len(new) - MESSAGES_PER_TURN)
        new = new[skipped:]
        shown = [message_of(item) for item in new]
        reply = reply_message(bodies.get(BodyKind.REPLY))
        if reply is not None:
            shown.append(message_of(reply))
        elif call.preview:
            shown.append(plain_message("assistant", call.preview))
        return shown, skipped, "messages"

    def _from_tokens(self, call: Call) -> tuple[list[Message], int, str]:
        shown = []
        for segment in self._shown.view.segments:
            if segment.call_id == call.call_id:
                role = "assistant" if segment.kind == "completion" else segment.kind
                shown.append(plain_message(role, self._text(segment)))
        if shown:
            return shown, 0, "tokens"
        if call.preview:
            return [plain_message("assistant", call.preview)], 0, "preview"
        return [], 0, "nothing on record"

    def _text(self, segment: Segment) -> str:
        pieces = self._shown.pieces[segment.start : segment.end]
        return "".join(piece.text if piece.known else piece.display for piece in pieces)


def failure_words(call: Call) -> str:
    """Why a call failed, empty when it did not."""
    if call.failure_kind is None:
        return ""
    what = call.failure_kind.value.replace("_", " ")
    detail = f": {call.failure_detail}" if call.failure_detail else ""
    return safe_text(f"The call ended as {call.status.value} ({what}){detail}")


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
        messages = read.get("messages") if isinstance(read, Pairs) else None
        if isinstance(messages, list) and not isinstance(messages, Pairs):
            return messages
    return None


def reply_message(body: Body | None) -> Pairs | None:
    """The engine's message, None when the reply cannot be read."""
    if body is None or len(body.data) > PARSE_BYTES:
        return None
    try:
        read = loads(body.data)
    except ValueError:
        return None
    choices = read.get("choices") if isinstance(read, Pairs) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Pairs) else None
    return message if isinstance(message, Pairs) else None


def known_messages(call: Call, before: Call | None, count: int) -> int:
    """How many messages the request repeats from the call before and its reply."""
    if before is None:
        return 0
    mine, theirs = call.message_digests, before.message_digests
    if mine and theirs:
        if mine[: len(theirs)] != theirs:
            return 0
        repeated = len(theirs)
        answered = len(mine) > repeated and mine[repeated] == before.reply_digest
        return min(count, repeated + answered)
    return min(count, before.n_messages + 1) if before.n_messages < count else 0


def plain_message(role: str, text: str) -> Message:
    """A message that is only text."""
    shown, cut = shorten(text)
    return Message(role=role, name="", text=shown, reasoning="", tool_calls=(), cut_chars=cut)


def message_of(item: Any) -> Message:
    """One chat message as people read it; what it is not is shown as it came."""
    if not isinstance(item, Pairs):
        return plain_message("unknown", dumps(item))
    text, cut = shorten(content_text(item.get("content")))
    reasoning, cut_too = shorten(
        content_text(item.get("reasoning_content") or item.get("reasoning"))
    )
    calls = item.get("tool_calls")
    tools: list[ToolCall] = []
    for entry in calls if isinstance(calls, list) else ():
        function = entry.get("function") if isinstance(entry, Pairs) else None
        if isinstance(function, Pairs):
            given = function.get("arguments", "")
            arguments = given if _is_text(given) else dumps(given)
            shown, left = shorten(arguments)
            cut += left
            tools.append(ToolCall(safe_text(str(function.get("name", ""))), shown))
    name = item.get("name") or item.get("tool_call_id") or ""
    role = item.get("role")
    return Message(
        role=safe_text(role) if isinstance(role, str) else words.UNKNOWN,
        name=safe_text(str(name))[:80],
        text=text,
        reasoning=reasoning,
        tool_calls=tuple(tools),
        cut_chars=cut + cut_too,
    )


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
            parts.append(str(text) if _is_text(text) else dumps(part))
        return "\n".join(parts)
    return dumps(content)


def shorten(text: str) -> tuple[str, int]:
    """The beginning of a text, made safe, and how many characters were left out."""
    if len(text) <= MESSAGE_CHARS:
        return safe_text(text), 0
    return safe_text(text[:MESSAGE_CHARS]), len(text) - MESSAGE_CHARS
