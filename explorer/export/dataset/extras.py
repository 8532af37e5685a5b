"""Files of what adapters give: Parquet shards, files of lines, single files.

Owns: how they are written, split, named and counted.
Must not know: any one format, and what a manifest does with the counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from explorer.errors import ConfigurationError, RecordInconsistent
from explorer.export.dataset.adapter import Adapter, File, Layout, Line, Piece, Row, Subject
from explorer.export.dataset.manifest import ExtraEntry, Form
from explorer.export.dataset.rows import BATCH_BYTES, BATCH_ROWS
from explorer.export.dataset.schema import Column, columns_schema, columns_sha256
from explorer.export.dataset.values import list_array, logprob_array, valid
from explorer.export.dataset.writer import Hashed, Limits, Shard, ShardWriter
from explorer.trace.secret_text import Masker

# Folders of more files are slow to list, and hubs refuse them.
MOST_FILES = 10_000


class ExtrasWriter:
    """Writes what every adapter gives.

    Args:
        first: by adapter, how many files it has there already.
    """

    def __init__(
        self,
        folder: Path,
        adapters: Sequence[Adapter],
        limits: Limits,
        first: Mapping[str, int] | None = None,
    ) -> None:
        there = first or {}
        self._sinks = [
            (
                adapter,
                _SINKS[adapter.layout](folder, adapter, limits, there.get(adapter.name, 0)),
            )
            for adapter in adapters
        ]

    def add(self, subject: Subject, masker: Masker) -> bool:
        """One more rollout; whether a text in it holds what nobody let go.

        Raises:
            RecordInconsistent: it cannot be told in one of the formats; some of it may be
                written by then.
            ConfigurationError: there would be too many files.
        """
        telling = False
        for adapter, sink in self._sinks:
            for piece in adapter.add(subject):
                if adapter.needs_texts and not isinstance(piece, Row):
                    telling = telling or bool(masker.spans(piece.data))
                sink.put(piece)
        return telling

    def finish(self) -> dict[str, ExtraEntry]:
        """Writes what is left; the files by adapter."""
        made = {}
        for adapter, sink in self._sinks:
            for piece in adapter.finish():
                sink.put(piece)
            files = sink.close()
            made[adapter.name] = ExtraEntry(
                *forms_of([adapter])[adapter.name], rows=sink.count, files=tuple(files)
            )
        return made

    def abandon(self) -> None:
        """Stops in the middle; the folder is nobody's."""
        for _, sink in self._sinks:
            sink.abandon()


def rows_batch(name: str, columns: Sequence[Column], rows: Sequence[Row]) -> Any:
    """Rows of an adapter as a batch of its schema.

    Raises:
        RecordInconsistent: a value that must be there is missing.
    """
    schema = columns_schema(name, columns)
    names = frozenset(schema.names)
    arrays = []
    for row in rows:
        if not names.issuperset(row.values):
            raise ValueError(f"{name} gives {sorted(set(row.values) - names)}: no such column")
    for column, wanted in zip(columns, schema.types, strict=True):
        values = [row.values.get(column.name) for row in rows]
        array = _array(column.kind, wanted, values)
        if column.needed and array.null_count:
            raise RecordInconsistent(f"{name}: `{column.name}` is missing in a row")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: str, wanted: Any, values: list[Any]) -> Any:
    if kind in ("text", "json"):
        return pa.array([valid(value) for value in values], type=wanted)
    if kind == "texts":
        listed = [
            None if value is None else [valid(each) for each in value] for value in values
        ]
        return pa.array(listed, type=wanted)
    if pa.types.is_list(wanted) and all(
        value is None or isinstance(value, np.ndarray) for value in values
    ):
        if kind == "logprobs":
            return logprob_array(values, numbers_only=True)
        return list_array(values, wanted.value_type)
    return pa.array(values, type=wanted)


def _weight(row: Row) -> int:
    """About the bytes of a row."""
    return sum(
        value.nbytes
        if isinstance(value, np.ndarray)
        else 8 * len(value)
        if isinstance(value, (str, list, tuple))
        else 8
        for value in row.values.values()
    )


class _Rows:
    """Parquet shards."""

    def __init__(self, folder: Path, adapter: Adapter, limits: Limits, first: int) -> None:
        self._adapter = adapter
        self._writer = ShardWriter(folder, adapter.name, limits, adapter.columns, first)
        self._most = min(BATCH_BYTES, limits.row_group_bytes)
        self._held: list[Row] = []
        self._size = 0
        self.count = 0

    def put(self, piece: Piece) -> None:
        if not isinstance(piece, Row):
            raise TypeError(f"{self._adapter.name} must give rows")
        size = _weight(piece)
        if self._held and (self._size + size > self._most or len(self._held) >= BATCH_ROWS):
            self._flush()
        self._held.append(piece)
        self._size += size
        self.count += 1

    def _flush(self) -> None:
        if self._held:
            adapter = self._adapter
            self._writer.add(rows_batch(adapter.name, adapter.columns, self._held))
            self._held, self._size = [], 0

    def close(self) -> list[Shard]:
        self._flush()
        return self._writer.close()

    def abandon(self) -> None:
        self._writer.abandon()


class _Lines:
    """Text files of lines, each ended by a line feed; split at the size of a shard."""

    def __init__(self, folder: Path, adapter: Adapter, limits: Limits, first: int) -> None:
        self._adapter = adapter
        self._folder = folder
        self._most = limits.shard_bytes
        self._first = first
        self._shards: list[Shard] = []
        self._file: BinaryIO | None = None
        self._sink: Hashed | None = None
        self._lines = 0
        self.count = 0
        (folder / adapter.name).mkdir(parents=True, exist_ok=True)

    @property
    def _number(self) -> int:
        return self._first + len(self._shards)

    @property
    def _beside(self) -> Path:
        return self._folder / self._adapter.name / f"part-{self._number:05d}.writing"

    def put(self, piece: Piece) -> None:
        if not isinstance(piece, Line) or b"\n" in piece.data:
            raise TypeError(f"{self._adapter.name} must give single lines")
        if self._sink is None:
            self._file = self._beside.open("wb")
            self._sink = Hashed(self._file)
            if self._adapter.header:
                self._sink.write(self._adapter.header + b"\n")
        self._sink.write(piece.data + b"\n")
        self._lines += 1
        self.count += 1
        if self._sink.size >= self._most:
            self._finish()

    def close(self) -> list[Shard]:
        self._finish()
        return self._shards

    def _finish(self) -> None:
        if self._file is None or self._sink is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest = self._sink.digest.hexdigest()
        name = f"{self._adapter.name}/part-{self._number:05d}-{digest[:16]}"
        name = f"{name}.{self._adapter.suffix}"
        os.replace(self._beside, self._folder / name)
        self._shards.append(Shard(name, self._lines, 0, self._sink.size, digest))
        self._file = self._sink = None
        self._lines = 0

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None


class _Files:
    """One file a piece."""

    def __init__(self, folder: Path, adapter: Adapter, _: Limits, first: int) -> None:
        self._adapter = adapter
        self._folder = folder
        self._first = first
        self._shards: list[Shard] = []
        self._names: set[str] = set()
        self.count = 0
        (folder / adapter.name).mkdir(parents=True, exist_ok=True)

    def put(self, piece: Piece) -> None:
        if not isinstance(piece, File):
            raise TypeError(f"{self._adapter.name} must give files")
        if self._first + self.count >= MOST_FILES:
            raise ConfigurationError(
                f"the format {self._adapter.name!r} would have more than {MOST_FILES} files in "
                "one folder; leave it out, or export fewer rollouts at once"
            )
        name = f"{self._adapter.name}/{piece.stem}.{self._adapter.suffix}"
        if name.lower() in self._names:
            raise RecordInconsistent(f"{self._adapter.name}: two files are called {piece.stem}")
        self._names.add(name.lower())
        with (self._folder / name).open("wb") as file:
            file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())
        digest = hashlib.sha256(piece.data).hexdigest()
        self._shards.append(Shard(name, 1, 0, len(piece.data), digest))
        self.count += 1

    def close(self) -> list[Shard]:
        return self._shards

    def abandon(self) -> None:
        """Nothing is open."""


_SINKS: dict[Layout, Any] = {
    Layout.PARQUET: _Rows,
    Layout.LINES: _Lines,
    Layout.FILES: _Files,
}


def counts_of(entries: Mapping[str, ExtraEntry]) -> dict[str, int]:
    """Rows by adapter."""
    return {name: entry.rows for name, entry in entries.items()}


def forms_of(adapters: Iterable[Adapter]) -> dict[str, Form]:
    """How each of them writes."""
    return {
        each.name: (
            each.layout,
            each.needs_texts,
            columns_sha256(each.name, each.columns) if each.columns else "",
        )
        for each in adapters
    }


def with_texts(adapters: Iterable[Adapter]) -> bool:
    """Whether one of them is made from requests and replies."""
    return any(adapter.needs_texts for adapter in adapters)
