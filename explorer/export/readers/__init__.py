"""Foreign captures: bytes of a file to rollouts as they were told there.

Owns: which formats are known, and how one is recognised.
Must not know: the store, HTTP, what a token may be used for.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer.errors import InvalidValue
from explorer.export.readers import atif, harbor, openenv, trl, verifiers
from explorer.export.readers.neutral import ImportedRollout
from explorer.export.readers.values import parse

Reader = Callable[[bytes], tuple[ImportedRollout, ...]]
READERS: dict[str, Reader] = {
    "openenv": openenv.read,
    "verifiers": verifiers.read,
    "atif": atif.read,
    "harbor": harbor.read,
    "trl": trl.read,
}


def recognise(data: bytes) -> str:
    """The format of a file, told by its contents.

    Raises:
        InvalidValue: it is none that is known.
    """
    if data[:4] == b"PAR1":
        return "trl"
    first = parse(_first_document(data), "$")
    if isinstance(first, list):
        return "openenv"
    if isinstance(first, dict):
        if str(first.get("schema_version", "")).startswith("ATIF"):
            return "atif"
        if first.get("kind") == harbor.KIND:
            return "harbor"
        if "turns" in first or "entries" in first or "trace_entries" in first:
            return "openenv"
        if "traces" in first or "nodes" in first:
            return "verifiers"
    raise InvalidValue(
        "this is no capture that can be read; known: OpenEnv `trace_entries` and "
        "`TrainingTrace`, verifiers `traces.jsonl`, ATIF, Harbor trial folders, TRL "
        "completions (Parquet); name the format if you know it"
    )


def _first_document(data: bytes) -> bytes:
    """The first line where that is a document of its own, else everything."""
    line = data.strip().partition(b"\n")[0].strip()
    return line if line.startswith(b"{") and line.endswith(b"}") else data


def read(data: bytes, format_: str = "auto") -> tuple[str, tuple[ImportedRollout, ...]]:
    """The format, and every rollout of a file; all of it or nothing.

    Raises:
        InvalidValue: names the line or path of what is wrong.
    """
    name = recognise(data) if format_ == "auto" else format_
    if name not in READERS:
        raise InvalidValue(f"`format` must be auto or one of {', '.join(READERS)}")
    found = READERS[name](data)
    if not found or not any(rollout.calls for rollout in found):
        raise InvalidValue(f"the file holds no model call (read as {name})")
    return name, found
