"""Deleting a rollout everywhere at once.

Owns: every place that may still hold something of it, and the audit row that stays.
Must not know: who may, why. The bytes in the file go with `compact`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from explorer.access.audit import AuditLog, Entry
from explorer.capture.desk import Desk
from explorer.errors import StoreReadOnly
from explorer.export.judged import JudgedRollouts
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId
from explorer.store.database import READ_ONLY
from explorer.store.interface import Store
from explorer.store.search_index import SearchIndex
from explorer.web import branches, passages, render


@dataclass(frozen=True, slots=True)
class Removal:
    """What must forget a rollout.

    Attributes:
        forget_copy: lets go of the copy of the store that SQL queries read.
        forget_files: removes files of datasets that were written and hold it.
    """

    store: Store
    desk: Desk
    judged: JudgedRollouts
    secrets: SecretScans
    index: SearchIndex
    audit: AuditLog
    forget_copy: Callable[[], None]
    forget_files: Callable[[RolloutId], None]

    async def __call__(self, rollout_id: RolloutId, entry: Entry) -> None:
        """Tombstones the rollout and forgets it; `entry` tells who did it and why.

        Raises:
            NotFound: there is no such rollout.
            StoreFailed: it could not be written down; nothing was deleted then.
        """
        if self.store.health().read_only:
            raise StoreReadOnly(READ_ONLY)
        await self.desk.live(rollout_id)
        await asyncio.to_thread(self.audit.append, entry)
        await self.desk.delete(rollout_id)
        self.judged.forget(rollout_id)
        await asyncio.to_thread(self._forget, rollout_id)

    def _forget(self, rollout_id: RolloutId) -> None:
        self.secrets.forget(rollout_id)
        self.index.forget([rollout_id])
        self.forget_copy()
        self.forget_files(rollout_id)
        passages.forget_kept()
        branches.forget_kept()
        render.forget_kept()
