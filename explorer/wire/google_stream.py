"""Google generateContent: a reply as a stream of responses, and the stream as one again.

Owns: what each response of a stream holds, and the two forms a stream may have.
Must not know: chat completions; it is given the served response.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from explorer.wire import sse
from explorer.wire.echo import sign_as_bytes, unsign
from explorer.wire.jsonbytes import encode


class GoogleStreamer:
    """The responses of one stream: server-sent events, or a JSON array where the address
    does not ask for events.

    The first part behind the thoughts is signed with the reasoning known so far. Should
    more have been sampled since, the last text part is signed again.
    """

    def __init__(self, call_id: str, model: str, as_events: bool, thoughts_shown: bool) -> None:
        self._head = {"modelVersion": model, "responseId": call_id}
        self._events = as_events
        self._shown = thoughts_shown
        self._begun = False
        self._thought = ""
        self._signed = ""
        self._text = 0

    def live(self, reasoning: str, text: str) -> bytes:
        """A response with what has just been sampled; none for nothing that is shown."""
        parts: list[dict[str, Any]] = []
        if reasoning:
            self._thought += reasoning
            if self._shown:
                parts.append({"text": reasoning, "thought": True})
        if text:
            part: dict[str, Any] = {"text": text}
            if not self._text and self._thought:
                self._signed = self._thought
                part["thoughtSignature"] = sign_as_bytes(self._signed)
            self._text += len(text)
            parts.append(part)
        if not parts:
            return b""
        return self._chunk(_response(parts) | self._head)

    def finish(self, served: Mapping[str, Any]) -> bytes:
        """Every response that is still missing; the last one has the finish reason.

        Raises:
            EngineMalformed: it is nested too deeply to be written.
        """
        candidate = served["candidates"][0]
        missing = self._missing(candidate["content"]["parts"])
        head = {key: value for key, value in served.items() if key != "candidates"}
        chunks = [_response([part]) | head for part in missing[:-1]]
        # Clients take a response without any part for a broken one.
        last = _response(missing[-1:] or [{"text": ""}]) | head
        last["candidates"][0]["finishReason"] = candidate["finishReason"]
        return b"".join(self._chunk(chunk) for chunk in (*chunks, last)) + self._end()

    def fail(self, error: Mapping[str, Any]) -> bytes:
        """An error's body as the end of the stream."""
        return self._chunk(error) + self._end()

    def _missing(self, parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        missing: list[dict[str, Any]] = []
        for part in parts:
            if part.get("thought") is True:
                rest = part["text"][len(self._thought) :]
            elif "text" in part:
                rest = part["text"][self._text :]
                if self._text and (unsign(part.get("thoughtSignature")) or "") == self._signed:
                    part = {key: value for key, value in part.items() if key == "text"}
            else:
                missing.append(dict(part))
                continue
            if rest or "thoughtSignature" in part:
                missing.append(dict(part) | {"text": rest})
        return missing

    def _chunk(self, response: Mapping[str, Any]) -> bytes:
        data = encode(response)
        if self._events:
            return sse.encode(data)
        lead = b",\n" if self._begun else b"["
        self._begun = True
        return lead + data

    def _end(self) -> bytes:
        return b"" if self._events else b"]"


def _response(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}]}


def merge(events: Iterable[sse.Event]) -> dict[str, Any]:
    """The response that a client puts together from a stream of events."""
    return merge_responses(json.loads(event.data) for event in events)


def merge_responses(responses: Iterable[Any]) -> dict[str, Any]:
    """The same from the entries of a JSON array; ``_error`` holds an error's object."""
    merged: dict[str, Any] = {}
    candidate: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for response in responses:
        if not isinstance(response, dict):
            continue
        if response.get("error") is not None:
            merged["_error"] = response["error"]
            continue
        merged |= {key: value for key, value in response.items() if key != "candidates"}
        for found in response.get("candidates") or []:
            candidate |= {key: value for key, value in found.items() if key != "content"}
            parts += (found.get("content") or {}).get("parts") or []
    candidate["content"] = {"role": "model", "parts": _joined(parts)}
    return merged | {"candidates": [candidate]}


def _joined(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    thought: dict[str, Any] = {"text": "", "thought": True}
    text: dict[str, Any] = {"text": ""}
    rest: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part.get("text"), str):
            rest.append(dict(part))
            continue
        joined = thought if part.get("thought") is True else text
        joined |= {**part, "text": joined["text"] + part["text"]}
    shown = [thought] if thought["text"] else []
    if text["text"] or "thoughtSignature" in text:
        shown.append(text)
    return [*shown, *rest]
