"""Stores with rollouts of every kind, and datasets written from them, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import MANIFEST, Manifest, read_manifest
from explorer.export.dataset.planning import Source, plan
from explorer.export.dataset.writer import Limits
from explorer.export.judged import JudgedRollouts
from explorer.export.secrets import SecretScans
from explorer.records import (
    Body,
    BodyKind,
    Call,
    EventKind,
    KeyHash,
    Note,
    Rollout,
    RolloutEvent,
    RolloutId,
    TokenizerId,
)
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.trace.policy import DEFAULT_POLICY
from tests.trace.build import CERTIFIED, NULL, failed_call, make_call

OPTIONS = StoreOptions(min_free_bytes=0)
FORKED, PLAIN, ODD, OPEN = (
    RolloutId(f"01990000-0000-7000-8000-00000000000{number}") for number in range(4)
)
ALL = (OPEN, ODD, FORKED, PLAIN)
HOSTILE = {"seed": 2**80, "text": "naïve \ud800 \x00", "deep": [[{"a": None}]], "n": 0.1}


def forked() -> list[Call]:
    """An agent that is tried twice after its first turn, a title beside it, a failed call."""
    said: dict[str, Any] = {"n_tools": 2, "system_digest": "M", "tools_digest": "T"}
    first = make_call("f-a", 1, [1, 2], [3, 4], message_digests=("u",), **said)
    left = make_call("f-b", 2, [1, 2, 3, 4, 5], [6, 7], parent=first, **said)
    right = make_call(
        "f-c", 3, [1, 2, 3, 4, 8, 9], [10], parent=first, weight_version_end=7, **said
    )
    deep = make_call("f-d", 4, [1, 2, 3, 4, 8, 9, 10, 11], [12, 13], parent=right, **said)
    title = make_call("f-t", 5, [90], [91], message_digests=("u", "v"))
    return [first, left, right, deep, title, failed_call("f-x", 6)]


def odd() -> list[Call]:
    """Everything that a record may hold and no trainer should see."""
    holes = [-0.5, None, -9999.0, 0.0]
    first = make_call(
        "o-a",
        1,
        [5, 6],
        [7, 8, 9, 2**31 - 1],
        logprobs=holes,
        requested_sampling={"args": {"a": 1}},
        notes=(Note("note", "snow ☃ and \x00"),),
        top_logprobs=orjson.dumps([[[5, "x", -0.25]], [], [], []]),
        claims={"session": "s"},
        constraints=("bias",),
        n_tools=1,
    )
    assert first.logprobs is not None
    wild = np.array([np.inf, -np.inf, NULL, -0.1], np.float32)
    second = make_call(
        "o-b", 2, [1], [2, 3, 4, 5], requested_sampling={"args": {"b": "x"}}, n_tools=1
    )
    return [
        first,
        replace(second, logprobs=wild),
        make_call("o-c", 3, None, [1, 2], logprobs=[-1.0, -2.0]),
        make_call("o-d", 4, [3], []),
    ]


async def fill(store: DuckDBStore) -> None:
    """Four rollouts: `odd` is sealed first, then `forked`, then `plain`; `open` is not."""
    await store.add_certificate(CERTIFIED)
    plain = [make_call("p-a", 1, [1, 2, 3], [4, 5, 6], n_tools=1)]
    await add(store, FORKED, forked(), closed=200, reward=0.5, ok=True)
    await add(store, PLAIN, plain, closed=300, reward=None)
    await add(store, ODD, odd(), closed=100, reward=0.0, metadata=HOSTILE)
    opened = make_call("n-a", 1, [1], [2], n_tools=1)
    await add(store, OPEN, [opened], closed=None)


async def add(
    store: DuckDBStore,
    rollout_id: RolloutId,
    calls: Sequence[Call],
    *,
    closed: int | None,
    reward: float | None = None,
    ok: bool | None = None,
    **fields: Any,
) -> None:
    """A rollout with its calls, each with a request and a reply."""
    facts: dict[str, Any] = {
        "certificate_id": CERTIFIED.certificate_id,
        "tokenizer_id": TokenizerId("bytes"),
        "model": "tiny",
    }
    await store.add_rollout(
        Rollout(rollout_id, 1, KeyHash(f"k-{rollout_id}"), run="r", **(facts | fields))
    )
    for call in calls:
        told = orjson.dumps({"tools": [call.requested_sampling], "id": call.call_id})
        body = Body(call.call_id, rollout_id, BodyKind.REQUEST, told)
        await store.commit_call(replace(call, rollout_id=rollout_id), [body])
    if closed is not None:
        end = RolloutEvent(rollout_id, -1, closed, EventKind.CLOSED, reward, ok)
        await store.add_event(end)


def source_of(store: DuckDBStore) -> Source:
    def vocabulary(name: TokenizerId | None) -> dict[int, tuple[bytes, bool]]:
        found = store.vocabulary(name) if name is not None else ()
        return {each.token_id: (each.raw, each.special) for each in found}

    return Source(
        store,
        JudgedRollouts(store, lambda: DEFAULT_POLICY, lambda: 1),
        SecretScans(store, vocabulary, lambda: 1),
        vocabulary,
    )


async def written(
    store: DuckDBStore, folder: Path, limits: Limits | None = None, *, bodies: bool = False
) -> Manifest:
    """All of the four that may be in a dataset."""
    source = source_of(store)
    planned = await plan(source, ALL)
    return await make_dataset(source, planned, folder, Shape(limits or Limits(), bodies))


def table(folder: Path, config: str) -> Any:
    """A config as one table, its files in order."""
    files = sorted((folder / config).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def forge(folder: Path, config: str, changed: Any, **manifest: Any) -> None:
    """Puts another table in the place of a config's first file, with every digest made to
    fit: what somebody would do who wants it to go unnoticed."""
    told = read_manifest(folder)
    entry = told.configs[config]
    (folder / entry.files[0].path).unlink()
    beside = folder / config / "new"
    pq.write_table(changed, beside)
    digest = hashlib.sha256(beside.read_bytes()).hexdigest()
    name = f"{config}/part-00000-{digest[:16]}.parquet"
    size = beside.stat().st_size
    beside.rename(folder / name)
    document = orjson.loads((folder / MANIFEST).read_bytes())
    document["configs"][config] |= {"rows": changed.num_rows}
    document["configs"][config]["files"] = [
        {
            "path": name,
            "rows": changed.num_rows,
            "row_groups": pq.ParquetFile(folder / name).metadata.num_row_groups,
            "size": size,
            "sha256": digest,
        }
    ]
    (folder / MANIFEST).write_bytes(orjson.dumps(document | manifest))
