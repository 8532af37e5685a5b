"""A Response as server-sent events, and back.

Owns: the order of events and what stays open while pieces come.
Must not know: how the Response was made, engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from explorer.wire import ids, sse
from explorer.wire.jsonbytes import encode
from explorer.wire.neutral import NeutralRequest
from explorer.wire.responses_reply import (
    message_item,
    reasoning_item,
    skeleton,
    text_part,
)

_ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(slots=True)
class _Open:
    """An item that was begun before the reply was whole."""

    index: int
    sent: str = ""
    closed: bool = False


class ResponsesStreamer:
    """The events of one Response, numbered."""

    def __init__(self, request: NeutralRequest, call_id: str, model: str) -> None:
        self._request, self.call_id, self._model = request, call_id, model
        self.number = 0
        self._items = 0
        self._open: dict[str, _Open] = {}

    def _event(self, kind: str, **fields: Any) -> bytes:
        told = {"type": kind, "sequence_number": self.number} | fields
        self.number += 1
        return sse.encode(encode(told), kind)

    def _head(self, response: Mapping[str, Any]) -> list[bytes]:
        if self.number:
            return []
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def live(self, reasoning: str, text: str) -> bytes:
        """Deltas of what was just sampled. Reasoning is over where text begins: an item must
        be closed before the next one opens."""
        events = self._head(skeleton(self._request, self.call_id, self._model, 0))
        if reasoning and "message" not in self._open:
            events += self._reasoning_delta(reasoning)
        if text:
            events += self._close_reasoning()
            events += self._text_delta(text)
        return b"".join(events)

    def _begin(self, kind: str) -> _Open:
        found = self._open[kind] = _Open(self._items)
        self._items += 1
        return found

    def _reasoning_delta(self, text: str) -> list[bytes]:
        events, place = [], self._open.get("reasoning")
        item_id = ids.item_id("rs", self.call_id)
        if place is None:
            place = self._begin("reasoning")
            item = {"id": item_id, "type": "reasoning", "summary": []}
            events.append(
                self._event("response.output_item.added", output_index=place.index, item=item)
            )
            part = {"type": "summary_text", "text": ""}
            at = {"item_id": item_id, "output_index": place.index, "summary_index": 0}
            events.append(self._event("response.reasoning_summary_part.added", **at, part=part))
        at = {"item_id": item_id, "output_index": place.index, "summary_index": 0}
        if text:
            place.sent += text
            events.append(
                self._event("response.reasoning_summary_text.delta", **at, delta=text)
            )
        return events

    def _close_reasoning(self, item: Mapping[str, Any] | None = None) -> list[bytes]:
        """The closing events: of `item`, or of what was sent so far."""
        place = self._open.get("reasoning")
        if place is None or place.closed:
            return []
        place.closed = True
        whole = item or reasoning_item(place.sent, self._request, self.call_id)
        part = whole["summary"][0]
        at = {"item_id": whole["id"], "output_index": place.index, "summary_index": 0}
        return [
            self._event("response.reasoning_summary_text.done", **at, text=part["text"]),
            self._event("response.reasoning_summary_part.done", **at, part=part),
            self._event("response.output_item.done", output_index=place.index, item=whole),
        ]

    def _text_delta(self, text: str) -> list[bytes]:
        events, place = [], self._open.get("message")
        if place is None:
            place = self._begin("message")
            item = message_item([], self.call_id, "in_progress")
            events.append(
                self._event("response.output_item.added", output_index=place.index, item=item)
            )
        at = self._text_at(place)
        if not place.sent:
            events.append(
                self._event("response.content_part.added", **at, part=text_part("", []))
            )
        place.sent += text
        events.append(self._event("response.output_text.delta", **at, delta=text, logprobs=[]))
        return events

    def _text_at(self, place: _Open, part: int = 0) -> dict[str, Any]:
        item_id = ids.item_id("msg", self.call_id)
        return {"item_id": item_id, "output_index": place.index, "content_index": part}

    def finish(self, served: Mapping[str, Any]) -> bytes:
        """The rest of the stream."""
        begun: dict[str, Any] = {"status": "in_progress", "output": [], "usage": None}
        events = self._head({**served, **begun, "incomplete_details": None})
        for item in served["output"]:
            if item["type"] == "reasoning":
                events += self._rest_of_reasoning(item)
            elif item["type"] == "message":
                events += self._rest_of_message(item)
            else:
                events += self._whole_call(item)
        last = "incomplete" if served["status"] == "incomplete" else "completed"
        events.append(self._event(f"response.{last}", response=served))
        return b"".join(events)

    def _rest_of_reasoning(self, item: Mapping[str, Any]) -> list[bytes]:
        place = self._open.get("reasoning")
        if place is not None and place.closed:
            return []
        sent = place.sent if place else ""
        text = item["summary"][0]["text"]
        return self._reasoning_delta(text[len(sent) :]) + self._close_reasoning(item)

    def _rest_of_message(self, item: Mapping[str, Any]) -> list[bytes]:
        events: list[bytes] = []
        for number, part in enumerate(item["content"]):
            if part["type"] == "output_text":
                events += self._rest_of_text(part)
            else:
                events += self._refusal(part, number)
        place = self._open["message"]
        events.append(
            self._event("response.output_item.done", output_index=place.index, item=item)
        )
        return events

    def _rest_of_text(self, part: Mapping[str, Any]) -> list[bytes]:
        place = self._open.get("message")
        rest = part["text"][len(place.sent) if place else 0 :]
        events = self._text_delta(rest) if rest else []
        at = self._text_at(self._open["message"])
        logprobs = part["logprobs"]
        return [
            *events,
            self._event(
                "response.output_text.done", **at, text=part["text"], logprobs=logprobs
            ),
            self._event("response.content_part.done", **at, part=part),
        ]

    def _refusal(self, part: Mapping[str, Any], number: int) -> list[bytes]:
        events: list[bytes] = []
        place = self._open.get("message")
        if place is None:
            place = self._begin("message")
            item = message_item([], self.call_id, "in_progress")
            events.append(
                self._event("response.output_item.added", output_index=place.index, item=item)
            )
        at = self._text_at(place, number)
        text = part["refusal"]
        empty = {"type": "refusal", "refusal": ""}
        return [
            *events,
            self._event("response.content_part.added", **at, part=empty),
            self._event("response.refusal.delta", **at, delta=text),
            self._event("response.refusal.done", **at, refusal=text),
            self._event("response.content_part.done", **at, part=part),
        ]

    def _whole_call(self, item: Mapping[str, Any]) -> list[bytes]:
        index = self._items
        self._items += 1
        at = {"item_id": item["id"], "output_index": index}
        key = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
        begun = {**item, "status": "in_progress"} | ({key: ""} if key else {})
        events = [
            self._event("response.output_item.added", output_index=index, item=begun),
        ]
        if key is not None:
            kind = "function_call_arguments" if key == "arguments" else "custom_tool_call_input"
            text = item[key]
            named = {"name": item["name"]} if key == "arguments" else {}
            if text:
                events.append(self._event(f"response.{kind}.delta", **at, delta=text))
            events.append(self._event(f"response.{kind}.done", **at, **named, **{key: text}))
        events.append(self._event("response.output_item.done", output_index=index, item=item))
        return events


def merge_stream(events: Iterable[sse.Event]) -> dict[str, Any]:
    """What a client reads: the Response of the last event, or, of a stream that was cut, the
    first one with as much output as came. ``_error`` holds the error of a failed one."""
    response: dict[str, Any] = {}
    output: dict[int, dict[str, Any]] = {}
    for event in events:
        told = orjson.loads(event.data)
        kind = told.get("type") if isinstance(told, dict) else None
        if kind in _ENDS:
            whole = dict(told["response"])
            return whole | {"_error": whole["error"]} if whole.get("error") else whole
        if kind in ("response.created", "response.in_progress"):
            response = dict(told["response"])
        elif kind in ("response.output_item.added", "response.output_item.done"):
            output[told["output_index"]] = told["item"]
        elif isinstance(kind, str) and kind.endswith(".delta"):
            _take_delta(output[told["output_index"]], kind, told["delta"])
    if output:
        response["output"] = [output[index] for index in sorted(output)]
    return response


def _take_delta(item: dict[str, Any], kind: str, delta: str) -> None:
    if kind == "response.reasoning_summary_text.delta":
        parts = item["summary"] or [{"type": "summary_text", "text": ""}]
        parts[0]["text"] += delta
        item["summary"] = parts
    elif kind == "response.output_text.delta":
        parts = item["content"] or [text_part("", [])]
        parts[0]["text"] += delta
        item["content"] = parts
    elif kind == "response.function_call_arguments.delta":
        item["arguments"] += delta
    elif kind == "response.custom_tool_call_input.delta":
        item["input"] += delta
