"""The life of one call, sans IO: events in, commands out.

Owns: the order of admission, forward, parse, record and reply, and what every
disturbance (disconnect, time-out, upstream failure, malformed reply, full store)
turns a call into.
Must not know: sockets, tasks, the clock, the database.

The reply's last byte is only ever sent after `Stored`. States:

    new ─Received▶ asking ─EngineAnswered▶ storing ─Stored▶ done
                     │ ClientLeft, EngineBroke, Stopping ▶ storing
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from explorer.capture import events as ev
from explorer.capture.draft import Draft, Placement
from explorer.capture.sampling import SamplingPlan, Shaped, shape
from explorer.engine.protocol import EngineReply, EngineRequest, TokenPiece
from explorer.engine.reply import ParsedReply, parse_reply
from explorer.engine.vocabulary import learn
from explorer.errors import EngineMalformed, ExplorerError
from explorer.records import (
    NOT_CERTIFIED,
    Admission,
    Call,
    CallId,
    CallStatus,
    Dialect,
    FailureKind,
    IdArray,
    Rollout,
)
from explorer.wire import chat, sse
from explorer.wire.neutral import NeutralRequest

JSON_HEADERS = (("content-type", "application/json"),)
STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),
)
_PASSED_STATUS = frozenset((400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504))
_SHOULD_NOT_RETRY = ("x-should-retry", "false")


@dataclass(frozen=True, slots=True)
class CallContext:
    """What is known about a call before its body is read.

    Attributes:
        place: finds the stored parent of (prompt ids, completion ids).
        weight_version: reads the announced policy version now.
        certificate: reads which certificate of the engine is in force now; given the
            fingerprint and model that a reply names, `NOT_CERTIFIED` when they are another
            engine's.
        known_ids: ids whose bytes need not be learned; None learns nothing.
        hold_s: how long a stream's status line is held back (seconds).
        keepalive_s: time between comments on a held stream (seconds).
    """

    call_id: CallId
    rollout: Rollout
    sequence: int
    plan: SamplingPlan
    place: Callable[[IdArray, IdArray], Placement]
    weight_version: Callable[[], int | None]
    certificate: Callable[[str | None, str | None], str]
    known_ids: Container[int] | None = None
    timeout_s: float = 900.0
    hold_s: float = 5.0
    keepalive_s: float = 5.0


class State(Enum):
    """Where in its life an exchange is."""

    NEW = auto()
    ASKING = auto()
    STORING = auto()
    DONE = auto()


class Exchange:
    """One call. Feed events to `handle` in the order they happen."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.state = State.NEW
        self.call: Call | None = None
        self.learned: list[TokenPiece] = []
        self._draft = Draft(context.call_id, context.rollout.rollout_id, context.sequence)
        self._request: NeutralRequest | None = None
        self._certificate_at_start = NOT_CERTIFIED
        self._headers_sent = False
        self._client_here = True
        # What to send once the record is durable: whole bodies, ready made.
        self._pending: tuple[int, bytes, bool] | None = None
        self._pending_stream: tuple[bytes, ...] | None = None

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """The commands that `event` calls for; none once the exchange is done."""
        if self.state is State.DONE:
            return []
        match event:
            case ev.Received():
                return self._received(event)
            case ev.EngineAnswered():
                return self._answered(event)
            case ev.EngineBroke():
                return self._broke(event.time_us, event.kind, event.detail)
            case ev.ClientLeft():
                return self._client_left(event)
            case ev.TimerFired():
                return self._timer()
            case ev.Stored():
                return self._stored()
            case ev.StoreBroke():
                return self._store_broke(event)
            case ev.Stopping():
                return self._stopping(event)

    # -- request ---------------------------------------------------------------

    def _received(self, event: ev.Received) -> list[ev.Command]:
        context = self.context
        self._draft.started(event.time_us, event.raw, event.headers)
        try:
            request = chat.parse_request(event.raw)
            shaped = shape(request, context.plan)
            self._draft.asked(request, shaped, context.weight_version())
        except ExplorerError as error:
            return self._refuse(event.time_us, error)
        self._request = request
        self._certificate_at_start = context.certificate(None, None)
        self.state = State.ASKING
        commands: list[ev.Command] = [
            ev.Admit(
                Admission(
                    call_id=context.call_id,
                    rollout_id=context.rollout.rollout_id,
                    sequence=context.sequence,
                    started_us=event.time_us,
                    dialect=Dialect.CHAT,
                    stream=request.stream,
                    n_tools=len(request.tools),
                    request_sha256=self._draft.request_sha256,
                )
            ),
            ev.Ask(
                EngineRequest(
                    body=shaped.body,
                    request_id=context.call_id,
                    timeout_s=context.timeout_s,
                    raw=self._draft.submitted,
                )
            ),
        ]
        if request.stream:
            commands.append(ev.WakeAfter(context.hold_s))
        return commands

    def _refuse(self, time_us: int, error: ExplorerError) -> list[ev.Command]:
        body = chat.error_body(error.status, error.code, error.message)
        self._pending = (error.status, body, False)
        return self._commit(self._draft.refused(time_us, error, FailureKind.BAD_REQUEST))

    def failed_here(self, event: ev.Event, detail: str) -> list[ev.Command]:
        """Our own code could not handle `event`: the call ends, recorded and answered."""
        if isinstance(event, ev.EngineAnswered) and self.state is State.ASKING:
            self._draft.keep(event.reply)
            return self._broke(event.time_us, FailureKind.UPSTREAM_MALFORMED, detail)
        if isinstance(event, ev.Received) and self.state is State.NEW:
            self._draft.started(event.time_us, event.raw, ())
            return self._refuse(event.time_us, ExplorerError(detail))
        return self._store_broke(ev.StoreBroke(event.time_us, detail))

    # -- engine ----------------------------------------------------------------

    def _answered(self, event: ev.EngineAnswered) -> list[ev.Command]:
        if self.state is not State.ASKING:
            return []
        reply = event.reply
        shaped = self._shaped
        parsed = parse_reply(reply.status, reply.body, max_tokens=shaped.max_tokens)
        served: dict[str, Any] = {}
        if parsed.failure in (None, FailureKind.ENGINE_ABORTED):
            try:
                served, digest = self._make_reply(parsed)
            except EngineMalformed as error:
                parsed = ParsedReply(
                    failure=FailureKind.UPSTREAM_MALFORMED, failure_detail=error.message
                )
        self._draft.answered(
            event.time_us,
            reply,
            parsed,
            self.context.weight_version(),
            self._certificate_id(parsed),
        )
        if not served:
            return self._upstream_failed(event.time_us, reply, parsed)
        if self.context.known_ids is not None and parsed.body is not None:
            # Here, while the decoded reply is at hand: keeping it until it is stored would
            # cost more than reading it did.
            self.learned = learn(parsed.body, self.context.known_ids)
        status = CallStatus.ABORTED if parsed.failure else CallStatus.COMMITTED
        self._place(parsed)
        return self._commit(self._draft.finished(status, 200, served["id"], digest))

    def _make_reply(self, parsed: ParsedReply) -> tuple[dict[str, Any], str]:
        """The reply as the harness will get it, ready to be sent, and its SHA-256.

        Raises:
            EngineMalformed: it cannot be written.
        """
        assert parsed.body is not None
        assert self._request is not None
        served = chat.serve(parsed.body, self._request, self.context.call_id)
        if self._request.stream:
            stream = chat.stream_reply(served, self._request.wants)
            self._pending_stream = stream
            return served, hashlib.sha256(b"".join(stream)).hexdigest()
        body = chat.encode_reply(served)
        self._pending = (200, body, False)
        return served, hashlib.sha256(body).hexdigest()

    def _certificate_id(self, parsed: ParsedReply) -> str:
        """A certificate that changed while the engine worked proves nothing."""
        now = self.context.certificate(parsed.fingerprint, parsed.model)
        return now if now == self._certificate_at_start else NOT_CERTIFIED

    def _place(self, parsed: ParsedReply) -> None:
        """Keeps the tokens as a delta against the stored parent."""
        if parsed.prompt_ids is not None and parsed.completion_ids is not None:
            placement = self.context.place(parsed.prompt_ids, parsed.completion_ids)
            self._draft.placed(placement, parsed.prompt_ids, parsed.completion_ids)

    def _upstream_failed(
        self, time_us: int, reply: EngineReply, parsed: ParsedReply
    ) -> list[ev.Command]:
        assert parsed.failure is not None
        detail = parsed.failure_detail or "the engine failed"
        if parsed.failure is FailureKind.UPSTREAM_STATUS:
            status = reply.status if reply.status in _PASSED_STATUS else 502
            # An OpenAI-shaped error goes through untouched; others are wrapped.
            shaped = isinstance((parsed.body or {}).get("error"), dict)
            body = reply.body if shaped else chat.error_body(status, "upstream_error", detail)
        else:
            status, body = 502, chat.error_body(502, "engine_malformed", detail)
        self._pending = (status, body, False)
        return self._commit(self._draft.failed(time_us, parsed.failure, detail, status))

    def _broke(self, time_us: int, kind: FailureKind, detail: str) -> list[ev.Command]:
        if self.state is not State.ASKING:
            return []
        status = 504 if kind is FailureKind.UPSTREAM_TIMEOUT else 502
        self._pending = (status, chat.error_body(status, kind.value, detail), False)
        return self._commit(self._draft.failed(time_us, kind, detail, status))

    # -- disturbances ----------------------------------------------------------

    def _client_left(self, event: ev.ClientLeft) -> list[ev.Command]:
        self._client_here = False
        if self.state is not State.ASKING:
            return []
        commands: list[ev.Command] = [ev.CancelEngine()]
        call = self._draft.aborted(
            event.time_us, FailureKind.CLIENT_GONE, "the harness closed its connection"
        )
        return commands + self._commit(call)

    def _stopping(self, event: ev.Stopping) -> list[ev.Command]:
        if self.state is not State.ASKING:
            return []
        detail = "the server was stopped while the engine was working"
        self._pending = (503, chat.error_body(503, "shutdown", detail), False)
        call = self._draft.aborted(event.time_us, FailureKind.SHUTDOWN, detail)
        return [ev.CancelEngine(), *self._commit(call)]

    def _timer(self) -> list[ev.Command]:
        if self.state is State.DONE or not self._client_here:
            return []
        commands: list[ev.Command] = []
        if not self._headers_sent:
            self._headers_sent = True
            commands.append(ev.StartReply(200, STREAM_HEADERS))
        commands.append(ev.Send(sse.comment("keep-alive"), more=True))
        commands.append(ev.WakeAfter(self.context.keepalive_s))
        return commands

    # -- record and reply --------------------------------------------------------

    def _commit(self, call: Call) -> list[ev.Command]:
        self.state = State.STORING
        self.call = call
        return [ev.Commit(call, self._draft.bodies())]

    def _stored(self) -> list[ev.Command]:
        self.state = State.DONE
        if not self._client_here:
            return [ev.Done()]
        if self._pending_stream is not None:
            start: list[ev.Command] = []
            if not self._headers_sent:
                start.append(ev.StartReply(200, STREAM_HEADERS))
            return [*start, ev.Send(b"".join(self._pending_stream), more=False), ev.Done()]
        assert self._pending is not None
        return [*self._send_whole(*self._pending), ev.Done()]

    def _store_broke(self, event: ev.StoreBroke) -> list[ev.Command]:
        self.state = State.DONE
        if not self._client_here:
            return [ev.Done()]
        body = chat.error_body(
            503, "store_failed", f"the call could not be recorded: {event.detail}"
        )
        return [*self._send_whole(503, body, True), ev.Done()]

    def _send_whole(self, status: int, body: bytes, retry: bool) -> list[ev.Command]:
        if self._headers_sent:
            # Too late for a status: the stream ends with an error event.
            return [ev.Send(chat.error_event(body), more=False)]
        headers: tuple[tuple[str, str], ...] = (
            *JSON_HEADERS,
            ("content-length", str(len(body))),
        )
        if status in (400, 401, 404, 413, 415, 422) and not retry:
            headers = (*headers, _SHOULD_NOT_RETRY)
        return [ev.StartReply(status, headers), ev.Send(body, more=False)]

    @property
    def _shaped(self) -> Shaped:
        shaped: Any = self._draft.shaped
        assert isinstance(shaped, Shaped)
        return shaped
