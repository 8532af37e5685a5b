"""Checks one file of a dataset against what its manifest says of it.

Owns: size, digest, name, the shape of a Parquet file, and what lies there unnamed.
Must not know: rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.dataset.manifest import CARD, MANIFEST, Manifest
from explorer.export.dataset.schema import (
    DATASET_SCHEMA_VERSION,
    METADATA_KEY,
    REASON_CODES,
    schema_of,
)
from explorer.export.dataset.writer import Shard

_PIECE = 1024 * 1024
# What people put beside a dataset, and no reader takes for data.
_PAPERS = ("license", "licence", "notice", "citation")


def parquet_fault(path: Path, config: str, told: Shard, wanted: Any = None) -> str:
    """What is wrong with a Parquet file of a config; nothing where it is as told.

    Args:
        wanted: its schema, where that is an adapter's own.
    """
    words = bytes_fault(path, told)
    if words:
        return words
    try:
        with pq.ParquetFile(path) as opened:
            return _shape(opened, config, told, wanted or schema_of(config))
    except (pa.ArrowException, OSError) as error:
        return f"is no Parquet file: {str(error)[:120]}"


def bytes_fault(path: Path, told: Shard) -> str:
    """What is wrong with the bytes of any file; nothing where they are as told."""
    digest, size = hashlib.sha256(), 0
    try:
        # Whoever opens a pipe waits for ever, and some devices have no end.
        if path.exists() and not path.is_file():
            return "is no file"
        size = path.stat().st_size
        if size == told.size:
            size = 0
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    size += len(piece)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if size != told.size:
        return f"has {size} bytes, {MANIFEST} says {told.size}"
    if digest.hexdigest() != told.sha256:
        return f"was changed: its SHA-256 is not that of {MANIFEST}"
    if path.name.startswith("part-") and not path.stem.endswith(told.sha256[:16]):
        return "its name is not that of its content"
    return ""


def _shape(opened: Any, config: str, told: Shard, wanted: Any) -> str:
    schema = opened.schema_arrow
    # By a name that stands there twice, or that trainers know, a reader takes other values.
    if not schema.equals(wanted):
        return f"has another schema than `{config}` of version {DATASET_SCHEMA_VERSION}"
    metadata = schema.metadata or {}
    try:
        about = orjson.loads(metadata.get(METADATA_KEY, b""))
    except orjson.JSONDecodeError:
        about = None
    if not isinstance(about, dict):
        return "does not say which version of the schema it has"
    said = (about.get("schema_version"), about.get("config"))
    if said != (DATASET_SCHEMA_VERSION, config):
        return f"says of itself that it is {said[1]} of schema version {said[0]}"
    if set(metadata) != {METADATA_KEY} or not _same_reasons(about.get("mask_reasons")):
        return "says something else of its columns than this program writes"
    if (opened.metadata.num_rows, opened.metadata.num_row_groups) != (
        told.rows,
        told.row_groups,
    ):
        return f"has {opened.metadata.num_rows} rows, {MANIFEST} says {told.rows}"
    return ""


def _same_reasons(told: Any) -> bool:
    """Whether no code has another name; older files may know fewer."""
    ours = {str(code): str(reason) for reason, code in REASON_CODES.items()}
    return isinstance(told, dict) and all(
        ours.get(code, name) == name for code, name in told.items()
    )


def strangers(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What lies there and is not named: whoever takes `sequences/*.parquet`, or all that
    looks like data, would read it. Hidden files are none of it."""
    known = {file.path for file in manifest.files} | {MANIFEST, CARD}
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(name for name in folders if here != folder or name[0] != ".")
        for name in [*folders, *sorted(files)]:
            path = here / name
            told = path.relative_to(folder).as_posix()
            if path.is_dir():
                if path.is_symlink():
                    yield f"{told}: leads to another folder"
            elif told not in known and not (here == folder and _harmless(name)):
                yield f"{told}: {MANIFEST} does not name this file"


def _harmless(name: str) -> bool:
    return name.startswith(".") or name.lower().split(".")[0] in _PAPERS
