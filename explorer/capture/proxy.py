"""The ASGI routes that harnesses call; they drive an `Exchange` with real IO.

Owns: turning ASGI messages, engine replies, timers and commits into events, and
commands into IO; the limit on calls in flight.
Must not know: pages, exports, what any body means.

Written against plain ASGI: this is the hot path, and a framework's routing and
validation would cost more than everything else here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from explorer.capture import events as ev
from explorer.capture.body import ClientDisconnected, Receive, read_body
from explorer.capture.credentials import Scope, capture_keys, keepable_headers
from explorer.capture.desk import Desk, LiveRollout
from explorer.capture.exchange import JSON_HEADERS, CallContext, Exchange
from explorer.capture.ids import new_call_id, now_us
from explorer.capture.sampling import SamplingPlan
from explorer.engine.protocol import Engine, EngineRequest, TokenPiece
from explorer.errors import (
    CapacityReached,
    ExplorerError,
    NotFound,
    StoreFailed,
    UpstreamFailed,
)
from explorer.records import Call, CaptureLevel, FailureKind, Rollout
from explorer.store.interface import Store
from explorer.wire import chat

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], Awaitable[None]]

# Bodies above this are parsed in a thread, so that one 30 MB request cannot hold up
# a thousand small ones.
_HEAVY_BYTES = 512 * 1024
_WATCH_AFTER_S = 0.03


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Numbers from the settings that the proxy needs."""

    max_body_bytes: int
    max_in_flight: int
    engine_timeout_s: float
    hold_s: float
    keepalive_s: float
    top_logprobs: int


class EngineView(Protocol):
    """What the application knows about its engine at any moment."""

    def level(self) -> CaptureLevel:
        """The capture level that the engine is certified for."""
        ...

    def model(self) -> str | None:
        """The model name to ask for; None keeps the caller's."""
        ...

    def certificate(self, fingerprint: str | None, model: str | None) -> str:
        """The id of the certificate in force, or `NOT_CERTIFIED`; a fingerprint or model
        that is not the certified one makes the engine be probed again. Any thread."""
        ...

    def trouble(self) -> None:
        """The engine failed to answer: it may come back as another one."""
        ...


class Learner(Protocol):
    """Who keeps the bytes of ids that an engine without a vocabulary shows."""

    @property
    def known(self) -> Container[int] | None:
        """Ids whose bytes are known already; None when nothing is to be learned."""
        ...

    def learn(self, pieces: Sequence[TokenPiece]) -> None:
        """Takes what is new."""
        ...


class CaptureProxy:
    """The wire routes.

    Args:
        desk: finds rollouts by key.
        engine: samples.
        store: makes calls durable.
        view: what is known about the engine now.
        learner: is told the bytes of ids that replies show.
    """

    def __init__(
        self,
        desk: Desk,
        engine: Engine,
        store: Store,
        options: ProxyOptions,
        view: EngineView,
        learner: Learner,
    ) -> None:
        self._desk = desk
        self._engine = engine
        self._store = store
        self._options = options
        self._view = view
        self._learner = learner
        self._drivers: set[_Driver] = set()
        self._taken = 0
        self._idle = asyncio.Event()
        self._stopping = False

    @property
    def in_flight(self) -> int:
        """Calls that are being worked on now."""
        return len(self._drivers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request on a wire route."""
        try:
            await self._route(scope, receive, send)
        except ClientDisconnected:
            return
        except ExplorerError as error:
            await send_error(send, error)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"].rstrip("/")
        if path == "/v1/chat/completions" and method == "POST":
            await self._call(scope, receive, send)
        elif path == "/v1/models" and method in ("GET", "HEAD"):
            body = chat.models_body([self._view.model() or "unknown"], now_us() // 1_000_000)
            await send_body(send, 200, body if method == "GET" else b"")
        elif path in ("", "/v1") and method in ("GET", "HEAD"):
            await send_body(send, 200, b'{"status":"ok"}' if method == "GET" else b"")
        else:
            raise NotFound(
                f"{method} {scope['path']} is not a wire route of this server; it speaks "
                "POST /v1/chat/completions and GET /v1/models"
            )

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The key is looked up before a byte of the body is read.
        live = await self._desk.find(capture_keys(scope))
        if self._stopping:
            raise CapacityReached("the server is stopping; try again")
        # Counted from here on: bodies that are still being read take memory, too.
        if self._taken >= self._options.max_in_flight:
            raise CapacityReached(
                f"{self._options.max_in_flight} calls are in flight already "
                "(ROLLOUT_EXPLORER_MAX_IN_FLIGHT); try again",
                retry_after_s=1,
            )
        self._taken += 1
        driver: _Driver | None = None
        try:
            raw = await read_body(receive, scope["headers"], self._options.max_body_bytes)
            driver = _Driver(self, live, receive, send)
            self._drivers.add(driver)
            await driver.run(raw, keepable_headers(scope["headers"]))
        finally:
            self._taken -= 1
            if driver is not None:
                self._drivers.discard(driver)
            if not self._drivers:
                self._idle.set()

    def context(self, live: LiveRollout) -> CallContext:
        """The context of a new call of `live`."""
        rollout: Rollout = live.rollout
        options = self._options
        return CallContext(
            call_id=new_call_id(now_us()),
            rollout=rollout,
            sequence=live.take_sequence(),
            plan=SamplingPlan(
                level=self._view.level(),
                purpose=rollout.purpose,
                sampling=rollout.sampling,
                top_logprobs=options.top_logprobs,
                model=self._view.model(),
            ),
            place=live.lineage.place,
            weight_version=lambda: self._desk.weight_version,
            certificate=self._view.certificate,
            known_ids=self._learner.known,
            timeout_s=options.engine_timeout_s,
            hold_s=options.hold_s,
            keepalive_s=options.keepalive_s,
        )

    async def stop(self, grace_s: float = 5.0) -> None:
        """Aborts what is in flight, and waits until all of it is recorded."""
        self._stopping = True
        for driver in list(self._drivers):
            driver.push(ev.Stopping(now_us()))
        if self._drivers:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace_s)


class _Driver:
    """Drives one exchange: one queue of events, at most one engine task and timer."""

    def __init__(
        self, proxy: CaptureProxy, live: LiveRollout, receive: Receive, send: Send
    ) -> None:
        self._proxy = proxy
        self._live = live
        self._receive = receive
        self._send = send
        self._exchange = Exchange(proxy.context(live))
        self._events: deque[ev.Event] = deque()
        self._wake = asyncio.Event()
        self._engine_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._finished = False

    def push(self, event: ev.Event) -> None:
        """Adds an event; the running driver takes it in order."""
        self._events.append(event)
        self._wake.set()

    async def run(self, raw: bytes, headers: tuple[tuple[str, str], ...]) -> None:
        """From the whole request to the last byte of the reply."""
        call_id = self._exchange.context.call_id
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
            if self._exchange.learned:
                self._proxy._learner.learn(self._exchange.learned)
        finally:
            self._live.in_flight.discard(call_id)
            for pending in (self._engine_task, self._watch_task, self._timer, self._watcher):
                if pending is not None:
                    pending.cancel()

    async def _handle(self, event: ev.Event) -> list[ev.Command]:
        size = 0
        if isinstance(event, ev.Received):
            size = len(event.raw)
        elif isinstance(event, ev.EngineAnswered):
            size = len(event.reply.body)
        try:
            if size > _HEAVY_BYTES:
                return await asyncio.to_thread(self._exchange.handle, event)
            return self._exchange.handle(event)
        except Exception as error:  # the request edge: a call must end recorded
            log.exception("call %s: our own code failed", self._exchange.context.call_id)
            detail = f"the proxy could not handle this: {type(error).__name__}"
            return self._exchange.failed_here(event, detail)

    async def _obey(self, command: ev.Command) -> None:
        match command:
            case ev.Admit():
                admitted = self._proxy._store.admit(command.admission)
                admitted.add_done_callback(_forget)
            case ev.Ask():
                loop = asyncio.get_running_loop()
                self._engine_task = loop.create_task(self._ask(command.request))
                # A reply that comes at once needs nobody to watch the client meanwhile.
                self._watcher = loop.call_later(_WATCH_AFTER_S, self._start_watching)
            case ev.CancelEngine():
                if self._engine_task is not None:
                    self._engine_task.cancel()
            case ev.Commit():
                await self._commit(command)
            case ev.StartReply():
                await self._emit(
                    {
                        "type": "http.response.start",
                        "status": command.status,
                        "headers": [
                            (name.encode("latin-1"), value.encode("latin-1"))
                            for name, value in command.headers
                        ],
                    }
                )
            case ev.Send():
                await self._emit(
                    {
                        "type": "http.response.body",
                        "body": command.data,
                        "more_body": command.more,
                    }
                )
            case ev.WakeAfter():
                if self._timer is not None:
                    self._timer.cancel()
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(
                    command.seconds, lambda: self.push(ev.TimerFired(now_us()))
                )
            case ev.Done():
                self._finished = True

    async def _emit(self, message: dict[str, Any]) -> None:
        # A send to a client that left is no failure of the call, which is durable.
        with contextlib.suppress(OSError):
            await self._send(message)

    async def _ask(self, request: EngineRequest) -> None:
        try:
            reply = await self._proxy._engine.generate(request)
        except UpstreamFailed as error:
            broke = ev.broke(now_us(), error)
            if broke.kind is FailureKind.UPSTREAM_UNREACHABLE:
                self._proxy._view.trouble()
            self.push(broke)
        except Exception as error:  # noqa: BLE001 - the request edge: a call must end recorded
            self.push(
                ev.EngineBroke(
                    now_us(),
                    FailureKind.UPSTREAM_MALFORMED,
                    f"the engine client failed: {type(error).__name__}: {error}",
                )
            )
        else:
            self.push(ev.EngineAnswered(now_us(), reply))

    def _start_watching(self) -> None:
        self._watch_task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.push(ev.ClientLeft(now_us()))
                return

    async def _commit(self, command: ev.Commit) -> None:
        call: Call = command.call
        try:
            await self._proxy._store.commit_call(call, command.bodies)
        except StoreFailed as error:
            self.push(ev.StoreBroke(now_us(), error.message))
        else:
            self._proxy._desk.settled(self._live, call)
            self.push(ev.Stored(now_us()))


def _forget(future: asyncio.Future[None]) -> None:
    """Admission is not waited for; a failure shows at the commit that follows."""
    if not future.cancelled():
        future.exception()


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[str, str]] = JSON_HEADERS,
) -> None:
    """One whole response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                *((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers),
                (b"content-length", str(len(body)).encode()),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ExplorerError) -> None:
    """An error in the caller's dialect, with what an SDK needs to decide on a retry."""
    body = chat.error_body(error.status, error.code, error.message)
    headers = list(JSON_HEADERS)
    if error.retryable:
        headers.append(("retry-after", str(error.details.get("retry_after_s", 1))))
    else:
        headers.append(("x-should-retry", "false"))
    await send_body(send, error.status, body, headers)
