"""Test E of the certificate: drawn counts against the reported probabilities.

Owns: the G-test.
Must not know: engines; it is given a function that draws one token.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Draw = Callable[[int], Awaitable[tuple[str, Mapping[str, float]]]]
_MIN_EXPECTED = 5.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Calibration:
    """Outcome of a G-test.

    Attributes:
        draws: tokens drawn.
        cells: groups of tokens compared (rare ones share one).
        g: the statistic.
        z: its normal score (Wilson-Hilferty); above 4 the reported numbers are not
            the probabilities tokens were drawn with.
    """

    draws: int
    cells: int
    g: float
    z: float

    @property
    def calibrated(self) -> bool:
        """Whether the draws agree with the report."""
        return self.z < 4.0


async def calibrate(draw: Draw, draws: int) -> Calibration:
    """Draws `draws` single tokens with different seeds and compares."""
    results: list[tuple[str, Mapping[str, float]]] = []
    for start in range(0, draws, _AT_ONCE):
        seeds = range(start, min(start + _AT_ONCE, draws))
        results += await asyncio.gather(*(draw(1000 + seed) for seed in seeds))
    reported: dict[str, float] = {}
    for _, listed in results:
        reported.update(listed)
    counts = Counter(token for token, _ in results)
    return g_test(counts, {token: math.exp(value) for token, value in reported.items()}, draws)


def g_test(counts: Mapping[str, int], shares: Mapping[str, float], draws: int) -> Calibration:
    """The G statistic over cells with an expectation of at least 5; the rest is one cell."""
    g, cells = 0.0, 0
    rest_seen, rest_share = draws, 1.0
    for token, share in shares.items():
        expected = share * draws
        if expected < _MIN_EXPECTED:
            continue
        seen = counts.get(token, 0)
        rest_seen -= seen
        rest_share -= share
        cells += 1
        if seen:
            g += 2 * seen * math.log(seen / expected)
    if rest_share * draws >= 1.0:
        cells += 1
        if rest_seen:
            g += 2 * rest_seen * math.log(rest_seen / (rest_share * draws))
    elif rest_seen:
        # Tokens were drawn to which the report leaves no room at all.
        g += 2 * rest_seen * math.log(rest_seen / max(rest_share * draws, 0.05))
        cells += 1
    freedom = max(cells - 1, 1)
    ratio = max(g, 1e-9) / freedom
    z = (ratio ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return Calibration(draws, cells, g, z)
