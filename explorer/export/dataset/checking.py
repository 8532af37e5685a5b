"""Checks a dataset by itself: no server, no store.

Owns: what is checked of a folder, and the report.
Must not know: where the folder came from. Nothing in it is believed: rollouts are judged
again from their own rows, and what follows must be what stands there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from explorer.errors import ExplorerError, InvalidValue
from explorer.export.dataset.adapter import Subject
from explorer.export.dataset.claims import manifest_problems, spelling_problems
from explorer.export.dataset.extras_check import AdaptersOf, ExtrasCheck, no_adapters
from explorer.export.dataset.facts import Facts
from explorer.export.dataset.file_check import parquet_fault, strangers
from explorer.export.dataset.manifest import (
    MANIFEST,
    ConfigEntry,
    Manifest,
    Part,
    RolloutEntry,
    read_manifest,
)
from explorer.export.dataset.reading import read_rollout
from explorer.export.dataset.rows import Texts, batches_of
from explorer.export.dataset.rules import broken_rules
from explorer.export.dataset.schema import (
    CONFIGS,
    schema_of,
    schema_sha256,
)
from explorer.export.dataset.values import logprobs_of
from explorer.export.dataset.writer import Shard
from explorer.records import CallId
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.verdict import judge
from explorer.trace.verify import Report

_SHOWN = 20
# What people decided about secrets, which are named nowhere in a dataset.
_TOLD = ("reviewed", "secrets", "paths")
_ROWS = 16
# Taken over from the engine and the harness as they came; the digests cover them.
_NOT_DERIVED = ("request", "reply")


@dataclass(slots=True)
class _Found:
    problems: list[str] = field(default_factory=list)
    rejudged: int = 0

    def add(self, words: str) -> None:
        self.problems.append(words)

    @property
    def enough(self) -> bool:
        return len(self.problems) >= _SHOWN


def is_dataset(path: Path) -> bool:
    """Whether a path is a folder that may be a dataset."""
    return path.is_dir() and (
        (path / MANIFEST).exists() or any((path / config).is_dir() for config in CONFIGS)
    )


def check_dataset(folder: Path, adapters_of: AdaptersOf = no_adapters) -> Report:
    """Checks files, schemas, rules of the rows, every verdict, and what adapters gave.

    Raises:
        InvalidValue: the manifest cannot be read, or it has a format that nobody knows here.
    """
    manifest = read_manifest(folder)
    raw = (folder / MANIFEST).read_bytes()
    found = _Found([*manifest_problems(manifest), *spelling_problems(raw, manifest)])
    extras = ExtrasCheck(folder, manifest, adapters_of)
    for config in CONFIGS:
        entry = manifest.configs.get(config)
        if entry is None:
            found.add(f"{MANIFEST} has no `{config}`")
        else:
            _files(folder, config, entry, found)
    for words in (*extras.shapes(), *strangers(folder, manifest)):
        found.add(words)
    # Rows of a file that is damaged cannot be read in order.
    if not found.problems:
        try:
            _rows(folder, manifest, extras, found)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            found.add(f"its rows cannot be read: {str(error)[:120]}")
    for part in manifest.parts:
        if part.judge_version != JUDGE_VERSION:
            # Any token may be marked there, and whoever forges chooses the number.
            found.add(
                f"a part was judged by rules {part.judge_version}, this program has "
                f"{JUDGE_VERSION} and cannot make its verdicts again: check it with the "
                f"program that wrote it, {part.writer[:60]}"
            )
    problems = found.problems[:_SHOWN]
    if len(found.problems) > _SHOWN:
        problems.append("and more")
    return Report(
        kind="dataset",
        ok=not problems,
        trainable=any(entry.trainable for entry in manifest.rollouts),
        problems=tuple(problems),
        facts={"manifest_sha256": hashlib.sha256(raw).hexdigest()} | _facts(manifest, found),
    )


def _facts(manifest: Manifest, found: _Found) -> dict[str, Any]:
    return {
        "writer": ", ".join(dict.fromkeys(part.writer for part in manifest.parts)),
        "parts": len(manifest.parts),
        "formats": sorted(manifest.extras),
        "schema_version": manifest.schema_version,
        "rollouts": len(manifest.rollouts),
        "judged_again": found.rejudged,
        "sequences": sum(entry.sequences for entry in manifest.rollouts),
        "supervised_tokens": manifest.supervised_tokens,
        "not_trainable": [f"{code} {many}" for code, many in manifest.untrained.items()],
        "left_out": [f"{code} {many}" for code, many in manifest.left_out.items()],
        "files": sum(1 for _ in manifest.files),
    }


# -- files


def _files(folder: Path, config: str, entry: ConfigEntry, found: _Found) -> None:
    if entry.schema_sha256 != schema_sha256(config):
        found.add(f"{config}: {MANIFEST} names another schema")
    if not entry.files:
        found.add(f"{config}: no file is named")
    for file in entry.files:
        words = parquet_fault(folder / file.path, config, file)
        if words:
            found.add(f"{file.path}: {words}")


# -- rows


class _Groups:
    """The rows of a config, a rollout at a time, in order."""

    def __init__(self, folder: Path, config: str, files: Sequence[Shard]) -> None:
        self.schema = schema_of(config)
        self._runs = self._read(folder, files)
        self._next = next(self._runs, None)

    @staticmethod
    def _read(folder: Path, files: Sequence[Shard]) -> Iterator[tuple[str, Any]]:
        for file in files:
            with pq.ParquetFile(folder / file.path) as opened:
                for batch in opened.iter_batches(_ROWS):
                    names = batch.column("rollout_id").to_pylist()
                    start = 0
                    for end in range(1, len(names) + 1):
                        if end == len(names) or names[end] != names[start]:
                            yield names[start], batch.slice(start, end - start)
                            start = end

    def take(self, rollout_id: str) -> Any:
        """The rows of a rollout as a table; without rows where another one is next."""
        parts = []
        while self._next is not None and self._next[0] == rollout_id:
            parts.append(self._next[1])
            self._next = next(self._runs, None)
        return pa.Table.from_batches(parts, schema=self.schema).combine_chunks()

    @property
    def left(self) -> str | None:
        """The rollout whose rows are next."""
        return None if self._next is None else self._next[0]


def _rows(folder: Path, manifest: Manifest, extras: ExtrasCheck, found: _Found) -> None:
    groups = {
        config: _Groups(folder, config, entry.files)
        for config, entry in manifest.configs.items()
    }
    for part, entries in manifest.by_part:
        _part(part, entries, groups, extras, found)
        if found.enough:
            return
    for config, group in groups.items():
        if group.left is not None:
            found.add(f"{config}: rows of {group.left[:80]} stand where none belongs")
    for words in extras.left():
        found.add(words)


def _part(
    part: Part,
    entries: Sequence[RolloutEntry],
    groups: Mapping[str, _Groups],
    extras: ExtrasCheck,
    found: _Found,
) -> None:
    again = part.judge_version == JUDGE_VERSION
    facts = Facts()
    if again:
        extras.begin(part)
    else:
        extras.skip(part)
    before: tuple[int, str] | None = None
    for entry in entries:
        here = (entry.closed_us, entry.rollout_id)
        if before is not None and here <= before:
            found.add(f"rollout {entry.rollout_id}: is not in the order of the seals")
        before = here
        tables = {config: group.take(entry.rollout_id) for config, group in groups.items()}
        for words in _rollout(entry, tables):
            found.add(f"rollout {entry.rollout_id}: {words}")
        if not part.bodies and _texts_in(tables["calls"]):
            found.add(f"rollout {entry.rollout_id}: has texts that {MANIFEST} denies")
        if again and tables["rollouts"].num_rows == 1:
            for words in _made_again(tables, extras, facts):
                found.add(f"rollout {entry.rollout_id}: {words}")
        if found.enough:
            return
        found.rejudged += again
    if again:
        for words in extras.end():
            found.add(words)
        if _derived(facts.to_json()) != _derived(part.facts):
            found.add(f"{MANIFEST}: the facts of a part are not those of its rollouts")


def _derived(facts: dict[str, Any]) -> bytes:
    """Facts in one spelling, without those that no row of the dataset tells."""
    people = facts.get("people")
    if isinstance(people, dict):
        rest = {name: value for name, value in people.items() if name not in _TOLD}
        facts = facts | {"people": rest}
    return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)


def _made_again(tables: dict[str, Any], extras: ExtrasCheck, facts: Facts) -> Iterator[str]:
    try:
        yield from _again(tables, extras, facts)
    except InvalidValue as error:
        yield f"cannot be read at {error.details.get('path', '$')}: {error.message}"
    except ExplorerError as error:
        yield error.message


def _rollout(entry: RolloutEntry, tables: dict[str, Any]) -> Iterator[str]:
    row = tables["rollouts"]
    if row.num_rows != 1:
        yield f"has {row.num_rows} rows in `rollouts`"
        return
    told = row.to_pylist()[0]
    for name, wanted in (
        ("closed_us", entry.closed_us),
        ("inputs_sha256", entry.inputs_sha256),
        ("policy_sha256", entry.policy_sha256),
        ("trainable", entry.trainable),
        ("reason_codes", list(entry.reasons)),
        ("n_calls", entry.calls),
        ("n_sequences", entry.sequences),
        ("supervised_tokens", entry.supervised_tokens),
    ):
        if told[name] != wanted:
            yield f"`{name}` is {told[name]!r:.60}, {MANIFEST} says {wanted!r:.60}"
    for config, wanted_rows in (("calls", entry.calls), ("sequences", entry.sequences)):
        if tables[config].num_rows != wanted_rows:
            yield (
                f"has {tables[config].num_rows} rows in `{config}`, {MANIFEST} says "
                f"{wanted_rows}"
            )
    yield from broken_rules(told, tables["sequences"])


def _again(tables: dict[str, Any], extras: ExtrasCheck, facts: Facts) -> Iterator[str]:
    """Where a rollout's rows are not those that follow from it."""
    read = read_rollout(tables["rollouts"], tables["calls"].to_batches())
    judgement = judge(read.record, read.policy)
    made: dict[str, list[Any]] = {config: [] for config in CONFIGS}
    for config, rows in batches_of(read.record, judgement):
        made[config].append(rows)
    for config, batches in made.items():
        follows = pa.Table.from_batches(batches, schema=schema_of(config)).combine_chunks()
        yield from _differences(config, tables[config], follows)
    yield from extras.rollout(Subject(read.record, judgement, _texts(tables["calls"])))
    facts.add(read.record, judgement)


def _texts_in(calls: Any) -> bool:
    return any(calls.column(name).null_count != calls.num_rows for name in _NOT_DERIVED)


def _texts(calls: Any) -> Texts:
    """Requests and replies as they stand in the rows."""
    names, requests, replies = (
        calls.column(name).to_pylist() for name in ("call_id", "request", "reply")
    )
    known = {
        name: (request, reply)
        for name, request, reply in zip(names, requests, replies, strict=True)
    }

    def read(call_id: CallId) -> tuple[str | None, str | None]:
        return known.get(str(call_id), (None, None))

    return read


def _differences(config: str, stands: Any, follows: Any) -> Iterator[str]:
    if stands.num_rows != follows.num_rows:
        yield (
            f"`{config}` has {stands.num_rows} rows of it, its record gives {follows.num_rows}"
        )
        return
    for name in follows.column_names:
        if name in _NOT_DERIVED:
            continue
        one, two = stands.column(name), follows.column(name)
        if not one.equals(two) and not (name == "logprobs" and _same_bits(one, two)):
            yield f"`{config}`.`{name}` is not what follows from its record"


def _same_bits(one: Any, two: Any) -> bool:
    """Whether two columns of logprobs are equal, what is no number included."""
    left, right = one.combine_chunks(), two.combine_chunks()
    for row in range(len(left)):
        first, second = logprobs_of(left, row), logprobs_of(right, row)
        if (first is None) != (second is None):
            return False
        if first is not None and second is not None and first.tobytes() != second.tobytes():
            return False
    return True
