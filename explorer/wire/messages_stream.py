"""Anthropic Messages: a reply as events, and events as a reply again.

Owns: the order of events, and what is held back until the whole reply is known.
Must not know: chat completions; it is given the served message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from explorer.wire import sse
from explorer.wire.echo import Arguments, arguments_shown, sign, unsign
from explorer.wire.jsonbytes import encode

_NO_USAGE = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}


class MessagesStreamer:
    """The events of one message.

    Blocks never overlap. A thinking block is closed, and so signed, when text begins;
    reasoning sampled after that is held back and becomes a block of its own, which
    `merge` and `messages_request` join to the first.
    """

    def __init__(self, message_id: str, model: str, thinking_shown: bool) -> None:
        self._id, self._model = message_id, model
        self._shown = thinking_shown
        self._started = False
        self._open: str | None = None
        self._blocks = 0
        self._thought = ""
        self._block_thought = ""
        self._text = 0

    def live(self, reasoning: str, text: str) -> bytes:
        """Events for what has just been sampled; the first call begins the message."""
        events = [] if self._started else [self._start(_NO_USAGE)]
        if reasoning and not self._text:
            events += self._think(reasoning)
        if text:
            events += self._write(text)
        return b"".join(events)

    def finish(self, served: Mapping[str, Any]) -> bytes:
        """Every event that is still missing.

        Raises:
            EngineMalformed: it is nested too deeply to be written.
        """
        events: list[bytes] = []
        usage = served["usage"]
        if not self._started:
            self._model = served["model"]
            events.append(self._start(usage | {"output_tokens": 0}))
        thinking = _only(served["content"], "thinking")
        if thinking is not None and not self._text:
            events += self._think_rest(thinking)
            thinking = None
        text = _only(served["content"], "text")
        if text is not None:
            events += self._write(text["text"][self._text :])
        if thinking is not None:
            events += self._think_rest(thinking)
        events += self._close()
        for block in served["content"]:
            if block["type"] == "tool_use":
                events += self._tool(block)
        delta = {key: served[key] for key in ("stop_reason", "stop_sequence")}
        if served["model"] != self._model:
            delta["model"] = served["model"]
        events.append(_event("message_delta", delta=delta, usage=usage))
        events.append(_event("message_stop"))
        return b"".join(events)

    def _start(self, usage: Mapping[str, Any]) -> bytes:
        self._started = True
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event("message_start", message=message)

    def _think_rest(self, block: Mapping[str, Any]) -> list[bytes]:
        whole = unsign(block["signature"]) or ""
        rest = whole[len(self._thought) :]
        return self._think(rest) if rest else []

    def _think(self, piece: str) -> list[bytes]:
        events = []
        if self._open != "thinking":
            events += self._begin({"type": "thinking", "thinking": "", "signature": ""})
        self._thought += piece
        self._block_thought += piece
        if self._shown:
            events.append(self._delta({"type": "thinking_delta", "thinking": piece}))
        return events

    def _write(self, piece: str) -> list[bytes]:
        if not piece:
            return []
        events = [] if self._open == "text" else self._begin({"type": "text", "text": ""})
        self._text += len(piece)
        return [*events, self._delta({"type": "text_delta", "text": piece})]

    def _tool(self, block: Mapping[str, Any]) -> list[bytes]:
        shown = block["input"]
        # A reply read back from storage has no text of its own any more.
        written = shown.written if isinstance(shown, Arguments) else encode(shown).decode()
        events = self._begin(dict(block) | {"input": {}})
        if written:
            events.append(self._delta({"type": "input_json_delta", "partial_json": written}))
        return events + self._close()

    def _begin(self, block: Mapping[str, Any]) -> list[bytes]:
        events = self._close()
        self._open = block["type"]
        events.append(
            _event("content_block_start", index=self._blocks, content_block=dict(block))
        )
        return events

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        events = []
        if self._open == "thinking":
            signature = sign(self._block_thought)
            events.append(self._delta({"type": "signature_delta", "signature": signature}))
            self._block_thought = ""
        events.append(_event("content_block_stop", index=self._blocks))
        self._open = None
        self._blocks += 1
        return events


def _event(kind: str, **fields: Any) -> bytes:
    return sse.encode(encode({"type": kind} | fields), kind)


def _only(content: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    return next((block for block in content if block["type"] == kind), None)


def merge(events: Iterable[sse.Event]) -> dict[str, Any]:
    """The message that a client reads from a stream; ``_error`` holds an error event's
    object."""
    message: dict[str, Any] = {}
    blocks: dict[Any, dict[str, Any]] = {}
    for event in events:
        told = json.loads(event.data)
        if not isinstance(told, dict):
            continue
        kind = told.get("type")
        if kind == "message_start":
            message = dict(told["message"])
        elif kind == "content_block_start":
            blocks[told.get("index")] = dict(told["content_block"])
        elif kind == "content_block_delta" and told.get("index") in blocks:
            _add_delta(blocks[told["index"]], told["delta"])
        elif kind == "message_delta":
            message |= told.get("delta") or {}
            message["usage"] = (message.get("usage") or {}) | (told.get("usage") or {})
        elif kind == "error":
            message["_error"] = told.get("error")
    message["content"] = _folded([_closed(block) for block in blocks.values()])
    return message


def _add_delta(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    kind = delta.get("type")
    if kind == "input_json_delta":
        block["_written"] = block.get("_written", "") + delta["partial_json"]
    elif kind == "signature_delta":
        block["signature"] = delta["signature"]
    elif kind in ("text_delta", "thinking_delta"):
        key = kind.removesuffix("_delta")
        block[key] = block.get(key, "") + delta[key]


def _closed(block: dict[str, Any]) -> dict[str, Any]:
    written = block.pop("_written", None)
    if block.get("type") == "tool_use":
        block["input"] = arguments_shown(written)
    return block


def _folded(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasoning that we cut in two is one block again, before everything else."""
    thinking = [block for block in blocks if block.get("type") == "thinking"]
    parts = [unsign(block.get("signature")) for block in thinking]
    ours = [part for part in parts if part is not None]
    if not thinking or len(ours) != len(thinking):
        return blocks
    whole = {
        "type": "thinking",
        "thinking": "".join(block["thinking"] for block in thinking),
        "signature": sign("".join(ours)),
    }
    return [whole, *(block for block in blocks if block.get("type") != "thinking")]
