"""Brings the summaries in listings up to the rules in force. Wiring only.

A listing reads summaries, and a summary is written when a rollout is judged. After another
policy was chosen or the rules changed, those of closed rollouts would say what held before
until somebody opened each of them; so they are judged again in the background, newest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from explorer.errors import ExplorerError
from explorer.export.judged import JudgedRollouts, rules_of
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.trace.policy import Policy

log = logging.getLogger(__name__)

_AT_ONCE = 64
# Between two rollouts: calls and pages come first, so most of the time is theirs.
_PAUSE_S = 0.01
_PAUSE_SHARE = 3.0


class Rejudging:
    """The background task of one server."""

    def __init__(
        self, store: Store, judged: JudgedRollouts, policy: Callable[[], Policy]
    ) -> None:
        self._store = store
        self._judged = judged
        self._policy = policy
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins; needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends it wherever it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        seen: set[RolloutId] = set()
        while True:
            try:
                found = await asyncio.to_thread(
                    self._store.judged_otherwise, rules_of(self._policy()), _AT_ONCE + len(seen)
                )
            except ExplorerError as error:
                log.warning("summaries are not brought up to date: %s", error)
                return
            fresh = [rollout_id for rollout_id in found if rollout_id not in seen]
            if not fresh:
                return
            for rollout_id in fresh[:_AT_ONCE]:
                seen.add(rollout_id)
                began = time.monotonic()
                try:
                    await self._judged.get(rollout_id)
                except ExplorerError as error:
                    log.warning("rollout %s cannot be judged again: %s", rollout_id, error)
                took = time.monotonic() - began
                await asyncio.sleep(max(_PAUSE_S, _PAUSE_SHARE * took))
