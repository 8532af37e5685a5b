"""A dataset from rollouts of a store: planned, written, proved, told in a manifest.

Owns: which rollouts are in it and why others are not, their order, and the folder.
Must not know: pages, HTTP, the command line.

What is in a dataset: sealed rollouts, whole. One with something undecided or withheld in it
is left out whole. One that may not train is in `rollouts` and `calls` only.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from explorer.errors import ConfigurationError, RecordInconsistent, SecretsUndecided
from explorer.export.dataset.manifest import (
    FORMAT,
    MANIFEST,
    ConfigEntry,
    Excluded,
    Manifest,
    RolloutEntry,
    read_manifest,
    write_manifest,
)
from explorer.export.dataset.proof import Proof, Vocabulary, prove
from explorer.export.dataset.rows import BATCH_BYTES, Gatherer, Texts, closed_us, no_texts
from explorer.export.dataset.schema import (
    CONFIGS,
    DATASET_SCHEMA_VERSION,
    REASON_CODES,
    WRITER,
    schema_sha256,
)
from explorer.export.dataset.writer import DatasetWriter, Limits, Shard
from explorer.export.judged import Judged, JudgedSource
from explorer.export.secrets import SecretScans
from explorer.records import BodyKind, CallId, RolloutId, TokenizerId
from explorer.store.interface import RolloutState, RolloutStatus, Store
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.refusals import refusals
from explorer.trace.secret_text import Masker

_TRIES = 3


class Listener(Protocol):
    """Who is told how far it is."""

    def __call__(self, done: int, of: int) -> None:
        """`done` of `of` rollouts are written."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where rollouts come from.

    Attributes:
        judged: the one place that judges.
        secrets: says what may leave.
        vocabulary: bytes of ids, for the proof.
    """

    store: Store
    judged: JudgedSource
    secrets: SecretScans
    vocabulary: Callable[[TokenizerId | None], Vocabulary]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be written.

    Attributes:
        rollouts: in the order of their seals.
        excluded: in the order they were asked for.
    """

    rollouts: tuple[RolloutId, ...]
    excluded: tuple[Excluded, ...]

    def without(self, some: Iterable[RolloutId], code: str, reason: str) -> Plan:
        """The plan without some of its rollouts."""
        gone = frozenset(some)
        return Plan(
            tuple(name for name in self.rollouts if name not in gone),
            (*self.excluded, *(Excluded(name, code, reason) for name in sorted(gone))),
        )


async def plan(source: Source, rollout_ids: Iterable[RolloutId]) -> Plan:
    """Decides about each rollout that was asked for."""
    kept: dict[RolloutId, int] = {}
    excluded: dict[RolloutId, Excluded] = {}
    for rollout_id in rollout_ids:
        if rollout_id in kept or rollout_id in excluded:
            continue
        state = await asyncio.to_thread(source.store.rollout_state, rollout_id)
        reason = await asyncio.to_thread(_refusal, source, rollout_id, state)
        if reason is not None:
            excluded[rollout_id] = reason
        elif state is not None:
            kept[rollout_id] = state.closed_us or 0
    ordered = sorted(kept, key=lambda name: (kept[name], name))
    return Plan(tuple(ordered), tuple(excluded.values()))


def _refusal(
    source: Source, rollout_id: RolloutId, state: RolloutState | None
) -> Excluded | None:
    if state is None or state.status is RolloutStatus.DELETED:
        return Excluded(rollout_id, "not_found", "There is no such rollout, or no longer.")
    if state.closed_us is None:
        return Excluded(rollout_id, "rollout_open", "The rollout is still open.")
    try:
        source.secrets.require_released(rollout_id)
    except SecretsUndecided as error:
        return Excluded(rollout_id, error.code, error.message)
    return None


@dataclass(slots=True)
class _Written:
    """What the first pass leaves for the manifest."""

    entries: list[RolloutEntry] = field(default_factory=list)
    policies: dict[str, dict[str, object]] = field(default_factory=dict)
    faulty: dict[RolloutId, Excluded] = field(default_factory=dict)
    shards: dict[str, list[Shard]] = field(default_factory=dict)


async def make_dataset(
    source: Source,
    planned: Plan,
    folder: Path,
    limits: Limits | None = None,
    *,
    bodies: bool = False,
    listener: Listener | None = None,
) -> Manifest:
    """Writes a dataset into a folder that is new, empty, or holds an older one.

    It is written beside the folder and moved there when it is whole and proved.

    Raises:
        ConfigurationError: the folder holds something else, or cannot be written.
        SecretsUndecided: written ids decode to something nobody let go, again and again.
    """
    _check_folder(folder)
    made_at = _beside(folder)
    try:
        for number in range(_TRIES):
            beside = made_at / str(number)
            written = await _write(
                source, planned, beside, limits or Limits(), bodies, listener
            )
            proof = await asyncio.to_thread(_prove, source, beside, written.shards)
            if not proof.telling and not written.faulty:
                break
            planned = planned.without(
                proof.telling, "secrets_undecided", "Its written ids decode to a secret."
            )
            for name, why in written.faulty.items():
                planned = planned.without([name], why.code, why.reason)
        else:
            raise SecretsUndecided(
                "what is left out changes with every try: rollouts in it are being changed or "
                "hold secrets that were not found in their records; nothing was written"
            )
        made = _manifest(planned, written, proof, bodies=bodies)
        write_manifest(made, beside)
        _move(beside, folder, made_at / "old")
        return made
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(made_at, ignore_errors=True)


def _beside(folder: Path) -> Path:
    """A folder of our own on the same disk."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}") from error


def _move(made: Path, folder: Path, aside: Path) -> None:
    """A dataset to its place; the one that was there goes with what is removed."""
    if folder.exists():
        folder.rename(aside)
    made.rename(folder)


def _check_folder(folder: Path) -> None:
    """Only what this program wrote is ever replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is a file; a dataset needs a folder")
    there = {path.name for path in folder.iterdir()}
    if not there:
        return
    known = set()
    if MANIFEST in there:
        told = read_manifest(folder)
        known = {file.path for entry in told.configs.values() for file in entry.files}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in known and name not in (MANIFEST, *CONFIGS):
            raise ConfigurationError(
                f"{folder} holds something else than a dataset ({name}); name a new folder"
            )


async def _write(
    source: Source,
    planned: Plan,
    folder: Path,
    limits: Limits,
    bodies: bool,
    listener: Listener | None,
) -> _Written:
    written = _Written()
    writer = DatasetWriter(folder, limits)
    gatherer = Gatherer(writer.add, min(BATCH_BYTES, limits.row_group_bytes))
    texts = _texts(source.store) if bodies else no_texts
    try:
        for done, rollout_id in enumerate(planned.rollouts, 1):
            judged = await source.judged.get(rollout_id)
            if judged is None or judged.cover is not None:
                written.faulty[rollout_id] = Excluded(
                    rollout_id, "not_found", "It was gone when it was to be written."
                )
                continue
            await asyncio.to_thread(_add, gatherer, judged, texts, written)
            if listener is not None:
                listener(done, len(planned.rollouts))
        written.shards = await asyncio.to_thread(_finish, gatherer, writer)
    finally:
        writer.abandon()
    return written


def _add(gatherer: Gatherer, judged: Judged, texts: Texts, written: _Written) -> None:
    record, judgement = judged.record, judged.judgement
    rollout_id = record.rollout.rollout_id
    try:
        counts = gatherer.add(record, judgement, texts)
    except RecordInconsistent as error:
        # Its rows may stand in a file already: everything is written again without it.
        written.faulty[rollout_id] = Excluded(rollout_id, error.code, error.message)
        return
    written.policies[judgement.policy.sha256] = judgement.policy.describe()
    written.entries.append(
        RolloutEntry(
            rollout_id=rollout_id,
            closed_us=closed_us(record),
            inputs_sha256=judgement.inputs_sha256,
            policy_sha256=judgement.policy.sha256,
            trainable=judgement.trainable,
            reasons=tuple(reason.code for reason in refusals(judgement)),
            calls=counts.calls,
            sequences=counts.sequences,
            supervised_tokens=counts.supervised_tokens,
        )
    )


def _finish(gatherer: Gatherer, writer: DatasetWriter) -> dict[str, list[Shard]]:
    gatherer.finish()
    return writer.close()


def _texts(store: Store) -> Texts:
    """Requests and replies as text; None for one that is no UTF-8 or is damaged."""

    def read(call_id: CallId) -> tuple[str | None, str | None]:
        found = {body.kind: body.data for body in store.bodies(call_id)}
        return _text(found.get(BodyKind.REQUEST)), _text(found.get(BodyKind.REPLY))

    return read


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _prove(source: Source, folder: Path, shards: dict[str, list[Shard]]) -> Proof:
    known: dict[RolloutId, tuple[Vocabulary, Masker]] = {}

    def told(rollout_id: RolloutId) -> tuple[Vocabulary, Masker]:
        if rollout_id not in known:
            known.clear()  # rows of one rollout stand together
            rollout = source.store.rollout(rollout_id)
            name = None if rollout is None else rollout.tokenizer_id
            free = source.secrets.let_go(rollout_id)
            known[rollout_id] = (source.vocabulary(name), Masker((), free))
        return known[rollout_id]

    return prove(folder, shards, told)


def _manifest(planned: Plan, written: _Written, proof: Proof, *, bodies: bool) -> Manifest:
    entries = {
        config: ConfigEntry(
            schema_sha256(config),
            sum(shard.rows for shard in written.shards[config]),
            tuple(written.shards[config]),
        )
        for config in CONFIGS
    }
    return Manifest(
        format=FORMAT,
        schema_version=DATASET_SCHEMA_VERSION,
        writer=WRITER,
        judge_version=JUDGE_VERSION,
        bodies=bodies,
        mask_reasons={str(code): str(reason) for reason, code in REASON_CODES.items()},
        policies=written.policies,
        configs=entries,
        secrets={
            "rollouts": proof.rollouts,
            "ids_decoded": proof.decoded,
            "ids_unknown": proof.unknown,
        },
        rollouts=tuple(written.entries),
        excluded=tuple(
            replace(item, rollout_id=str(item.rollout_id)) for item in planned.excluded
        ),
    )
