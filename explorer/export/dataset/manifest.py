"""The manifest of a dataset: what is in it, what was left out, and digests of every file.

Owns: its form, reading it back, and what a dataset becomes when something is added to it.
Must not know: how rows are made or checked. It holds no clock: the same rollouts give the
same manifest.

A dataset is written once and may be added to: each time is a *part*, with files of its own.
Nothing that an earlier part says, and none of its files, ever changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from explorer.errors import ConfigurationError, InvalidValue
from explorer.export.dataset.schema import CONFIGS, DATASET_SCHEMA_VERSION, schema_sha256
from explorer.export.dataset.writer import Shard
from explorer.trace.jsontext import clean

MANIFEST = "manifest.json"
CARD = "README.md"
FORMAT = "rollout-explorer/dataset"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The files of one config, in order."""

    schema_sha256: str
    rows: int
    files: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class ExtraEntry:
    """What one adapter gave, in its own format.

    Attributes:
        layout: how it lies there, a `Layout`.
        needs_texts: it was made from the texts of requests and replies.
        schema_sha256: of its columns; empty where it has none.
        rows: rows, lines or files.
    """

    layout: str
    needs_texts: bool
    schema_sha256: str
    rows: int
    files: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What was written at one time.

    Attributes:
        writer, judge_version: the program and the rules that made it.
        bodies: whether requests and replies are in it as text.
        rollouts: how many of `Manifest.rollouts` are its own, in their order.
        extras: by adapter, how many of its rows are this part's.
        secrets: what was proved of the written ids: how many rollouts' ids were decoded,
            and how many ids nobody could decode.
        facts: evidence for the card, `explorer.export.dataset.facts`.
    """

    writer: str
    judge_version: int
    bodies: bool
    rollouts: int
    extras: dict[str, int]
    secrets: dict[str, int]
    facts: dict[str, Any]


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
        configs: the record and the training rows.
        extras: the same in other formats, by adapter.
        parts: in the order they were written.
    """

    format: str
    schema_version: int
    mask_reasons: dict[str, str]
    policies: dict[str, dict[str, Any]]
    configs: dict[str, ConfigEntry]
    parts: tuple[Part, ...]
    rollouts: tuple[RolloutEntry, ...]
    excluded: tuple[Excluded, ...]
    extras: dict[str, ExtraEntry] = field(default_factory=dict)

    @property
    def files(self) -> Iterator[Shard]:
        """Every data file, the record's first."""
        for config in self.configs.values():
            yield from config.files
        for extra in self.extras.values():
            yield from extra.files

    @property
    def bodies(self) -> bool:
        """Whether some part has requests and replies as text."""
        return any(part.bodies for part in self.parts)

    @property
    def by_part(self) -> Iterator[tuple[Part, tuple[RolloutEntry, ...]]]:
        """Each part with its own rollouts."""
        start = 0
        for part in self.parts:
            yield part, self.rollouts[start : start + part.rollouts]
            start += part.rollouts

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


def appended(old: Manifest, new: Manifest) -> Manifest:
    """`old` with the parts of `new` behind its own.

    Args:
        new: its files are named behind those of `old`, its rollouts are others.

    Raises:
        ConfigurationError: the two do not go together.
    """
    joinable(old, {name: form_of(entry) for name, entry in new.extras.items()})
    names = {entry.rollout_id for entry in old.rollouts}
    if any(entry.rollout_id in names for entry in new.rollouts):
        raise ConfigurationError("a rollout cannot be in a dataset twice")
    rollouts = (*old.rollouts, *new.rollouts)
    names.update(entry.rollout_id for entry in new.rollouts)
    excluded = {item.rollout_id: item for item in (*old.excluded, *new.excluded)}
    return Manifest(
        format=FORMAT,
        schema_version=DATASET_SCHEMA_VERSION,
        mask_reasons=old.mask_reasons | new.mask_reasons,
        policies=old.policies | new.policies,
        configs={
            name: ConfigEntry(
                entry.schema_sha256,
                entry.rows + new.configs[name].rows,
                (*entry.files, *new.configs[name].files),
            )
            for name, entry in old.configs.items()
        },
        extras={
            name: ExtraEntry(
                entry.layout,
                entry.needs_texts,
                entry.schema_sha256,
                entry.rows + new.extras[name].rows,
                (*entry.files, *new.extras[name].files),
            )
            for name, entry in old.extras.items()
        },
        parts=(*old.parts, *new.parts),
        rollouts=rollouts,
        excluded=tuple(item for name, item in excluded.items() if name not in names),
    )


# Of a format: its layout, whether texts are in it, the digest of its columns.
Form = tuple[str, bool, str]


def form_of(entry: ExtraEntry) -> Form:
    """What must not change while a dataset grows."""
    return str(entry.layout), entry.needs_texts, entry.schema_sha256


def joinable(old: Manifest, formats: Mapping[str, Form]) -> None:
    """Whether more may be added to a dataset.

    Raises:
        ConfigurationError: it has other columns, or is told in other formats.
    """
    for name in sorted({*old.configs, *CONFIGS}):
        entry = old.configs.get(name)
        if entry is None or name not in CONFIGS or entry.schema_sha256 != schema_sha256(name):
            raise ConfigurationError(
                f"its config {name[:40]!r} has other columns than this program writes; publish "
                "under a new name"
            )
    if set(formats) != set(old.extras):
        told = ", ".join(sorted(old.extras)) or "none but the record"
        raise ConfigurationError(
            f"the dataset that is there has these formats: {told}; ask for the same ones, or "
            "publish under a new name"
        )
    for name, there in old.extras.items():
        if form_of(there) != formats[name]:
            raise ConfigurationError(
                f"its format {name!r} was written in another way than this program does; "
                "publish under a new name"
            )


def manifest_bytes(manifest: Manifest) -> bytes:
    """The file's content."""
    document = asdict(manifest) | {"counts": _counts(manifest)}
    try:
        return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
    except TypeError:  # a text that is no valid Unicode
        return orjson.dumps(clean(document), option=orjson.OPT_INDENT_2) + b"\n"


def _counts(manifest: Manifest) -> dict[str, Any]:
    return {
        "supervised_tokens": manifest.supervised_tokens,
        "rollouts": len(manifest.rollouts),
        "untrained_by_reason": manifest.untrained,
        "excluded_by_reason": manifest.left_out,
    }


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """The manifest, last of all files: a folder without one is not whole."""
    path = folder / MANIFEST
    beside = path.with_name(MANIFEST + ".writing")
    beside.write_bytes(manifest_bytes(manifest))
    beside.replace(path)
    return path


_READER: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_NAME = re.compile(
    r"(?P<folder>[a-z][a-z_]{0,40})/"
    r"(?:part-[0-9]{5}-[0-9a-f]{16}\.(?:parquet|jsonl|csv)|[0-9A-Za-z-]{1,80}\.(?:jsonl|json))"
)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        InvalidValue: there is none, or it is none that this program reads.
    """
    try:
        raw = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise InvalidValue(
            f"{folder} has no {MANIFEST} that can be read: it is no dataset, or writing it "
            "was cut short; export it again"
        ) from error
    return parse_manifest(raw)


def parse_manifest(raw: bytes) -> Manifest:
    """The same from its bytes."""
    try:
        document = orjson.loads(raw)
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
    listed = {name: entry.files for name, entry in manifest.configs.items()}
    listed |= {name: entry.files for name, entry in manifest.extras.items()}
    for name, files in listed.items():
        for file in files:
            # A name leads nowhere else than into the folder.
            found = _NAME.fullmatch(file.path)
            if found is None or found["folder"] != name:
                raise InvalidValue(f"{MANIFEST} names a file {file.path[:80]!r}")
    if sum(part.rollouts for part in manifest.parts) != len(manifest.rollouts):
        raise InvalidValue(f"{MANIFEST}: `parts` do not have its rollouts")
    if counts != _counts(manifest):
        raise InvalidValue(f"{MANIFEST}: `counts` is not the sum of its own entries")
    return manifest
