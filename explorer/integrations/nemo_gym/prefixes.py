"""The exact ids that a continuation must begin with, from the worker's own storage.

Owns: fetching the calls that an admission names, checking them, keeping recent prefixes.
Must not know: HTTP, engines.

Fetched ids are hashed link by link to the parent's chain hash that the admission names. So a
prefix that is kept may be found again by that hash, and a long rollout does not fetch its
whole past at every turn.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from explorer.custody.digest import chain_hash
from explorer.custody.protocols import StagingSource
from explorer.custody.records import CaptureAdmission

Ids = NDArray[np.uint64]
KEPT_BYTES = 256 * 1024 * 1024


class Prefixes:
    """Finds prefixes; may be used from many threads.

    Args:
        kept_bytes: memory for prefixes that were found lately (bytes).
    """

    def __init__(self, source: StagingSource, kept_bytes: int = KEPT_BYTES) -> None:
        self._source, self._limit = source, kept_bytes
        self._kept: OrderedDict[str, Ids] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def of(self, admission: CaptureAdmission) -> Ids | None:
        """The prefix of a call; None where the admission holds it, or there is none.

        Raises:
            LookupError: a call is not in storage.
            ValueError: what is there is not what was committed.
        """
        parent = admission.parent_chain_hash
        if parent is None or not admission.staging_chain:
            return None
        found = self._known(parent)
        if found is None:
            found = self._fetched(admission, parent)
            self._keep(parent, found)
        return found

    def _fetched(self, admission: CaptureAdmission, parent: str) -> Ids:
        calls = self._source.fetch(admission.staging_chain)
        link: bytes | None = None
        for call in calls:
            if call.rollout_id != admission.rollout_id:
                raise ValueError(f"{call.model_call_id} is of another rollout")
            link = chain_hash(link, call.token_ids_delta)
        if link is None or link.hex() != parent:
            raise ValueError("the stored calls do not hash to the parent's chain hash")
        return np.concatenate([call.token_ids_delta for call in calls])

    def _known(self, parent: str) -> Ids | None:
        with self._lock:
            found = self._kept.get(parent)
            if found is not None:
                self._kept.move_to_end(parent)
            return found

    def _keep(self, parent: str, ids: Ids) -> None:
        with self._lock:
            if parent in self._kept or ids.nbytes > self._limit:
                return
            self._kept[parent] = ids
            self._size += ids.nbytes
            while self._size > self._limit:
                self._size -= self._kept.popitem(last=False)[1].nbytes
