"""The ASGI routes that harnesses call: who may, and what for.

Owns: admission (key, limit on calls in flight, retries that join), the routes that make no
call, and refusals before a call begins.
Must not know: pages, exports, what any body means.

Written against plain ASGI: this is the hot path, and a framework's routing and
validation would cost more than everything else here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from explorer.capture import events as ev
from explorer.capture.answers import Answers, Outgoing
from explorer.capture.body import ClientDisconnected, Receive, read_body
from explorer.capture.call_context import CallContext
from explorer.capture.credentials import (
    Scope,
    capture_keys,
    keepable_headers,
    without_keys,
)
from explorer.capture.desk import LiveRollout
from explorer.capture.draft import Draft
from explorer.capture.driver import HEAVY_BYTES, Driver, Send, Surroundings, start_message
from explorer.capture.ids import new_call_id, now_us
from explorer.capture.recall import earlier_calls
from explorer.capture.retries import (
    Answer,
    Attempt,
    Evidence,
    canonical_digest,
    evidence_in,
)
from explorer.capture.sampling import SamplingPlan, shape
from explorer.capture.token_in import Book
from explorer.capture.token_in_call import TokenInPlan
from explorer.engine.protocol import TokenPiece
from explorer.errors import (
    CapacityReached,
    ExplorerError,
    NotFound,
    StoreFailed,
    UnknownKey,
    UpgradeUnsupported,
)
from explorer.records import CallId, CaptureLevel, FailureKind
from explorer.wire import chat, google
from explorer.wire.protocol import PLAIN
from explorer.wire.routes import ROUTES_IN_WORDS, Action, Route, find_route, wire_at

T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]
# A rollout keeps at most so many requests at addresses that are no routes.
_MOST_STRAYS = 20


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """Numbers from the settings that the proxy needs."""

    max_body_bytes: int
    max_in_flight: int
    engine_timeout_s: float
    hold_s: float
    keepalive_s: float
    top_logprobs: int
    body_timeout_s: float = 300.0
    one_system: bool = False
    unary_keepalive: bool = False
    harmless: frozenset[str] = frozenset()


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

    def token_in(self, book: Book) -> TokenInPlan:
        """How prompts are continued by the ids of the rollout's earlier calls."""
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
        around: what every call works with.
        view: what is known about the engine now.
        learner: is told the bytes of ids that replies show.
    """

    def __init__(
        self,
        around: Surroundings,
        options: ProxyOptions,
        view: EngineView,
        learner: Learner,
    ) -> None:
        self._around = around
        self._desk = around.desk
        self._engine = around.engine
        self._store = around.store
        self._options = options
        self._view = view
        self._learner = learner
        self._drivers: set[Driver] = set()
        self._taken = 0
        self._idle = asyncio.Event()
        self._stopping = False

    @property
    def in_flight(self) -> int:
        """Calls that are being worked on now."""
        return len(self._drivers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request on a wire route."""
        route = find_route(scope["method"], scope["path"], scope.get("query_string", b""))
        try:
            if route is None:
                await self._stray(scope, send)
            elif route.action is Action.GENERATE:
                await self._call(route, scope, receive, send)
            elif route.action is Action.COUNT:
                await self._count(route, scope, receive, send)
            else:
                await self._models(route, scope, send)
        except ClientDisconnected:
            return
        except ExplorerError as error:
            wire = wire_at(scope["path"]) if route is None else route.wire
            answers = Answers(wire, PLAIN, new_call_id(now_us()))
            await send_whole(send, answers.of(error))

    async def _models(self, route: Route, scope: Scope, send: Send) -> None:
        name = self._view.model() or "unknown"
        if route.wire is google:
            one = route.target.model
            body = google.models_body([name]) if one is None else google.model_body(one)
        elif route.action is Action.MODEL:
            body = chat.model_body(route.target.model or name, now_us() // 1_000_000)
        else:
            body = chat.models_body([name], now_us() // 1_000_000)
        await send_whole(send, Outgoing(200, b"" if scope["method"] == "HEAD" else body))

    async def _stray(self, scope: Scope, send: Send) -> None:
        """A request at no route. Asking (HEAD, GET) is harmless; what wanted a reply is put
        on record, so that an empty rollout is explained."""
        method, path = scope["method"], scope["path"]
        if method == "HEAD" or (method == "GET" and path.rstrip("/") in ("", "/v1")):
            body = b"" if method == "HEAD" else b'{"status":"ok"}'
            await send_whole(send, Outgoing(200, body))
            return
        # A key that stands where we do not look for one must not be recorded.
        error: ExplorerError = NotFound(
            f"{method} {without_keys(path)[:200]} is not a wire route of this server; it "
            f"speaks {ROUTES_IN_WORDS}"
        )
        upgrade = any(name == b"upgrade" for name, _ in scope["headers"])
        if upgrade:
            error = UpgradeUnsupported(
                "this server speaks HTTP with server-sent events and no websockets; switch "
                "the harness to HTTP (for Codex: supports_websockets = false in the "
                "provider's settings)"
            )
        if method != "GET" or upgrade:
            with contextlib.suppress(UnknownKey):
                await self._record_stray(scope, error)
        raise error

    async def _record_stray(self, scope: Scope, error: ExplorerError) -> None:
        live = await self._desk.find(capture_keys(scope))
        if live.strays >= _MOST_STRAYS:
            return
        live.strays += 1
        time_us = now_us()
        wire = wire_at(scope["path"])
        draft = Draft(
            new_call_id(time_us), live.rollout.rollout_id, live.take_sequence(), wire.DIALECT
        )
        draft.started(time_us, b"", keepable_headers(scope["headers"]))
        call = draft.refused(time_us, error, FailureKind.UNSUPPORTED)
        keeper = self._around.gatekeeper
        if keeper is not None:
            await asyncio.to_thread(
                keeper.stray, str(live.rollout.rollout_id), str(call.call_id)
            )
        # The answer is the same whether or not it could be written down.
        with contextlib.suppress(StoreFailed):
            await self._store.commit_call(call, draft.bodies())

    async def _count(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """How long a prompt is, by the engine's own tokenizer; nothing is recorded."""
        live = await self._desk.find(capture_keys(scope))
        with self._room():
            raw = await self._body(scope, receive)
            request = await _aside(raw, route.wire.parse_request, raw, route.target, None)
            if request.recall:
                earlier = await asyncio.to_thread(
                    earlier_calls, self._store, live.rollout.rollout_id, request.recall
                )
                request = await _aside(
                    raw, route.wire.parse_request, raw, route.target, earlier
                )
            shaped = shape(request, self._plan(live))
            tokens = len(await self._engine.tokenize(shaped.body))
        await send_whole(send, Outgoing(200, route.wire.count_reply(tokens)))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        options = self._options
        return await read_body(
            receive, scope["headers"], options.max_body_bytes, options.body_timeout_s
        )

    async def _call(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        # The key is looked up before a byte of the body is read.
        live = await self._desk.find(capture_keys(scope))
        self._check_open(live)
        with self._room():
            raw = await self._body(scope, receive)
            # While it came, the rollout may have been closed, or left memory.
            self._check_open(live)
            live = await self._desk.live(live.rollout.rollout_id)
            headers = keepable_headers(scope["headers"])
            call_id = new_call_id(now_us())
            attempt = None
            evidence = evidence_in(headers)
            if evidence is not None:
                address = f"{scope['path']} {route.target.sse}"
                digest = await _aside(raw, canonical_digest, raw)
                attempt = _attempt(call_id, evidence, digest, address)
                earlier = live.retries.find(evidence, attempt)
                if earlier is not None and await self._replayed(live, earlier, send):
                    return
                self._check_open(live)
                live.retries.open(attempt)
            context = self._context(route, live, call_id)
            await self._drive(
                Driver(self._around, live, context, receive, send, attempt), raw, headers
            )

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """A place among the requests that are worked on, from before the body is read:
        bodies that are still coming take memory, too.

        Raises:
            CapacityReached: every place is taken.
        """
        if self._taken >= self._options.max_in_flight:
            raise CapacityReached(
                f"{self._options.max_in_flight} calls are in flight already "
                "(ROLLOUT_EXPLORER_MAX_IN_FLIGHT); try again",
                retry_after_s=1,
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            if not self._drivers:
                self._idle.set()

    def _check_open(self, live: LiveRollout) -> None:
        """Raises CapacityReached or RolloutClosed where no call may begin any more."""
        if self._stopping:
            raise CapacityReached("the server is stopping; try again")
        live.check_open()

    async def _drive(self, driver: Driver, raw: bytes, headers: Headers) -> None:
        self._drivers.add(driver)
        try:
            await driver.run(raw, headers)
        finally:
            self._drivers.discard(driver)
        if driver.exchange.learned:
            self._learner.learn(driver.exchange.learned)

    async def _replayed(self, live: LiveRollout, earlier: Attempt, send: Send) -> bool:
        """Gives a retry the reply of the call that it repeats; False where that call came
        to nothing, so that this one is made."""
        earlier.waiting += 1
        try:
            answer = await asyncio.shield(earlier.answer)
        finally:
            earlier.waiting -= 1
        if answer is None:
            return False
        await self._desk.joined(live, earlier.call_id)
        await send(start_message(answer.status, answer.headers))
        await send({"type": "http.response.body", "body": answer.body})
        return True

    def _plan(self, live: LiveRollout) -> SamplingPlan:
        return SamplingPlan(
            level=CaptureLevel.TOKENS if self._around.gatekeeper else self._view.level(),
            purpose=live.rollout.purpose,
            sampling=live.rollout.sampling,
            top_logprobs=self._options.top_logprobs,
            model=self._view.model(),
            one_system=self._options.one_system,
            harmless=self._options.harmless,
        )

    def _context(self, route: Route, live: LiveRollout, call_id: CallId) -> CallContext:
        options = self._options
        return CallContext(
            call_id=call_id,
            rollout=live.rollout,
            sequence=live.take_sequence(),
            plan=self._plan(live),
            place=live.lineage.place,
            fence=self._around.fences.fence,
            certificate=self._view.certificate,
            known_ids=self._learner.known,
            timeout_s=options.engine_timeout_s,
            hold_s=options.hold_s,
            keepalive_s=options.keepalive_s,
            wire=route.wire,
            target=route.target,
            ledger=live.ledger,
            sampled_arguments=live.sampled_arguments,
            unary_keepalive=options.unary_keepalive,
            external=self._around.gatekeeper is not None,
            token_in=None if live.book is None else self._view.token_in(live.book),
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


async def _aside(raw: bytes, work: Callable[..., T], *given: Any) -> T:
    """`work` on what was `given`, in a thread where the body is so large that it would hold
    up every other call."""
    if len(raw) > HEAVY_BYTES:
        return await asyncio.to_thread(work, *given)
    return work(*given)


def _attempt(call_id: CallId, evidence: Evidence, digest: bytes, path: str) -> Attempt:
    answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
    return Attempt(
        call_id,
        evidence.key,
        evidence.retries,
        digest,
        path,
        now_us(),
        answer,
    )


async def send_whole(send: Send, answer: Outgoing) -> None:
    """One whole response."""
    headers = (*answer.headers, ("content-length", str(len(answer.body))))
    await send(start_message(answer.status, headers))
    await send({"type": "http.response.body", "body": answer.body})
