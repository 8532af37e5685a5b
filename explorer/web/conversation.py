"""Builds the conversation tab: what each call added, then its reply.

Owns: which messages are new, and what became of the reply before.
Must not know: HTML, HTTP, how a message is read.

Messages come from the body as sent to the engine, which is a chat request whatever the
harness spoke; where there is none, the tokens are decoded instead and the page says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer.export.judged import Judged
from explorer.records import BodyKind, Call, CallId
from explorer.store.interface import Store
from explorer.trace.branch import Segment
from explorer.trace.versions import Line
from explorer.web import words
from explorer.web.branches import Shown
from explorer.web.contexts_messages import Message
from explorer.web.contexts_tabs import ConversationTurn, EarlierMessage
from explorer.web.frames import rollout_href
from explorer.web.messages import (
    asked_messages,
    in_one_line,
    message_of,
    plain_message,
    reasoning_text,
    reply_message,
)
from explorer.web.pretty import Pairs, safe_text
from explorer.web.version_words import call_words

TURNS_PER_PAGE = 12
CHARS_PER_PAGE = 110_000
MESSAGES_PER_TURN = 10
FOLDED_PER_TURN = 12
REPLY = "reply"
NO_LINE = Line()


@dataclass(frozen=True, slots=True)
class _Said:
    """The messages of one turn."""

    messages: list[Message]
    source: str
    earlier: int = 0
    skipped: int = 0
    folded: tuple[EarlierMessage, ...] = ()
    echo: str = ""


class Conversation:
    """The turns of one branch."""

    def __init__(
        self, store: Store, judged: Judged, shown: Shown, line: Line = NO_LINE
    ) -> None:
        self._line = line
        self._store = store
        self._judged = judged
        self._shown = shown
        self._rollout_id = judged.record.rollout.rollout_id
        self._replies: dict[CallId, Pairs | None] = {}

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
        said = self._said(call, number)
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
            weights=call_words(call, self._line),
            source=said.source,
            earlier=said.earlier,
            skipped=said.skipped,
            folded=said.folded,
            echo=said.echo,
            messages=tuple(said.messages),
            problem=failure_words(call),
        )

    def _said(self, call: Call, number: int) -> _Said:
        bodies = {body.kind: body for body in self._store.bodies(call.call_id)}
        asked = asked_messages(call, bodies)
        reply = self._replies[call.call_id] = reply_message(bodies.get(BodyKind.REPLY))
        if asked is None:
            return self._from_tokens(call)
        before = self._before(call, number)
        echoed_at, same = None, False
        note = ""
        if before is not None:
            echoed_at, same = echo_place(call, before, asked)
            if echoed_at is not None:
                note = echo_note(self._reply_of(before), asked[echoed_at], same)
        # On its first turn a branch shows everything, also what an earlier one began with.
        known = 0
        if number > 1 and before is not None:
            known = known_messages(call, before, len(asked))
            known += echoed_at == known and same
        first = max(known, len(asked) - MESSAGES_PER_TURN)
        shown = [
            message_of(
                item,
                note if at == echoed_at else "",
                message_href(self._rollout_id, call.call_id, str(at)),
            )
            for at, item in enumerate(asked[first:], first)
        ]
        if reply is not None:
            href = message_href(self._rollout_id, call.call_id, REPLY)
            shown.append(message_of(reply, "", href))
        elif call.preview:
            shown.append(plain_message("assistant", call.preview))
        hidden = before is not None and echoed_at is not None and echoed_at < first
        return _Said(
            messages=shown,
            source="messages",
            earlier=first,
            skipped=first - known,
            folded=tuple(in_one_line(item) for item in asked[:first][-FOLDED_PER_TURN:]),
            echo=self._echo(before, note) if hidden else "",
        )

    def _echo(self, before: Call | None, note: str) -> str:
        label = "" if before is None else self._shown.labels.get(before.call_id, "")
        return f"The reply of turn {label} was {note}." if note else ""

    def _before(self, call: Call, number: int) -> Call | None:
        """The call that this one goes on from, or whose sequence its prompt left."""
        path, calls = self._shown.view.path, self._shown.view.calls
        if number > 1:
            return calls[path[number - 2]]
        left = self._judged.judgement.tree.nodes[call.call_id].break_
        return None if left is None else calls.get(left.nearest_call_id)

    def _reply_of(self, call: Call) -> Pairs | None:
        if call.call_id not in self._replies:
            bodies = {body.kind: body for body in self._store.bodies(call.call_id)}
            self._replies[call.call_id] = reply_message(bodies.get(BodyKind.REPLY))
        return self._replies[call.call_id]

    def _from_tokens(self, call: Call) -> _Said:
        shown = []
        for segment in self._shown.view.segments:
            if segment.call_id == call.call_id:
                role = "assistant" if segment.kind == "completion" else segment.kind
                shown.append(plain_message(role, self._text(segment)))
        if shown:
            return _Said(shown, "tokens")
        if call.preview:
            return _Said([plain_message("assistant", call.preview)], "preview")
        return _Said([], "nothing on record")

    def _text(self, segment: Segment) -> str:
        pieces = self._shown.pieces[segment.start : segment.end]
        return "".join(piece.text if piece.known else piece.display for piece in pieces)


def message_href(rollout_id: str, call_id: CallId, number: str) -> str:
    """Address of one message of a call, whole and raw; `REPLY` or its place in the request."""
    return rollout_href(rollout_id, "message", call=call_id, n=number)


def failure_words(call: Call) -> str:
    """Why a call failed, empty when it did not."""
    if call.failure_kind is None:
        return ""
    what = call.failure_kind.value.replace("_", " ")
    detail = f": {call.failure_detail}" if call.failure_detail else ""
    return safe_text(f"The call ended as {call.status.value} ({what}){detail}")


def known_messages(call: Call, before: Call, count: int) -> int:
    """How many of the `count` messages of a request the request before had, too.

    Digests leave out leading system messages, which are compared on their own.
    """
    mine, theirs = call.message_digests, before.message_digests
    if not (mine and theirs):
        return before.n_messages if before.n_messages < count else 0
    same = mine[: len(theirs)] == theirs and call.system_digest == before.system_digest
    return min(count, count - len(mine) + len(theirs)) if same else 0


def echo_place(call: Call, before: Call, asked: list[Any]) -> tuple[int | None, bool]:
    """Where a request repeats the reply before, and whether it says the same there."""
    place = known_messages(call, before, len(asked))
    if not 0 < place < len(asked):
        return None, False
    echoed = asked[place]
    if not isinstance(echoed, Pairs) or echoed.get("role") != "assistant":
        return None, False
    mine, theirs = call.message_digests, before.message_digests
    compared = bool(mine and theirs and before.reply_digest)
    return place, not compared or mine[len(theirs)] == before.reply_digest


def echo_note(reply: Pairs | None, echoed: Any, same: bool) -> str:
    """How a repeated reply differs from what the engine said; empty when it does not."""
    if not same:
        return "echoed, but changed"
    given, kept = reasoning_text(reply).strip(), reasoning_text(echoed).strip()
    if given == kept or reply is None:
        return ""
    return "echoed with other reasoning" if kept else "echoed without reasoning"
