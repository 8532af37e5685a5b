"""Where the marks of a server-drawn chart stand, in the units of its own drawing.

Owns: scales with round ticks, lines, bands and bars as numbers for SVG attributes.
Must not know: what is drawn, colours, pages.

Templates call it as `plots`; every number that it places is on the page as text, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

WIDTH, HEIGHT = 400.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 396.0, 8.0, 130.0
_TICKS = 4

T = TypeVar("T")


def _tidy(value: float) -> str:
    """A coordinate: one digit is finer than a screen shows."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical axis: values from `low` to `high`, with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def y(self, value: float) -> float:
        """Where a value stands."""
        return BOTTOM - (BOTTOM - TOP) * (value - self.low) / (self.high - self.low)

    def text(self, tick: float) -> str:
        """A tick as it is written; all of a scale with the same digits."""
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        if abs(self.high) >= 10_000 or abs(self.low) >= 10_000:
            return f"{tick / 1000:,.{_digits(step / 1000)}f}k".replace("-", "−")
        if 0 < step < 0.001:
            return f"{tick:.2g}".replace("-", "−") if tick else "0"
        return f"{tick:,.{_digits(step)}f}".replace("-", "−")


def _digits(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0


def scale(values: Sequence[float | None], *, zero: bool = False) -> Scale | None:
    """A scale with round ends that holds every finite value (and 0, where asked for)."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        pad = abs(low) / 2 or 1.0
        low, high = (0.0, high + pad) if zero and low >= 0 else (low - pad, high + pad)
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in (1, 2, 5, 10) if size * each >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = tuple(round(step * place, 12) for place in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def slot(count: int) -> float:
    """The width of one place of `count` along the axis."""
    return (RIGHT - LEFT) / max(1, count)


def x(place: int, count: int) -> float:
    """The middle of a place along the axis."""
    return round(LEFT + slot(count) * (place + 0.5), 1)


def lines(values: Sequence[float | None], axis: Scale) -> list[str]:
    """The `points` of polylines through the values; a missing one breaks the line."""
    return [
        " ".join(f"{_tidy(at)},{_tidy(axis.y(value))}" for at, value in part)
        for part in _parts(values)
    ]


def band(lows: Sequence[float | None], highs: Sequence[float | None], axis: Scale) -> list[str]:
    """The `points` of polygons between two lines; a place alone is a narrow bar."""
    both = [
        None if low is None or high is None else (low, high)
        for low, high in zip(lows, highs, strict=True)
    ]
    width = slot(len(both))
    found = []
    for part in _parts(both):
        edge = part
        if len(part) == 1:
            at, pair = part[0]
            half = min(4.0, width / 3)
            edge = [(at - half, pair), (at + half, pair)]
        there = [f"{_tidy(at)},{_tidy(axis.y(pair[1]))}" for at, pair in edge]
        back = [f"{_tidy(at)},{_tidy(axis.y(pair[0]))}" for at, pair in reversed(edge)]
        found.append(" ".join(there + back))
    return found


def dots(values: Sequence[float | None], axis: Scale) -> list[tuple[str, str]]:
    """Where a mark stands for each value that is there."""
    return [
        (_tidy(x(place, len(values))), _tidy(axis.y(value)))
        for place, value in enumerate(values)
        if value is not None
    ]


def negated(values: Sequence[float | None]) -> list[float | None]:
    """The other side of a bound that holds both ways."""
    return [None if value is None else -value for value in values]


def stack(parts: Sequence[float], whole: float) -> list[tuple[str, str]]:
    """Top and height of each part of a bar that is as high as the chart when the parts
    are the whole; the first stands at the bottom."""
    found = []
    below = 0.0
    for part in parts:
        height = (BOTTOM - TOP) * part / whole if whole else 0.0
        below += height
        found.append((_tidy(BOTTOM - below), _tidy(height)))
    return found


def short(value: float | None) -> str:
    """A small number with two digits that count."""
    if value is None:
        return "–"
    text = f"{value:.2g}" if abs(value) < 0.995 else f"{value:,.2f}"
    return text.replace("-", "−")


def _parts(values: Sequence[T | None]) -> list[list[tuple[float, T]]]:
    """Runs of neighbouring places that have a value, each with where it stands."""
    found: list[list[tuple[float, T]]] = []
    fresh = True
    for place, value in enumerate(values):
        if value is None:
            fresh = True
            continue
        if fresh:
            found.append([])
        found[-1].append((x(place, len(values)), value))
        fresh = False
    return found
