"""A dataset from the rollouts of a plan: written, proved, told in a manifest.

Owns: the folder, from the first row to the manifest.
Must not know: who decided what is in it, pages, HTTP, the command line.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from explorer.errors import (
    ConfigurationError,
    PublishStopped,
    RecordInconsistent,
    SecretsUndecided,
)
from explorer.export.dataset.adapter import Adapter, Subject
from explorer.export.dataset.extras import ExtrasWriter, counts_of, forms_of, with_texts
from explorer.export.dataset.facts import Facts
from explorer.export.dataset.manifest import (
    CARD,
    FORMAT,
    MANIFEST,
    ConfigEntry,
    Excluded,
    ExtraEntry,
    Manifest,
    Part,
    RolloutEntry,
    appended,
    joinable,
    read_manifest,
    write_manifest,
)
from explorer.export.dataset.planning import Plan, Source
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
from explorer.export.judged import Judged
from explorer.records import BodyKind, CallId, RolloutId
from explorer.store.interface import Store
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.refusals import refusals
from explorer.trace.secret_text import Masker

_TRIES = 3


class Listener(Protocol):
    """Who is told how far it is."""

    def __call__(self, done: int, of: int) -> None:
        """`done` of `of` rollouts are written."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How it is written.

    Attributes:
        bodies: with each call's request and reply as text; so also with an adapter that
            needs them.
        adapters: gives new adapters for other formats, each time it is asked.
        old: a dataset that this one is added to; its files are elsewhere, its rollouts are
            not written again.
    """

    limits: Limits = field(default_factory=Limits)
    bodies: bool = False
    adapters: Callable[[], Sequence[Adapter]] = tuple
    old: Manifest | None = None


@dataclass(slots=True)
class _Written:
    """What the first pass leaves for the manifest."""

    bodies: bool
    entries: list[RolloutEntry] = field(default_factory=list)
    policies: dict[str, dict[str, object]] = field(default_factory=dict)
    faulty: dict[RolloutId, Excluded] = field(default_factory=dict)
    shards: dict[str, list[Shard]] = field(default_factory=dict)
    extras: dict[str, ExtraEntry] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    def leave_out(self, name: RolloutId, code: str, reason: str) -> None:
        """Its rows may stand in a file already: everything is written again without it."""
        self.faulty[name] = Excluded(name, code, reason)


async def make_dataset(
    source: Source,
    planned: Plan,
    folder: Path,
    shape: Shape | None = None,
    *,
    listener: Listener | None = None,
    stop: threading.Event | None = None,
) -> Manifest:
    """Writes a dataset into a folder that is new, empty, or holds an older one.

    It is written beside the folder and moved there when it is whole and proved. Added to an
    old one, the folder holds the new files only, and the manifest of both.

    Raises:
        ConfigurationError: the folder holds something else, or cannot be written; or the old
            dataset and the new rows do not go together.
        SecretsUndecided: written ids decode to something nobody let go, again and again.
        PublishStopped: `stop` was set.
    """
    shape = shape or Shape()
    await asyncio.to_thread(_check_folder, folder)
    if shape.old is not None:
        joinable(shape.old, forms_of(shape.adapters()))
        planned = planned.beyond(shape.old)
    made_at = _beside(folder)
    try:
        for number in range(_TRIES):
            beside = made_at / str(number)
            work = _Work(source, beside, shape, listener, stop or threading.Event())
            written = await work.write(planned)
            proof = await asyncio.to_thread(_prove, source, beside, written.shards, planned)
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
        made = _manifest(planned, written, proof)
        return await asyncio.to_thread(_put_in_place, made, shape.old, beside, folder)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, made_at, ignore_errors=True)


def _put_in_place(made: Manifest, old: Manifest | None, beside: Path, folder: Path) -> Manifest:
    """The manifest of all, written last, and the files in their place."""
    whole = made if old is None else appended(old, made)
    write_manifest(whole, beside)
    _move(beside, folder, beside.with_name("old"))
    return whole


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
        known = {file.path for file in told.files} | set(told.extras)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in known and name not in (MANIFEST, CARD, *CONFIGS):
            raise ConfigurationError(
                f"{folder} holds something else than a dataset ({name}); name a new folder"
            )


class _Work:
    """One pass over the rollouts of a plan, into a folder that is nobody's yet."""

    def __init__(
        self,
        source: Source,
        folder: Path,
        shape: Shape,
        listener: Listener | None,
        stop: threading.Event,
    ) -> None:
        adapters = shape.adapters()
        old = shape.old
        self._source = source
        self._listener = listener
        self._stop = stop
        bodies = shape.bodies or with_texts(adapters)
        self._texts = _texts(source.store) if bodies else no_texts
        self._written = _Written(bodies)
        self._writer = DatasetWriter(folder, shape.limits, _numbers(old.configs if old else {}))
        self._extras = ExtrasWriter(
            folder, adapters, shape.limits, _numbers(old.extras if old else {})
        )
        self._gatherer = Gatherer(
            self._writer.add, min(BATCH_BYTES, shape.limits.row_group_bytes)
        )

    async def write(self, planned: Plan) -> _Written:
        """Writes every rollout.

        Raises:
            PublishStopped: somebody wanted it to.
        """
        written = self._written
        try:
            for done, rollout_id in enumerate(planned.rollouts, 1):
                if self._stop.is_set():
                    raise PublishStopped("it was stopped before everything was written")
                judged = await self._source.judged.get(rollout_id)
                if judged is None or judged.cover is not None:
                    written.leave_out(
                        rollout_id, "not_found", "It was gone when it was to be written."
                    )
                    continue
                await asyncio.to_thread(self._add, judged, planned)
                if self._listener is not None:
                    self._listener(done, len(planned.rollouts))
            await asyncio.to_thread(self._finish)
        finally:
            self._writer.abandon()
            self._extras.abandon()
        return written

    def _add(self, judged: Judged, planned: Plan) -> None:
        record, judgement = judged.record, judged.judgement
        rollout_id = record.rollout.rollout_id
        written = self._written
        cleared = planned.clearance(self._source, rollout_id)
        if cleared.review is not None and cleared.review.refusal is not None:
            written.leave_out(rollout_id, "secrets_undecided", cleared.review.refusal)
            return
        try:
            counts = self._gatherer.add(record, judgement, self._texts)
            subject = Subject(record, judgement, self._texts)
            if self._extras.add(subject, Masker((), cleared.free)):
                written.leave_out(
                    rollout_id, "secrets_undecided", "Its written texts hold a secret."
                )
        except RecordInconsistent as error:
            written.leave_out(rollout_id, error.code, error.message)
            return
        written.facts.add(record, judgement, cleared.review)
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

    def _finish(self) -> None:
        self._gatherer.finish()
        self._written.shards = self._writer.close()
        self._written.extras = self._extras.finish()


def _numbers(entries: Mapping[str, ConfigEntry | ExtraEntry]) -> dict[str, int]:
    """By folder, how many files are there already."""
    return {name: len(entry.files) for name, entry in entries.items()}


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


def _prove(
    source: Source, folder: Path, shards: dict[str, list[Shard]], planned: Plan
) -> Proof:
    known: dict[RolloutId, tuple[Vocabulary, Masker]] = {}

    def told(rollout_id: RolloutId) -> tuple[Vocabulary, Masker]:
        if rollout_id not in known:
            known.clear()  # rows of one rollout stand together
            rollout = source.store.rollout(rollout_id)
            name = None if rollout is None else rollout.tokenizer_id
            free = planned.clearance(source, rollout_id).free
            known[rollout_id] = (source.vocabulary(name), Masker((), free))
        return known[rollout_id]

    return prove(folder, shards, told)


def _manifest(planned: Plan, written: _Written, proof: Proof) -> Manifest:
    entries = {
        config: ConfigEntry(
            schema_sha256(config),
            sum(shard.rows for shard in written.shards[config]),
            tuple(written.shards[config]),
        )
        for config in CONFIGS
    }
    part = Part(
        writer=WRITER,
        judge_version=JUDGE_VERSION,
        bodies=written.bodies,
        rollouts=len(written.entries),
        extras=counts_of(written.extras),
        secrets={
            "rollouts": proof.rollouts,
            "ids_decoded": proof.decoded,
            "ids_unknown": proof.unknown,
        },
        facts=written.facts.to_json(),
    )
    return Manifest(
        format=FORMAT,
        schema_version=DATASET_SCHEMA_VERSION,
        mask_reasons={str(code): str(reason) for reason, code in REASON_CODES.items()},
        policies=written.policies,
        configs=entries,
        extras=written.extras,
        parts=(part,),
        rollouts=tuple(written.entries),
        excluded=tuple(
            replace(item, rollout_id=str(item.rollout_id)) for item in planned.excluded
        ),
    )
