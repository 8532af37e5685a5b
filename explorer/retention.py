"""Deletes what is older or larger than it may be. Wiring only.

Owns: which rollouts are over a limit, and when that is looked at. A limit holds for all
rollouts of one visibility: first go those that are too old, then the oldest closed ones
until the rest fits. A rollout that is still open goes by age alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from explorer.errors import ExplorerError, NotFound
from explorer.hosting import RetentionLimit, Visibility
from explorer.records import RolloutId
from explorer.store.sizes import RolloutSize

log = logging.getLogger(__name__)

EVERY_S = 3600.0
# The first look waits until the server has answered its first visitors.
FIRST_S = 5.0
DAY_US = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Expired:
    """A rollout over a limit: `reason` says which, in words for the audit log."""

    rollout: RolloutSize
    level: str
    reason: str


def over(
    rollouts: Sequence[RolloutSize],
    levels: Mapping[RolloutId, str],
    limits: Mapping[Visibility, RetentionLimit],
    now_us: int,
) -> tuple[Expired, ...]:
    """What must go, by limit, the oldest first. `rollouts` come oldest first."""
    found: list[Expired] = []
    for level, limit in limits.items():
        mine = [each for each in rollouts if levels.get(each.rollout_id) == level]
        kept = []
        for each in mine:
            age_days = (now_us - each.created_us) / DAY_US
            if limit.days is not None and age_days > limit.days:
                reason = f"{level} rollouts are kept {limit.days:g} days"
                found.append(Expired(each, level, reason))
            else:
                kept.append(each)
        total = sum(each.size for each in kept)
        for each in kept:
            if limit.bytes is None or total <= limit.bytes:
                break
            if each.closed:
                total -= each.size
                reason = f"{level} rollouts may take {limit.bytes} bytes together"
                found.append(Expired(each, level, reason))
    return tuple(found)


class Retention:
    """The background task of one server.

    Args:
        limits: by visibility; without any, nothing is done.
        sizes: every rollout, the oldest first; blocks.
        levels: the visibility of each; blocks.
        remove: deletes one everywhere and writes it down.
        now_us: clock (microseconds).
    """

    def __init__(
        self,
        limits: Mapping[Visibility, RetentionLimit],
        sizes: Callable[[], Sequence[RolloutSize]],
        levels: Callable[[Sequence[RolloutSize]], Mapping[RolloutId, str]],
        remove: Callable[[Expired], Awaitable[None]],
        now_us: Callable[[], int],
    ) -> None:
        self._limits = limits
        self._sizes = sizes
        self._levels = levels
        self._remove = remove
        self._now_us = now_us
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, where there is a limit; needs a running loop."""
        if self._limits:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends it wherever it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                await self.sweep()
            except ExplorerError as error:
                log.warning("what is over its time is not deleted now: %s", error)
            await asyncio.sleep(EVERY_S)

    async def sweep(self) -> tuple[Expired, ...]:
        """Deletes what is over a limit now, and tells what that was."""
        rollouts = await asyncio.to_thread(self._sizes)
        levels = await asyncio.to_thread(self._levels, rollouts)
        found = over(rollouts, levels, self._limits, self._now_us())
        for each in found:
            with contextlib.suppress(NotFound):  # somebody else was quicker
                await self._remove(each)
        if found:
            log.info("%d rollouts were over a limit and are deleted", len(found))
        return found
