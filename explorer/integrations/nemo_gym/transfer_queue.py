"""Staged calls in TransferQueue: one row a call in one partition.

Owns: which fields a row has, and how a call is read back from them.
Must not know: Ray, which storage the queue uses.

Needs the package `transferqueue` and a queue that `transfer_queue.init()` has made or joined.
What it acknowledges lies in another process's memory where the queue uses its simple storage:
it survives the worker, not the machine. The queue has no checksums; the digest of every call
is made again when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.custody.fields import dump, loads
from explorer.custody.records import (
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
)
from explorer.integrations.nemo_gym.keys import key_of

# The queue's numbers are signed.
_MOST_ID = 1 << 63
_COLUMNS = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
_HEAD = "head"


class TransferQueueSink:
    """A `StagingSink` and `StagingSource` over one partition.

    Args:
        partition: its name.
    """

    def __init__(self, partition: str = "staged_calls") -> None:
        import transfer_queue

        self._queue: Any = transfer_queue
        self._partition = partition

    def stage(
        self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None
    ) -> StageResult:
        """As `StagingSink.stage`; the same key again replaces the row.

        Raises:
            TypeError: attachments.
        """
        import torch

        if attachments:
            raise TypeError("a row of staged calls takes no attachments")
        ids = record.token_ids_delta
        if ids.size and int(ids.max()) >= _MOST_ID:
            return StageResult(ok=False, error="an id of more than 63 bits cannot be stored")
        head = record.to_json()
        for name in _COLUMNS:
            head.pop(name)
        fields = {
            "token_ids_delta": torch.from_numpy(ids.astype(np.int64)),
            "token_mask_delta": torch.from_numpy(record.token_mask_delta.copy()),
            "generation_log_probs_delta": torch.from_numpy(
                record.generation_log_probs_delta.copy()
            ),
            _HEAD: torch.frombuffer(bytearray(dump(head).encode()), dtype=torch.uint8),
        }
        key = key_of(record)
        self._queue.kv_put(
            key=key, partition_id=self._partition, fields=fields, tag={"digest": record.digest}
        )
        return StageResult(ok=True, staging_key=key)

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """As `StagingSource.fetch`.

        Raises:
            LookupError: a key is not there.
            ValueError: a row is damaged.
        """
        return [self._one(key) for key in staging_keys]

    def _one(self, key: str) -> StagedCallRecord:
        # One by one: asked for several keys, the queue leaves out those that it lacks.
        try:
            row = self._queue.kv_batch_get(keys=[key], partition_id=self._partition)
        except ValueError as error:
            raise KeyError(f"no staged call {key}: {error}") from None
        values = loads(bytes(row[_HEAD][0].tolist()))
        for name in _COLUMNS:
            values[name] = row[name][0].numpy()
        record = StagedCallRecord.parse(values)
        if key_of(record) != key:
            raise LookupError(f"{key_of(record)} lies in place of {key}")
        return record
