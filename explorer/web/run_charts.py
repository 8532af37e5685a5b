"""Builds the charts of a run: one row for each step, from one line per rollout.

Owns: which rollouts stand at which place of the axis, and their numbers.
Must not know: HTML, HTTP, SQL, how a chart is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from explorer.records import RolloutId
from explorer.store.deltas import DeltaSummary
from explorer.store.queries import RunPoint
from explorer.trace import delta_bins
from explorer.web.contexts_run_charts import (
    DeltaBand,
    RunCharts,
    RunStep,
    Spread,
    VersionTokens,
)

# Places along an axis; more steps share one.
MOST_PLACES = 60
# Rollouts that share a place where no step parts them.
TOGETHER = 4


@dataclass(frozen=True, slots=True)
class _Place:
    """Rollouts that are drawn together."""

    first: int
    last: int
    points: list[RunPoint]


def run_charts(points: Sequence[RunPoint], deltas: Iterable[DeltaSummary]) -> RunCharts:
    """The charts of a run whose rollouts are given in the order of creation."""
    stepped = [point for point in points if point.step is not None]
    by_step = bool(stepped)
    places, steps, each = _by_step(stepped) if by_step else _by_order(points)
    summaries = {summary.rollout_id: summary for summary in deltas}
    groups = _group_counts(places, by_step)
    rows = tuple(
        _row(place, groups[at], summaries, "step" if by_step else "rollout")
        for at, place in enumerate(places)
    )
    bands = {(summary.band_low, summary.band_high) for summary in summaries.values()}
    band = bands.pop() if len(bands) == 1 else (None, None)
    return RunCharts(
        axis="step" if by_step else "order",
        axis_title="step" if by_step else "rollouts in the order of creation",
        rows=rows,
        steps=steps,
        each=each,
        left_out=len(points) - len(stepped) if by_step else 0,
        rewarded=any(row.reward.n for row in rows),
        told=any(v.version is not None for row in rows for v in row.versions),
        compared=any(row.delta is not None for row in rows),
        band_low=band[0],
        band_high=band[1],
    )


def _by_step(points: Iterable[RunPoint]) -> tuple[list[_Place], int, int]:
    found: dict[int, list[RunPoint]] = {}
    for point in points:
        if point.step is not None:
            found.setdefault(point.step, []).append(point)
    steps = sorted(found)
    each = math.ceil(len(steps) / MOST_PLACES)
    places = []
    for at in range(0, len(steps), each):
        taken = steps[at : at + each]
        places.append(_Place(taken[0], taken[-1], [p for step in taken for p in found[step]]))
    return places, len(steps), each


def _by_order(points: Sequence[RunPoint]) -> tuple[list[_Place], int, int]:
    # One rollout has no spread, and a line through single rewards says nothing.
    least = TOGETHER if len(points) >= 2 * TOGETHER else 1
    each = max(least, math.ceil(len(points) / MOST_PLACES))
    places = [
        _Place(at + 1, min(at + each, len(points)), list(points[at : at + each]))
        for at in range(0, len(points), each)
    ]
    return places, len(points), each


def _group_counts(places: Sequence[_Place], by_step: bool) -> list[tuple[int, int]]:
    """Groups that could be compared, and those of them without variance, by place.

    A group belongs to its step; without steps, to the place of its last rollout.
    """
    rewards: dict[tuple[int | None, str], list[float]] = {}
    where: dict[tuple[int | None, str], int] = {}
    for at, place in enumerate(places):
        for point in place.points:
            if point.cohort is None:
                continue
            key = (point.step if by_step else None, point.cohort)
            where[key] = at
            if point.reward is not None:
                rewards.setdefault(key, []).append(point.reward)
    counts = [(0, 0)] * len(places)
    for key, given in rewards.items():
        if len(given) > 1:
            n, zero = counts[where[key]]
            counts[where[key]] = (n + 1, zero + (min(given) == max(given)))
    return counts


def _row(
    place: _Place,
    groups: tuple[int, int],
    summaries: Mapping[RolloutId, DeltaSummary],
    noun: str,
) -> RunStep:
    points = place.points
    one = place.first == place.last
    label = f"{place.first}" if one else f"{place.first}–{place.last}"
    versions = _versions(points)
    return RunStep(
        label=label,
        title=f"{noun if one else noun + 's'} {label}",
        first=place.first,
        last=place.last,
        n=len(points),
        n_open=sum(point.open for point in points),
        reward=spread((p.reward for p in points if p.reward is not None), digits=6),
        length=spread((p.length for p in points if not p.open), digits=1),
        n_groups=groups[0],
        n_zero_variance=groups[1],
        tokens=sum(each.tokens for each in versions),
        versions=versions,
        delta=_delta([summaries[p.rollout_id] for p in points if p.rollout_id in summaries]),
    )


def spread(values: Iterable[float], digits: int) -> Spread:
    """The spread of the finite values; no more digits than their number tells."""
    finite = np.array([value for value in values if math.isfinite(value)], np.float64)
    if not finite.size:
        return Spread(0, None, None, None, None, None, None)
    found = [finite.mean(), *np.quantile(finite, (0, 0.25, 0.5, 0.75, 1))]
    mean, low, q1, median, q3, high = (round(float(value), digits) for value in found)
    return Spread(int(finite.size), mean, low, q1, median, q3, high)


def _versions(points: Iterable[RunPoint]) -> tuple[VersionTokens, ...]:
    counted: dict[int | None, int] = {}
    for point in points:
        for version, tokens in point.versions:
            counted[version] = counted.get(version, 0) + tokens
    newest = max((version for version in counted if version is not None), default=None)
    return tuple(
        VersionTokens(
            version,
            counted[version],
            None if version is None or newest is None else newest - version,
        )
        for version in sorted(counted, key=lambda each: (each is None, each or 0))
    )


def _delta(found: Sequence[DeltaSummary]) -> DeltaBand | None:
    if not found:
        return None
    counts = delta_bins.added(summary.bins for summary in found)
    compared = sum(summary.n_compared for summary in found)
    outside = sum(summary.n_outside for summary in found)
    noise = [each.noise_abs_p99 for each in found if each.noise_abs_p99 is not None]
    return DeltaBand(
        n_rollouts=len(found),
        n_compared=compared,
        n_outside=outside,
        share_outside=outside / compared if compared else None,
        p1=_quantile(counts, 0.01),
        p5=_quantile(counts, 0.05),
        median=_quantile(counts, 0.5),
        p95=_quantile(counts, 0.95),
        p99=_quantile(counts, 0.99),
        noise=max(noise, default=None),
    )


def _quantile(counts: Mapping[int, int], q: float) -> float | None:
    """The bound of the quantile's bin that is farther from 0: no band looks narrower than
    it is. The bin around 0 is 0."""
    found = delta_bins.quantile(counts, q)
    if found is None:
        return None
    low, high = found
    if low < 0 < high:
        return 0.0
    far, near = (low, high) if high <= 0 else (high, low)
    return far if math.isfinite(far) else near
