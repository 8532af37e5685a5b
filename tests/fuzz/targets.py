"""Every parser of foreign bytes as a function that must not fail, for two fuzzers.

A target takes any bytes. It may refuse with our own errors; any other exception is a bug, and
so is an answer that depends on how the bytes were cut.

    make fuzz TARGET=messages_request SECONDS=60        # atheris, coverage-guided
    pytest tests/fuzz                                   # Hypothesis, a few hundred inputs
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explorer.capture.body import ClientDisconnected, read_body
from explorer.capture.credentials import keepable_headers, take_from_path
from explorer.capture.livereply import LiveReply
from explorer.capture.retries import canonical_digest, evidence_in
from explorer.capture.sampling import SamplingPlan, shape
from explorer.engine.reply import parse_reply
from explorer.errors import ExplorerError
from explorer.records import CaptureLevel, Purpose
from explorer.web.api_requests import read_new_rollout
from explorer.web.closing import read_close
from explorer.wire import chat, completions, google, messages, responses, sse
from explorer.wire.claims import json_claims
from explorer.wire.ids import with_our_ids
from explorer.wire.protocol import Target, Wire, WireError
from explorer.wire.routes import find_route

DATA = Path(__file__).parents[1] / "data"
WIRES: dict[str, Wire] = {
    "chat": chat,
    "completions": completions,
    "responses": responses,
    "messages": messages,
    "google": google,
}
CALL_ID = "01a22900-0000-7000-8000-000000000000"
PLAN = SamplingPlan(CaptureLevel.TOKENS, Purpose.TRAIN, {})
TargetFunction = Callable[[bytes], None]


def _request(wire: Wire) -> TargetFunction:
    def target(data: bytes) -> None:
        try:
            request = wire.parse_request(data, Target(model="m"), None)
            if request.recall:
                request = wire.parse_request(data, Target(model="m"), {})
            shaped = shape(request, PLAN)
        except ExplorerError:
            return
        # What was understood can be answered, whatever it was.
        message = {"role": "assistant", "content": "x"}
        reply = {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        }
        served = wire.serve(reply, request, CALL_ID)
        assert wire.encode_reply(served)
        assert wire.streamer(request, CALL_ID, "m").finish(served)
        assert isinstance(shaped.body, dict)

    return target


def _reply(wire: Wire) -> TargetFunction:
    """An engine's reply, given to a client of this dialect."""
    field = {"responses": "input", "google": "contents", "completions": "prompt"}
    said: Any = [{"role": "user", "content": "x"}]
    if wire is google:
        said = [{"role": "user", "parts": [{"text": "x"}]}]
    name = next(key for key, value in WIRES.items() if value is wire)
    body = {field.get(name, "messages"): "x" if wire is completions else said, "stream": True}
    request = wire.parse_request(chat.encode_reply(body), Target(model="m", stream=True), None)

    def target(data: bytes) -> None:
        parsed = parse_reply(200, data)
        if parsed.body is None or parsed.failure is not None:
            return
        try:
            served = wire.serve(with_our_ids(parsed.body, CALL_ID), request, CALL_ID)
            wire.encode_reply(served)
            stream = wire.streamer(request, CALL_ID, "m").finish(served)
        except ExplorerError:
            return
        assert sse.Decoder().feed(stream)

    return target


def _stream(wire: Wire) -> TargetFunction:
    def target(data: bytes) -> None:
        try:
            wire.merge_stream(sse.Decoder(1 << 20).feed(data))
        except (ExplorerError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            # Only our own stream is read by this; what it must not do is hang or crash hard.
            return

    return target


def events(data: bytes) -> None:
    """The first byte says where the rest is cut; the events must not depend on it."""
    if not data:
        return
    body = data[1:]
    cut = data[0] * len(body) // 255
    try:
        whole = sse.Decoder(1 << 16).feed(body)
        decoder = sse.Decoder(1 << 16)
        parts = decoder.feed(body[:cut]) + decoder.feed(body[cut:])
    except ExplorerError:
        return
    assert whole == parts


def engine_reply(data: bytes) -> None:
    """A whole reply: it never raises, and never has more logprobs than it says."""
    for status in (200, 500):
        parsed = parse_reply(status, data)
        assert parsed.failure is None or parsed.failure_detail


def live_reply(data: bytes) -> None:
    """An engine's stream."""
    live = LiveReply(1 << 16)
    try:
        for start in range(0, len(data), 7):
            live.feed(data[start : start + 7])
    except ExplorerError:
        return
    parsed = live.parsed(None)
    assert parsed.failure is not None or parsed.finish_reason is not None


def request_body(data: bytes) -> None:
    """A request's bytes under each encoding."""
    for encoding in (b"gzip", b"deflate", b"br", b""):
        sent = [False]

        async def receive(sent: list[bool] = sent) -> dict[str, Any]:
            if sent[0]:
                return {"type": "http.disconnect"}
            sent[0] = True
            return {"type": "http.request", "body": data, "more_body": False}

        try:
            headers = [(b"content-encoding", encoding)]
            assert len(asyncio.run(read_body(receive, headers, 1 << 16))) <= 1 << 16
        except (ExplorerError, ClientDisconnected):
            continue


def address(data: bytes) -> None:
    """A request's path, query and headers."""
    path, _, query = data.partition(b"?")
    text = "/" + path.decode("latin-1")
    scope = {
        "type": "http",
        "path": text,
        "raw_path": text.encode("latin-1", "replace"),
        "query_string": query,
        "headers": [(b"idempotency-key", data[:40]), (b"x-stainless-retry-count", data[40:44])],
    }
    taken = take_from_path(scope)
    for method in ("GET", "POST"):
        find_route(method, taken["path"], taken["query_string"])
    evidence_in(keepable_headers(taken["headers"]))


def api_bodies(data: bytes) -> None:
    """Bodies of the API."""
    for read in (read_new_rollout, read_close):
        try:
            read(data)
        except ExplorerError:
            continue


def small_things(data: bytes) -> None:
    """Digests, claims and errors made of foreign text."""
    canonical_digest(data)
    text = data.decode("utf-8", "replace")
    json_claims(text)
    for wire in WIRES.values():
        error = WireError(500 if len(data) % 2 else 400, "x", text)
        assert wire.refusal(error).body
        assert wire.error_event(error)


TARGETS: dict[str, TargetFunction] = {
    "events": events,
    "engine_reply": engine_reply,
    "live_reply": live_reply,
    "request_body": request_body,
    "address": address,
    "api_bodies": api_bodies,
    "small_things": small_things,
    **{f"{name}_request": _request(wire) for name, wire in WIRES.items()},
    **{f"{name}_reply": _reply(wire) for name, wire in WIRES.items()},
    **{f"{name}_stream": _stream(wire) for name, wire in WIRES.items()},
}
