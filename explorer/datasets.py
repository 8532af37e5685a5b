"""The command `export --format parquet`: a dataset from a store. Wiring only.

Owns: where the rollouts are read from, what is printed, the exit status.

Rollouts are read from the store's file. Where a server has it open, from a consistent copy
that the server makes, which is removed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from explorer import runfile
from explorer.capture.ids import now_us
from explorer.engine.scripted import ScriptedEngine
from explorer.errors import ConfigurationError
from explorer.export.adapters.registry import adapters_of
from explorer.export.dataset.archive import write_zip
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import Excluded, Manifest
from explorer.export.dataset.planning import Plan, Source, plan
from explorer.export.dataset.writer import Limits
from explorer.export.judged import JudgedRollouts
from explorer.export.secrets import SecretScans
from explorer.integrations.client import ExplorerClient
from explorer.policies import policy_of
from explorer.progress import Phase
from explorer.reach import backup_store, reach
from explorer.records import RolloutId
from explorer.running import say
from explorer.server import run_loop
from explorer.settings import Settings
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.trace.policy import Policy
from explorer.vocabularies import Vocabularies

_MB = 1024 * 1024
_SHOWN = 20
_PIECES = {"parquet": "rows", "lines": "lines", "files": "files"}


T = TypeVar("T")
Wanted = Callable[[ExplorerClient], AsyncIterator[str]]


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """What to write.

    Attributes:
        wanted: finds the rollouts, given a client of the store's server.
        bodies: with each call's request and reply as text.
        row_group_mb, shard_mb: sizes of row groups and files.
        formats: names of adapters, beside the record.
        archive: `folder` is to be one zip file.
    """

    wanted: Wanted
    folder: Path
    bodies: bool = False
    row_group_mb: float = 40
    shard_mb: float = 256
    formats: tuple[str, ...] = ()

    archive: bool = False

    @property
    def shape(self) -> Shape:
        """The same for the writer."""
        limits = Limits(int(self.row_group_mb * _MB), int(self.shard_mb * _MB))
        return Shape(limits, self.bodies, lambda: adapters_of(self.formats))


def export_dataset(settings: Settings, order: DatasetOrder) -> int:
    """Writes a dataset and says what is in it and what was left out.

    Returns:
        The exit status: 0 when every rollout that was asked for is in it.
    """

    async def write(source: Source, rollout_ids: list[RolloutId]) -> Manifest | Plan:
        planned = await plan(source, rollout_ids)
        if not planned.rollouts:
            return planned
        return await make_dataset(
            source, planned, folder, order.shape, listener=Phase("writing", "rollouts").told
        )

    if order.archive and order.folder.is_dir():
        raise ConfigurationError(f"{order.folder} is a folder; a zip file needs a name")
    with contextlib.ExitStack() as stack:
        folder = order.folder
        if order.archive:
            folder = stack.enter_context(_folder_beside(order.folder)) / "data"
        made = on_source(settings, order.wanted, write)
        if isinstance(made, Plan):
            tell_left_out(made.excluded)
            return 1
        size = None
        if order.archive:
            size = write_zip(folder, made, order.folder)
        tell(made, order.folder, size)
    return 1 if made.excluded else 0


@contextlib.contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """A folder on the same disk, removed again.

    Raises:
        ConfigurationError: it cannot be made, or what is written there does not fit.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as made:
            yield Path(made)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from error


def on_source(
    settings: Settings,
    wanted: Wanted,
    work: Callable[[Source, list[RolloutId]], Coroutine[Any, Any, T]],
) -> T:
    """Finds rollouts, and works with their store: its file, or a copy that its server makes.

    Raises:
        ConfigurationError: no rollout was found, or the server judges by another policy.
    """
    policy = policy_of(settings)

    async def find(client: ExplorerClient) -> list[RolloutId]:
        found = [RolloutId(name) async for name in wanted(client)]
        if found and runfile.read(settings.store) is not None:
            await _same_policy(client, found, policy)
        return found

    async def run(path: Path) -> T:
        options = StoreOptions(min_free_bytes=0, read_only=True)
        store = await asyncio.to_thread(DuckDBStore, path, options)
        try:
            return await work(_source(store, policy), rollout_ids)
        finally:
            await store.close()

    rollout_ids = run_loop(reach(settings, find))
    if not rollout_ids:
        raise ConfigurationError("there is nothing to write: the filters show no rollout")
    if runfile.read(settings.store) is None:
        return run_loop(run(settings.store))
    with tempfile.TemporaryDirectory(prefix="rollout-explorer-") as folder:
        copy = Path(folder) / "store.duckdb"
        run_loop(backup_store(settings, copy))
        return run_loop(run(copy))


def _source(store: DuckDBStore, policy: Policy) -> Source:
    vocabularies = Vocabularies(store, ScriptedEngine([]))
    return Source(
        store,
        JudgedRollouts(store, lambda: policy, now_us),
        SecretScans(store, vocabularies.get, now_us),
        vocabularies.get,
    )


async def _same_policy(
    client: ExplorerClient, rollout_ids: list[RolloutId], policy: Policy
) -> None:
    """The pages of a running server and the files it leads to say the same.

    Raises:
        ConfigurationError: the server judges by another policy.
    """
    shown = (await client.show(rollout_ids[0]))["verdict"]["policy"]
    if shown["sha256"] != policy.sha256:
        raise ConfigurationError(
            f"the server that has the store open judges by the policy {shown['name']!r}, this "
            f"command by {policy.name!r}; give both the same --policy"
        )


def tell(made: Manifest, where: Path, size: int | None = None) -> None:
    """Says what is in a dataset and what was left out."""
    files = sum(1 for _ in made.files)
    if size is None:
        size = sum(file.size for file in made.files)
    rows = {name: entry.rows for name, entry in made.configs.items()}
    say(f"written  {where}: {files} files, {size} bytes")
    say(
        f"         {rows['rollouts']} rollouts, {rows['calls']} calls, "
        f"{rows['sequences']} sequences, {made.supervised_tokens} tokens train"
    )
    for name, extra in made.extras.items():
        say(f"         {name}: {extra.rows} {_PIECES[extra.layout]}")
    for code, many in made.untrained.items():
        say(f"         {many} without sequences: {code}")
    tell_left_out(made.excluded)


def tell_left_out(excluded: tuple[Excluded, ...]) -> None:
    """Says why rollouts are not in it."""
    for code, many in Counter(item.code for item in excluded).most_common():
        say(f"left out {many}: {code}")
    for item in excluded[:_SHOWN]:
        say(f"         {item.rollout_id}: {item.reason}")
    if len(excluded) > _SHOWN:
        say(f"         and {len(excluded) - _SHOWN} more; all are in the manifest")
