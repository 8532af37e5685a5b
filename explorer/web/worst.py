"""The least likely tokens of a branch as a list, and its turns in numbers.

Owns: which tokens are the worst, and the table that stands for the chart.
Must not know: HTTP, HTML.
"""

from __future__ import annotations

import math

import numpy as np

from explorer.export.judged import Judged
from explorer.records import SENTINEL_LOGPROB, Role
from explorer.trace.branch import Segment
from explorer.trace.decode import REST_MARK
from explorer.web import words
from explorer.web.branches import Shown
from explorer.web.contexts_rollout import Elsewhere, TurnNumbers, WorstToken
from explorer.web.frames import rollout_href
from explorer.web.inspector import edge_spaces
from explorer.web.turn_tree import TurnTree

MOST_WORST = 12
MOST_TURNS = 200


def worst_tokens(judged: Judged, shown: Shown) -> tuple[WorstToken, ...]:
    """The least likely sampled tokens, the worst first, outliers or not."""
    view = shown.view
    at = np.flatnonzero(view.sampled & ~np.isnan(view.logprobs))
    ordered = at[np.argsort(view.logprobs[at], kind="stable")][:MOST_WORST].tolist()
    found = []
    for index in ordered:
        segment = view.segment_at(index)
        piece = shown.pieces[index]
        found.append(
            WorstToken(
                index=index,
                text=edge_spaces(piece.display) or REST_MARK,
                logprob=float(view.logprobs[index]),
                logprob_text=f"{float(view.logprobs[index]):.2f}".replace("-", "−"),
                label=shown.labels[segment.call_id],
                trained=bool(view.trained[index]),
                href=rollout_href(
                    judged.record.rollout.rollout_id, "tokens", branch=view.leaf, t=index
                )
                + f"#t{index}",
            )
        )
    return tuple(found)


def worst_elsewhere(judged: Judged, tree: TurnTree, shown: Shown) -> Elsewhere | None:
    """The least likely token of the agent's calls that are not on this branch, if it is less
    likely than all that are."""
    here = shown.view.logprobs[~np.isnan(shown.view.logprobs)]
    lowest, found = float(here.min()) if here.size else math.inf, None
    on_branch = set(shown.view.path)
    for call in judged.record.calls:
        decision = judged.judgement.roles.get(call.call_id)
        if call.call_id in on_branch or decision is None or decision.role is not Role.AGENT:
            continue
        if call.logprobs is None or call.completion is None or call.prompt_len is None:
            continue
        if call.call_id not in tree.labels or call.logprobs.size != call.completion.size:
            continue
        known = np.isfinite(call.logprobs) & (call.logprobs > SENTINEL_LOGPROB)
        if not known.any():
            continue
        usable = np.where(known, call.logprobs, np.inf)
        at = int(np.argmin(usable))
        if float(usable[at]) < lowest:
            lowest, found = float(usable[at]), (call, at)
    if found is None:
        return None
    call, at = found
    assert call.prompt_len is not None  # the loop left out calls without
    index = call.prompt_len + at
    href = rollout_href(
        judged.record.rollout.rollout_id, "tokens", branch=call.call_id, t=index
    )
    return Elsewhere(
        label=tree.labels[call.call_id],
        logprob=lowest,
        logprob_text=f"{lowest:.2f}".replace("-", "−"),
        href=f"{href}#t{index}",
    )


def turn_numbers(shown: Shown) -> tuple[TurnNumbers, ...]:
    """The sampled part of each turn in numbers, at most `MOST_TURNS`: the table twin of the
    chart."""
    view = shown.view
    found = []
    for segment in _sampled(shown)[:MOST_TURNS]:
        here = slice(segment.start, segment.end)
        known = -view.logprobs[here]
        known = known[~np.isnan(known)]
        entropies = view.entropies[here]
        entropies = entropies[~np.isnan(entropies)]
        found.append(
            TurnNumbers(
                label=shown.labels[segment.call_id],
                start=segment.start,
                sampled=segment.end - segment.start,
                trained=int(np.count_nonzero(view.trained[here])),
                outliers=int(np.count_nonzero(view.outliers[here])),
                mean_text=_number(float(known.mean()) if known.size else math.nan),
                p99_text=_number(float(np.percentile(known, 99)) if known.size else math.nan),
                worst_text=_number(float(known.max()) if known.size else math.nan),
                entropy_text=_number(float(entropies.mean()) if entropies.size else math.nan),
            )
        )
    return tuple(found)


def turns_left_out(shown: Shown) -> int:
    """Turns that the table has no line for."""
    return max(0, len(_sampled(shown)) - MOST_TURNS)


def _sampled(shown: Shown) -> list[Segment]:
    return [segment for segment in shown.view.segments if segment.kind == "completion"]


def _number(value: float) -> str:
    return words.NONE if math.isnan(value) else f"{value:.3f}"
