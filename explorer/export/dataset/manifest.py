"""The manifest of a dataset: what is in it, what was left out, and digests of every file.

Owns: its form, and reading it back.
Must not know: how rows are made or checked. It holds no clock: the same rollouts give the
same manifest.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from explorer.errors import InvalidValue
from explorer.export.dataset.schema import DATASET_SCHEMA_VERSION
from explorer.export.dataset.writer import Shard

MANIFEST = "manifest.json"
FORMAT = "rollout-explorer/dataset"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The files of one config, in order."""

    schema_sha256: str
    rows: int
    files: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """A rollout that is in it, as its rows are ordered.

    Attributes:
        inputs_sha256, policy_sha256: of the verdict that it was written under.
        reasons: why it has no sequences; empty when it trains.
    """

    rollout_id: str
    closed_us: int
    inputs_sha256: str
    policy_sha256: str
    trainable: bool
    reasons: tuple[str, ...]
    calls: int
    sequences: int
    supervised_tokens: int


@dataclass(frozen=True, slots=True)
class Excluded:
    """A rollout that was asked for and is not in it."""

    rollout_id: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a reader needs before opening a file.

    Attributes:
        policies: by digest, the switches.
        bodies: whether requests and replies were asked for.
        secrets: what was proved of the written ids: how many rollouts' ids were decoded,
            and how many ids nobody could decode.
    """

    format: str
    schema_version: int
    writer: str
    judge_version: int
    bodies: bool
    mask_reasons: dict[str, str]
    policies: dict[str, dict[str, Any]]
    configs: dict[str, ConfigEntry]
    secrets: dict[str, int]
    rollouts: tuple[RolloutEntry, ...]
    excluded: tuple[Excluded, ...]

    @property
    def supervised_tokens(self) -> int:
        """Tokens that train, each once."""
        return sum(entry.supervised_tokens for entry in self.rollouts)

    @property
    def untrained(self) -> dict[str, int]:
        """Rollouts without sequences, by their first reason."""
        return _counted(entry.reasons[0] for entry in self.rollouts if entry.reasons)

    @property
    def left_out(self) -> dict[str, int]:
        """Rollouts that are not in it, by code."""
        return _counted(entry.code for entry in self.excluded)


def _counted(codes: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for code in codes:
        found[code] = found.get(code, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """The manifest, last of all files: a folder without one is not whole."""
    path = folder / MANIFEST
    counts = {
        "supervised_tokens": manifest.supervised_tokens,
        "rollouts": len(manifest.rollouts),
        "untrained_by_reason": manifest.untrained,
        "excluded_by_reason": manifest.left_out,
    }
    document = asdict(manifest) | {"counts": counts}
    beside = path.with_name(MANIFEST + ".writing")
    beside.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    beside.replace(path)
    return path


_READER: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_NAME = re.compile(r"(rollouts|calls|sequences)/part-[0-9]{5}-[0-9a-f]{16}\.parquet")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        InvalidValue: there is none, or it is none that this program reads.
    """
    try:
        document = orjson.loads((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise InvalidValue(
            f"{folder} has no {MANIFEST} that can be read: it is no dataset, or writing it "
            "was cut short; export it again"
        ) from error
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"{MANIFEST} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidValue(f"{MANIFEST} is not that of a dataset of this program")
    version = document.get("schema_version")
    if version != DATASET_SCHEMA_VERSION:
        raise InvalidValue(
            f"this program reads datasets of schema version {DATASET_SCHEMA_VERSION}, "
            f"not {str(version)[:40]}"
        )
    counts = document.pop("counts", None)
    try:
        manifest = _READER.validate_json(orjson.dumps(document), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"])
        raise InvalidValue(f"{MANIFEST}: {first['msg']}", path=place) from error
    for entry in manifest.configs.values():
        for file in entry.files:
            # A name leads nowhere else than into the folder.
            if not _NAME.fullmatch(file.path):
                raise InvalidValue(f"{MANIFEST} names a file {file.path[:80]!r}")
    told = {
        "supervised_tokens": manifest.supervised_tokens,
        "rollouts": len(manifest.rollouts),
        "untrained_by_reason": manifest.untrained,
        "excluded_by_reason": manifest.left_out,
    }
    if counts != told:
        raise InvalidValue(f"{MANIFEST}: `counts` is not the sum of its own entries")
    return manifest
