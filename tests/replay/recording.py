"""Recorded traffic of harnesses: what they sent, and what they were answered, as a script.

A recording is JSON lines: the first says what was recorded, every other is one request with
its reply. The reply is either the bytes that came (``body``) or already what was said
(``said``, as `trim` writes it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from explorer.wire import chat, sse

DATA = Path(__file__).parents[1] / "data" / "harness"
SUFFIX = ".replay.jsonl"


@dataclass
class ToolCall:
    """A call in a reply. `name` is the neutral one; `signature` seals what stood with it."""

    id: str
    name: str
    arguments: str
    item: str | None = None
    signature: str | None = None


@dataclass
class Said:
    """What a reply says, in whatever dialect, and the ids that it goes by.

    Attributes:
        finish: as the engine would say it; None when the reply broke off.
        ids: everything else by which a later request may name this reply.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish: str | None = None
    ids: dict[str, str] = field(default_factory=dict)


@dataclass
class Recorded:
    """One request, with its reply or what happened instead of one."""

    n: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    said: Said | None = None
    status: int = 200
    error: Any = None
    broke_off: str | None = None

    @property
    def generates(self) -> bool:
        """Whether it asks for a reply of the model."""
        return self.method == "POST" and "count" not in self.path


def read(path: Path) -> tuple[dict[str, Any], list[Recorded]]:
    """What a recording is of, and its requests in order."""
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    meta, rows = rows[0], rows[1:]
    return meta, [_recorded(row, rows, meta["wire"]) for row in rows]


def _recorded(row: dict[str, Any], rows: list[dict[str, Any]], wire: str) -> Recorded:
    body = row["body"]
    if isinstance(body, dict) and isinstance(body.get("tools"), dict):
        # The tools of an earlier request once more.
        same = next(other for other in rows if other["n"] == body["tools"]["as_in"])
        body = body | {"tools": same["body"]["tools"]}
    made = Recorded(
        n=row["n"],
        method=row["method"],
        path=row["path"],
        headers={name.lower(): value for name, value in row["headers"]},
        body=body,
    )
    _add_reply(made, row, wire)
    return made


_BREAKS = {"cut": "cut", "cut_clean": "cut", "error_event": "error_event", "reset": "reset"}


def _add_reply(made: Recorded, row: Mapping[str, Any], wire: str) -> None:
    response = row["response"]
    made.status = response["status"]
    made.broke_off = _BREAKS.get(row.get("fault") or "")
    if not made.generates or made.broke_off is not None:
        return
    if "said" in response:
        told = dict(response["said"])
        told["calls"] = [ToolCall(**call) for call in told.get("calls", [])]
        made.said = Said(**told)
    elif made.status != 200:
        made.error = response.get("body") or {"error": {"message": "recorded failure"}}
    else:
        made.said = said(wire, response["body"], str(response.get("content_type")))


def said(wire: str, body: str, content_type: str) -> Said:
    """What a reply of a dialect says."""
    streamed = "event-stream" in content_type
    if wire == "messages":
        return _messages(_message_blocks(_events(body)) if streamed else orjson.loads(body))
    if wire == "responses":
        whole = _completed(_events(body)) if streamed else orjson.loads(body)
        return _responses(whole)
    if wire in ("gemini", "google"):
        chunks = list(_events(body)) if streamed else [orjson.loads(body)]
        return _google(chunks)
    if streamed:
        return _chat(chat.merge_stream(sse.Decoder().feed(body.encode())))
    return _chat(orjson.loads(body))


def _events(body: str) -> Iterator[dict[str, Any]]:
    for event in sse.Decoder().feed(body.encode()):
        if event.data != "[DONE]":
            yield orjson.loads(event.data)


def _chat(reply: Mapping[str, Any]) -> Said:
    choice = reply["choices"][0]
    message = choice["message"]
    return Said(
        text=message.get("content") or "",
        reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
        calls=[
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ],
        finish=choice.get("finish_reason"),
        ids={"reply": reply["id"]},
    )


def _message_blocks(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """A Messages stream as one message, tool input as the text that was streamed."""
    whole: dict[str, Any] = {}
    for event in events:
        if event["type"] == "message_start":
            whole = dict(event["message"]) | {"content": []}
        elif event["type"] == "content_block_start":
            whole["content"].append(dict(event["content_block"]) | {"streamed": ""})
        elif event["type"] == "content_block_delta":
            block, delta = whole["content"][event["index"]], event["delta"]
            for key in ("text", "thinking", "signature"):
                if key in delta:
                    block[key] = block.get(key, "") + delta[key]
            block["streamed"] += delta.get("partial_json", "")
        elif event["type"] == "message_delta":
            whole["stop_reason"] = event["delta"]["stop_reason"]
    return whole


_STOPS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def _messages(message: Mapping[str, Any]) -> Said:
    made = Said(ids={"reply": message["id"]}, finish=_STOPS.get(message["stop_reason"]))
    for block in message["content"]:
        if block["type"] == "text":
            made.text += block["text"]
        elif block["type"] == "thinking":
            made.reasoning += block["thinking"]
            made.ids["signature"] = block["signature"]
        elif block["type"] == "tool_use":
            written = block.get("streamed") or json.dumps(block["input"], ensure_ascii=False)
            made.calls.append(ToolCall(block["id"], block["name"], written))
    return made


def _completed(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return next(
        event["response"]
        for event in events
        if event["type"] in ("response.completed", "response.incomplete")
    )


def _responses(reply: Mapping[str, Any]) -> Said:
    made = Said(ids={"reply": reply["id"]})
    for item in reply["output"]:
        if item["type"] == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            made.reasoning += "".join(part["text"] for part in parts)
            made.ids["reasoning"] = item["id"]
            if item.get("encrypted_content"):
                made.ids["signature"] = item["encrypted_content"]
        elif item["type"] == "message":
            made.text += "".join(part["text"] for part in item["content"])
            made.ids["message"] = item["id"]
        else:
            space = item.get("namespace")
            name = f"{space}__{item['name']}" if space else item["name"]
            arguments = item.get("arguments", item.get("input"))
            made.calls.append(ToolCall(item["call_id"], name, arguments, item["id"]))
    cut = reply.get("status") == "incomplete"
    made.finish = "length" if cut else "tool_calls" if made.calls else "stop"
    return made


def _google(chunks: list[dict[str, Any]]) -> Said:
    made = Said(ids={"reply": chunks[-1]["responseId"]})
    for chunk in chunks:
        for candidate in chunk.get("candidates", []):
            made.finish = candidate.get("finishReason") or made.finish
            for part in candidate.get("content", {}).get("parts", []):
                if part.get("thought"):
                    made.reasoning += part["text"]
                elif "text" in part:
                    made.text += part["text"]
                if "functionCall" in part:
                    call = part["functionCall"]
                    written = json.dumps(call.get("args", {}), ensure_ascii=False)
                    signature = part.get("thoughtSignature")
                    made.calls.append(
                        ToolCall(call["id"], call["name"], written, signature=signature)
                    )
    limited = made.finish == "MAX_TOKENS"
    made.finish = "length" if limited else "tool_calls" if made.calls else "stop"
    return made
