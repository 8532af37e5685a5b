"""The command `export --format parquet`: a dataset from a store. Wiring only.

Owns: where the rollouts are read from, what is printed, the exit status.

Rollouts are read from the store's file. Where a server has it open, from a consistent copy
that the server makes, which is removed again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from explorer import runfile
from explorer.capture.ids import now_us
from explorer.engine.scripted import ScriptedEngine
from explorer.errors import ConfigurationError
from explorer.export.adapters.registry import adapters_of
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import Excluded, Manifest
from explorer.export.dataset.planning import Plan, Source, plan
from explorer.export.dataset.writer import Limits
from explorer.export.judged import JudgedRollouts
from explorer.export.secrets import SecretScans
from explorer.integrations.client import ExplorerClient
from explorer.policies import policy_of
from explorer.reach import backup_store, reach
from explorer.records import RolloutId
from explorer.running import say
from explorer.server import run_loop
from explorer.settings import Settings
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.trace.policy import Policy
from explorer.vocabularies import Vocabularies

_MB = 1024 * 1024
_EVERY = 100
_SHOWN = 20
_PIECES = {"parquet": "rows", "lines": "lines", "files": "files"}


Wanted = Callable[[ExplorerClient], AsyncIterator[str]]


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """What to write.

    Attributes:
        wanted: finds the rollouts, given a client of the store's server.
        bodies: with each call's request and reply as text.
        row_group_mb, shard_mb: sizes of row groups and files.
        formats: names of adapters, beside the record.
    """

    wanted: Wanted
    folder: Path
    bodies: bool = False
    row_group_mb: float = 40
    shard_mb: float = 256
    formats: tuple[str, ...] = ()

    @property
    def limits(self) -> Limits:
        """The same in bytes."""
        return Limits(int(self.row_group_mb * _MB), int(self.shard_mb * _MB))


def export_dataset(settings: Settings, order: DatasetOrder) -> int:
    """Writes a dataset and says what is in it and what was left out.

    Returns:
        The exit status: 0 when every rollout that was asked for is in it.
    """
    policy = policy_of(settings)

    async def find(client: ExplorerClient) -> list[RolloutId]:
        found = [RolloutId(name) async for name in order.wanted(client)]
        if found and runfile.read(settings.store) is not None:
            await _same_policy(client, found, policy)
        return found

    rollout_ids = run_loop(reach(settings, find))
    if not rollout_ids:
        raise ConfigurationError("there is nothing to write: the filters show no rollout")
    if runfile.read(settings.store) is None:
        made = run_loop(_made(settings.store, policy, rollout_ids, order))
    else:
        with tempfile.TemporaryDirectory(prefix="rollout-explorer-") as folder:
            copy = Path(folder) / "store.duckdb"
            run_loop(backup_store(settings, copy))
            made = run_loop(_made(copy, policy, rollout_ids, order))
    if isinstance(made, Plan):
        _tell_left_out(made.excluded)
        return 1
    _tell(made, order.folder)
    return 1 if made.excluded else 0


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


async def _made(
    store_path: Path, policy: Policy, rollout_ids: list[RolloutId], order: DatasetOrder
) -> Manifest | Plan:
    """The dataset; the plan where all that was asked for is left out."""
    options = StoreOptions(min_free_bytes=0, read_only=True)
    store = await asyncio.to_thread(DuckDBStore, store_path, options)
    try:
        vocabularies = Vocabularies(store, ScriptedEngine([]))
        source = Source(
            store,
            JudgedRollouts(store, lambda: policy, now_us),
            SecretScans(store, vocabularies.get, now_us),
            vocabularies.get,
        )
        planned = await plan(source, rollout_ids)
        if not planned.rollouts:
            return planned
        return await make_dataset(
            source,
            planned,
            order.folder,
            Shape(order.limits, order.bodies, lambda: adapters_of(order.formats)),
            listener=_progress,
        )
    finally:
        await store.close()


def _progress(done: int, of: int) -> None:
    if done % _EVERY == 0 and done < of:
        say(f"         {done} of {of} rollouts")


def _tell(made: Manifest, folder: Path) -> None:
    files = sum(1 for _ in made.files)
    size = sum(file.size for file in made.files)
    rows = {name: entry.rows for name, entry in made.configs.items()}
    say(f"written  {folder}: {files} files, {size} bytes")
    say(
        f"         {rows['rollouts']} rollouts, {rows['calls']} calls, "
        f"{rows['sequences']} sequences, {made.supervised_tokens} tokens train"
    )
    for name, extra in made.extras.items():
        say(f"         {name}: {extra.rows} {_PIECES[extra.layout]}")
    for code, many in made.untrained.items():
        say(f"         {many} without sequences: {code}")
    _tell_left_out(made.excluded)


def _tell_left_out(excluded: tuple[Excluded, ...]) -> None:
    for code, many in Counter(item.code for item in excluded).most_common():
        say(f"left out {many}: {code}")
    for item in excluded[:_SHOWN]:
        say(f"         {item.rollout_id}: {item.reason}")
    if len(excluded) > _SHOWN:
        say(f"         and {len(excluded) - _SHOWN} more; all are in the manifest")
