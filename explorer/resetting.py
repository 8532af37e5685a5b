"""Wipes what visitors left, on a timer: a public demo begins anew. Wiring only.

Owns: when. Must not know: what is wiped; the audit log never is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from explorer.errors import ExplorerError

log = logging.getLogger(__name__)


class Resetting:
    """The background task of one server.

    Args:
        every_hours: time between two resets; 0 never.
        reset: wipes.
    """

    def __init__(self, every_hours: float, reset: Callable[[], Awaitable[None]]) -> None:
        self._every_s = every_hours * 3600
        self._reset = reset
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to wait; needs a running loop."""
        if self._every_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._reset()
            except ExplorerError as error:
                log.warning("what visitors left could not be wiped: %s", error)
