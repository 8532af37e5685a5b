"""The proof about secrets that is made on the written files, whatever wrote them.

Owns: reading the ids back from the finished Parquet files and decoding them.
Must not know: how rows were made, who decided what (it is told what people let go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from explorer.export.dataset.values import ids_of
from explorer.export.dataset.writer import Shard
from explorer.records import IdArray, RolloutId
from explorer.trace.secret_hiding import still_tells
from explorer.trace.secret_text import Masker

Vocabulary = Mapping[int, tuple[bytes, bool]]
# The vocabulary of a rollout, and a masker that lets what people let go pass.
Told = Callable[[RolloutId], tuple[Vocabulary, Masker]]
_IDS = {"calls": ("prompt_delta", "completion"), "sequences": ("token_ids",)}
_ROWS = 64


@dataclass(slots=True)
class Proof:
    """What was found in the files.

    Attributes:
        telling: rollouts whose written ids decode to what nobody let go.
        decoded, unknown: ids that were decoded, and ids that no vocabulary has.
    """

    telling: set[RolloutId]
    rollouts: int = 0
    decoded: int = 0
    unknown: int = 0


def prove(folder: Path, shards: Mapping[str, list[Shard]], told: Told) -> Proof:
    """Decodes every id in the files of a dataset."""
    proof = Proof(set())
    seen: set[RolloutId] = set()
    for config, columns in _IDS.items():
        for shard in shards[config]:
            for rollout_id, ids in _written(folder / shard.path, columns):
                seen.add(rollout_id)
                vocabulary, masker = told(rollout_id)
                known = sum(each in vocabulary for each in ids.tolist())
                proof.decoded += known
                proof.unknown += int(ids.size) - known
                if still_tells(ids, vocabulary, masker):
                    proof.telling.add(rollout_id)
    proof.rollouts = len(seen)
    return proof


def _written(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[RolloutId, IdArray]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, columns=["rollout_id", *columns]):
            names = batch.column("rollout_id").to_pylist()
            for column in columns:
                array = batch.column(column)
                for row, name in enumerate(names):
                    ids = ids_of(array, row)
                    if ids is not None and ids.size:
                        yield RolloutId(name), ids
