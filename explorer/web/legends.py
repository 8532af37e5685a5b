"""What the colours of the token pane mean.

Owns: bins and semantics in words. Must not know: HTTP, the markup of single tokens.
"""

from __future__ import annotations

from explorer.export.judged import Judged
from explorer.records import Call
from explorer.web import words
from explorer.web.alternatives import NO_VALUE
from explorer.web.branch import (
    CROSSED,
    DELTA_EDGES,
    EDGES,
    ENTROPY_EDGES,
    RATIO_EDGES,
    VERSION_CLASSES,
    VERSION_COLOURS,
    BranchView,
)
from explorer.web.contexts_rollout import Legend
from explorer.web.delta_pane import off_bins


def legend(judged: Judged, view: BranchView | None, delta_text: str = "") -> Legend:
    """What the colours mean, with the semantics of the logprobs in words.

    Args:
        delta_text: whose logprobs δ is against; empty where nobody told any.
    """
    swatches = [("paper", "<" + f"{EDGES[0]:g}".removeprefix("0"))]
    for number, edge in enumerate(EDGES):
        text = f"{edge:g}".removeprefix("0")
        swatches.append((f"b{number}", text + ("+" if number == len(EDGES) - 1 else "")))
    certificate = judged.record.certificate
    kind = certificate.logprob_kind.value if certificate else words.UNKNOWN
    calls = list(view.calls.values()) if view is not None else []
    return Legend(
        swatches=tuple(swatches),
        semantics=f"nats, {kind}, {_temperature(calls)}",
        rank_known=any(call.top_logprobs for call in calls),
        entropy=(
            ("paper", "<" + f"{ENTROPY_EDGES[0]:g}".removeprefix("0")),
            *(
                (
                    f"b{number}",
                    f"{edge:g}".removeprefix("0") + ("+" if edge == ENTROPY_EDGES[-1] else ""),
                )
                for number, edge in enumerate(ENTROPY_EDGES)
            ),
        ),
        versions=_versions(view),
        delta=off_bins(DELTA_EDGES),
        ratio=off_bins(RATIO_EDGES),
        delta_text=delta_text,
    )


def _temperature(calls: list[Call]) -> str:
    seen = {
        call.submitted_sampling.get("temperature")
        for call in calls
        if call.completion is not None
    }
    if not seen or None in seen:
        return "T unknown"
    if len(seen) > 1:
        return "T differs per call"
    value = seen.pop()
    return f"T={value:g}" + (", greedy: nothing was drawn" if value == 0 else "")


def _versions(view: BranchView | None) -> tuple[tuple[str, str], ...]:
    """The weight versions on this branch with their classes; unknown and mixed ones too."""
    if view is None:
        return ()
    codes = set(view.version_column.tolist())
    found = [
        (VERSION_CLASSES[1 + place % VERSION_COLOURS], f"{version}")
        for place, version in enumerate(view.versions)
    ]
    if CROSSED in codes:
        found.append((VERSION_CLASSES[CROSSED], "unknown: changed within the call"))
    if NO_VALUE in codes:
        found.append((VERSION_CLASSES[NO_VALUE], words.UNKNOWN))
    return tuple(found)
