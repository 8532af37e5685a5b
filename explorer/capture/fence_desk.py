"""The weight fence with IO: who waits, what is stored, what the engine is told.

Owns: waiting calls, the lease's timer, the order of storing, loading and opening, and taking
the fence up again after a restart.
Must not know: HTTP, which calls cross (`fence` does), an engine's routes.

A fence that opens has said so durably first; one that shuts shuts at once and is stored then:
whatever fails in between leaves it shut until its lease is over, never open with a lie.

Size: one lock guards all of these orders; apart they could not be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explorer.capture.fence import LEASE_RAN_OUT, Drain, Fence, FenceState, Standing
from explorer.capture.fence_orders import ReadyOrder, SyncOrder
from explorer.engine.fence import EngineControl, Loaded, Published
from explorer.errors import (
    BadRequest,
    EngineNotTold,
    ExplorerError,
    StoreFailed,
    UpstreamFailed,
    WeightsSyncing,
)
from explorer.records import WeightUpdate
from explorer.store.interface import Store

log = logging.getLogger(__name__)

# Rows that are read at start: enough for every label that a span of today can name.
_READ_AT_START = 1000
_READY_LEASE_US = 600 * 1_000_000
_LONGEST_HINT_S = 10
_NOBODY_THERE = (502, 503, 504)
_ASK_CLIENT_S = 0.1

Gone = Callable[[], Any]
"""Whether (awaitable) whoever asked has closed the connection."""


class FenceDesk:
    """The fence of this server.

    Args:
        wait_s: longest time that a call waits for new weights (seconds).
        changed: told the engine's new fingerprint when its weights were loaded here.
    """

    def __init__(
        self,
        store: Store,
        control: EngineControl,
        wait_s: float,
        now_us: Callable[[], int],
        changed: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self.fence = Fence()
        self.control = control
        self.waiting = 0
        self._store = store
        self._wait_s = wait_s
        self._now_us = now_us
        self._weights_changed = changed
        self._changed = asyncio.Event()
        self._orders = asyncio.Lock()
        self._number = 0
        self._paused = False
        self._lease: asyncio.TimerHandle | None = None
        self._opened = asyncio.Event()
        self._recording: set[asyncio.Task[None]] = set()

    # -- life

    async def start(self) -> None:
        """Takes up what was stored: still shut within its lease, of an unknown version where
        the lease is over or an engine of ours no longer has the weights it had."""
        rows = await asyncio.to_thread(self._store.weight_updates, _READ_AT_START)
        self._number = rows[0].number if rows else 0
        self.fence.restore(reversed(rows))
        last = next((row for row in rows if row.state == "ready"), None)
        if last is not None:
            await self._load_again(last)
        if rows and rows[0].state == "syncing":
            self._paused = bool(rows[0].detail.get("paused"))
        standing = self.fence.standing(self._now_us())
        if last is not None and standing.state is FenceState.READY and not standing.doubt:
            await self._compare_label(last)
        await self._note_expiry()
        self._watch_lease()

    async def _load_again(self, last: WeightUpdate) -> None:
        """An engine of ours starts with the weights that it ships with."""
        path, wanted = last.detail.get("weights_path"), last.detail.get("sha256")
        if not self.control.embedded or not isinstance(path, str):
            return
        label = last.engine_weight_label or str(last.weight_version)
        try:
            loaded = await self.control.load(Path(path), label)
        except ExplorerError as error:
            log.error("weights: %s", error.message)
            reason = f"the weights of version {last.weight_version} could not be loaded again"
        else:
            if loaded.sha256 == wanted:
                return
            log.error("weights: %s has changed", path)
            reason = f"the file no longer holds version {last.weight_version}"
        # Where a trainer is at it, the fence stays shut: its word or its lease ends that, and
        # neither gives the old version again.
        if self.standing().state is FenceState.READY:
            await self.doubt(reason)

    async def _compare_label(self, last: WeightUpdate) -> None:
        label = await self.control.label()
        told = last.engine_weight_label
        if label is not None and told is not None and label != told:
            names = f"the engine names {label[:80]!r}"
            await self.doubt(f"{names} where {told[:80]!r} was announced")

    async def stop(self) -> None:
        """Ends the timer; the state is stored already."""
        if self._lease is not None:
            self._lease.cancel()
        if self._recording:
            await asyncio.wait(self._recording, timeout=5)

    # -- calls

    def standing(self) -> Standing:
        """How the fence stands now."""
        return self.fence.standing(self._now_us())

    @property
    def alert(self) -> str:
        """What a person should do something about; nothing while nothing is wrong."""
        doubt = self.standing().doubt
        if not doubt:
            return ""
        return (
            f"Nobody knows which weights the engine has: {doubt}. What is sampled now does not "
            "train; announce the version again (POST /api/v1/weights)."
        )

    async def let_in(self) -> WeightsSyncing | None:
        """Waits until calls may begin; gives the refusal where that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        self.waiting += 1
        try:
            while not self.fence.is_open(self._now_us()):
                left = deadline - loop.time()
                if left <= 0:
                    return self._refusal()
                await self._until(self._opened, left)
            return None
        finally:
            self.waiting -= 1

    def _refusal(self) -> WeightsSyncing:
        standing = self.standing()
        lease_us = standing.lease_expires_us or 0
        hint_s = min(_LONGEST_HINT_S, max(1, -(-(lease_us - self._now_us()) // 1_000_000)))
        return WeightsSyncing(
            f"version {standing.coming} of the weights is being loaded into the engine; this "
            f"call waited {self._wait_s:g} s (ROLLOUT_EXPLORER_FENCE_WAIT_S); try again",
            retry_after_s=hint_s,
        )

    def poke(self) -> None:
        """A call ended: somebody may wait for the last one."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        # Calls that wait are not woken by every other one that ends.
        if self.fence.is_open(self._now_us()):
            opened, self._opened = self._opened, asyncio.Event()
            opened.set()

    async def _until(self, changed: asyncio.Event, longest_s: float) -> None:
        lease_us = self.standing().lease_expires_us
        if lease_us is not None:
            longest_s = min(longest_s, max(0.0, (lease_us - self._now_us()) / 1e6) + 0.005)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), longest_s)

    def saw(self, status: int) -> None:
        """The status of a reply; some say that there is nobody behind a gateway."""
        if status in _NOBODY_THERE:
            self.engine_away()

    def engine_away(self) -> None:
        """The engine did not answer: one that is not ours may come back with other weights,
        and says so only where it names them."""
        standing = self.standing()
        if self.control.embedded or self.fence.last_version is None or standing.doubt:
            return
        if standing.state is FenceState.SYNCING:
            return  # a trainer may well restart it; its word about the version is awaited
        # One that names its weights is asked before and after each call anyway.
        if self.control.names_weights and self.fence.label is not None:
            return
        reason = "the engine did not answer, and may have come back with other weights"
        # At once: the next call may meet it already.
        self._now_in_doubt(reason)
        self._record_soon(self._record_doubt(reason))

    async def _record_doubt(self, reason: str) -> None:
        async with self._orders:
            if self.standing().doubt == reason:
                await self._store_unknown(reason)

    # -- the trainer

    async def syncing(self, order: SyncOrder, gone: Gone) -> Standing:
        """Shuts the fence, or renews its lease; answers when every call in flight has ended,
        or after `wait_s`.

        Raises:
            StoreFailed: it could not be stored; it is shut until the lease is over.
        """
        async with self._orders:
            await self._note_expiry()
            self.fence.syncing(self._now_us(), order.coming, int(order.lease_s * 1e6))
            if order.drain is Drain.NONE:
                self.fence.hand_over()
            self._watch_lease()
            detail: dict[str, Any] = {"drain": order.drain.value, "lease_s": order.lease_s}
            if order.drain is Drain.PAUSE and not self._paused:
                step = await self.control.pause()
                if step is not None and not step.ok:
                    self.fence.hand_over()
                    raise EngineNotTold(
                        f"the engine could not be paused ({step.said}); the fence is shut "
                        "until its lease is over: try again, or drain with `wait`",
                        steps=[step.as_json()],
                    )
                self._paused = step is not None
            standing = self.standing()
            detail |= {"lease_expires_us": standing.lease_expires_us, "paused": self._paused}
            await self._store_row("syncing", order.coming, None, detail)
        if order.drain is Drain.WAIT:
            try:
                await self._drain(order.wait_s, gone)
            except asyncio.CancelledError:
                self.fence.hand_over()
                raise
        standing = self.standing()
        if not standing.drained:
            self.fence.hand_over()
        return standing

    async def _drain(self, wait_s: float, gone: Gone) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            if await gone():
                # Nobody reads the answer: the trainer may go on without it.
                self.fence.hand_over()
                return
            standing = self.standing()
            left = deadline - loop.time()
            if standing.state is not FenceState.SYNCING or standing.drained or left <= 0:
                return
            await self._until(self._changed, min(left, _ASK_CLIENT_S))

    async def ready(self, order: ReadyOrder) -> Standing:
        """The engine has the weights: it is told so where that is ours to do, the word is
        stored, and calls are let in.

        Raises:
            BadRequest: the weights cannot be loaded; the engine has what it had.
            EngineNotTold: the engine did not take a step; the fence stays shut.
            StoreFailed: it could not be stored; the fence stays shut, or the version unknown.
        """
        async with self._orders:
            await self._note_expiry()
            was_open = self.standing().state is FenceState.READY
            if was_open:
                self.fence.syncing(self._now_us(), order.version, _READY_LEASE_US)
            # The trainer's word is that they are there: what ends before it is stored has met
            # them, and so would what begins.
            self.fence.hand_over()
            try:
                return await self._take(order)
            except BadRequest:
                if was_open:
                    self.fence.reopen()
                    self.poke()
                raise
            except BaseException as error:
                if was_open and self.standing().state is FenceState.SYNCING:
                    told = isinstance(error, EngineNotTold)
                    reason = "the engine was not told of" if told else "nobody could store"
                    await self.doubt(f"{reason} version {order.version}")
                raise

    async def _take(self, order: ReadyOrder) -> Standing:
        """Loads or publishes, stores, and opens: in this order."""
        detail: dict[str, Any] = {}
        label = order.label
        if order.path is not None:
            loaded = await self._load(order.path, label or str(order.version))
            label = loaded.label
            detail |= {"weights_path": str(order.path), "sha256": loaded.sha256}
        else:
            published = await self._publish(order)
            if published.steps:
                label = published.label
                detail["steps"] = [step.as_json() for step in published.steps]
        before = self.fence.last_version
        if before is not None and order.version < before:
            detail["back_from"] = before
        await self._store_row("ready", order.version, label, detail)
        self._paused = False
        self.fence.ready(order.version, label)
        self.poke()
        self._watch_lease()
        return self.standing()

    async def _load(self, path: Path, label: str) -> Loaded:
        try:
            loaded = await self.control.load(path, label)
        except BadRequest:
            raise
        except BaseException:
            # Cancelled, or the engine died: nobody knows which weights answer next.
            await self.doubt("loading new weights broke off")
            raise
        self._weights_changed(loaded.fingerprint)
        return loaded

    async def _publish(self, order: ReadyOrder) -> Published:
        label = order.label if order.label is not None else str(order.version)
        published = await self.control.publish(label, paused=self._paused)
        if not published.ok:
            failed = published.steps[-1]
            raise EngineNotTold(
                f"the engine did not do `{failed.name}` ({failed.said}), so version "
                f"{order.version} is not announced; mend it and say `ready` again",
                steps=[step.as_json() for step in published.steps],
            )
        return published

    async def doubt(self, reason: str) -> None:
        """Nobody knows any more which weights the engine has; calls are let in."""
        self._now_in_doubt(reason)
        await self._store_unknown(reason)

    def _now_in_doubt(self, reason: str) -> None:
        log.warning("weights: %s: the version is unknown until it is announced again", reason)
        self.fence.doubt(reason)
        self.poke()
        self._watch_lease()

    # -- how

    async def _store_row(
        self, state: str, version: int | None, label: str | None, detail: dict[str, Any]
    ) -> None:
        row = WeightUpdate(self._number + 1, self._now_us(), state, version, label, detail)
        await self._store.add_weight_update(row)
        self._number = row.number

    async def _store_unknown(self, reason: str) -> None:
        last = self.fence.last_version
        try:
            await self._store_row("unknown", last, None, {"reason": reason})
        except StoreFailed as error:
            log.error("weights: what became unknown could not be stored: %s", error)

    def _watch_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        lease_us = self.standing().lease_expires_us
        if lease_us is not None:
            delay = max(0.0, (lease_us - self._now_us()) / 1e6) + 0.01
            self._lease = asyncio.get_running_loop().call_later(delay, self._lease_over)

    def _lease_over(self) -> None:
        self._record_soon(self._locked_expiry())
        self.poke()

    async def _locked_expiry(self) -> None:
        async with self._orders:
            await self._note_expiry()
            self._watch_lease()

    async def _note_expiry(self) -> None:
        """Stores that a lease ran out; an engine that we had paused goes on."""
        if not self.fence.take_expiry(self._now_us()):
            return
        log.warning("weights: %s", LEASE_RAN_OUT)
        if self._paused:
            self._paused = False
            try:
                step = await self.control.resume()
            except UpstreamFailed as error:
                step = None
                log.error("weights: the engine is still paused: %s", error)
            if step is not None and not step.ok:
                log.error("weights: the engine is still paused: %s", step.said)
        await self._store_unknown(LEASE_RAN_OUT)
        self.poke()

    def _record_soon(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)
