"""Parquet shards: bounded row groups, bounded files, named by their content.

Owns: how files are written, split, hashed and named. The same rows in the same order give
the same bytes and so the same names.
Must not know: what rows mean, the manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.dataset.schema import (
    CONFIGS,
    Column,
    columns_schema,
    dictionary_columns,
)

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes: of a row group before it is compressed, of a file after. Either is
    passed by one row where a row alone is larger."""

    row_group_bytes: int = 40 * _MB
    shard_bytes: int = 256 * _MB


@dataclass(frozen=True, slots=True)
class Shard:
    """One finished file; `path` is relative to the dataset's folder."""

    path: str
    rows: int
    row_groups: int
    size: int
    sha256: str


class Hashed:
    """A file that is hashed while it is written; its writers only ever append."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


class ShardWriter:
    """Writes the rows of one config, in the order given.

    Args:
        folder: of the dataset; files go to a folder of the config's name in it.
        first: number of the first file: those before it are there already.
    """

    def __init__(
        self,
        folder: Path,
        config: str,
        limits: Limits,
        columns: Sequence[Column] | None = None,
        first: int = 0,
    ) -> None:
        self._folder = folder
        self._config = config
        self._limits = limits
        self._first = first
        columns = CONFIGS[config] if columns is None else columns
        self._schema = columns_schema(config, columns)
        self._options = {
            "compression": "zstd",
            "use_dictionary": dictionary_columns(columns),
            "use_content_defined_chunking": True,
            "write_page_index": True,
        }
        self._held: list[Any] = []
        self._held_bytes = 0
        self._sink: Hashed | None = None
        self._file: BinaryIO | None = None
        self._writer: Any = None
        self._rows = self._groups = 0
        self.shards: list[Shard] = []
        (folder / config).mkdir(parents=True, exist_ok=True)

    def add(self, batch: Any) -> None:
        """Rows that follow those before."""
        most = self._limits.row_group_bytes
        for part in _parts(batch, most):
            # Whole batches are built tight; the size of a part must be counted out.
            size = part.get_total_buffer_size() if part is batch else part.nbytes
            if self._held and self._held_bytes + size > most:
                self._flush()
            self._held.append(part)
            self._held_bytes += size

    def close(self) -> list[Shard]:
        """Writes what is left; a config that never had a row has one file, which tells its
        schema."""
        self._flush()
        if not self.shards and self._writer is None and not self._first:
            self._open()
        self._finish()
        return self.shards

    def abandon(self) -> None:
        """Leaves the files as they are; the folder is nobody's."""
        # Else they would be ended, and complain, when they are collected.
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._writer = self._file = None

    def _flush(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._open()
        # One batch at a time: put together, a row group would be in memory twice.
        table = pa.Table.from_batches(self._held, schema=self._schema)
        self._held, self._held_bytes = [], 0
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows += table.num_rows
        self._groups += 1
        assert self._sink is not None  # it is open
        if self._sink.size >= self._limits.shard_bytes:
            self._finish()

    @property
    def _beside(self) -> Path:
        return self._folder / self._config / f"part-{self._number:05d}.writing"

    @property
    def _number(self) -> int:
        return self._first + len(self.shards)

    def _open(self) -> None:
        self._file = self._beside.open("wb")
        self._sink = Hashed(self._file)
        self._writer = pq.ParquetWriter(self._sink, self._schema, **self._options)

    def _finish(self) -> None:
        if self._writer is None or self._file is None or self._sink is None:
            return
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest = self._sink.digest.hexdigest()
        name = f"{self._config}/part-{self._number:05d}-{digest[:16]}.parquet"
        os.replace(self._beside, self._folder / name)
        self.shards.append(Shard(name, self._rows, self._groups, self._sink.size, digest))
        self._writer = self._file = self._sink = None
        self._rows = self._groups = 0


def _parts(batch: Any, most: int) -> list[Any]:
    """A batch, or halves of halves of one that is larger than a row group may be."""
    if batch.num_rows <= 1 or batch.get_total_buffer_size() <= most:
        return [batch]
    if batch.nbytes <= most:
        return [batch]
    middle = batch.num_rows // 2
    return _parts(batch.slice(0, middle), most) + _parts(batch.slice(middle), most)


class DatasetWriter:
    """The three configs together.

    Args:
        first: by config, the number of its first file.
    """

    def __init__(
        self, folder: Path, limits: Limits, first: Mapping[str, int] | None = None
    ) -> None:
        there = first or {}
        self._writers = {
            config: ShardWriter(folder, config, limits, first=there.get(config, 0))
            for config in CONFIGS
        }

    def add(self, config: str, rows: Any) -> None:
        """Rows of a config that follow those before."""
        self._writers[config].add(rows)

    def close(self) -> dict[str, list[Shard]]:
        """Every file, by config."""
        return {config: writer.close() for config, writer in self._writers.items()}

    def abandon(self) -> None:
        """Stops in the middle."""
        for writer in self._writers.values():
            writer.abandon()
