"""What the harness gets, in its dialect: replies, errors, and how they travel.

Owns: headers of replies, which errors say "do not try again", how an engine's refusal is
passed on.
Must not know: the order of a call's life.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explorer.engine.protocol import EngineReply
from explorer.engine.reply import ParsedReply
from explorer.engine.replyfacts import error_message
from explorer.errors import (
    BudgetSpent,
    CapacityReached,
    ContextOverflow,
    ExplorerError,
    WeightsSyncing,
)
from explorer.records import Dialect, FailureKind
from explorer.wire.protocol import CONTEXT_OVERFLOW, Target, Wire, WireError

Headers = tuple[tuple[str, str], ...]
JSON_HEADERS: Headers = (("content-type", "application/json"),)
STREAM_HEADERS: Headers = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
)
SHOULD_NOT_RETRY = ("x-should-retry", "false")
SHOULD_RETRY = ("x-should-retry", "true")
_PASSED_STATUS = frozenset((400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504))
_FINAL = frozenset((400, 401, 403, 404, 410, 413, 415, 422, 426, 501))
_RETRY_HEADERS = ("retry-after", "retry-after-ms")
_OPENAI = (Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES)
# How engines word a prompt that is too long (vLLM, SGLang, llama.cpp, TGI).
_OVERFLOW = re.compile(
    r"maximum (?:model|context) length|context length|longer than the model's|"
    r"exceeds? the (?:available )?context|prompt is too long|input.{0,20}too long",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:maximum (?:context|model) length (?:is|of)|context size.{0,20}?)\D{0,3}(\d+)"
)
_PROMPT = re.compile(
    r"(\d+) (?:input tokens|in the messages|tokens in the (?:prompt|messages))"
)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One whole answer; `error` is set where a begun stream must end with it instead."""

    status: int
    body: bytes
    headers: Headers = JSON_HEADERS
    error: WireError | None = None


class Answers:
    """Words answers of one call in its dialect."""

    def __init__(self, wire: Wire, target: Target, call_id: str) -> None:
        self.wire = wire
        self._target = target
        self._ids: Headers = (("x-request-id", call_id), ("request-id", call_id))

    @property
    def stream_headers(self) -> Headers:
        """Headers of a stream; Google's has a form that is one JSON array."""
        if self._target.sse:
            return (*STREAM_HEADERS, *self._ids)
        return (*JSON_HEADERS, *STREAM_HEADERS[1:], *self._ids)

    @property
    def json_headers(self) -> Headers:
        """Headers of a whole reply whose length is not known yet."""
        return (*JSON_HEADERS, *self._ids)

    @property
    def keepalive(self) -> bytes:
        """What may be sent on a stream at any time and means nothing."""
        return b": keep-alive\n\n" if self._target.sse else b"\n"

    def whole(self, body: bytes, status: int = 200) -> Outgoing:
        """A reply that is not streamed."""
        return Outgoing(status, body, (*JSON_HEADERS, *self._ids))

    def error(
        self, error: WireError, headers: Headers = (), final: bool | None = None
    ) -> Outgoing:
        """An error; `final` says whether trying again is useless (default: by status)."""
        refusal = self.wire.refusal(error)
        more = headers
        if final if final is not None else refusal.status in _FINAL:
            more = (*more, SHOULD_NOT_RETRY)
        return Outgoing(refusal.status, refusal.body, (*JSON_HEADERS, *self._ids, *more), error)

    def of(self, error: ExplorerError) -> Outgoing:
        """One of our own errors."""
        headers: Headers = ()
        if error.retryable:
            headers = (("retry-after", str(error.details.get("retry_after_s", 1))),)
        if isinstance(error, WeightsSyncing):
            headers = (*headers, SHOULD_RETRY)
        return self.error(wire_error(error), headers, final=not error.retryable)

    def broken(self, status: int, code: str, detail: str) -> Outgoing:
        """The engine or we failed; the harness may try again."""
        return self.error(WireError(status, code, detail), final=False)

    def upstream(self, reply: EngineReply, parsed: ParsedReply) -> Outgoing:
        """The engine's own refusal, as this dialect's clients understand it."""
        status = reply.status if reply.status in _PASSED_STATUS else 502
        headers = tuple(
            (name, value)
            for name, value in reply.headers
            if name in _RETRY_HEADERS and value.isascii() and value.isprintable()
        )
        body: Mapping[str, Any] = parsed.body or {}
        inner = body.get("error")
        told = error_message(body) if body else ""
        detail = told or parsed.failure_detail or "the engine failed"
        if status in (400, 413, 422) and _OVERFLOW.search(detail):
            return self.error(_overflow(detail), headers)
        error = WireError(status, "upstream_error", detail)
        made = self.error(error, headers)
        if isinstance(inner, dict) and self.wire.DIALECT in _OPENAI:
            # An OpenAI-shaped error goes through untouched to those who read that shape.
            return Outgoing(status, reply.body, made.headers, error)
        return made


def _overflow(detail: str) -> WireError:
    limit, prompt = _LIMIT.search(detail), _PROMPT.search(detail)
    return WireError(
        400,
        CONTEXT_OVERFLOW,
        detail,
        param="messages",
        prompt_tokens=int(prompt[1]) if prompt else None,
        limit_tokens=int(limit[1]) if limit else None,
    )


def wire_error(error: ExplorerError) -> WireError:
    """One of our own errors before a dialect words it."""
    details = error.details
    prompt, limit = details.get("prompt_tokens"), details.get("limit_tokens")
    param = details.get("param")
    return WireError(
        error.status,
        error.code,
        error.message,
        param=param if isinstance(param, str) else None,
        prompt_tokens=prompt if type(prompt) is int else None,
        limit_tokens=limit if type(limit) is int else None,
    )


def failure_status(kind: FailureKind) -> int:
    """HTTP status of an engine that gave no reply."""
    return 504 if kind is FailureKind.UPSTREAM_TIMEOUT else 502


def refused_kind(error: ExplorerError) -> FailureKind:
    """Why a request never reached the engine."""
    if isinstance(error, WeightsSyncing):
        return FailureKind.FENCED
    if isinstance(error, BudgetSpent | CapacityReached):
        return FailureKind.BUDGET
    return (
        FailureKind.CONTEXT if isinstance(error, ContextOverflow) else FailureKind.BAD_REQUEST
    )
