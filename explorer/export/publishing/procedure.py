"""Publishing: plan, write, check what can be checked, upload; and again where the place moved.

Owns: the order of the steps, and what is told of each.
Must not know: who asked, where jobs are kept, any one place.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubNotFound,
    InvalidValue,
    NothingToPublish,
    SecretsUndecided,
)
from explorer.export.adapters.registry import adapters_of
from explorer.export.card.card import card_text
from explorer.export.card.choice import CardChoice
from explorer.export.dataset.claims import manifest_problems
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import CARD, MANIFEST, Manifest, parse_manifest
from explorer.export.dataset.planning import Source, plan, taken_back
from explorer.export.dataset.writer import Limits
from explorer.export.hub.target import Head, Published, Target, Upload, is_withdrawn
from explorer.records import RolloutId

# Each time somebody else was faster.
_TRIES = 5

Phase = Literal["planning", "writing", "uploading"]


@dataclass(frozen=True, slots=True)
class Order:
    """What to publish.

    Attributes:
        choice: what a person says on the card.
        formats: names of adapters; None: those that the dataset there has, or none.
        bodies: with requests and replies as text.
        anew: also where a dataset was withdrawn, which brings back what was taken away.
    """

    rollout_ids: tuple[RolloutId, ...]
    choice: CardChoice
    formats: tuple[str, ...] | None = None
    bodies: bool = False
    limits: Limits = field(default_factory=Limits)
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    phase: Phase
    done: int
    of: int
    unit: Literal["rollouts", "bytes"]


Told = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What lies in the folder.

    Attributes:
        manifest: of the whole dataset, with what is there already.
        new_files: data files in the folder, which are those to be uploaded.
        size: of those, in bytes.
        added: rollouts that are new.
        already: rollouts that were asked for and are there.
        kept_otherwise: of those, the ones that would be judged from other inputs, or by
            another policy, now; what is there stays as it is.
    """

    manifest: Manifest
    new_files: tuple[str, ...]
    card: str
    size: int
    added: int
    already: int
    kept_otherwise: tuple[RolloutId, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it; `published` is None where there was nothing new to add."""

    prepared: Prepared
    published: Published | None


async def prepare(
    source: Source,
    order: Order,
    folder: Path,
    *,
    repo_id: str | None = None,
    old: Manifest | None = None,
    told: Told,
    stop: threading.Event,
) -> Prepared:
    """Writes the files of a dataset, its manifest and its card; the dry run.

    Args:
        folder: is new, or holds what an earlier call wrote.
        old: what the place has already.

    Raises:
        ConfigurationError, SecretsUndecided, PublishStopped: as `make_dataset`.
        InvalidValue: there is no such format.
    """
    formats = tuple(old.extras if old else ()) if order.formats is None else order.formats
    adapters_of(formats)
    _tell(told, "planning", 0, len(order.rollout_ids))
    planned = await plan(source, order.rollout_ids)
    kept = await _kept_otherwise(source, planned.rollouts, old)
    _tell(told, "planning", len(order.rollout_ids), len(order.rollout_ids))
    manifest = await make_dataset(
        source,
        planned,
        folder,
        Shape(order.limits, order.bodies, lambda: adapters_of(formats), old),
        listener=lambda done, of: _tell(told, "writing", done, of),
        stop=stop,
    )
    card = await asyncio.to_thread(card_text, manifest, order.choice, repo_id)
    await asyncio.to_thread((folder / CARD).write_text, card, encoding="utf-8")
    there = {file.path for file in old.files} if old else set()
    new = [file for file in manifest.files if file.path not in there]
    before = {entry.rollout_id for entry in old.rollouts} if old else set()
    return Prepared(
        manifest=manifest,
        new_files=tuple(file.path for file in new),
        card=card,
        size=sum(file.size for file in new),
        added=len(manifest.rollouts) - len(before),
        already=len(before.intersection(order.rollout_ids)),
        kept_otherwise=kept,
    )


def _tell(told: Told, phase: Phase, done: int, of: int) -> None:
    told(Progress(phase, done, of, "rollouts"))


async def _kept_otherwise(
    source: Source, rollouts: tuple[RolloutId, ...], old: Manifest | None
) -> tuple[RolloutId, ...]:
    """Rollouts that are there under other inputs than they have now."""
    entries = {entry.rollout_id: entry for entry in old.rollouts} if old else {}
    found = []
    for name in rollouts:
        entry = entries.get(name)
        if entry is not None:
            judged = await source.judged.get(name)
            now = None if judged is None else judged.judgement.inputs_sha256
            if now is not None and now != entry.inputs_sha256:
                found.append(name)
    return tuple(found)


async def publish(
    source: Source,
    order: Order,
    folder: Path,
    target: Target,
    told: Told,
    stop: threading.Event,
    approve: Callable[[Prepared], None] = lambda _: None,
) -> Outcome:
    """Brings a dataset to a place, or adds to the one that is there.

    What is there is never written over: where somebody else publishes meanwhile, the plan is
    made again on what they left. Called again after it was cut short, it writes the same
    files again and uploads those that are missing.

    Args:
        folder: works as for `prepare`.
        approve: is shown what will be uploaded, before anything is; raises to forbid it.

    Raises:
        PublishFailed: the place refused, or moved again and again.
        ConfigurationError, SecretsUndecided, PublishStopped: as `make_dataset`.
    """
    await asyncio.to_thread(target.prepare)
    why: HeadMoved | SecretsUndecided | None = None
    for _ in range(_TRIES):
        head = await asyncio.to_thread(target.head)
        old = await asyncio.to_thread(_manifest_of, head, target)
        if old is None and not order.anew:
            await asyncio.to_thread(_refuse_withdrawn, target)
        prepared = await prepare(
            source, order, folder, repo_id=_repo(target), old=old, told=told, stop=stop
        )
        if old is not None and not prepared.added:
            return Outcome(prepared, None)
        if not prepared.manifest.rollouts:
            raise NothingToPublish(
                "there is nothing to publish: every rollout was left out; a dry run says why"
            )
        approve(prepared)
        # Writing took its time, and what is out cannot be taken back.
        ids = [RolloutId(each.rollout_id) for each in prepared.manifest.rollouts]
        new = ids[-prepared.added :]
        gone = await asyncio.to_thread(taken_back, source, new)
        if gone is not None:
            why = SecretsUndecided(
                f"rollout {gone} was deleted or withheld while it was written, again and "
                "again; nothing was uploaded"
            )
            continue
        try:
            published = await _put(target, prepared, folder, head, told, stop)
        except HeadMoved as error:
            why = error
            continue
        return Outcome(prepared, published)
    assert why is not None  # every try ended in it
    raise why


async def _put(
    target: Target,
    prepared: Prepared,
    folder: Path,
    head: Head,
    told: Told,
    stop: threading.Event,
) -> Published:
    def listener(_: str, done: int, of: int) -> None:
        told(Progress("uploading", done, of, "bytes"))

    verb = "Add" if head.manifest else "Publish"
    upload = Upload(
        folder,
        prepared.new_files,
        message=f"{verb} {prepared.added} rollouts",
    )
    return await asyncio.to_thread(target.put, upload, head, listener, stop)


def _manifest_of(head: Head, target: Target) -> Manifest | None:
    """What is there, as a manifest.

    Raises:
        PublishFailed: this program cannot add to it.
    """
    if head.manifest is None:
        return None
    try:
        found = parse_manifest(head.manifest)
        for words in manifest_problems(found):
            raise InvalidValue(words)
        return found
    except InvalidValue as error:
        raise HubConflict(
            f"{target.title} has a {MANIFEST} to which nothing can be added: {error.message}; "
            "publish under a new name"
        ) from error


def _refuse_withdrawn(target: Target) -> None:
    """Raises:
    HubConflict: a dataset was taken away here, for a reason that stands on its card.
    """
    with tempfile.TemporaryDirectory(prefix="rollout-explorer-") as folder:
        card = Path(folder) / CARD
        try:
            target.fetch(CARD, card)
        except HubNotFound:
            return
        if is_withdrawn(card.read_text(encoding="utf-8", errors="replace")):
            raise HubConflict(
                f"the dataset at {target.title} was withdrawn; publishing there again would "
                "bring back what was taken away: publish under a new name (on the command "
                "line, --anew says that it is meant)"
            )


def _repo(target: Target) -> str | None:
    """The name under which readers load it, where it has one."""
    return getattr(target, "repo_id", None)
