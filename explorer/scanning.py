"""Looks for secrets in what was recorded or imported. Wiring only.

Done after commits, by a task that leaves calls and pages most of the time: a closed rollout
soon after its last row, an open one when it has been quiet, or once a minute. Nothing waits
for it: a page or a download of a rollout that was not scanned yet scans it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from explorer.errors import ExplorerError
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId
from explorer.store.interface import RecordStamp, Store
from explorer.trace.secret_scan import SCAN_VERSION

log = logging.getLogger(__name__)

POLL_S = 0.5
OPEN_EVERY_S = 60.0
ROUND_S = 10.0
# Between two rollouts: calls and pages come first, so most of the time is theirs.
_PAUSE_S = 0.01
_PAUSE_SHARE = 3.0
_BUSY_SHARE = 12.0


class Scanning:
    """The background task of one server.

    Args:
        in_flight: calls that are being worked on now.
    """

    def __init__(
        self, store: Store, secrets: SecretScans, in_flight: Callable[[], int]
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._in_flight = in_flight
        self._task: asyncio.Task[None] | None = None
        # What this process scanned: a store that takes no marks is not scanned forever.
        self._done: dict[RolloutId, str] = {}
        self._seen: dict[RolloutId, str] = {}
        self._scanned: dict[RolloutId, float] = {}

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_ended)

    async def stop(self) -> None:
        """Ends it wherever it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        commits = -1
        waiting = True
        while True:
            try:
                now = self._store.health().commits
                if now != commits or waiting:
                    commits = now
                    waiting = await self._round()
            except ExplorerError as error:
                log.warning("rollouts are not searched for secrets now: %s", error)
                waiting = True
            await asyncio.sleep(POLL_S)

    async def _round(self) -> bool:
        """Does what is due, the newest rollouts first; whether something is left."""
        stamps = await asyncio.to_thread(self._store.record_stamps)
        marks = await asyncio.to_thread(self._store.secret_marks)
        left = False
        began_round = time.monotonic()
        for stamp in stamps:
            rollout_id = stamp.rollout_id
            mark = marks.get(rollout_id)
            known = mark is not None and mark.version == SCAN_VERSION
            wanted = self._secrets.stamps(stamp)
            if self._done.get(rollout_id) in wanted or (
                known and mark is not None and mark.stamp in wanted
            ):
                continue
            if time.monotonic() - began_round > ROUND_S:
                return True
            if not self._is_due(stamp):
                left = True
                continue
            began = time.monotonic()
            self._scanned[rollout_id] = began
            try:
                self._done[rollout_id] = await self._secrets.mark(stamp)
            except ExplorerError as error:
                self._done[rollout_id] = wanted[0]
                log.warning("rollout %s is not searched for secrets: %s", rollout_id, error)
            took = time.monotonic() - began
            share = _BUSY_SHARE if self._in_flight() else _PAUSE_SHARE
            await asyncio.sleep(max(_PAUSE_S, share * took))
        self._seen = {stamp.rollout_id: stamp.text for stamp in stamps}
        self._done = {name: self._done[name] for name in self._seen if name in self._done}
        return left

    def _is_due(self, stamp: RecordStamp) -> bool:
        if stamp.closed or self._seen.get(stamp.rollout_id) == stamp.text:
            return True
        return time.monotonic() - self._scanned.get(stamp.rollout_id, 0.0) > OPEN_EVERY_S


def _ended(task: asyncio.Task[None]) -> None:
    """Says it when the work ended by a fault of ours: marks then come only on demand."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("searching rollouts for secrets ended", exc_info=error)
