"""An Anthropic Messages request as a neutral chat request.

Owns: which blocks become which messages, and the parameters an engine is given.
Must not know: replies, tools (`messages_tools` does).

What an engine has no use for is left out and never refused: Claude Code answers a 400 by
changing its request step by step.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from explorer.errors import BadRequest
from explorer.records import Dialect
from explorer.wire import reading
from explorer.wire.claims import body_claims
from explorer.wire.echo import arguments_sent, unsign
from explorer.wire.jsonbytes import read_object
from explorer.wire.messages_tools import add_tools
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

_NUMBERS = (("temperature", reading.number), ("top_p", reading.number))
_WHOLES = (("max_tokens", reading.whole), ("top_k", reading.whole))


def parse_request(
    raw: bytes, target: Target = PLAIN, earlier: Mapping[str, Earlier] | None = None
) -> NeutralRequest:
    """The caller's request, also one for counting; `target` and `earlier` say nothing here.

    Raises:
        BadRequest: not JSON, not an object, no messages, or a value of the wrong type.
    """
    asked = read_object(raw)
    notes = Notes()
    body: dict[str, Any] = {}
    if asked.get("model") is not None:
        body["model"] = reading.text(asked["model"], "model")
    body["messages"] = _conversation(asked, notes)
    add_tools(body, asked, notes)
    _add_parameters(body, asked)
    return NeutralRequest(
        dialect=Dialect.MESSAGES,
        body=body,
        stream=asked.get("stream") is True,
        wants=Wants(),
        asked=asked,
        claims=body_claims(asked),
        notes=notes.all(),
    )


def _conversation(asked: Mapping[str, Any], notes: Notes) -> list[dict[str, Any]]:
    sent = reading.items(asked.get("messages"), "messages")
    if not sent:
        raise BadRequest("`messages` must be a non-empty array", param="messages")
    made: list[dict[str, Any]] = []
    system = asked.get("system")
    if system is not None and system != [] and system != "":
        made.append(_system(system, "system", notes))
    for place, entry in enumerate(sent):
        path = f"messages[{place}]"
        message = reading.mapping(entry, path)
        role = message.get("role")
        content = message.get("content")
        if role == "user":
            made += _user(content, f"{path}.content", notes)
        elif role == "assistant":
            made.append(_assistant(content, f"{path}.content", notes))
        elif role in ("system", "developer"):
            made.append(_system(content, f"{path}.content", notes))
        else:
            raise reading.wrong(f"{path}.role", "`user`, `assistant` or `system`")
    return made


def _blocks(content: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """(path, block) of content, which may be a plain text."""
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    if isinstance(content, dict):
        raise reading.wrong(path, "a string or an array of blocks")
    return [
        (f"{path}[{place}]", reading.mapping(block, f"{path}[{place}]"))
        for place, block in enumerate(reading.items(content, path))
    ]


def _system(content: Any, path: str, notes: Notes) -> dict[str, Any]:
    """One text: several templates read only the first part of a system message."""
    texts = []
    for where, block in _blocks(content, path):
        if block.get("type") == "text":
            texts.append(reading.text(block.get("text"), f"{where}.text"))
        else:
            notes.add("block_dropped", block.get("type"))
    return {"role": "system", "content": "\n".join(texts)}


def _user(content: Any, path: str, notes: Notes) -> list[dict[str, Any]]:
    turn = UserTurn()
    for where, block in _blocks(content, path):
        if block.get("type") == "tool_result":
            tool_id = reading.text(block.get("tool_use_id"), f"{where}.tool_use_id")
            turn.result(tool_id, _result(block.get("content"), f"{where}.content", notes))
            continue
        part = _part(block, where, notes)
        if part is not None:
            turn.part(part)
    return turn.messages()


def _result(content: Any, path: str, notes: Notes) -> str | list[dict[str, Any]]:
    """A tool's result: one text where it is text only, so that a cache mark, which turns a
    text into a list of one, changes nothing."""
    made = [_part(block, where, notes) for where, block in _blocks(content, path)]
    parts = [part for part in made if part is not None]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return content_of(parts)


def _part(block: Mapping[str, Any], path: str, notes: Notes) -> dict[str, Any] | None:
    """A block as a part of content; None, with a note, for what an engine cannot take."""
    kind = block.get("type")
    if kind == "text":
        return text_part(reading.text(block.get("text"), f"{path}.text"))
    if kind == "image":
        url = _image_url(reading.mapping(block.get("source"), f"{path}.source"))
        if url is not None:
            return image_part(url)
    elif kind == "document":
        told = _document(reading.mapping(block.get("source"), f"{path}.source"))
        if told is not None:
            return text_part(told)
    elif kind == "search_result":
        found = [
            inner["text"]
            for inner in reading.items(block.get("content"), f"{path}.content")
            if isinstance(inner, dict) and isinstance(inner.get("text"), str)
        ]
        head = [
            entry for key in ("title", "source") if isinstance(entry := block.get(key), str)
        ]
        return text_part("\n".join((*head, *found)))
    elif kind == "tool_reference" and isinstance(block.get("tool_name"), str):
        return text_part(f"Tool loaded: {block['tool_name']}")
    notes.add("block_dropped", kind)
    return None


def _image_url(source: Mapping[str, Any]) -> str | None:
    kind, media, data = source.get("type"), source.get("media_type"), source.get("data")
    if kind == "base64" and isinstance(media, str) and isinstance(data, str):
        return f"data:{media};base64,{data}"
    url = source.get("url")
    return url if kind == "url" and isinstance(url, str) else None


def _document(source: Mapping[str, Any]) -> str | None:
    kind, data, media = source.get("type"), source.get("data"), source.get("media_type")
    if kind == "text" and isinstance(data, str):
        return data
    if kind == "base64" and isinstance(data, str) and str(media).startswith("text/"):
        try:
            return base64.b64decode(data, validate=True).decode()
        except ValueError:
            return None
    content = source.get("content")
    if kind == "content" and isinstance(content, str):
        return content
    if kind == "content" and isinstance(content, list):
        texts = [
            block["text"]
            for block in content
            if isinstance(block, dict) and isinstance(block.get("text"), str)
        ]
        return "\n".join(texts) if texts else None
    return None


def _assistant(content: Any, path: str, notes: Notes) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for where, block in _blocks(content, path):
        kind = block.get("type")
        if kind == "text":
            texts.append(reading.text(block.get("text"), f"{where}.text"))
        elif kind in ("thinking", "redacted_thinking"):
            thought = _thought(block)
            if thought is None:
                notes.add("thinking_dropped", kind)
            else:
                thoughts.append(thought)
        elif kind == "tool_use":
            calls.append(
                tool_call(
                    reading.text(block.get("id"), f"{where}.id"),
                    reading.text(block.get("name"), f"{where}.name"),
                    arguments_sent(block.get("input"), f"{where}.input"),
                )
            )
        else:
            notes.add("block_dropped", kind)
    # Texts of one turn are pieces of one reply: nothing stood between them.
    return assistant("".join(texts), "".join(thoughts), calls)


def _thought(block: Mapping[str, Any]) -> str | None:
    """The reasoning of a block; out of the signature where the text was withheld."""
    if block.get("type") == "redacted_thinking":
        return unsign(block.get("data"))
    shown = block.get("thinking")
    if isinstance(shown, str) and shown:
        return shown
    return unsign(block.get("signature"))


def _add_parameters(body: dict[str, Any], asked: Mapping[str, Any]) -> None:
    for name, read in (*_WHOLES, *_NUMBERS):
        if asked.get(name) is not None:
            body[name] = read(asked[name], name)
    stop = reading.texts(asked.get("stop_sequences"), "stop_sequences")
    if stop:
        body["stop"] = stop
    kwargs = _template_kwargs(asked)
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    answer = _response_format(asked)
    if answer is not None:
        body["response_format"] = answer
    last = body["messages"][-1]
    if last["role"] == "assistant" and last["content"] and not last.get("tool_calls"):
        # Here an assistant turn at the end is the beginning of the reply.
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False


def _template_kwargs(asked: Mapping[str, Any]) -> dict[str, Any]:
    """``chat_template_kwargs`` is vLLM's own addition to this dialect."""
    own = asked.get("chat_template_kwargs")
    kwargs = dict(own) if isinstance(own, dict) else {}
    thinking = asked.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind in ("enabled", "adaptive"):
        kwargs.setdefault("enable_thinking", True)
    elif kind == "disabled":
        kwargs.setdefault("enable_thinking", False)
    return kwargs


def _response_format(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    config = asked.get("output_config")
    answer = config.get("format") if isinstance(config, dict) else None
    if answer is None:
        answer = asked.get("output_format")
    if not isinstance(answer, dict) or answer.get("type") != "json_schema":
        return None
    schema = reading.mapping(answer.get("schema"), "output_config.format.schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
