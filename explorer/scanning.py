"""Looks for secrets in what was recorded or imported. Wiring only.

Done after commits, by a task that leaves calls and pages most of the time: a closed rollout
soon after its last row, an open one when it has been quiet, or once a minute. Nothing waits
for it: a page or a download of a rollout that was not scanned yet scans it first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from explorer.errors import ExplorerError
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId
from explorer.rounds import ROUND_S, Rounds
from explorer.store.interface import Store
from explorer.trace.secret_scan import SCAN_VERSION

log = logging.getLogger(__name__)


class Scanning(Rounds):
    """The background task of one server.

    Args:
        in_flight: calls that are being worked on now.
    """

    def __init__(
        self, store: Store, secrets: SecretScans, in_flight: Callable[[], int]
    ) -> None:
        # Where it ends by a fault of ours, marks come only on demand.
        super().__init__(store, in_flight, "rollouts are not searched for secrets")
        self._secrets = secrets
        # What this process scanned: a store that takes no marks is not scanned forever.
        self._done: dict[RolloutId, str] = {}

    async def _round(self) -> bool:
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
            began = self._begin(stamp)
            try:
                self._done[rollout_id] = await self._secrets.mark(stamp)
            except ExplorerError as error:
                self._done[rollout_id] = wanted[0]
                log.warning("rollout %s is not searched for secrets: %s", rollout_id, error)
            await self._rest(began)
        self._looked_at(stamps)
        self._done = {name: self._done[name] for name in self._seen if name in self._done}
        return left
