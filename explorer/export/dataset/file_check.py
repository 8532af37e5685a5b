"""Checks one file of a dataset against what its manifest says of it.

Owns: size, digest, name, and the shape of a Parquet file. Must not know: rows.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.dataset.manifest import MANIFEST
from explorer.export.dataset.schema import DATASET_SCHEMA_VERSION, METADATA_KEY, schema_of
from explorer.export.dataset.writer import Shard

_PIECE = 1024 * 1024


def parquet_fault(path: Path, config: str, told: Shard) -> str:
    """What is wrong with a Parquet file of a config; nothing where it is as told."""
    words = bytes_fault(path, told)
    if words:
        return words
    try:
        with pq.ParquetFile(path) as opened:
            return _shape(opened, config, told)
    except (pa.ArrowInvalid, OSError) as error:
        return f"is no Parquet file: {str(error)[:120]}"


def bytes_fault(path: Path, told: Shard) -> str:
    """What is wrong with the bytes of any file; nothing where they are as told."""
    digest, size = hashlib.sha256(), 0
    try:
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


def _shape(opened: Any, config: str, told: Shard) -> str:
    schema, wanted = opened.schema_arrow, schema_of(config)
    if not schema.equals(wanted):
        return f"has another schema than `{config}` of version {DATASET_SCHEMA_VERSION}"
    try:
        about = orjson.loads((schema.metadata or {}).get(METADATA_KEY, b""))
    except orjson.JSONDecodeError:
        return "does not say which version of the schema it has"
    said = (about.get("schema_version"), about.get("config"))
    if said != (DATASET_SCHEMA_VERSION, config):
        return f"says of itself that it is {said[1]} of schema version {said[0]}"
    if (opened.metadata.num_rows, opened.metadata.num_row_groups) != (
        told.rows,
        told.row_groups,
    ):
        return f"has {opened.metadata.num_rows} rows, {MANIFEST} says {told.rows}"
    return ""
