"""Input items of a Responses request as chat messages.

Owns: what each item says, and where one assistant turn ends and the next begins.
Must not know: tools' schemas, replies, the store.

A client sends the items of a turn one by one, with or without their ids, so turns are told
by order: reasoning, then text, then calls. Ids of ours are better evidence where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.errors import BadRequest
from explorer.records import Note
from explorer.wire import ids
from explorer.wire.echo import unsign
from explorer.wire.neutral import Earlier
from explorer.wire.responses_tools import (
    Manifest,
    as_json,
    custom_arguments,
    shell_arguments,
    shown,
)

ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_REASONING, _TEXT, _CALL = 1, 2, 3


def reasoning_text(item: Mapping[str, Any]) -> str | None:
    """What a reasoning item says, from the most exact place; None when nothing is readable."""
    whole = _texts(item.get("content"))
    if whole:
        return "".join(whole)
    sealed = unsign(item.get("encrypted_content"))
    if sealed is not None:
        return sealed
    summary = _texts(item.get("summary"))
    return "\n".join(summary) if summary else None


def _texts(parts: Any) -> list[str]:
    return [
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]


def parts_of(content: Any, notes: list[Note]) -> str | list[dict[str, Any]]:
    """Chat content; one text part and a plain text are the same.

    Raises:
        BadRequest: neither text nor a list.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest("`content` must be text or an array of parts", param="input")
    made = [part for part in (_part(item, notes) for item in content) if part is not None]
    if not made:
        return ""
    if len(made) == 1 and made[0]["type"] == "text":
        text: str = made[0]["text"]
        return text
    return made


def _part(item: Any, notes: list[Note]) -> dict[str, Any] | None:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    kind = item.get("type") if isinstance(item, dict) else None
    if isinstance(item, dict) and isinstance(kind, str):
        if kind in _TEXTS and isinstance(item.get("text"), str):
            return {"type": "text", "text": item["text"]}
        if kind == "refusal" and isinstance(item.get("refusal"), str):
            return {"type": "text", "text": item["refusal"]}
        if kind == "input_image" and isinstance(item.get("image_url"), str):
            image = {"url": item["image_url"]}
            if isinstance(item.get("detail"), str):
                image["detail"] = item["detail"]
            return {"type": "image_url", "image_url": image}
        if kind == "input_audio" and isinstance(item.get("input_audio"), dict):
            return {"type": "input_audio", "input_audio": item["input_audio"]}
    notes.append(Note("content_part_dropped", shown(kind)))
    return None


def assistant_turn(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant message of an earlier reply, as an echo of it would read."""
    turn: dict[str, Any] = {"role": "assistant", "content": reply.get("content")}
    reasoning = reply.get("reasoning") or reply.get("reasoning_content")
    if reasoning:
        turn["reasoning"] = reasoning
    calls = reply.get("tool_calls")
    if isinstance(calls, list) and calls:
        turn["tool_calls"] = calls
    return turn


class Conversation:
    """Messages, built item by item.

    Args:
        manifest: for the neutral names of tools.
        earlier: replies that items may refer to; None before they were looked up.
    """

    def __init__(self, manifest: Manifest, earlier: Mapping[str, Earlier] | None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.notes: list[Note] = []
        self.recall: list[str] = []
        self._manifest, self._earlier = manifest, earlier
        self._turn: dict[str, Any] | None = None
        self._stage = 0
        self._origin: str | None = None
        # The last turn, as long as nothing but results of its calls came after it.
        self._answered: tuple[dict[str, Any], str | None] | None = None

    def add(self, item: Any) -> None:
        """One entry of ``input``.

        Raises:
            BadRequest: it cannot be understood; an item of an unknown type is left out.
        """
        if not isinstance(item, dict):
            raise BadRequest("every entry of `input` must be an object", param="input")
        kind = item.get("type")
        if kind is None:
            named = "role" in item or "content" in item or "id" not in item
            kind = "message" if named else "item_reference"
        if kind == "message":
            self._message(item)
        elif kind == "reasoning":
            text = reasoning_text(item)
            if text is None:
                self.notes.append(Note("reasoning_unreadable", shown(item.get("id"))))
            self.reasoning(text, ids.origin_of_item(item.get("id")))
        elif kind in CALLS:
            self._call(item, kind)
        elif kind in OUTPUTS:
            self._output(item)
        elif kind == "item_reference":
            self._reference(item.get("id"))
        else:
            self.notes.append(Note("input_item_dropped", shown(kind)))

    def close(self) -> list[dict[str, Any]]:
        """All messages; a turn of which nothing could be read is none."""
        self._end()
        return self.messages

    def append(self, message: dict[str, Any]) -> None:
        """A message that is no part of an assistant turn."""
        self._end()
        self._answered = None
        self.messages.append(message)

    def _end(self) -> None:
        turn, self._turn, self._stage = self._turn, None, 0
        if turn is not None and not _says_something(turn):
            self.messages.remove(turn)

    def _in_turn(self, stage: int, origin: str | None) -> dict[str, Any]:
        """The turn that a piece belongs to: the one being built, or a new one."""
        other = None not in (origin, self._origin) and origin != self._origin
        if self._turn is not None and (other or (stage < _CALL and self._stage >= stage)):
            self._end()
            self._answered = None
        if self._turn is None:
            if stage == _CALL and origin is not None and self._answered is not None:
                turn, known = self._answered
                if known == origin:
                    # Calls of one reply, each followed by its result, are one turn.
                    return turn
            self._turn = {"role": "assistant", "content": None}
            self._origin = None
            self._answered = None
            self.messages.append(self._turn)
        self._stage = max(self._stage, stage)
        self._origin = self._origin or origin
        return self._turn

    def reasoning(self, text: str | None, origin: str | None) -> None:
        """Reasoning; it begins a turn always. None is reasoning that nobody can read."""
        turn = self._in_turn(_REASONING, origin)
        if text:
            turn["reasoning"] = text

    def text(self, text: str, origin: str | None) -> None:
        """The text of an assistant message."""
        self._in_turn(_TEXT, origin)["content"] = text

    def call(self, call: dict[str, Any], origin: str | None) -> None:
        """One tool call."""
        self._in_turn(_CALL, origin).setdefault("tool_calls", []).append(call)

    def _message(self, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise BadRequest(
                f"the `role` of a message must be one of {', '.join(ROLES)}", param="input"
            )
        content = parts_of(item.get("content"), self.notes)
        if role == "assistant":
            said = content if isinstance(content, str) else "".join(_texts(content))
            self.text(said, ids.origin_of_item(item.get("id")))
        else:
            self.append({"role": ROLES[role], "content": content})

    def _call(self, item: Mapping[str, Any], kind: str) -> None:
        tool_id = _call_id(item)
        name, space = item.get("name"), item.get("namespace")
        if kind == "local_shell_call":
            name, arguments = "local_shell", shell_arguments(item.get("action"))
        elif kind == "custom_tool_call":
            arguments = custom_arguments(_as_text(item.get("input")))
        else:
            arguments = _as_text(item.get("arguments"))
        if not isinstance(name, str):
            raise BadRequest(f"a {kind} needs a `name`", param="input")
        neutral = self._manifest.known_as(name, space if isinstance(space, str) else None)
        function = {"name": neutral, "arguments": arguments}
        found = ids.origin_of_tool(tool_id)
        origin = found[0] if found else ids.origin_of_item(item.get("id"))
        self.call({"id": tool_id, "type": "function", "function": function}, origin)

    def _output(self, item: Mapping[str, Any]) -> None:
        tool_id = _call_id(item)
        output = item.get("output")
        content = parts_of(output, self.notes) if isinstance(output, list) else _as_text(output)
        if self._turn is not None:
            turn, origin = self._turn, self._origin
            self._end()
            self._answered = (turn, origin) if _says_something(turn) else None
        self.messages.append({"role": "tool", "tool_call_id": tool_id, "content": content})

    def _reference(self, value: Any) -> None:
        origin = ids.origin_of_item(value)
        if origin is not None and self._earlier is None:
            self.recall.append(origin)
            return
        found = None if origin is None else (self._earlier or {}).get(origin)
        if origin is None or found is None or not self._recalled(value, origin, found.reply):
            raise BadRequest(f"Item with id '{shown(value)}' not found.", param="input")

    def _recalled(self, value: str, origin: str, reply: Mapping[str, Any]) -> bool:
        """Puts the named part of an earlier reply in place; False when it has no such part."""
        turn = assistant_turn(reply)
        prefix, _, _ = value.partition("_")
        if prefix == "rs" and isinstance(turn.get("reasoning"), str):
            self.reasoning(turn["reasoning"], origin)
        elif prefix == "msg" and isinstance(turn["content"], str):
            self.text(turn["content"], origin)
        elif prefix in ("fc", "ct"):
            place = value.removeprefix(f"{prefix}_{origin}").removeprefix("_")
            calls = turn.get("tool_calls", [])
            if not place or int(place) >= len(calls) or not isinstance(calls[int(place)], dict):
                return False
            self.call(calls[int(place)], origin)
        else:
            return False
        return True


def _says_something(turn: Mapping[str, Any]) -> bool:
    return turn["content"] is not None or "reasoning" in turn or "tool_calls" in turn


def _call_id(item: Mapping[str, Any]) -> str:
    for key in ("call_id", "id"):
        value = item.get(key)
        if isinstance(value, str) and value:
            return _tool_of_item(value) if key == "id" else value
    raise BadRequest(f"a {item.get('type')} needs a `call_id`", param="input")


def _tool_of_item(value: str) -> str:
    """The tool-call id that belongs to an item id of ours; local shells answer with that."""
    origin = ids.origin_of_item(value)
    place = value.rpartition("_")[2]
    if origin is None or not place.isdigit():
        return value
    return ids.tool_call_id(origin, int(place))


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)
