"""Background work over rollouts: a round whenever something was written. Wiring only.

Owns: when a round begins, which rollouts are due in it, and how much of the time is left to
calls and pages. Must not know: what is done with a rollout.

A closed rollout is due soon after its last row, an open one when it has been quiet, or once
a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from explorer.errors import ExplorerError
from explorer.records import RolloutId
from explorer.store.interface import RecordStamp, Store

log = logging.getLogger(__name__)

POLL_S = 0.5
OPEN_EVERY_S = 60.0
ROUND_S = 10.0
# Between two rollouts, as shares of what one took; longer while calls are in flight.
_PAUSE_S = 0.01
_PAUSE_SHARE = 3.0
_BUSY_SHARE = 12.0


class Rounds(ABC):
    """The background task of one server.

    Args:
        in_flight: calls that are being worked on now.
        trouble: what is not being done while the store cannot be asked.
    """

    def __init__(self, store: Store, in_flight: Callable[[], int], trouble: str) -> None:
        self._store = store
        self._in_flight = in_flight
        self._trouble = trouble
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[RolloutId, str] = {}
        self._begun: dict[RolloutId, float] = {}

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Ends it wherever it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @abstractmethod
    async def _round(self) -> bool:
        """Does what is due, the newest rollouts first; whether something is left."""

    def _goes_on(self) -> bool:
        return True

    def _broken(self) -> None:
        """Told once when the work ended by a fault of ours."""
        log.error("%s any more, until the next start", self._trouble)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken()
            log.error("background work ended", exc_info=error)

    async def _run(self) -> None:
        commits = -1
        waiting = True
        while self._goes_on():
            try:
                now = self._store.health().commits
                if now != commits or waiting:
                    commits = now
                    waiting = await self._round()
            except ExplorerError as error:
                log.warning("%s now: %s", self._trouble, error)
                waiting = True
            await asyncio.sleep(POLL_S)

    def _is_due(self, stamp: RecordStamp) -> bool:
        if stamp.closed or self._seen.get(stamp.rollout_id) == stamp.text:
            return True
        return time.monotonic() - self._begun.get(stamp.rollout_id, 0.0) > OPEN_EVERY_S

    def _begin(self, stamp: RecordStamp) -> float:
        """Notes that a rollout is worked on now."""
        self._begun[stamp.rollout_id] = time.monotonic()
        return self._begun[stamp.rollout_id]

    async def _rest(self, began: float) -> None:
        """Leaves most of the time to calls and pages."""
        share = _BUSY_SHARE if self._in_flight() else _PAUSE_SHARE
        await asyncio.sleep(max(_PAUSE_S, share * (time.monotonic() - began)))

    def _looked_at(self, stamps: Iterable[RecordStamp]) -> None:
        """Remembers how every rollout stood at the end of a round."""
        self._seen = {stamp.rollout_id: stamp.text for stamp in stamps}
        self._begun = {name: at for name, at in self._begun.items() if name in self._seen}
