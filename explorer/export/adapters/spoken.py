"""What was said in a call: its messages, tools and reply, from the stored texts.

Owns: reading a request of any dialect and a reply into messages of one shape.
Must not know: tokens, which calls continue which, any format.

The same readers are used as when the call was made, so a text here is the text that the
engine was given. A message that is none in this shape is not guessed at: its call has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explorer.capture.recall import read_stored_reply, without_instructions
from explorer.errors import BadRequest, EngineMalformed
from explorer.export.dataset.rows import Texts
from explorer.export.importing import ENGINE as IMPORTED
from explorer.records import Body, BodyKind, Call, CallId, Dialect, RolloutRecord
from explorer.trace.jsontext import dump
from explorer.wire import chat, completions, google, messages, responses
from explorer.wire.ids import with_our_ids
from explorer.wire.neutral import Earlier, NeutralRequest
from explorer.wire.protocol import Wire
from explorer.wire.replyview import chosen, reasoning_of

_WIRES: dict[Dialect, Wire] = {
    Dialect.CHAT: chat,
    Dialect.COMPLETIONS: completions,
    Dialect.RESPONSES: responses,
    Dialect.MESSAGES: messages,
    Dialect.GOOGLE: google,
}
# A developer's words are a system's in every format that we write.
_ROLES = {"system": "system", "developer": "system", "user": "user"} | {
    role: role for role in ("assistant", "tool")
}
# How many earlier calls one request may lead back to.
_MOST_RECALLED = 200


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` as the text that it was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        text: its content where that is text; None where there is none.
        parts: its content where that is parts, as they came.
        tool_call_id: of a tool's result, where it names one.
    """

    role: str
    text: str | None = None
    parts: tuple[Mapping[str, Any], ...] | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def words(self) -> str:
        """The text of it, without pictures."""
        if self.parts is None:
            return self.text or ""
        found = (part.get("text") for part in self.parts if part.get("type") == "text")
        return "\n".join(text for text in found if isinstance(text, str))

    @property
    def wordless(self) -> tuple[str, ...]:
        """The kinds of its parts that are no text."""
        kinds = (part.get("type") for part in self.parts or ())
        return tuple(str(kind)[:40] for kind in kinds if kind != "text")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A call's conversation, and what it was answered with."""

    messages: tuple[Message, ...]
    reply: Message
    tools: tuple[Mapping[str, Any], ...]


class Reader:
    """Reads the calls of one rollout."""

    def __init__(self, record: RolloutRecord, texts: Texts) -> None:
        self._texts = texts
        self._calls = {call.call_id: call for call in record.calls}
        self._recalled: dict[CallId, Earlier | None] = {}
        # The ids of foreign tool calls were never replaced by ours.
        self._ours = record.rollout.engine_kind != IMPORTED

    def read(self, call: Call) -> Spoken | None:
        """None where a text is missing, or a message is none in our shape."""
        asked, answer = self._texts(call.call_id)
        reply = self._reply(call, answer)
        request = self._request(call, asked)
        if reply is None or request is None:
            return None
        said = [message_of(item) for item in _messages(request)]
        answered = message_of({"role": "assistant", **reply})
        if answered is None or not said or any(item is None for item in said):
            return None
        tools = tuple(tool for tool in request.tools if isinstance(tool, dict))
        return Spoken(tuple(item for item in said if item is not None), answered, tools)

    def _reply(self, call: Call, answer: str | None) -> Mapping[str, Any] | None:
        if answer is None:
            return None
        data = answer.encode()
        body = Body(call.call_id, call.rollout_id, BodyKind.REPLY, data)
        try:
            read = read_stored_reply(body).body
        except EngineMalformed:
            return None
        if read is None:
            return None
        _, message = chosen(with_our_ids(read, call.call_id) if self._ours else read)
        if not message:
            return None
        reasoning = reasoning_of(message)
        made = {**message, "role": "assistant"}
        return made | {"reasoning": reasoning} if reasoning else made

    def _request(self, call: Call, asked: str | None, depth: int = 0) -> NeutralRequest | None:
        if asked is None or depth > _MOST_RECALLED:
            return None
        wire, raw = _WIRES[call.dialect], asked.encode()
        try:
            request = wire.parse_request(raw)
            if not request.recall:
                return request
            earlier: dict[str, Earlier] = {}
            for name in request.recall:
                found = self._earlier(CallId(name), depth + 1)
                if found is None:
                    return None
                earlier[name] = found
            return wire.parse_request(raw, earlier=earlier)
        except (BadRequest, RecursionError):
            return None

    def _earlier(self, call_id: CallId, depth: int) -> Earlier | None:
        """A call that a request names instead of repeating it."""
        if call_id not in self._recalled:
            self._recalled[call_id] = self._read_earlier(call_id, depth)
        return self._recalled[call_id]

    def _read_earlier(self, call_id: CallId, depth: int) -> Earlier | None:
        call = self._calls.get(call_id)
        if call is None:
            return None
        asked, answer = self._texts(call_id)
        reply = self._reply(call, answer)
        request = self._request(call, asked, depth)
        if reply is None or request is None:
            return None
        said = without_instructions(_messages(request), request.asked.get("instructions"))
        return Earlier(tuple(said), reply)


def _messages(request: NeutralRequest) -> list[Any]:
    """The messages; the prompt of a plain completion is what its user said."""
    prompt = request.body.get("prompt")
    if request.dialect is Dialect.COMPLETIONS:
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
    return request.messages


def message_of(item: Any) -> Message | None:
    """A neutral message; None for what is none."""
    if not isinstance(item, Mapping):
        return None
    role = _ROLES.get(str(item.get("role")))
    content = item.get("content")
    calls = _tool_calls(item.get("tool_calls"))
    if role is None or calls is None:
        return None
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) for part in content):
            return None
    elif not isinstance(content, str | None):
        return None
    origin = item.get("tool_call_id")
    return Message(
        role=role,
        text=content if isinstance(content, str) else None,
        parts=tuple(content) if isinstance(content, list) else None,
        reasoning=(reasoning_of(item) or None) if role == "assistant" else None,
        tool_calls=calls if role == "assistant" else (),
        tool_call_id=origin if role == "tool" and isinstance(origin, str) else None,
    )


def _tool_calls(value: Any) -> tuple[ToolCall, ...] | None:
    """None where one of them is no call of a function."""
    if value is None:
        return ()
    if not isinstance(value, list):
        return None
    made = []
    for call in value:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            return None
        name, given, id_ = function.get("name"), function.get("arguments"), call.get("id")
        if not isinstance(name, str) or not isinstance(id_, str | None):
            return None
        if given is None:
            given = ""
        arguments = given if isinstance(given, str) else dump(given).decode()
        made.append(ToolCall(id_ or "", name, arguments))
    return tuple(made)


def digest_of(message: Message) -> bytes:
    """Equal for equal messages."""
    return dump(
        [
            *(message.role, message.text, message.parts, message.reasoning),
            *([[call.id, call.name, call.arguments] for call in message.tool_calls],),
            message.tool_call_id,
        ]
    )
