"""Checks what adapters gave: it is made again from the record, and must be what stands there.

Owns: reading the files of adapters piece by piece, and comparing.
Must not know: any one format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from explorer.errors import InvalidValue
from explorer.export.dataset.adapter import Adapter, File, Layout, Line, Piece, Row, Subject
from explorer.export.dataset.extras import forms_of, rows_batch
from explorer.export.dataset.file_check import bytes_fault, parquet_fault
from explorer.export.dataset.manifest import ExtraEntry, Manifest, Part, form_of
from explorer.export.dataset.schema import columns_schema
from explorer.export.dataset.writer import Shard

# Gives new adapters by name; raises InvalidValue for a name that it does not know.
AdaptersOf = Callable[[Iterable[str]], list[Adapter]]
_ROWS = 64


def no_adapters(names: Iterable[str]) -> list[Adapter]:
    """For datasets of the record alone.

    Raises:
        InvalidValue: there is some format to be known.
    """
    for name in names:
        raise InvalidValue(f"nobody here knows the format {name[:40]!r}")
    return []


class ExtrasCheck:
    """One walk over a dataset's extras, a rollout at a time, in order."""

    def __init__(self, folder: Path, manifest: Manifest, adapters_of: AdaptersOf) -> None:
        self._folder = folder
        self._manifest = manifest
        self._adapters_of = adapters_of
        self._adapters: list[Adapter] = []
        self._readers: dict[str, _Reader] = {}
        self._left: dict[str, int] = {}
        for name, entry in manifest.extras.items():
            (adapter,) = adapters_of([name])
            self._readers[name] = _READERS[adapter.layout](folder, adapter, entry)

    def shapes(self) -> Iterator[str]:
        """Entries and files that are not as this program's adapters give them."""
        for name, entry in self._manifest.extras.items():
            (adapter,) = self._adapters_of([name])
            if form_of(entry) != forms_of([adapter])[name]:
                yield f"{name}: the manifest names another schema of it"
            for file in entry.files:
                words = _fault(self._folder / file.path, adapter, file)
                if words:
                    yield f"{file.path}: {words}"

    def begin(self, part: Part) -> None:
        """The rollouts that follow are of this part."""
        self._adapters = self._adapters_of(self._manifest.extras)
        self._left = dict(part.extras)

    def skip(self, part: Part) -> None:
        """Passes over a part that other rules made."""
        for name, many in part.extras.items():
            self._readers[name].take(many)

    def rollout(self, subject: Subject) -> Iterator[str]:
        """Where what stands there does not follow from the rollout."""
        for adapter in self._adapters:
            yield from self._compared(adapter, list(adapter.add(subject)))

    def end(self) -> Iterator[str]:
        """What the part's adapters give last."""
        for adapter in self._adapters:
            yield from self._compared(adapter, list(adapter.finish()))
        for name, left in self._left.items():
            if left:
                yield f"`{name}`: the manifest counts {left} more than its rollouts give"

    def left(self) -> Iterator[str]:
        """Whether anything stands behind the last part."""
        for name, reader in self._readers.items():
            if reader.take(1):
                yield f"`{name}` holds more than its rollouts give"

    def _compared(self, adapter: Adapter, pieces: Sequence[Piece]) -> Iterator[str]:
        if pieces:
            self._left[adapter.name] = self._left.get(adapter.name, 0) - len(pieces)
            stands = self._readers[adapter.name].take(len(pieces))
            if not stands or not _same(adapter, stands, pieces):
                yield f"`{adapter.name}` is not what follows from its record"


def _fault(path: Path, adapter: Adapter, told: Shard) -> str:
    """What is wrong with a file of an adapter, as far as that shows without the record."""
    if adapter.layout is Layout.PARQUET:
        wanted = columns_schema(adapter.name, adapter.columns)
        return parquet_fault(path, adapter.name, told, wanted)
    words = bytes_fault(path, told)
    if words:
        return words
    rows = 1
    if adapter.layout is Layout.LINES:
        with path.open("rb") as opened:
            rows = sum(1 for _ in opened) - bool(adapter.header)
    if (rows, 0) != (told.rows, told.row_groups):
        return f"has {rows} rows, the manifest says {told.rows}"
    return ""


def _same(adapter: Adapter, stands: Any, pieces: Sequence[Piece]) -> bool:
    if adapter.layout is not Layout.PARQUET:
        return bool(stands == list(pieces))
    follows = rows_batch(
        adapter.name, adapter.columns, [p for p in pieces if isinstance(p, Row)]
    )
    if stands.num_rows != follows.num_rows:
        return False
    return all(
        _equal(stands.column(name).combine_chunks(), follows.column(name))
        for name in follows.schema.names
    )


def _equal(one: Any, two: Any) -> bool:
    """Whether two columns are equal, what is no number included."""
    if one.equals(two):
        return True
    if not pa.types.is_list(two.type) or not pa.types.is_floating(two.type.value_type):
        return False
    left, right = one.flatten(), two.flatten()
    return bool(
        one.is_valid().equals(two.is_valid())
        and one.value_lengths().equals(two.value_lengths())
        and left.is_valid().equals(right.is_valid())
        and np.array_equal(_numbers(left), _numbers(right), equal_nan=True)
    )


def _numbers(array: Any) -> Any:
    return array.to_numpy(zero_copy_only=False)


class _Reader(Protocol):
    def take(self, many: int) -> Any:
        """The next pieces, fewer where there are no more."""


class _Rows:
    def __init__(self, folder: Path, adapter: Adapter, entry: ExtraEntry) -> None:
        self._batches = self._read(folder, entry)
        self._rest: Any = None

    @staticmethod
    def _read(folder: Path, entry: ExtraEntry) -> Iterator[Any]:
        for file in entry.files:
            with pq.ParquetFile(folder / file.path) as opened:
                yield from opened.iter_batches(_ROWS)

    def take(self, many: int) -> Any:
        parts = []
        while many:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    break
                continue
            part = self._rest.slice(0, many)
            self._rest = self._rest.slice(part.num_rows)
            many -= part.num_rows
            parts.append(part)
        return pa.Table.from_batches(parts) if parts else None


class _Lines:
    def __init__(self, folder: Path, adapter: Adapter, entry: ExtraEntry) -> None:
        self._lines = self._read(folder, adapter.header, entry)

    @staticmethod
    def _read(folder: Path, header: bytes, entry: ExtraEntry) -> Iterator[Line]:
        for file in entry.files:
            with (folder / file.path).open("rb") as opened:
                if header and opened.readline() != header + b"\n":
                    yield Line(b"(a file without its first line)")
                for line in opened:
                    yield Line(line.removesuffix(b"\n"))

    def take(self, many: int) -> list[Line]:
        return [line for _, line in zip(range(many), self._lines, strict=False)]


class _Files:
    def __init__(self, folder: Path, adapter: Adapter, entry: ExtraEntry) -> None:
        self._files = self._read(folder, adapter, entry)

    @staticmethod
    def _read(folder: Path, adapter: Adapter, entry: ExtraEntry) -> Iterator[File]:
        for file in entry.files:
            stem = file.path.removeprefix(f"{adapter.name}/").removesuffix(f".{adapter.suffix}")
            yield File(stem, (folder / file.path).read_bytes())

    def take(self, many: int) -> list[File]:
        return [file for _, file in zip(range(many), self._files, strict=False)]


_READERS: dict[Layout, Any] = {
    Layout.PARQUET: _Rows,
    Layout.LINES: _Lines,
    Layout.FILES: _Files,
}
