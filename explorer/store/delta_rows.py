"""Rows of trainer logprobs and of δ summaries, and reading them.

Owns: these queries. Must not know: how a difference is computed, who posts.

Logprobs are little-endian float32, as the engine's own are: trainers compute in float32 or
less, so nothing is lost, and δ is taken in float64 from both. Rows are only ever added; what
a later posting replaces is not read any more.
"""
# ruff: noqa: S608 (the fragments are constants of this package; values are parameters)

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from explorer import columns
from explorer.errors import StoreDamaged
from explorer.records import CallId, RolloutId
from explorer.store import jsontext
from explorer.store.database import Database, select_list
from explorer.store.deltas import DeltaSummary, LogpsKind, TrainerLogps, TrainerPost
from explorer.store.queries import Within
from explorer.store.rows import CHECK, Row

_LOGPS = select_list(columns.TRAINER_LOGPS)
_SUMMARY = select_list(columns.DELTA_SUMMARY)
# The record's names of the columns, in their order.
_FIELDS = ("rollout_id", "time_us", *columns.DELTA_SUMMARY.names[2:])
_NEWEST = (
    "QUALIFY row_number() OVER (PARTITION BY rollout_id "
    "ORDER BY computed_time DESC, inputs_sha256) = 1"
)
_ALIVE = (
    "NOT EXISTS (SELECT 1 FROM rollout_event e "
    "WHERE e.rollout_id = {table}.rollout_id AND e.kind = 'deleted')"
)
_OF_ROLLOUT = (
    f"SELECT {_LOGPS} FROM trainer_logps WHERE rollout_id = ? AND "
    + _ALIVE.format(table="trainer_logps")
    + " QUALIFY row_number() OVER (PARTITION BY call_id, kind, source, weight_version "
    "ORDER BY posted_time DESC, post_id DESC) = 1 ORDER BY posted_time DESC, post_id, call_id"
)


def encode_post(post: TrainerPost) -> list[tuple[columns.Table, Row]]:
    """A row for each call of a posting."""
    found: list[tuple[columns.Table, Row]] = []
    for each in post.rows:
        if each.rollout_id != post.rollout_id or each.logps.dtype != np.float32:
            raise ValueError("a row of a posting is of another rollout, or not float32")
        row: Row = (
            *(each.rollout_id, each.call_id, each.post_id, each.time_us, each.kind.value),
            *(each.source, each.weight_version, int(each.logps.size)),
            each.logps.astype("<f4", copy=False).tobytes(),
        )
        found.append((columns.TRAINER_LOGPS, CHECK["trainer_logps"](row)))
    return found


def encode_delta_summary(summary: DeltaSummary) -> tuple[columns.Table, Row]:
    """The table and the row of a summary."""
    bins = {str(key): count for key, count in sorted(summary.bins.items())}
    values = {name: getattr(summary, name) for name in _FIELDS} | {"bins": jsontext.dump(bins)}
    row: Row = tuple(values[name] for name in _FIELDS)
    return columns.DELTA_SUMMARY, CHECK["delta_summary"](row)


def _decode_logps(row: tuple[Any, ...]) -> TrainerLogps:
    logps = np.frombuffer(row[8], "<f4").astype(np.float32, copy=False)
    if logps.size != row[7]:
        raise StoreDamaged(
            f"trainer logprobs of call {row[1]}: {logps.size} are stored, {row[7]} were told"
        )
    return TrainerLogps(
        rollout_id=RolloutId(row[0]),
        call_id=CallId(row[1]),
        post_id=row[2],
        time_us=row[3],
        kind=LogpsKind(row[4]),
        source=row[5],
        weight_version=row[6],
        logps=logps,
    )


def _decode_summary(row: tuple[Any, ...]) -> DeltaSummary:
    values = dict(zip(_FIELDS, row, strict=True))
    bins = jsontext.load(values["bins"])
    values["bins"] = {int(key): int(count) for key, count in bins.items()}
    return DeltaSummary(**values)


class DeltaReader:
    """Reads trainer logprobs and δ summaries from an open database."""

    _database: Database

    def trainer_logps(self, rollout_id: RolloutId) -> tuple[TrainerLogps, ...]:
        """What was told about a rollout and not replaced since, the newest posting first."""
        with self._database.reading() as cursor:
            rows = cursor.execute(_OF_ROLLOUT, [rollout_id]).fetchall()
        try:
            return tuple(map(_decode_logps, rows))
        except ValueError as error:
            raise StoreDamaged(f"stored trainer logprobs cannot be read: {error}") from error

    def has_trainer_logps(self, rollout_id: RolloutId) -> bool:
        """Whether anything was ever told about a rollout."""
        sql = "SELECT 1 FROM trainer_logps WHERE rollout_id = ? LIMIT 1"
        with self._database.reading() as cursor:
            return cursor.execute(sql, [rollout_id]).fetchone() is not None

    def delta_summaries(
        self, rollout_ids: Collection[RolloutId]
    ) -> Mapping[RolloutId, DeltaSummary]:
        """The latest summary of each of these rollouts that has one."""
        if not rollout_ids:
            return {}
        sql = (
            f"SELECT {_SUMMARY} FROM delta_summary WHERE "
            "rollout_id IN (SELECT unnest(?::VARCHAR[])) AND "
            f"{_ALIVE.format(table='delta_summary')} {_NEWEST}"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql, [list(rollout_ids)]).fetchall()
        return {found.rollout_id: found for found in map(_decode_summary, rows)}

    def run_deltas(self, run: str, within: Within = None) -> tuple[DeltaSummary, ...]:
        """The latest summary of every rollout of a run that has one, the oldest rollout
        first."""
        named = select_list(columns.DELTA_SUMMARY, prefix="s.")
        sql = (
            f"SELECT {named} FROM delta_summary s JOIN rollout r USING (rollout_id) "
            f"WHERE r.run = ? AND {_ALIVE.format(table='s')} "
            "QUALIFY row_number() OVER (PARTITION BY s.rollout_id "
            "ORDER BY s.computed_time DESC, s.inputs_sha256) = 1 "
            "ORDER BY r.created_time, s.rollout_id"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql, [run]).fetchall()
        found = map(_decode_summary, rows)
        return tuple(s for s in found if within is None or s.rollout_id in within)
