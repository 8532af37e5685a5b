"""The life of one call, sans IO: events in, commands out.

Owns: the order of admission, forward, parse, record and reply, and what every
disturbance (disconnect, time-out, upstream failure, malformed reply, full store)
turns a call into.
Must not know: sockets, tasks, the clock, the database, any dialect's bytes.

The reply's last byte is only ever sent after `Stored`. States:

    new ─Received▶ preparing ─Recalled, Counted▶ asking ─EngineAnswered▶ storing ─Stored▶ done
                       │ LetIn, ShutOut (fence)    │ EngineChunk: live text (pass-through)
                       │ Authorised (custody)      │ ClientLeft, EngineBroke, Stopping ▶ storing

Size: the transitions of one machine; apart they could not be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import orjson

from explorer.capture import events as ev
from explorer.capture.answers import Answers, Outgoing, failure_status, refused_kind
from explorer.capture.budgets import Reservation, closing_reply
from explorer.capture.call_context import CallContext
from explorer.capture.draft import Draft
from explorer.capture.external import ExternalCall, check
from explorer.capture.fence import Ended
from explorer.capture.livereply import LiveReply
from explorer.capture.sampling import Shaped, cap, shape
from explorer.capture.spawning import with_what_was_sampled
from explorer.capture.token_in_call import TokenInCall
from explorer.engine.protocol import EngineReply, EngineRequest, TokenPiece
from explorer.engine.reply import ParsedReply, parse_reply
from explorer.engine.vocabulary import learn
from explorer.errors import (
    BudgetSpent,
    EngineMalformed,
    ExplorerError,
    StoreFailed,
)
from explorer.records import (
    NOT_CERTIFIED,
    Call,
    CallStatus,
    CaptureLevel,
    FailureKind,
    Streaming,
)
from explorer.wire.ids import with_our_ids
from explorer.wire.neutral import Earlier, NeutralRequest
from explorer.wire.protocol import Streamer
from explorer.wire.restoring import sampled_arguments

# Asked of an engine whose stream is passed on: without usage a lost token could not be told.
_AS_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class State(Enum):
    """Where in its life an exchange is."""

    NEW = auto()
    PREPARING = auto()
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
        self.sampled_arguments: dict[str, str] = {}
        self._draft = Draft(
            context.call_id, context.rollout.rollout_id, context.sequence, context.wire.DIALECT
        )
        self._answers = Answers(context.wire, context.target, context.call_id)
        self._request: NeutralRequest | None = None
        self._shaped: Shaped | None = None
        self._reservation: Reservation | None = None
        self._external = ExternalCall() if context.external else None
        self._token_in: TokenInCall | None = None
        if context.token_in is not None:
            self._token_in = TokenInCall(context.token_in, context.wire.DIALECT)
        self._said: dict[str, Any] | None = None
        self._certificate_at_start = NOT_CERTIFIED
        # What goes on once the fence is open.
        self._once_let_in: Callable[[int], list[ev.Command]] = self._go_on
        self._live: LiveReply | None = None
        self._streamer: Streamer | None = None
        self._headers_sent = False
        self._client_here = True
        # What to send once the record is durable: whole bodies, ready made.
        self._pending: Outgoing | None = None
        self._pending_stream: bytes | None = None

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """The commands that `event` calls for; none once the exchange is done."""
        if self.state is State.DONE:
            return []
        if self._external is not None:
            event = self._external.cleaned(event)
        commands: list[ev.Command] = _HANDLERS[type(event)](self, event)
        return commands

    # -- request ---------------------------------------------------------------

    def _received(self, event: ev.Received) -> list[ev.Command]:
        self._draft.started(event.time_us, event.raw, event.headers)
        self.state = State.PREPARING
        return self._understand(event.time_us, event.raw, None)

    def _recalled(self, event: ev.Recalled) -> list[ev.Command]:
        if self.state is not State.PREPARING:
            return []
        return self._understand(event.time_us, self._draft.raw, event.earlier)

    def _understand(
        self, time_us: int, raw: bytes, earlier: dict[str, Earlier] | None
    ) -> list[ev.Command]:
        context = self.context
        try:
            request = context.wire.parse_request(raw, context.target, earlier)
            if request.recall and earlier is None:
                return [ev.Recall(request.recall)]
            request = with_what_was_sampled(request, context.sampled_arguments)
            self._request = request
            self._shaped = shape(request, context.plan)
            if self._external is not None:
                check(self._shaped.body, context.rollout.streaming, stream=request.stream)
            if not context.fence.is_open(time_us):
                # Nothing is reserved or admitted for a call that only waits.
                return self._wait(self._go_on)
            return self._go_on(time_us)
        except ExplorerError as error:
            return self._refuse(time_us, error)

    def _go_on(self, time_us: int) -> list[ev.Command]:
        """Continues a prompt by its ids, counts it where a budget wants that, and admits the
        call.

        Raises:
            ExplorerError: as `_admit`.
        """
        assert self._shaped is not None
        if self._token_in is not None:
            wanted = self._token_in.wanted(self._shaped.body)
            if wanted is not None:
                return [ev.Extend(wanted)]
            if self._token_in.prompt_tokens is not None:
                return self._admit(time_us, self._token_in.prompt_tokens)
        if self.context.ledger.counts_prompts:
            return [ev.CountPrompt(self._shaped.body)]
        return self._admit(time_us, 0)

    def _wait(self, then: Callable[[int], list[ev.Command]]) -> list[ev.Command]:
        self._once_let_in = then
        return [ev.AwaitFence()]

    def _let_in(self, event: ev.LetIn) -> list[ev.Command]:
        if self.state is not State.PREPARING:
            return []
        try:
            return self._once_let_in(event.time_us)
        except ExplorerError as error:
            return self._refuse(event.time_us, error)

    def _shut_out(self, event: ev.ShutOut) -> list[ev.Command]:
        if self.state is not State.PREPARING:
            return []
        return self._refuse(event.time_us, event.error)

    def _extended(self, event: ev.Extended) -> list[ev.Command]:
        if self.state is not State.PREPARING:
            return []
        assert self._token_in is not None
        assert self._shaped is not None
        try:
            self._shaped = self._token_in.extended(self._shaped, event.found)
            return self._go_on(event.time_us)
        except ExplorerError as error:
            return self._refuse(event.time_us, error)

    def _counted(self, event: ev.Counted) -> list[ev.Command]:
        if self.state is not State.PREPARING:
            return []
        try:
            return self._admit(event.time_us, event.tokens)
        except ExplorerError as error:
            return self._refuse(event.time_us, error)

    def _admit(self, time_us: int, prompt_tokens: int) -> list[ev.Command]:
        """Reserves, and asks the engine, or first whether the call may be captured.

        Raises:
            ExplorerError: a budget is spent, or the request cannot be written as JSON.
        """
        request, shaped = self._request, self._shaped
        assert request is not None
        assert shaped is not None
        ledger = self.context.ledger
        self._reservation = ledger.reserve(time_us, prompt_tokens, shaped.max_tokens)
        self._shaped = cap(shaped, self._reservation.max_tokens)
        if self._external is not None:
            return [self._external.authorise(request.messages, request.tools)]
        return self._ask(time_us)

    def _authorised(self, event: ev.Authorised) -> list[ev.Command]:
        if self.state is not State.PREPARING:
            return []
        assert self._external is not None
        assert self._shaped is not None
        body = self._external.asked(self._shaped.body, event)
        self._shaped = replace(self._shaped, body=body)
        if event.broken:
            detail = f"the custody ledger cannot be used: {event.broken}"
            return self._refuse(event.time_us, StoreFailed(detail))
        try:
            return self._ask(event.time_us)
        except ExplorerError as error:
            return self._refuse(event.time_us, error)

    def _ask(self, time_us: int) -> list[ev.Command]:
        """Writes the admission and asks the engine.

        Raises:
            ExplorerError: the request cannot be written as JSON.
        """
        context, request, shaped = self.context, self._request, self._shaped
        assert request is not None
        assert shaped is not None
        ticket = context.fence.begin(context.call_id, time_us)
        if ticket is None:
            return self._wait(self._ask)
        passing_on = request.stream and context.rollout.streaming is Streaming.PASSTHROUGH
        # A plain completion has no stream of its own upstream: it is made whole as always.
        live = passing_on and "messages" in shaped.body
        if live:
            self._live = LiveReply()
            shaped = replace(shaped, body=shaped.body | _AS_STREAM)
        self._shaped = shaped
        self._draft.asked(request, shaped, ticket.version)
        self._certificate_at_start = context.certificate(None, None)
        self.state = State.ASKING
        commands: list[ev.Command] = [
            ev.Admit(context.admission(time_us, request, self._draft.request_sha256)),
            ev.Ask(
                EngineRequest(
                    body=shaped.body,
                    request_id=context.call_id,
                    timeout_s=context.time_for_a_reply(time_us),
                    raw=self._draft.submitted,
                ),
                live=live,
            ),
        ]
        if request.stream:
            name = request.model or context.plan.model or ""
            self._streamer = context.wire.streamer(request, context.call_id, name)
        if request.stream or context.unary_keepalive:
            commands.append(ev.WakeAfter(context.hold_s))
        return commands

    def _refuse(self, time_us: int, error: ExplorerError) -> list[ev.Command]:
        kind = refused_kind(error)
        call = self._draft.refused(time_us, error, kind)
        if isinstance(error, BudgetSpent) and self.context.ledger.final_turn:
            return self._final_turn(time_us, error)
        self._pending = self._answers.of(error)
        return self._commit(call)

    def _final_turn(self, time_us: int, error: BudgetSpent) -> list[ev.Command]:
        """A closing answer in the model's place; on record as refused, never as a turn."""
        request, context = self._request, self.context
        assert request is not None
        reply = closing_reply(request.model or context.plan.model or "", time_us)
        self._draft.wrote(request, EngineReply(200, (), orjson.dumps(reply)))
        served = context.wire.serve(reply, request, context.call_id)
        if request.stream:
            self._streamer = context.wire.streamer(request, context.call_id, "")
            self._pending_stream = self._streamer.finish(served)
        else:
            self._pending = self._answers.whole(context.wire.encode_reply(served))
        call = self._draft.refused(time_us, error, FailureKind.BUDGET, answered=200)
        return self._commit(call)

    def failed_here(self, event: ev.Event, detail: str) -> list[ev.Command]:
        """Our own code could not handle `event`: the call ends, recorded and answered."""
        if self._external is not None:
            event = self._external.cleaned(event)
        if isinstance(event, ev.EngineAnswered) and self.state is State.ASKING:
            self._draft.keep(event.reply)
            return self._broke(event.time_us, FailureKind.UPSTREAM_MALFORMED, detail)
        if isinstance(event, ev.EngineChunk | ev.EngineStreamEnded) and self._live:
            self._draft.keep(self._live.reply)
            return self._broke(event.time_us, FailureKind.UPSTREAM_MALFORMED, detail)
        if isinstance(
            event,
            ev.Received | ev.Recalled | ev.Counted | ev.Extended | ev.Authorised | ev.LetIn,
        ):
            if isinstance(event, ev.Received):
                self._draft.started(event.time_us, event.raw, ())
            return self._refuse(event.time_us, ExplorerError(detail))
        return self._store_broke(ev.StoreBroke(event.time_us, detail))

    # -- engine ----------------------------------------------------------------

    def _answered(self, event: ev.EngineAnswered) -> list[ev.Command]:
        if self.state is not State.ASKING:
            return []
        assert self._shaped is not None
        parsed = parse_reply(
            event.reply.status, event.reply.body, max_tokens=self._shaped.max_tokens
        )
        return self._conclude(event.time_us, event.reply, parsed, event.labels)

    def _chunk(self, event: ev.EngineChunk) -> list[ev.Command]:
        if self.state is not State.ASKING or self._live is None or self._streamer is None:
            return []
        try:
            pieces = self._live.feed(event.data)
        except EngineMalformed as error:
            self._draft.keep(self._live.reply)
            return [
                ev.CancelEngine(),
                *self._broke(event.time_us, FailureKind.UPSTREAM_MALFORMED, error.message),
            ]
        data = b"".join(self._streamer.live(*piece) for piece in pieces)
        if not data or not self._client_here:
            return []
        return [*self._start_stream(), ev.Send(data, more=True)]

    def _stream_ended(self, event: ev.EngineStreamEnded) -> list[ev.Command]:
        if self.state is not State.ASKING or self._live is None:
            return []
        assert self._shaped is not None
        parsed = self._live.parsed(self._shaped.max_tokens)
        return self._conclude(event.time_us, self._live.reply, parsed, event.labels)

    def _conclude(
        self, time_us: int, reply: EngineReply, parsed: ParsedReply, labels: ev.Labels
    ) -> list[ev.Command]:
        served: dict[str, Any] = {}
        digest = ""
        if self._token_in is not None:
            parsed = self._token_in.understood(parsed)
        if self._external is not None:
            parsed = self._external.as_text(parsed)
        elif self.context.plan.level is CaptureLevel.TEXT:
            # Nothing was made neutral, so ids that the harness asked for itself prove nothing.
            parsed = replace(parsed, level=CaptureLevel.TEXT)
        if parsed.failure in (None, FailureKind.ENGINE_ABORTED):
            try:
                served, digest = self._make_reply(parsed)
            except EngineMalformed as error:
                parsed = ParsedReply(
                    failure=FailureKind.UPSTREAM_MALFORMED, failure_detail=error.message
                )
        self._draft.answered(
            time_us,
            reply,
            parsed,
            self._ended(time_us, parsed, labels),
            self._certificate_id(parsed),
        )
        if not served:
            return self._upstream_failed(time_us, reply, parsed)
        if self.context.known_ids is not None and parsed.body is not None:
            # Here, while the decoded reply is at hand: keeping it until it is stored would
            # cost more than reading it did.
            self.learned = learn(parsed.body, self.context.known_ids)
        status = CallStatus.ABORTED if parsed.failure else CallStatus.COMMITTED
        self._place(parsed)
        served_id = self.context.wire.ID_PREFIX + self.context.call_id
        return self._commit(self._draft.finished(status, 200, served_id, digest))

    def _make_reply(self, parsed: ParsedReply) -> tuple[dict[str, Any], str]:
        """The reply as the harness will get it, ready to be sent, and its SHA-256.

        Raises:
            EngineMalformed: it cannot be written.
        """
        assert parsed.body is not None
        assert self._request is not None
        context = self.context
        ours = with_our_ids(parsed.body, context.call_id)
        self._draft.said(ours)
        self._said = ours
        self.sampled_arguments = sampled_arguments(ours)
        served = context.wire.serve(ours, self._request, context.call_id)
        if self._streamer is not None:
            self._pending_stream = self._streamer.finish(served)
            return served, hashlib.sha256(self._pending_stream).hexdigest()
        body = context.wire.encode_reply(served)
        self._pending = self._answers.whole(body)
        return served, hashlib.sha256(body).hexdigest()

    def _ended(self, time_us: int, parsed: ParsedReply, labels: ev.Labels) -> Ended:
        """Which weights sampled the reply; the call is in flight no more."""
        ids = parsed.completion_ids
        return self.context.fence.end(
            self.context.call_id,
            time_us,
            parsed.weight_spans,
            sampled=None if ids is None else int(ids.size),
            labels=labels,
        )

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
            self._pending = self._answers.upstream(reply, parsed)
        else:
            self._pending = self._answers.broken(502, "engine_malformed", detail)
        # What was sampled before it failed is shown to people; it never trains.
        self._place(parsed)
        status = self._pending.status
        return self._commit(self._draft.failed(time_us, parsed.failure, detail, status))

    def _engine_broke(self, event: ev.EngineBroke) -> list[ev.Command]:
        left = self.context.ledger.remaining_s(event.time_us)
        if event.kind is FailureKind.UPSTREAM_TIMEOUT and left is not None and left <= 0:
            return self._out_of_time(event.time_us)
        return self._broke(event.time_us, event.kind, event.detail)

    def _out_of_time(self, time_us: int) -> list[ev.Command]:
        """The rollout's wall time, and not the engine, ended the call: no retry can help."""
        if self.state is not State.ASKING:
            return []
        spent = self.context.ledger.out_of_time()
        if self._live is not None:
            self._keep_partial(time_us)
        self._pending = self._answers.of(spent)
        status = self._pending.status
        call = self._draft.failed(time_us, FailureKind.BUDGET, spent.message, status)
        return self._commit(call)

    def _broke(self, time_us: int, kind: FailureKind, detail: str) -> list[ev.Command]:
        if self.state is not State.ASKING:
            return []
        if self._live is not None:
            self._keep_partial(time_us)
            kind = FailureKind.FAILED_MIDSTREAM if self._live.shown else kind
        self._pending = self._answers.broken(failure_status(kind), kind.value, detail)
        status = self._pending.status
        return self._commit(self._draft.failed(time_us, kind, detail, status))

    def _keep_partial(self, time_us: int) -> None:
        """What a broken stream had given, for people."""
        assert self._live is not None
        parsed = self._live.parsed(None)
        if parsed.body is None:
            self._draft.keep(self._live.reply)
            return
        ended = self._ended(time_us, parsed, ev.NO_LABELS)
        self._draft.answered(time_us, self._live.reply, parsed, ended, NOT_CERTIFIED)
        self._place(parsed)

    # -- disturbances ----------------------------------------------------------

    def _client_left(self, event: ev.ClientLeft) -> list[ev.Command]:
        self._client_here = False
        detail = "the harness closed its connection"
        if self.state is State.PREPARING:
            call = self._draft.aborted(event.time_us, FailureKind.CLIENT_GONE, detail)
            return self._commit(call)
        if self.state is not State.ASKING:
            return []
        if self._live is not None:
            self._keep_partial(event.time_us)
        call = self._draft.aborted(event.time_us, FailureKind.CLIENT_GONE, detail)
        return [ev.CancelEngine(), *self._commit(call)]

    def _stopping(self, event: ev.Stopping) -> list[ev.Command]:
        if self.state not in (State.ASKING, State.PREPARING):
            return []
        detail = "the server was stopped while the engine was working"
        if self._live is not None:
            self._keep_partial(event.time_us)
        self._pending = self._answers.broken(503, "shutdown", detail)
        call = self._draft.aborted(event.time_us, FailureKind.SHUTDOWN, detail)
        return [ev.CancelEngine(), *self._commit(call)]

    def _timer(self, _: ev.TimerFired) -> list[ev.Command]:
        if not self._client_here or self.state not in (State.ASKING, State.STORING):
            return []
        return [
            *self._start_stream(),
            ev.Send(self._answers.keepalive if self._streamer else b"\n", more=True),
            ev.WakeAfter(self.context.keepalive_s),
        ]

    # -- record and reply --------------------------------------------------------

    def _commit(self, call: Call) -> list[ev.Command]:
        self.state = State.STORING
        if self._token_in is not None:
            call = replace(call, token_in=self._token_in.record)
        self.call = call
        if self._reservation is not None:
            self.context.ledger.settle(self._reservation, call)
            self._reservation = None
        settle = None
        if self._external is not None:
            said = self._said if call.status is CallStatus.COMMITTED else None
            settle = self._external.settle(said, call.response_id)
        return [settle] if settle is not None else self._settled(None)

    def _settled(self, _: ev.Settled | None) -> list[ev.Command]:
        assert self.call is not None
        return [ev.Commit(self.call, self._draft.bodies())]

    def _start_stream(self) -> list[ev.Command]:
        if self._headers_sent:
            return []
        self._headers_sent = True
        streams = self._streamer is not None
        headers = self._answers.stream_headers if streams else self._answers.json_headers
        return [ev.StartReply(200, headers)]

    def _stored(self, _: ev.Stored) -> list[ev.Command]:
        self.state = State.DONE
        if self._token_in is not None and self.call is not None:
            said = None if self._said is None else self._said["choices"][0]["message"]
            self._token_in.settled(self.call, said)
        if not self._client_here:
            return [ev.Done()]
        if self._pending is not None:
            return [*self._send_whole(self._pending), ev.Done()]
        assert self._pending_stream is not None
        return [*self._start_stream(), ev.Send(self._pending_stream, more=False), ev.Done()]

    def _store_broke(self, event: ev.StoreBroke) -> list[ev.Command]:
        self.state = State.DONE
        if not self._client_here:
            return [ev.Done()]
        detail = f"the call could not be recorded: {event.detail}"
        return [
            *self._send_whole(self._answers.broken(503, "store_failed", detail)),
            ev.Done(),
        ]

    def _send_whole(self, answer: Outgoing) -> list[ev.Command]:
        if self._headers_sent and self._streamer is None:
            return [ev.Send(answer.body, more=False)]
        if self._headers_sent:
            # Too late for a status: the stream ends with an error event.
            assert answer.error is not None
            event = self.context.wire.error_event(answer.error, self._streamer)
            return [ev.Send(event, more=False)]
        headers = (*answer.headers, ("content-length", str(len(answer.body))))
        return [ev.StartReply(answer.status, headers), ev.Send(answer.body, more=False)]


_HANDLERS: dict[type, Callable[[Exchange, Any], list[ev.Command]]] = {
    ev.Received: Exchange._received,
    ev.Recalled: Exchange._recalled,
    ev.Counted: Exchange._counted,
    ev.Extended: Exchange._extended,
    ev.EngineAnswered: Exchange._answered,
    ev.EngineChunk: Exchange._chunk,
    ev.EngineStreamEnded: Exchange._stream_ended,
    ev.EngineBroke: Exchange._engine_broke,
    ev.ClientLeft: Exchange._client_left,
    ev.TimerFired: Exchange._timer,
    ev.Stored: Exchange._stored,
    ev.StoreBroke: Exchange._store_broke,
    ev.Stopping: Exchange._stopping,
    ev.Authorised: Exchange._authorised,
    ev.Settled: Exchange._settled,
    ev.LetIn: Exchange._let_in,
    ev.ShutOut: Exchange._shut_out,
}
