"""Which call a new call continues, as one rollout knows it while it runs.

Owns: the prefix index of one rollout's committed calls and the custody chain.
Must not know: the store, HTTP.

The stored parent is chosen once, among calls that are durable already; the displayed
tree is computed afresh by `trace` and may adopt ancestors that came late.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from explorer.capture.draft import Placement
from explorer.custody.digest import chain_hash
from explorer.records import Call, CallId, IdArray
from explorer.trace.prefix import PrefixIndex

# Rough sizes of what one call and one block of tokens keep in memory (bytes), for the
# bound on all rollouts together; measured with tracemalloc over a 1,000-turn rollout.
_PER_CALL_BYTES = 1800
_PER_TOKEN_BYTES = 3


class Lineage:
    """The committed calls of one rollout, findable by prefix; safe across threads."""

    def __init__(self) -> None:
        self._index = PrefixIndex()
        self._chain: dict[CallId, bytes] = {}
        self._lock = threading.Lock()
        self.size_bytes = 0

    @classmethod
    def from_calls(cls, calls: Iterable[Call]) -> Lineage:
        """The lineage of stored calls (any order that has parents before children)."""
        lineage = cls()
        for call in calls:
            lineage.add(call)
        return lineage

    def place(self, prompt_ids: IdArray, completion: IdArray) -> Placement:
        """The stored parent of a new call: one pass over its own prompt."""
        with self._lock:
            match = self._index.find_parent(prompt_ids)
            if match is None:
                parent, length, parent_chain = None, 0, None
            else:
                parent, length = match
                parent_chain = self._chain.get(parent)
        delta = np.concatenate((prompt_ids[length:], completion))
        return Placement(parent, length, chain_hash(parent_chain, delta))

    def add(self, call: Call) -> None:
        """Makes a durable call a possible parent; calls without ids are passed over."""
        if call.prompt_delta is None or call.completion is None or call.chain_hash is None:
            return
        with self._lock:
            if call.call_id in self._chain:
                return
            if call.stored_parent_id is not None and call.stored_parent_id not in self._chain:
                # Its parent was lost to quarantine: its own prefix is not known here.
                return
            self._index.add(
                call.call_id,
                call.sequence,
                call.prompt_delta,
                call.completion,
                parent=call.stored_parent_id,
            )
            self._chain[call.call_id] = call.chain_hash
            tokens = int(call.prompt_delta.size + call.completion.size)
            self.size_bytes += _PER_CALL_BYTES + _PER_TOKEN_BYTES * tokens
