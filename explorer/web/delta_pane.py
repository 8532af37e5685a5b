"""δ in the token pane: its legend, and one token's numbers.

Owns: how these read. Must not know: HTTP, bins' colours, how δ is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.export.judged import Judged
from explorer.store.interface import Store
from explorer.trace.delta_spread import ratio
from explorer.web import words
from explorer.web.branches import Shown
from explorer.web.delta_words import nats, ratio_text, share_text
from explorer.web.pretty import safe_text


def off_bins(edges: Sequence[float]) -> tuple[tuple[str, str], ...]:
    """CSS class and text of the bins between these edges."""
    shown = [f"{edge:g}".replace("-", "−").replace("0.", ".") for edge in edges]
    middle = len(edges) // 2
    texts = [
        f"<{shown[0]}",
        *shown[1:middle],
        f"{shown[middle - 1]} to {shown[middle]}",
        *shown[middle:-1],
        f"{shown[-1]}+",
    ]
    # Below the middle a bin is named by its upper edge, above it by its lower one.
    return tuple((f"d{number}", text) for number, text in enumerate(texts))


def delta_words(judged: Judged, shown: Shown | None, store: Store) -> str:
    """Whose logprobs δ is against, and the measured noise; empty where nobody told any."""
    if shown is None or shown.told is None:
        return ""
    told = shown.told
    version = words.UNKNOWN if told.weight_version is None else str(told.weight_version)
    parts = [f"against {safe_text(told.source)}, weights {version}"]
    rollout_id = judged.record.rollout.rollout_id
    summary = store.delta_summaries([rollout_id]).get(rollout_id)
    if summary is not None and summary.n_compared:
        band = f"{summary.band_low:g}–{summary.band_high:g}"
        parts.append(f"{share_text(summary.share_outside)} outside {band}")
        if summary.noise_kind is None:
            parts.append("noise not measured")
        else:
            parts.append(
                f"noise: {share_text(summary.noise_share)}, |δ| p99 "
                f"{nats(summary.noise_abs_p99)}"
            )
    return "; ".join(parts)


def trainer_value(shown: Shown, index: int) -> float | None:
    """The logprob that a trainer told of a token."""
    if shown.view.trainer is None:
        return None
    value = float(shown.view.trainer[index])
    return None if math.isnan(value) else value


def trainer_words(trainer: float | None, logprob: float | None) -> str:
    """A trainer's logprob, δ and ratio in words."""
    if trainer is None:
        return "no usable number was told"
    if logprob is None:
        return f"{nats(trainer)}; the rollout has none to compare with"
    delta = trainer - logprob
    return f"{nats(trainer)} · δ {nats(delta)} · ratio {ratio_text(ratio(delta), delta)}"
