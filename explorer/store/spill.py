"""The spill journal: where rows go, durably, while the database is invalidated.

Owns: one append-only file of rows beside the database, and reading it back.
Must not know: why the database failed, or how rows are inserted.

A line is ``<length> <crc32> <json>\n`` (both 8 hex digits; length and checksum cover the
JSON). A torn last line was never acknowledged and is ignored.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from explorer import columns
from explorer.columns import Kind, Table
from explorer.store import jsontext
from explorer.store.rows import Row

_HEADER = 18  # two numbers of 8 digits, each followed by a space


def fsync_directory(path: Path) -> None:
    """Make a created, renamed or removed directory entry durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def spill_path(database: Path) -> Path:
    """Return where the journal of a database file is."""
    return database.with_name(f"{database.name}.spill")


class SpillJournal:
    """The journal of one database file; used by the writer thread only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._end = 0

    def exists(self) -> bool:
        """Whether rows wait to be replayed."""
        return self.path.exists()

    def append(self, rows: Sequence[tuple[Table, Row]]) -> None:
        """Write rows and wait for the disk; `OSError` when it cannot be done.

        A failed append is cut off again, so that the file ends with a whole line.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._end = os.fstat(self._descriptor).st_size
            fsync_directory(self.path.parent)
        data = b"".join(_line(table, row) for table, row in rows)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)

    def read(self) -> tuple[list[tuple[Table, Row]], bool]:
        """Return the rows in order, and whether the file was whole."""
        data = self.path.read_bytes()
        found: list[tuple[Table, Row]] = []
        position = 0
        while position < len(data):
            try:
                size = int(data[position : position + 8], 16)
                check = int(data[position + 9 : position + 17], 16)
            except ValueError:
                break
            body = data[position + _HEADER : position + _HEADER + size]
            if len(body) < size or zlib.crc32(body) != check:
                break
            found.append(_parse(body))
            position += _HEADER + size + 1
        return found, position == len(data)

    def retire(self, *, whole: bool) -> Path | None:
        """Remove a replayed journal; keep a damaged one under another name.

        Returns the path of a kept one.
        """
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if whole:
            self.path.unlink(missing_ok=True)
            fsync_directory(self.path.parent)
            return None
        number = 1
        while (kept := self.path.with_name(f"{self.path.name}.torn-{number}")).exists():
            number += 1
        os.rename(self.path, kept)
        fsync_directory(self.path.parent)
        return kept

    def close(self) -> None:
        """Close the file, leaving it for the next start."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _line(table: Table, row: Row) -> bytes:
    values = {
        column.name: base64.b64encode(value).decode() if column.kind is Kind.BLOB else value
        for column, value in zip(table.columns, row, strict=True)
        if value is not None
    }
    body = jsontext.dump([table.name, values]).encode()
    return b"%08x %08x %b\n" % (len(body), zlib.crc32(body), body)


def _parse(body: bytes) -> tuple[Table, Row]:
    name, values = jsontext.load(body.decode())
    table = columns.table(name)
    row = tuple(
        base64.b64decode(values[column.name])
        if column.kind is Kind.BLOB and column.name in values
        else values.get(column.name)
        for column in table.columns
    )
    return table, row
