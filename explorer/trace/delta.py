"""How far a trainer's logprobs are from those the engine sampled with, token by token.

Owns: the report on a rollout's δ, and the measured noise floor beside it.
Must not know: who posted the logprobs, where they are kept, pages.

    δ     = trainer logprob − rollout logprob, of one sampled token that trains (mask 1)
    ratio = exp δ = p_trainer / p_rollout, the importance weight of a token
    k1    = mean of −δ            estimate of KL(rollout ‖ trainer); may be below 0
    k3    = mean of exp δ − 1 − δ estimate of the same; never below 0

The tokens were sampled by the engine, so both estimate the divergence of the trainer's policy
from the engine's, seen from the engine: positive means that the trainer gives the sampled
tokens less probability than the engine did. The mean of δ can be 0 while many tokens are far
off (huggingface/trl#4772), so no mean is given here without the spread around it.

A missing value is never 0: a null, a NaN, an infinity and the engine's sentinel (≤ −9999) are
counted apart and are in no other number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from explorer.records import LogprobArray
from explorer.trace.delta_bins import bins_of
from explorer.trace.delta_spread import (
    Band,
    Floats,
    Spread,
    Weights,
    importance,
    spread,
)
from explorer.trace.delta_tokens import (
    CallDelta,
    Gap,
    SequenceRatio,
    TokenDelta,
    age,
    sequence_ratio,
    split,
    worst_tokens,
)

WORST = 50
_NONE: Floats = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as outside, where weights are cut, how many tokens are named."""

    band: Band = field(default_factory=Band)
    cap: float = 2.0
    worst: int = WORST


@dataclass(frozen=True, slots=True)
class Report:
    """The δ of some calls.

    Attributes:
        n_training: tokens that train; `gaps` counts those of them that have no δ.
        sequences: one per call that has training tokens.
        by_version: `same`, `older`, `newer` (the sampling weights against the trainer's)
            or `unknown`.
        by_age: by how many versions the trainer was newer; None: not known.
        by_kind: what the rollout's logprobs were proved to be.
        by_support: `whole`, or the settings that cut it.
        bins: counts by bin of `delta_bins`.
    """

    n_training: int
    gaps: Mapping[Gap, int]
    whole: Spread
    weights: Weights
    sequences: tuple[SequenceRatio, ...]
    worst: tuple[TokenDelta, ...]
    by_version: tuple[tuple[str, Spread], ...]
    by_age: tuple[tuple[int | None, Spread], ...]
    by_kind: tuple[tuple[str, Spread], ...]
    by_support: tuple[tuple[str, Spread], ...]
    bins: Mapping[int, int]


def summary(calls: Sequence[CallDelta], limits: Limits | None = None) -> Report:
    """The report on these calls."""
    limits = limits or Limits()
    band = limits.band
    known = np.concatenate([_NONE, *(call.known for call in calls)])
    gaps: Counter[Gap] = Counter(gap for call in calls for gap in call.gaps.values())
    return Report(
        n_training=sum(int(call.index.size) for call in calls),
        gaps={gap: gaps[gap] for gap in Gap if gaps[gap]},
        whole=spread(known, band),
        weights=importance(known, limits.cap),
        sequences=tuple(sequence_ratio(call) for call in calls if call.index.size),
        worst=worst_tokens(calls, limits.worst),
        by_version=split(calls, _against, band),
        by_age=split(calls, age, band),
        by_kind=split(calls, lambda call, _: call.logprob_kind.value, band),
        by_support=split(calls, lambda call, _: ", ".join(call.truncated) or "whole", band),
        bins=bins_of(known),
    )


def _against(call: CallDelta, place: int) -> str:
    newer_by = age(call, place)
    if newer_by is None:
        return "unknown"
    if not newer_by:
        return "same"
    return "older" if newer_by > 0 else "newer"


def floor_of(
    first: Sequence[LogprobArray], second: Sequence[LogprobArray], band: Band
) -> Spread:
    """The spread between two measurements of the same tokens, which nothing but numerics may
    part: second − first, where both are finite.

    Raises:
        ValueError: two arrays that belong together have different lengths.
    """
    parts = [_NONE]
    for one, other in zip(first, second, strict=True):
        if one.size != other.size:
            raise ValueError(f"{one.size} values are compared with {other.size}")
        with np.errstate(invalid="ignore"):
            usable = np.isfinite(one) & np.isfinite(other) & (one > -9999) & (other > -9999)
        parts.append(other[usable].astype(np.float64) - one[usable].astype(np.float64))
    return spread(np.concatenate(parts), band)
