"""Drives one exchange with real IO: a queue of events, an engine task and a timer.

Owns: turning ASGI messages, engine replies, timers and commits into events, and
commands into IO.
Must not know: routes, admission, what any body means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from explorer.capture import events as ev
from explorer.capture.body import Receive
from explorer.capture.call_context import CallContext
from explorer.capture.desk import Desk, LiveRollout
from explorer.capture.exchange import Exchange
from explorer.capture.external import Gatekeeper
from explorer.capture.fence_desk import FenceDesk
from explorer.capture.ids import now_us
from explorer.capture.recall import earlier_calls
from explorer.capture.retries import Answer, Attempt
from explorer.custody.errors import LedgerError
from explorer.custody.records import CaptureAdmission
from explorer.engine.protocol import Engine, EngineRequest
from explorer.engine.suffix import Extend, Extension
from explorer.errors import (
    EngineRefusedStream,
    EngineTimeout,
    ExplorerError,
    RolloutClosed,
    StoreFailed,
    UpstreamFailed,
)
from explorer.records import Call, CallStatus, CaptureLevel, FailureKind, Fallback
from explorer.store.interface import Store

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]

# Bodies above this are parsed in a thread, so that one 30 MB request cannot hold up
# a thousand small ones.
HEAVY_BYTES = 512 * 1024
_WATCH_AFTER_S = 0.03
# An engine's client gives up at the time it is given; this is for one that does not.
_GRACE_S = 0.1
# Bytes a token takes at least, on average, where no engine can count them.
_BYTES_PER_TOKEN = 4


class Trouble(Protocol):
    """Who is told that the engine did not answer."""

    def trouble(self) -> None:
        """The engine failed to answer: it may come back as another one."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every call of a proxy works with.

    Attributes:
        desk: finds rollouts by key.
        engine: samples.
        store: makes calls durable.
        view: told that the engine did not answer.
        fences: says when calls may begin, and which weights sample.
        gatekeeper: keeps the ledger where a worker keeps the tokens.
        suffixes: tokenises what conversations add, for rollouts with token-in.
    """

    desk: Desk
    engine: Engine
    store: Store
    view: Trouble
    fences: FenceDesk
    gatekeeper: Gatekeeper | None = None


class Driver:
    """One call on its way.

    Args:
        attempt: where the answer is kept for a retry, if one could be known again.
    """

    def __init__(
        self,
        around: Surroundings,
        live: LiveRollout,
        context: CallContext,
        receive: Receive,
        send: Send,
        attempt: Attempt | None = None,
    ) -> None:
        self._around = around
        self._live = live
        self._receive = receive
        self._send = send
        self._attempt = attempt
        self.exchange = Exchange(context)
        self._events: deque[ev.Event] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._engine_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._finished = False
        self._sent_head: tuple[int, tuple[tuple[str, str], ...]] | None = None
        self._sent: list[bytes] = []
        # Admitted to the ledger of external custody, and not ended there yet.
        self._admitted: CaptureAdmission | None = None

    def push(self, event: ev.Event) -> None:
        """Adds an event; the running driver takes it in order."""
        self._events.append(event)
        self._wake.set()

    async def run(self, raw: bytes, headers: tuple[tuple[str, str], ...]) -> None:
        """From the whole request to the last byte of the reply."""
        call_id = self.exchange.context.call_id
        self._live.in_flight.add(call_id)
        self.push(ev.Received(now_us(), raw, headers))
        try:
            while not self._finished:
                while not self._events:
                    self._wake.clear()
                    await self._wake.wait()
                event = self._events.popleft()
                for command in await self._handle(event):
                    await self._obey(command)
        finally:
            self._live.in_flight.discard(call_id)
            self._around.fences.fence.leave(call_id)
            self._around.fences.poke()
            for pending in (*self._tasks, self._timer, self._watcher):
                if pending is not None:
                    pending.cancel()
            self._end_custody()
            if self._attempt is not None:
                self._live.retries.close(self._attempt, self._answer())

    def _answer(self) -> Answer | None:
        """What was sent, where it is a reply that a retry may be given again."""
        call = self.exchange.call
        if call is None or call.status is not CallStatus.COMMITTED or self._sent_head is None:
            return None
        return Answer(*self._sent_head, b"".join(self._sent))

    async def _handle(self, event: ev.Event) -> list[ev.Command]:
        size = 0
        if isinstance(event, ev.Received):
            size = len(event.raw)
        elif isinstance(event, ev.EngineAnswered):
            size = len(event.reply.body)
        try:
            if size > HEAVY_BYTES:
                return await asyncio.to_thread(self.exchange.handle, event)
            return self.exchange.handle(event)
        except Exception as error:  # the request edge: a call must end recorded
            log.exception("call %s: our own code failed", self.exchange.context.call_id)
            detail = f"the proxy could not handle this: {type(error).__name__}"
            return self.exchange.failed_here(event, detail)

    async def _obey(self, command: ev.Command) -> None:
        match command:
            case ev.Admit():
                admitted = self._around.store.admit(command.admission)
                admitted.add_done_callback(_forget)
            case ev.Recall() | ev.CountPrompt() | ev.Extend() | ev.AwaitFence():
                self._start(self._prepare(command))
                self._watch_client()
            case ev.Ask():
                asking = self._stream if command.live else self._ask
                self._engine_task = self._start(asking(command.request))
                self._watch_client()
            case ev.CancelEngine():
                if self._engine_task is not None:
                    self._engine_task.cancel()
            case ev.Authorise() | ev.Settle():
                await self._custody(command)
            case ev.Commit():
                self._around.fences.poke()
                await self._commit(command)
            case ev.StartReply() | ev.Send():
                await self._reply(command)
            case ev.WakeAfter():
                self._wake_after(command.seconds)
            case ev.Done():
                self._finished = True

    def _wake_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, lambda: self.push(ev.TimerFired(now_us())))

    async def _custody(self, command: ev.Authorise | ev.Settle) -> None:
        keeper = self._around.gatekeeper
        assert keeper is not None, "external custody has a ledger"
        try:
            if isinstance(command, ev.Settle):
                await asyncio.to_thread(keeper.settle, command)
                self._admitted = None
                self.push(ev.Settled(now_us()))
                return
            context = self.exchange.context
            self._admitted = await asyncio.to_thread(
                keeper.authorise,
                str(context.rollout.rollout_id),
                str(context.call_id),
                command.items,
            )
            self.push(ev.Authorised(now_us(), self._admitted))
        except LedgerError as error:
            log.error("call %s: %s", self.exchange.context.call_id, error)
            if isinstance(command, ev.Settle):
                self.push(ev.StoreBroke(now_us(), f"custody ledger: {error.code}"))
            else:
                self.push(ev.Authorised(now_us(), None, broken=error.code))

    def _end_custody(self) -> None:
        """An admitted call that went away without an end is poisoned."""
        if self._admitted is not None and self._around.gatekeeper is not None:
            with contextlib.suppress(LedgerError):
                self._around.gatekeeper.settle(ev.Settle(self._admitted, None, None))
            self._admitted = None

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def _reply(self, command: ev.StartReply | ev.Send) -> None:
        if isinstance(command, ev.StartReply):
            self._sent_head = (command.status, command.headers)
            message = start_message(command.status, command.headers)
        else:
            if self._attempt is not None and not command.data.startswith(b":"):
                self._sent.append(command.data)
            message = {
                "type": "http.response.body",
                "body": command.data,
                "more_body": command.more,
            }
        # A send to a client that left is no failure of the call, which is durable.
        with contextlib.suppress(OSError):
            await self._send(message)

    def _watch_client(self) -> None:
        """A reply that comes at once needs nobody to watch the client meanwhile."""
        if self._watcher is None:
            loop = asyncio.get_running_loop()
            self._watcher = loop.call_later(_WATCH_AFTER_S, self._start_watching)

    async def _await_fence(self) -> None:
        refusal: ExplorerError | None = await self._around.fences.let_in()
        if refusal is None and self._live.closed:
            refusal = RolloutClosed("this rollout was closed while the call waited for weights")
        if refusal is None:
            self.push(ev.LetIn(now_us()))
        else:
            self.push(ev.ShutOut(now_us(), refusal))

    async def _prepare(
        self, command: ev.Recall | ev.CountPrompt | ev.Extend | ev.AwaitFence
    ) -> None:
        """What must be known, or waited for, before the engine is asked."""
        if isinstance(command, ev.AwaitFence):
            await self._await_fence()
        elif isinstance(command, ev.Recall):
            await self._recall(command.call_ids)
        elif isinstance(command, ev.CountPrompt):
            await self._count(command.body)
        else:
            await self._extend(command.wanted)

    async def _recall(self, call_ids: tuple[str, ...]) -> None:
        rollout_id = self._live.rollout.rollout_id
        try:
            found = await asyncio.to_thread(
                earlier_calls, self._around.store, rollout_id, call_ids
            )
        except StoreFailed as error:
            self.push(ev.StoreBroke(now_us(), error.message))
        else:
            self.push(ev.Recalled(now_us(), found))

    async def _count(self, body: dict[str, Any]) -> None:
        try:
            tokens = len(await self._around.engine.tokenize(body))
        except UpstreamFailed:
            tokens = len(repr(body)) // _BYTES_PER_TOKEN
        self.push(ev.Counted(now_us(), tokens))

    async def _extend(self, wanted: Extend) -> None:
        plan = self.exchange.context.token_in
        assert plan is not None, "only a call with a plan asks for it"
        # Whatever somebody's template runs into, the call goes on with its messages.
        found = Extension(reason=Fallback.TEMPLATE_NOT_EXTENDABLE)
        try:
            found = await plan.suffixes.extend(wanted)
        finally:
            self.push(ev.Extended(now_us(), found))

    async def _ask(self, request: EngineRequest) -> None:
        label = self._around.fences.control.label
        try:
            async with asyncio.timeout(request.timeout_s + _GRACE_S):
                before = await label()
                reply = await self._around.engine.generate(request)
                self._around.fences.saw(reply.status)
                labels = (before, await label())
        except TimeoutError:
            self._engine_failed(EngineTimeout(f"no reply within {request.timeout_s:g} s"))
        except Exception as error:  # noqa: BLE001 - the request edge: a call must end recorded
            self._engine_failed(error)
        else:
            self.push(ev.EngineAnswered(now_us(), reply, labels))

    async def _stream(self, request: EngineRequest) -> None:
        label = self._around.fences.control.label
        try:
            async with asyncio.timeout(request.timeout_s + _GRACE_S):
                before = await label()
                async for chunk in self._around.engine.stream(request):
                    self.push(ev.EngineChunk(now_us(), chunk))
                labels = (before, await label())
        except TimeoutError:
            self._engine_failed(EngineTimeout(f"no whole reply in {request.timeout_s:g} s"))
        except EngineRefusedStream as error:
            self._around.fences.saw(error.reply.status)
            self.push(ev.EngineAnswered(now_us(), error.reply))
        except Exception as error:  # noqa: BLE001 - the request edge: a call must end recorded
            self._engine_failed(error)
        else:
            self.push(ev.EngineStreamEnded(now_us(), labels))

    def _engine_failed(self, error: Exception) -> None:
        if isinstance(error, UpstreamFailed):
            broke = ev.broke(now_us(), error)
            if broke.kind is FailureKind.UPSTREAM_UNREACHABLE:
                self._around.view.trouble()
                self._around.fences.engine_away()
            self.push(broke)
            return
        detail = f"the engine client failed: {type(error).__name__}: {error}"
        self.push(ev.EngineBroke(now_us(), FailureKind.UPSTREAM_MALFORMED, detail))

    def _start_watching(self) -> None:
        self._start(self._watch())

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if self._attempt is not None and self._attempt.waiting:
                    return  # a retry of the same request is waiting for the reply
                self.push(ev.ClientLeft(now_us()))
                return

    async def _commit(self, command: ev.Commit) -> None:
        call: Call = command.call
        try:
            await self._around.store.commit_call(call, command.bodies)
        except StoreFailed as error:
            self.push(ev.StoreBroke(now_us(), error.message))
        else:
            self._around.desk.settled(
                self._live,
                call,
                self.exchange.sampled_arguments,
                promised=self.exchange.context.plan.level is CaptureLevel.TOKENS
                and not self.exchange.context.external,
            )
            self.push(ev.Stored(now_us()))


def _forget(future: asyncio.Future[None]) -> None:
    """Admission is not waited for; a failure shows at the commit that follows."""
    if not future.cancelled():
        future.exception()


def start_message(status: int, headers: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The ASGI message that begins a response."""
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers
        ],
    }
