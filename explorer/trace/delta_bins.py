"""Fixed bins of δ, so that the numbers of many rollouts can be added up.

Owns: the bins, which bin a value falls in, and quantiles read from counts.
Must not know: rollouts, where counts are kept.

The bins are the same everywhere and for ever: bin 0 holds |δ| < 1e-7, bin ±k holds |δ| from
10^(-7 + (k-1)/16) up to 10^(-7 + k/16), the last one whatever lies beyond. A quantile read
from counts is known up to its bin, whose bounds differ by the factor 10^(1/16), about 15 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

PER_DECADE = 16
FIRST_EXPONENT = -7
DECADES = 12
LAST = DECADES * PER_DECADE + 1
_EDGES = 10.0 ** (FIRST_EXPONENT + np.arange(LAST) / PER_DECADE)


def bins_of(delta: NDArray[np.float64]) -> dict[int, int]:
    """How many of these finite values fall in each bin; bins without any are left out."""
    places = np.searchsorted(_EDGES, np.abs(delta), side="right")
    signed = np.where(delta < 0, -places, places)
    numbers, counts = np.unique(signed, return_counts=True)
    return {
        int(number): int(count) for number, count in zip(numbers, counts, strict=True) if count
    }


def bounds(number: int) -> tuple[float, float]:
    """The least and the greatest δ of a bin; an outermost one has no far bound."""
    if number == 0:
        return -float(_EDGES[0]), float(_EDGES[0])
    place = abs(number)
    near = float(_EDGES[place - 1])
    far = float(_EDGES[place]) if place < LAST else math.inf
    return (near, far) if number > 0 else (-far, -near)


def added(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The counts of several rollouts together."""
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def folded(counts: Mapping[int, int]) -> dict[int, int]:
    """The same counts of |δ|."""
    total: Counter[int] = Counter()
    for number, count in counts.items():
        total[abs(number)] += count
    return dict(total)


def quantile(counts: Mapping[int, int], q: float) -> tuple[float, float] | None:
    """Bounds of the bin that holds the q-quantile; None where nothing was counted."""
    total = sum(counts.values())
    if not total:
        return None
    wanted = max(1, math.ceil(q * total))
    seen = 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= wanted:
            return bounds(number)
    raise AssertionError("the counts add up to their total")
