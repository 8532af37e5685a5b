"""δ of a run, from the summaries of its rollouts alone.

Owns: how summaries add up. Must not know: HTTP, pages, tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from explorer.records import RolloutId
from explorer.store.deltas import DeltaSummary
from explorer.trace.delta_bins import added, folded, quantile


@dataclass(frozen=True, slots=True)
class RolloutDelta:
    """One rollout of a run."""

    rollout_id: RolloutId
    source: str
    weight_version: int | None
    n_training: int
    n_compared: int
    n_outside: int
    share_outside: float | None
    abs_p99: float | None
    abs_max: float | None
    noise_kind: str | None
    noise_abs_p99: float | None
    noise_share: float | None


@dataclass(frozen=True, slots=True)
class RunDelta:
    """All compared tokens of a run.

    Attributes:
        quantiles, abs_quantiles: by percent, the bounds of the bin that holds them; None for
            a bound that is not there.
        bands: every band that a summary used; shares of different ones are not alike.
    """

    n_rollouts: int
    n_training: int
    n_compared: int
    n_outside: int
    share_outside: float | None
    quantiles: Mapping[str, tuple[float, float] | None]
    abs_quantiles: Mapping[str, tuple[float, float] | None]
    abs_max: float | None
    n_same_version: int
    n_other_version: int
    n_unknown_version: int
    bands: tuple[tuple[float, float], ...]
    rollouts: tuple[RolloutDelta, ...]


def run_delta(summaries: Sequence[DeltaSummary]) -> RunDelta:
    """The summaries of a run's rollouts together."""
    bins = added(each.bins for each in summaries)
    sizes = folded(bins)
    n_compared = sum(each.n_compared for each in summaries)
    n_outside = sum(each.n_outside for each in summaries)
    return RunDelta(
        n_rollouts=len(summaries),
        n_training=sum(each.n_training for each in summaries),
        n_compared=n_compared,
        n_outside=n_outside,
        share_outside=n_outside / n_compared if n_compared else None,
        quantiles={str(q): quantile(bins, q / 100) for q in (1, 5, 50, 95, 99)},
        abs_quantiles={str(q): quantile(sizes, q / 100) for q in (50, 95, 99)},
        abs_max=max(
            (each.abs_max for each in summaries if each.abs_max is not None), default=None
        ),
        n_same_version=sum(each.n_same_version for each in summaries),
        n_other_version=sum(each.n_other_version for each in summaries),
        n_unknown_version=sum(each.n_unknown_version for each in summaries),
        bands=tuple(sorted({(each.band_low, each.band_high) for each in summaries})),
        rollouts=tuple(map(_one, summaries)),
    )


def _one(each: DeltaSummary) -> RolloutDelta:
    return RolloutDelta(
        rollout_id=each.rollout_id,
        source=each.source,
        weight_version=each.weight_version,
        n_training=each.n_training,
        n_compared=each.n_compared,
        n_outside=each.n_outside,
        share_outside=each.share_outside,
        abs_p99=each.abs_p99,
        abs_max=each.abs_max,
        noise_kind=each.noise_kind,
        noise_abs_p99=each.noise_abs_p99,
        noise_share=each.noise_share,
    )
