"""The trajectory file that a harness leaves behind: where it lies, and what is sent of it.

Owns: `read_document` and `find_document`.
Must not know: rollouts, what is made of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from explorer.errors import ConfigurationError

# As the server takes.
MAX_BYTES = 32 * 1024 * 1024
_MAX_FILES = 100
_LAG_S = 0.1


@dataclass(frozen=True, slots=True)
class Found:
    """The decoded file, or in words why there is none. Both None: none was expected."""

    document: dict[str, Any] | None = None
    problem: str | None = None


def read_document(path: Path) -> dict[str, Any]:
    """The decoded file, with those beside it that it goes on in.

    Raises:
        ConfigurationError: it cannot be read, or is no JSON object; says why.
    """
    return _continued(_read_one(path), path.parent)


def _read_one(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"trajectory {path}: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigurationError(f"trajectory {path}: longer than {MAX_BYTES} bytes")
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"trajectory {path} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"trajectory {path} is no JSON object")
    return document


def find_document(named: Path | None, pattern: str, began: float) -> Found:
    """The file that a person named, else the one that the profile's pattern finds.

    Args:
        pattern: relative to the working folder; empty when the harness writes none.
        began: when the run began (seconds); an older file is another run's.
    """
    if named is None and not pattern:
        return Found()
    if named is None:
        written = [path for path in Path().glob(pattern) if _written_since(path, began)]
        if len(written) != 1:
            many = f"{len(written)} files" if written else "no file"
            return Found(
                problem=f"The run wrote {many} {pattern}; name one with --trajectory."
                if written
                else f"The run wrote no file {pattern}."
            )
        named = written[0]
    elif not named.exists():
        return Found(problem=f"There is no file {named.name}.")
    elif not _written_since(named, began):
        return Found(problem=f"The file {named.name} is older than the run.")
    try:
        return Found(read_document(named))
    except ConfigurationError as error:
        return Found(problem=error.message)


def _continued(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The document with the steps of the files that it goes on in, as far as they are there."""
    whole = document
    seen: set[str] = set()
    while isinstance(ref := whole.get("continued_trajectory_ref"), str):
        if Path(ref).name != ref or ref in seen or len(seen) == _MAX_FILES:
            break
        seen.add(ref)
        try:
            more = _read_one(folder / ref)
        except ConfigurationError:
            break
        joined = {
            key: [*_listed(whole, key), *_listed(more, key)]
            for key in ("steps", "subagent_trajectories")
        }
        following = {"continued_trajectory_ref": more.get("continued_trajectory_ref")}
        whole = whole | joined | following
    return whole


def _listed(document: dict[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []


def _written_since(path: Path, began: float) -> bool:
    try:
        written = path.stat().st_mtime_ns
        # Some file systems keep whole seconds, and all of them a clock that lags a little.
        whole = written % 1_000_000_000 == 0
        since = int(began) if whole else began - _LAG_S
        return path.is_file() and written >= since * 1_000_000_000
    except OSError:
        return False
