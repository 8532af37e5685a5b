"""What a set of δ looks like: quantiles, share outside a band, KL estimates, weights.

Owns: these numbers, exact also where exp overflows. Must not know: tokens, calls.

Band tests are made on δ, not on exp δ, so that no overflow decides; exp δ beyond the range of
a float is None, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUANTILES = (1, 5, 50, 95, 99)
# Where exp leaves the range of a double.
_LARGEST_EXPONENT = math.log(np.finfo(np.float64).max)
# Below that the series of exp δ − 1 − δ is exact to a double, and the difference is not.
_SMALL = 1e-4


@dataclass(frozen=True, slots=True)
class Band:
    """Ratios that count as noise, both ends included."""

    low: float = 0.9
    high: float = 1.1

    def __post_init__(self) -> None:
        if not 0 < self.low <= 1 <= self.high < math.inf:
            raise ValueError("a band of ratios has 0 < low ≤ 1 ≤ high")

    def outside(self, delta: Floats) -> NDArray[np.bool_]:
        """Which of these δ leave the band."""
        return (delta < math.log(self.low)) | (delta > math.log(self.high))


def ratio(delta: float) -> float | None:
    """exp δ; None beyond the range of a float."""
    return None if delta > _LARGEST_EXPONENT else math.exp(delta)


@dataclass(frozen=True, slots=True)
class Spread:
    """What a set of δ looks like; the numbers are None where there is none.

    Attributes:
        quantiles: of δ, by percent; abs_quantiles: of |δ|.
        sd: standard deviation (n − 1); None of a single token.
        k1_error, k3_error: standard errors of the estimates, as if tokens were independent.
        n_overflow: ratios beyond the range of a float; k3 is None then.
    """

    n: int
    n_outside: int
    band: Band
    quantiles: Mapping[int, float] = field(default_factory=dict)
    abs_quantiles: Mapping[int, float] = field(default_factory=dict)
    abs_max: float | None = None
    mean: float | None = None
    sd: float | None = None
    k1: float | None = None
    k1_error: float | None = None
    k3: float | None = None
    k3_error: float | None = None
    n_overflow: int = 0

    @property
    def share_outside(self) -> float | None:
        """Share outside the band."""
        return self.n_outside / self.n if self.n else None


def spread(delta: Floats, band: Band) -> Spread:
    """The spread of finite δ."""
    n = int(delta.size)
    if not n:
        return Spread(0, 0, band)
    size = np.abs(delta)
    overflow = int((delta > _LARGEST_EXPONENT).sum())
    k3 = None if overflow else _excess(delta)
    return Spread(
        n=n,
        n_outside=int(band.outside(delta).sum()),
        band=band,
        quantiles=_quantiles(delta),
        abs_quantiles=_quantiles(size),
        abs_max=float(size.max()),
        mean=float(delta.mean()),
        sd=_sd(delta),
        k1=float((-delta).mean()),
        k1_error=_error(delta),
        k3=None if k3 is None else _mean(k3),
        k3_error=None if k3 is None else _error(k3),
        n_overflow=overflow,
    )


def _excess(delta: Floats) -> Floats:
    """exp δ − 1 − δ, never below 0."""
    series = delta**2 * (0.5 + delta / 6 + delta**2 / 24)
    return np.where(np.abs(delta) < _SMALL, series, np.maximum(np.expm1(delta) - delta, 0.0))


def _mean(values: Floats) -> float | None:
    with np.errstate(over="ignore"):
        return _finite(float(values.mean()))


def _quantiles(values: Floats) -> dict[int, float]:
    found = np.quantile(values, [percent / 100 for percent in QUANTILES])
    return {percent: float(value) for percent, value in zip(QUANTILES, found, strict=True)}


def _sd(values: Floats) -> float | None:
    if values.size < 2:
        return None
    with np.errstate(over="ignore"):
        return _finite(float(values.std(ddof=1)))


def _error(values: Floats) -> float | None:
    deviation = _sd(values)
    return None if deviation is None else deviation / math.sqrt(values.size)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Weights:
    """Truncated importance weights: min(exp δ, cap) per token.

    Attributes:
        quantiles: of the weights, by percent.
        effective: (Σw)² / Σw², how many equal weights they are worth.
    """

    cap: float
    n: int
    n_capped: int
    quantiles: Mapping[int, float] = field(default_factory=dict)
    effective: float | None = None

    @property
    def share_capped(self) -> float | None:
        """Share of the tokens whose ratio is above the cap."""
        return self.n_capped / self.n if self.n else None


def importance(delta: Floats, cap: float = 2.0) -> Weights:
    """The weights of finite δ.

    Raises:
        ValueError: the cap is not a number above 0.
    """
    if not 0 < cap < math.inf:
        raise ValueError("a cap of weights is a number above 0")
    if not delta.size:
        return Weights(cap, 0, 0)
    limit = math.log(cap)
    capped = delta > limit
    weights = np.where(capped, cap, np.exp(np.minimum(delta, limit)))
    squares = float((weights**2).sum())
    effective = float(weights.sum()) ** 2 / squares if squares else None
    return Weights(cap, int(delta.size), int(capped.sum()), _quantiles(weights), effective)
