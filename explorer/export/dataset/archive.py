"""A dataset as one zip file, and back.

Owns: the names in it, that the same folder gives the same bytes, and what is unpacked.
Must not know: who takes it, what the files hold.

Names come from the manifest, which has those of our own ids only; nothing that somebody
called something is ever a name in it.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from explorer.errors import InvalidValue, RecordInconsistent
from explorer.export.dataset.manifest import CARD, MANIFEST, Manifest, parse_manifest

_PIECE = 1024 * 1024
# The first moment that a zip file can tell: no clock is written.
_WHEN = (1980, 1, 1, 0, 0, 0)
_MOST_MANIFEST = 512 * 1024 * 1024
_MOST_CARD = 16 * 1024 * 1024
# Parquet is compressed already.
_PACKED = (".json", ".jsonl", ".csv", ".md")


class _Pieces:
    """A file that only takes: what was written is taken out again piece by piece."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """There is nothing behind it."""

    def take(self) -> Iterator[bytes]:
        held, self._held = self._held, []
        yield from held


def names_of(folder: Path, manifest: Manifest) -> list[str]:
    """What is in the zip: every data file, then the card and the manifest.

    Raises:
        RecordInconsistent: two names are one where letters have no case.
    """
    names = [file.path for file in manifest.files]
    names += [name for name in (CARD, MANIFEST) if (folder / name).is_file()]
    if len({name.lower() for name in names}) != len(names):
        raise RecordInconsistent("two files of the dataset have one name")
    return names


def zip_pieces(folder: Path, manifest: Manifest) -> Iterator[bytes]:
    """The zip file of a dataset, piece by piece, without ever holding a whole file.

    Raises:
        OSError: a file is gone or cannot be read.
    """
    pieces = _Pieces()
    with zipfile.ZipFile(pieces, "w", allowZip64=True) as made:  # type: ignore[call-overload]
        for name in names_of(folder, manifest):
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.external_attr = 0o644 << 16
            entry.compress_type = (
                zipfile.ZIP_DEFLATED if name.endswith(_PACKED) else zipfile.ZIP_STORED
            )
            entry.file_size = (folder / name).stat().st_size
            with (folder / name).open("rb") as file, made.open(entry, "w") as target:
                while piece := file.read(_PIECE):
                    target.write(piece)
                    yield from pieces.take()
    yield from pieces.take()


def write_zip(folder: Path, manifest: Manifest, target: Path) -> int:
    """The same into a file, which is there only when it is whole; its bytes."""
    beside = target.with_name(target.name + ".writing")
    size = 0
    try:
        with beside.open("wb") as file:
            for piece in zip_pieces(folder, manifest):
                size += file.write(piece)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return size


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks the dataset in a zip file: only what its manifest names, and no more bytes of
    each than it says.

    Raises:
        InvalidValue: it is no zip file, or no dataset's.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = {entry.filename: entry for entry in opened.infolist()}
            if len(entries) != len(opened.infolist()):
                raise InvalidValue(f"{archive}: two files in it have one name")
            if MANIFEST not in entries:
                raise InvalidValue(f"{archive} has no {MANIFEST}: it is no dataset")
            _copy(opened, entries[MANIFEST], folder, _MOST_MANIFEST)
            manifest = parse_manifest((folder / MANIFEST).read_bytes())
            sizes = {file.path: file.size for file in manifest.files}
            sizes[CARD] = _MOST_CARD
            for name, entry in entries.items():
                if name == MANIFEST:
                    continue
                if name not in sizes:
                    raise InvalidValue(f"{archive}: {MANIFEST} does not name {name[:80]!r}")
                _copy(opened, entry, folder, sizes[name])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise InvalidValue(f"{archive} is no zip file that can be read: {error}") from error


def _copy(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, most: int) -> None:
    if entry.file_size > most:
        raise InvalidValue(f"{entry.filename[:80]!r} is larger than it may be")
    target = folder / entry.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    # What an entry says of its size is kept by the reader: more is an error of it.
    with opened.open(entry) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _PIECE)
