"""Trainer logprobs of a judged rollout, compared; and the summary row that lists read.

Owns: which postings belong together, δ of a judged rollout's calls, the measured noise floor,
and when the summary is made again.
Must not know: pages, HTTP, how a posting is read.

A summary follows from the verdict's masks and from what was posted. It is made again after
every posting, and whenever a rollout is judged anew (`JudgedRollouts` calls `write`); its
``inputs_sha256`` names both, so that an equal one is not written twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from explorer.errors import StoreReadOnly
from explorer.records import (
    NULL_LOGPROB_BITS,
    Call,
    CallId,
    LogprobArray,
    LogprobKind,
    RolloutId,
)
from explorer.settings import Settings
from explorer.store.deltas import DeltaSummary, LogpsKind, TrainerLogps
from explorer.store.interface import Store
from explorer.trace.delta import Limits, Report, floor_of, summary
from explorer.trace.delta_spread import Band, Spread
from explorer.trace.delta_tokens import CallDelta, Origin, call_delta
from explorer.trace.versions import token_versions

if TYPE_CHECKING:
    from explorer.export.judged import Judged


def limits_of(settings: Settings) -> Limits:
    """Band and cap as the settings have them."""
    band = Band(settings.delta_ratio_low, settings.delta_ratio_high)
    return Limits(band, settings.importance_cap)


@dataclass(frozen=True, slots=True)
class TrainerSet:
    """What one source told of one kind with one version; `time_us` of the latest posting."""

    kind: LogpsKind
    source: str
    weight_version: int | None
    time_us: int
    logps: Mapping[CallId, LogprobArray]


@dataclass(frozen=True, slots=True)
class Floor:
    """A measured noise floor: the same tokens computed twice with the same weights."""

    kind: LogpsKind
    source: str
    weight_version: int | None
    spread: Spread


@dataclass(frozen=True, slots=True)
class Compared:
    """One rollout's δ against one set."""

    chosen: TrainerSet
    calls: tuple[CallDelta, ...]
    report: Report
    floors: tuple[Floor, ...]


def sets_of(rows: Iterable[TrainerLogps]) -> tuple[TrainerSet, ...]:
    """What was posted, put together by kind, source and version; the newest first."""
    found: dict[tuple[LogpsKind, str, int | None], list[TrainerLogps]] = {}
    for row in rows:
        found.setdefault((row.kind, row.source, row.weight_version), []).append(row)
    made = (
        TrainerSet(
            *key,
            time_us=max(row.time_us for row in members),
            logps={row.call_id: row.logps for row in members},
        )
        for key, members in found.items()
    )
    return tuple(sorted(made, key=lambda each: (-each.time_us, each.kind, each.source)))


def told_json(rows: Iterable[TrainerLogps]) -> list[dict[str, Any]]:
    """What was told as JSON values; null for whatever is no number, and which of these are
    not null but NaN or infinite, by their index."""
    return [
        {
            "kind": each.kind.value,
            "source": each.source,
            "weight_version": each.weight_version,
            "time_us": each.time_us,
            "calls": [
                {
                    "call_id": call_id,
                    "per_token_logps": [
                        value if math.isfinite(value) else None for value in logps.tolist()
                    ],
                    "not_finite": {
                        str(place): str(logps[place])
                        for place in np.flatnonzero(~np.isfinite(logps)).tolist()
                        if logps.view(np.uint32)[place] != NULL_LOGPROB_BITS
                    },
                }
                for call_id, logps in sorted(each.logps.items())
            ],
        }
        for each in sets_of(rows)
    ]


def usual_set(sets: Sequence[TrainerSet]) -> TrainerSet | None:
    """The set that a page shows unless asked, and that lists are about: what a trainer told
    last."""
    return next((each for each in sets if each.kind is LogpsKind.TRAINER), None)


def compare(
    judged: Judged, sets: Sequence[TrainerSet], chosen: TrainerSet, limits: Limits
) -> Compared:
    """δ of a rollout's training tokens against one set, with every floor that was measured."""
    calls = []
    for call, bits in training_calls(judged):
        origin = Origin(token_versions(call), chosen.weight_version, _kind_of(judged, call))
        calls.append(call_delta(call, bits, chosen.logps.get(call.call_id), origin))
    return Compared(
        chosen, tuple(calls), summary(calls, limits), _floors(judged, sets, chosen, limits)
    )


def training_calls(judged: Judged) -> Iterable[tuple[Call, np.ndarray]]:
    """The calls that have training tokens, in admission order, with their mask bits."""
    for call in judged.record.calls:
        mask = judged.judgement.masks.get(call.call_id)
        if mask is not None and mask.supervised and call.completion is not None:
            yield call, mask.completion_bits()


def _kind_of(judged: Judged, call: Call) -> LogprobKind:
    certificate = judged.record.certificate_of(call)
    return LogprobKind.UNKNOWN if certificate is None else certificate.logprob_kind


def _floors(
    judged: Judged, sets: Sequence[TrainerSet], chosen: TrainerSet, limits: Limits
) -> tuple[Floor, ...]:
    found = []
    for each in sets:
        if each.kind is LogpsKind.RESCORED:
            first = None
        elif each.kind is LogpsKind.TRAINER_REPEAT and (
            each.weight_version == chosen.weight_version
        ):
            first = chosen.logps
        else:
            continue
        made = _floor(judged, first, each, limits)
        if made.n:
            found.append(Floor(each.kind, each.source, each.weight_version, made))
    return tuple(found)


def _floor(
    judged: Judged,
    first: Mapping[CallId, LogprobArray] | None,
    second: TrainerSet,
    limits: Limits,
) -> Spread:
    """What parts two computations of the same training tokens; the first is the engine's own
    when sampling, unless another is given."""
    ones, others = [], []
    for call, bits in training_calls(judged):
        one = call.logprobs if first is None else first.get(call.call_id)
        other = second.logps.get(call.call_id)
        if one is None or other is None or not one.size == other.size == bits.size:
            continue
        ones.append(one[bits == 1])
        others.append(other[bits == 1])
    return floor_of(ones, others, limits.band)


def digest_of(judged: Judged, sets: Sequence[TrainerSet], limits: Limits) -> str:
    """Names what a summary is made from: verdict, postings, limits."""
    digest = hashlib.sha256(judged.judgement.inputs_sha256.encode())
    digest.update(repr((limits.band, limits.cap)).encode())
    for each in sets:
        digest.update(
            repr((each.kind, each.source, each.weight_version, each.time_us)).encode()
        )
        for call_id in sorted(each.logps):
            digest.update(call_id.encode() + each.logps[call_id].tobytes())
    return digest.hexdigest()


def row_of(judged: Judged, compared: Compared, digest: str, time_us: int) -> DeltaSummary:
    """The summary row of a comparison."""
    report, whole = compared.report, compared.report.whole
    versions = {name: part.n for name, part in report.by_version}
    ratios = [each.log_ratio for each in report.sequences if each.log_ratio is not None]
    # The engine asked again is the floor of engine against trainer; a repeat comes second.
    floor = min(
        compared.floors, key=lambda each: each.kind is not LogpsKind.RESCORED, default=None
    )
    return DeltaSummary(
        rollout_id=judged.record.rollout.rollout_id,
        time_us=time_us,
        inputs_sha256=digest,
        source=compared.chosen.source,
        weight_version=compared.chosen.weight_version,
        n_training=report.n_training,
        n_compared=whole.n,
        n_outside=whole.n_outside,
        band_low=whole.band.low,
        band_high=whole.band.high,
        delta_p1=whole.quantiles.get(1),
        delta_p5=whole.quantiles.get(5),
        delta_p50=whole.quantiles.get(50),
        delta_p95=whole.quantiles.get(95),
        delta_p99=whole.quantiles.get(99),
        abs_p99=whole.abs_quantiles.get(99),
        abs_max=whole.abs_max,
        mean=whole.mean,
        sd=whole.sd,
        k1=whole.k1,
        k3=whole.k3,
        log_ratio_low=min(ratios, default=None),
        log_ratio_high=max(ratios, default=None),
        n_same_version=versions.get("same", 0),
        n_other_version=versions.get("older", 0) + versions.get("newer", 0),
        n_unknown_version=versions.get("unknown", 0),
        bins=report.bins,
        noise_kind=None if floor is None else floor.kind.value,
        noise_abs_p99=None if floor is None else floor.spread.abs_quantiles.get(99),
        noise_share=None if floor is None else floor.spread.share_outside,
    )


class DeltaSummaries:
    """Keeps the summary rows right.

    Args:
        limits: band and cap in force.
        now_us: clock for the rows (microseconds).
    """

    def __init__(
        self, store: Store, limits: Callable[[], Limits], now_us: Callable[[], int]
    ) -> None:
        self._store = store
        self._limits = limits
        self._now_us = now_us
        # One writer per rollout at a time: the last one has read the newest postings.
        self._locks: WeakValueDictionary[RolloutId, asyncio.Lock] = WeakValueDictionary()

    async def write(self, judged: Judged) -> None:
        """Write the summary of a rollout anew, if anything it is made from has changed."""
        rollout_id = judged.record.rollout.rollout_id
        lock = self._locks.setdefault(rollout_id, asyncio.Lock())
        async with lock:
            row = await asyncio.to_thread(self._make, judged)
            if row is not None:
                # A store that is only shown keeps the summaries it has.
                with suppress(StoreReadOnly):
                    await self._store.add_delta_summary(row)

    def _make(self, judged: Judged) -> DeltaSummary | None:
        rollout_id = judged.record.rollout.rollout_id
        if not self._store.has_trainer_logps(rollout_id):
            return None
        sets = sets_of(self._store.trainer_logps(rollout_id))
        chosen, limits = usual_set(sets), self._limits()
        if chosen is None:
            return None
        digest = digest_of(judged, sets, limits)
        known = self._store.delta_summaries([rollout_id]).get(rollout_id)
        if known is not None and known.inputs_sha256 == digest:
            return None
        # Rows are ordered by time, whatever the clock does.
        time_us = max(self._now_us(), 0 if known is None else known.time_us + 1)
        return row_of(judged, compare(judged, sets, chosen, limits), digest, time_us)
