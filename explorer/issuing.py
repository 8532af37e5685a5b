"""Issues the receipts of closed rollouts. Wiring only.

Done after commits, by a task that leaves calls and pages most of the time: soon after a
rollout was closed, and after each reward that came later. Nothing waits for it: a page or a
document of a rollout issues what is due first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from explorer.errors import ExplorerError, StoreFailed
from explorer.export.sealing import Sealing
from explorer.records import RolloutId
from explorer.rounds import ROUND_S, Rounds
from explorer.store.interface import Store

log = logging.getLogger(__name__)


class Issuing(Rounds):
    """The background task of one server.

    Args:
        in_flight: calls that are being worked on now.
    """

    def __init__(self, store: Store, sealing: Sealing, in_flight: Callable[[], int]) -> None:
        super().__init__(store, in_flight, "no receipts are issued")
        self._sealing = sealing
        # Rollouts whose record cannot be read are tried once by each process.
        self._failed: set[RolloutId] = set()

    async def _round(self) -> bool:
        due = await asyncio.to_thread(self._store.seals_due)
        began_round = time.monotonic()
        for rollout_id in due:
            if rollout_id in self._failed:
                continue
            began = time.monotonic()
            if began - began_round > ROUND_S:
                return True
            try:
                await self._sealing.issue(rollout_id)
            except StoreFailed:
                raise  # what cannot be written now can be later
            except ExplorerError as error:
                self._failed.add(rollout_id)
                log.warning("rollout %s gets no receipt: %s", rollout_id, error)
            await self._rest(began)
        return False
