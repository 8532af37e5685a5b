"""A Google generateContent request as a neutral chat request.

Owns: which parts become which messages, how calls and results find each other, and the
parameters an engine is given.
Must not know: replies, tools (`google_tools` does).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from explorer.errors import BadRequest
from explorer.records import Dialect
from explorer.wire import reading
from explorer.wire.claims import body_claims
from explorer.wire.echo import arguments_sent, unsign
from explorer.wire.google_schema import json_schema
from explorer.wire.google_tools import add_tools, listed, part_object, pick
from explorer.wire.jsonbytes import read_object
from explorer.wire.neutral import Earlier, NeutralRequest, Wants
from explorer.wire.protocol import PLAIN, Target
from explorer.wire.reading import Notes
from explorer.wire.turns import (
    UserTurn,
    assistant,
    content_of,
    image_part,
    text_part,
    tool_call,
)

# Neutral name, and how the value is read, by Google's name.
_PARAMETERS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "temperature": ("temperature", reading.number),
    "topP": ("top_p", reading.number),
    "topK": ("top_k", reading.whole),
    "maxOutputTokens": ("max_tokens", reading.whole),
    "seed": ("seed", reading.whole),
    "presencePenalty": ("presence_penalty", reading.number),
    "frequencyPenalty": ("frequency_penalty", reading.number),
}
_CALLERS = ("user", "function", "tool")
_SERVER_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")


def parse_request(
    raw: bytes, target: Target = PLAIN, earlier: Mapping[str, Earlier] | None = None
) -> NeutralRequest:
    """The caller's request, also one for counting, which may wrap another.

    `asked` has ``alt`` (``sse`` or ``json``) from the address beside the caller's fields.

    Raises:
        BadRequest: not JSON, not an object, no contents, more than one candidate, or a
            value of the wrong type.
    """
    asked = read_object(raw)
    wrapped = pick(asked, "generateContentRequest")
    if wrapped is not None:
        asked = reading.mapping(wrapped, "generateContentRequest")
    notes = Notes()
    body: dict[str, Any] = {}
    model = target.model if target.model is not None else asked.get("model")
    if model is not None:
        body["model"] = reading.text(model, "model").removeprefix("models/")
    body["messages"] = _conversation(asked, notes)
    add_tools(body, asked, notes)
    _add_parameters(body, part_object(asked, "generationConfig", ""))
    return NeutralRequest(
        dialect=Dialect.GOOGLE,
        body=body,
        stream=target.stream is True,
        wants=Wants(),
        asked=asked | {"alt": "sse" if target.sse else "json"},
        claims=body_claims(asked),
        notes=notes.all(),
    )


def _conversation(asked: Mapping[str, Any], notes: Notes) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    system = pick(asked, "systemInstruction")
    if system is not None:
        texts = [
            reading.text(part.get("text"), f"{where}.text")
            for where, part in _parts(system, "systemInstruction")
            if part.get("text") is not None
        ]
        if texts:
            made.append({"role": "system", "content": "\n".join(texts)})
    contents = asked.get("contents")
    contents = [contents] if isinstance(contents, str) else listed(contents, "contents")
    if not contents:
        raise BadRequest("`contents` must be a non-empty array", param="contents")
    calls = _OpenCalls()
    for place, entry in enumerate(contents):
        path = f"contents[{place}]"
        role = entry.get("role") if isinstance(entry, dict) else None
        if role == "model":
            made.append(_model_turn(entry, path, calls, notes))
        elif role is None or role in _CALLERS:
            made += _user_turn(entry, path, calls, notes)
        else:
            raise reading.wrong(f"{path}.role", "`user` or `model`")
    return made


def _parts(content: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """(path, part) of a content, which may also be a text or a list of parts."""
    if isinstance(content, dict) and ("parts" in content or "role" in content):
        content, path = content.get("parts"), f"{path}.parts"
    if isinstance(content, str):
        return [(path, {"text": content})]
    found = []
    for place, part in enumerate(listed(content, path)):
        where = f"{path}[{place}]"
        part = {"text": part} if isinstance(part, str) else part
        found.append((where, reading.mapping(part, where)))
    return found


class _OpenCalls:
    """Calls that have no result yet: older clients give neither calls nor results ids."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._made = 0

    def call(self, given: Any, name: str) -> str:
        """The id of a call."""
        tool_id = given if isinstance(given, str) and given else f"call_{self._made}"
        self._made += 1
        self._open.append((tool_id, name))
        return tool_id

    def result(self, given: Any, name: str) -> str | None:
        """The id of the call that a result is for; None when no call is open."""
        if isinstance(given, str) and given:
            self._open = [pair for pair in self._open if pair[0] != given]
            return given
        named = [pair for pair in self._open if pair[1] == name] or self._open
        if not named:
            return None
        found = named[0]
        self._open.remove(found)
        return found[0]


def _model_turn(
    content: Any, path: str, open_calls: _OpenCalls, notes: Notes
) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    signed: list[str] = []
    calls: list[dict[str, Any]] = []
    for where, part in _parts(content, path):
        kept = unsign(pick(part, "thoughtSignature"))
        if kept is not None:
            signed.append(kept)
        call = pick(part, "functionCall")
        if call is not None:
            call = reading.mapping(call, f"{where}.functionCall")
            name = reading.text(call.get("name"), f"{where}.functionCall.name")
            written = arguments_sent(call.get("args"), f"{where}.functionCall.args")
            calls.append(tool_call(open_calls.call(call.get("id"), name), name, written))
        elif part.get("text") is not None:
            text = reading.text(part["text"], f"{where}.text")
            (thoughts if part.get("thought") is True else texts).append(text)
        else:
            _note_dropped(part, notes)
    # A thought that the client threw away is still in a signature; of two the later, and so
    # longer, one is of the whole reasoning.
    reasoning = "".join(thoughts) or max(signed, key=len, default="")
    return assistant("".join(texts), reasoning, calls)


def _user_turn(
    content: Any, path: str, open_calls: _OpenCalls, notes: Notes
) -> list[dict[str, Any]]:
    turn = UserTurn()
    for where, part in _parts(content, path):
        answer = pick(part, "functionResponse")
        if answer is None:
            made = _part(part, where, notes)
            if made is not None:
                turn.part(made)
            continue
        answer = reading.mapping(answer, f"{where}.functionResponse")
        name = answer.get("name")
        name = name if isinstance(name, str) else ""
        tool_id = open_calls.result(answer.get("id"), name)
        if tool_id is None:
            notes.add("tool_result_unpaired", name)
            tool_id = f"unpaired_{name}"
        turn.result(tool_id, _result(answer, f"{where}.functionResponse", notes))
    return turn.messages()


def _result(answer: Mapping[str, Any], path: str, notes: Notes) -> str | list[dict[str, Any]]:
    told = _told(answer.get("response"), f"{path}.response")
    more = [
        _part(part, where, notes)
        for where, part in _parts(answer.get("parts"), f"{path}.parts")
    ]
    shown = [part for part in more if part is not None]
    return content_of([text_part(told), *shown]) if shown else told


def _told(response: Any, path: str) -> str:
    """The result's own text where a wrapper of one text is all there is."""
    if response is None:
        return ""
    if isinstance(response, str):
        return response
    if isinstance(response, dict) and len(response) == 1:
        inner = response.get("output", response.get("result"))
        if isinstance(inner, str):
            return inner
    return reading.compact(response, path)


def _part(part: Mapping[str, Any], path: str, notes: Notes) -> dict[str, Any] | None:
    """A part as a part of content; None, with a note, for what an engine cannot take."""
    if part.get("text") is not None:
        return text_part(reading.text(part["text"], f"{path}.text"))
    inline = part_object(part, "inlineData", f"{path}.")
    media, data = pick(inline, "mimeType"), inline.get("data")
    if isinstance(media, str) and isinstance(data, str):
        # Python's client writes URL-safe letters, which a data: URL does not know.
        data = data.replace("-", "+").replace("_", "/")
        if media.startswith("image/"):
            return image_part(f"data:{media};base64,{data}")
        if media.startswith("text/"):
            try:
                return text_part(base64.b64decode(data, validate=True).decode())
            except ValueError:
                pass
    file = part_object(part, "fileData", f"{path}.")
    media, uri = pick(file, "mimeType"), pick(file, "fileUri")
    if isinstance(uri, str) and (media is None or str(media).startswith("image/")):
        return image_part(uri)
    _note_dropped(part, notes)
    return None


def _note_dropped(part: Mapping[str, Any], notes: Notes) -> None:
    for key in ("inlineData", "fileData", *_SERVER_PARTS):
        if pick(part, key) is not None:
            notes.add("part_dropped", key)
            return
    if pick(part, "thoughtSignature") is None:
        notes.add("part_dropped", next(iter(part), ""))


def _add_parameters(body: dict[str, Any], config: Mapping[str, Any]) -> None:
    where = "generationConfig."
    if pick(config, "candidateCount") not in (None, 1):
        raise BadRequest(
            "`generationConfig.candidateCount` must be 1: each call is one node of the turn "
            "tree; send one request per sample instead",
            param="generationConfig.candidateCount",
        )
    for name, (neutral, read) in _PARAMETERS.items():
        value = pick(config, name)
        if value is not None:
            body[neutral] = read(value, where + name)
    stop = reading.texts(pick(config, "stopSequences"), f"{where}stopSequences")
    if stop:
        body["stop"] = stop
    answer = _response_format(config)
    if answer is not None:
        body["response_format"] = answer
    thinking = _enable_thinking(part_object(config, "thinkingConfig", where))
    if thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": thinking}


def _response_format(config: Mapping[str, Any]) -> dict[str, Any] | None:
    media = pick(config, "responseMimeType")
    if media not in (None, "application/json"):
        return None
    schema = pick(config, "responseJsonSchema")
    if schema is None:
        schema = config.get("_responseJsonSchema")
    if schema is None:
        schema = json_schema(pick(config, "responseSchema"))
    if isinstance(schema, dict):
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    return {"type": "json_object"} if media is not None else None


def _enable_thinking(config: Mapping[str, Any]) -> bool | None:
    budget = pick(config, "thinkingBudget")
    if budget is not None:
        return bool(budget != 0)
    if pick(config, "thinkingLevel") is not None or pick(config, "includeThoughts") is True:
        return True
    return None
