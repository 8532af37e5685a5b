"""Numbers about δ as people read them. Owns: digits. Must not know: what is counted."""

from __future__ import annotations

import math

from explorer.web import words


def nats(value: float | None) -> str:
    """A difference in nats: four decimals, or two digits of what is smaller than that."""
    if value is None or not math.isfinite(value):
        return words.NONE
    if value and abs(value) < 5e-5:
        return f"{value:.1e}".replace("-", "−")
    return f"{value:.4f}".replace("-", "−")


def decimal(value: float | None, digits: int) -> str:
    """A number with so many decimals."""
    if value is None or not math.isfinite(value):
        return words.NONE
    return f"{value:,.{digits}f}".replace("-", "−")


def share_text(value: float | None) -> str:
    """A share in percent; a small one that is not 0 never reads as 0."""
    if value is None:
        return words.NONE
    if value and value < 0.001:
        return "<0.1 %"
    return f"{100 * value:.1f} %"


def ratio_text(value: float | None, log_ratio: float | None) -> str:
    """A ratio; what is beyond the range of a float is said to be."""
    if log_ratio is None:
        return words.NONE
    if value is None:
        return "over 10^308"
    if value and not 1e-3 <= value < 1e4:
        return f"{value:.1e}".replace("-", "−")
    return f"{value:.3f}"
