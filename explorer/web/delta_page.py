"""A trainer's logprobs beside the engine's: the page and its facts.

Owns: how δ reads in words and rows. Must not know: HTTP, how δ is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from explorer.export.deltas import Compared, Floor, TrainerSet, compare, usual_set
from explorer.export.judged import Judged
from explorer.records import CallId
from explorer.store.deltas import LogpsKind
from explorer.trace.delta import Limits
from explorer.trace.delta_spread import QUANTILES, Spread
from explorer.trace.delta_tokens import CallDelta, Gap, SequenceRatio
from explorer.web import words
from explorer.web.contexts import Command, Frame
from explorer.web.contexts_delta import (
    DeltaBar,
    DeltaFacts,
    DeltaPage,
    FloorRow,
    GapRow,
    SequenceRow,
    SetRow,
    SpreadRow,
)
from explorer.web.contexts_rollout import Header
from explorer.web.delta_words import decimal, nats, ratio_text, share_text
from explorer.web.delta_worst import Vocabulary, worst_rows
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text
from explorer.web.turn_tree import TurnTree

MOST_SEQUENCES = 200
# Outer edges in nats; what lies within the inner ones is drawn neutral.
_EDGES = (-2.0, -0.7, -0.3, -0.1, -0.03, -0.01, 0.01, 0.03, 0.1, 0.3, 0.7, 2.0)
_COLOURS = ("d0", "d0", "d1", "d2", *("d3",) * 5, "d4", "d5", "d6", "d6")
_GAPS = {
    Gap.NOT_TOLD: "their call is not in this set",
    Gap.NULL: "null was told",
    Gap.NOT_A_NUMBER: "NaN was told",
    Gap.INFINITE: "−∞ was told: the trainer gives the sampled token no probability at all",
    Gap.SENTINEL: "a value that engines use for “none” was told (−9999 or less)",
    Gap.ROLLOUT: "the rollout's own logprob is missing",
}
_AGAINST = {
    "same": "the same weights",
    "older": "sampled by older weights",
    "newer": "sampled by newer weights",
    "unknown": "a version is not known",
}


def delta_page(
    judged: Judged,
    frame: Frame,
    header: Header,
    sets: Sequence[TrainerSet],
    wanted: str,
    parts: tuple[Limits, Vocabulary, str],
) -> DeltaPage:
    """The page.

    Args:
        sets: everything that was told.
        wanted: key of the set to compare with; else the usual one.
        parts: limits in force, the vocabulary, and the server's address for commands.
    """
    limits, vocabulary, base = parts
    rollout_id = judged.record.rollout.rollout_id
    chosen = next((each for each in sets if set_key(each) == wanted), None) or usual_set(sets)
    facts = None
    if chosen is not None:
        found = compare(judged, sets, chosen, limits)
        facts = delta_facts(judged, found, limits, vocabulary)
    return DeltaPage(
        frame=frame,
        header=header,
        sets=tuple(_set_row(rollout_id, each, chosen) for each in sets),
        facts=facts,
        chosen="" if chosen is None else _set_words(chosen),
        covered=judged.cover is not None,
        commands=_commands(judged, base),
    )


def set_key(each: TrainerSet) -> str:
    """Names a set in an address."""
    version = "" if each.weight_version is None else each.weight_version
    return f"{each.kind.value}.{version}.{each.source}"


def _set_words(each: TrainerSet) -> str:
    return f"{safe_text(each.source)}, weights {_version(each.weight_version)}"


def _version(version: int | None) -> str:
    return words.UNKNOWN if version is None else str(version)


def _set_row(rollout_id: str, each: TrainerSet, chosen: TrainerSet | None) -> SetRow:
    comparable = each.kind in (LogpsKind.TRAINER, LogpsKind.REFERENCE)
    return SetRow(
        kind=each.kind.value,
        source=safe_text(each.source),
        version_text=_version(each.weight_version),
        n_calls=len(each.logps),
        told=words.iso(each.time_us) or "",
        href=rollout_href(rollout_id, "delta", set=set_key(each)) if comparable else None,
        current=each is chosen,
    )


def delta_facts(
    judged: Judged, found: Compared, limits: Limits, vocabulary: Vocabulary
) -> DeltaFacts:
    """The comparison in rows."""
    report = found.report
    labels = TurnTree(judged).labels
    ratios = sorted(report.sequences, key=lambda each: -abs(each.log_ratio or 0.0))
    return DeltaFacts(
        band=f"{limits.band.low:g} to {limits.band.high:g}",
        cap=limits.cap,
        n_training=report.n_training,
        gaps=tuple(GapRow(gap.value, _GAPS[gap], n) for gap, n in report.gaps.items()),
        whole=spread_row("all compared tokens", report.whole),
        bars=_bars(found.calls),
        floors=tuple(floor_row(each) for each in found.floors),
        versions=tuple(spread_row(_AGAINST[name], part) for name, part in report.by_version),
        ages=tuple(spread_row(_age(each), part) for each, part in report.by_age),
        kinds=tuple(spread_row(name, part) for name, part in report.by_kind),
        supports=tuple(spread_row(_support(name), part) for name, part in report.by_support),
        n_capped=report.weights.n_capped,
        capped_share=report.weights.share_capped,
        capped_text=share_text(report.weights.share_capped),
        effective=report.weights.effective,
        effective_text=decimal(report.weights.effective, 1),
        weight_cells=tuple(decimal(report.weights.quantiles.get(q), 3) for q in QUANTILES),
        sequences=tuple(_sequence(judged, labels, each) for each in ratios[:MOST_SEQUENCES]),
        sequences_left_out=max(0, len(ratios) - MOST_SEQUENCES),
        worst=worst_rows(judged, report.worst, labels, vocabulary),
    )


def spread_row(label: str, spread: Spread) -> SpreadRow:
    """A spread as a row."""
    q = spread.quantiles
    shown = (*(q.get(each) for each in QUANTILES), spread.abs_quantiles.get(99), spread.abs_max)
    k3 = "–" if spread.k3 is None else f"{nats(spread.k3)} ± {nats(spread.k3_error)}"
    return SpreadRow(
        label=label,
        n=spread.n,
        n_outside=spread.n_outside,
        share_outside=spread.share_outside,
        p1=q.get(1),
        p5=q.get(5),
        p50=q.get(50),
        p95=q.get(95),
        p99=q.get(99),
        abs_p99=spread.abs_quantiles.get(99),
        abs_max=spread.abs_max,
        mean=spread.mean,
        sd=spread.sd,
        k1=spread.k1,
        k1_error=spread.k1_error,
        k3=spread.k3,
        k3_error=spread.k3_error,
        n_overflow=spread.n_overflow,
        share_text=share_text(spread.share_outside),
        cells=tuple(nats(each) for each in shown),
        mean_text=f"{nats(spread.mean)} (sd {nats(spread.sd)})",
        kl_text=f"k1 {nats(spread.k1)} ± {nats(spread.k1_error)}, k3 {k3}",
    )


def floor_row(floor: Floor) -> FloorRow:
    """A noise floor in words."""
    source = safe_text(floor.source)
    if floor.kind is LogpsKind.RESCORED:
        what = f"the engine against itself: {source} scored again what it had sampled"
    else:
        what = f"the trainer against itself: {source} computed the same tokens twice"
    return FloorRow(what, spread_row(what, floor.spread))


def _age(newer_by: int | None) -> str:
    if newer_by is None:
        return words.UNKNOWN
    if not newer_by:
        return "0: the same weights"
    return words.plural(abs(newer_by), "version") + (" older" if newer_by > 0 else " newer")


def _support(name: str) -> str:
    return "the whole distribution" if name == "whole" else f"cut by {name}"


def _bars(calls: Iterable[CallDelta]) -> tuple[DeltaBar, ...]:
    known = np.concatenate([np.empty(0), *(call.known for call in calls)])
    counts = np.bincount(np.digitize(known, _EDGES), minlength=len(_EDGES) + 1).tolist()
    names = [
        f"below {_edge(_EDGES[0])}",
        *(f"{_edge(low)} to {_edge(high)}" for low, high in pairwise(_EDGES)),
        f"{_edge(_EDGES[-1])} and more",
    ]
    if not known.size:
        return ()
    heights = [round(88 * math.log1p(n) / math.log1p(max(counts)), 1) for n in counts]
    return tuple(map(DeltaBar, names, counts, _COLOURS, heights))


def _edge(value: float) -> str:
    return f"{value:g}".replace("-", "−").replace("0.", ".")


def _sequence(judged: Judged, labels: dict[CallId, str], each: SequenceRatio) -> SequenceRow:
    start = judged.judgement.masks[each.call_id].prompt_len
    rollout_id = judged.record.rollout.rollout_id
    href = rollout_href(rollout_id, "tokens", branch=each.call_id, m="delta", t=start)
    return SequenceRow(
        label=labels.get(each.call_id, words.short_id(each.call_id)),
        href=f"{href}#t{start}",
        n_training=each.n_training,
        n_compared=each.n_compared,
        log_ratio=each.log_ratio,
        ratio=each.ratio,
        log_ratio_text=nats(each.log_ratio),
        ratio_text=ratio_text(each.ratio, each.log_ratio),
    )


def _commands(judged: Judged, base: str) -> tuple[Command, ...]:
    rollout_id = judged.record.rollout.rollout_id
    sampled = [call for call in judged.record.calls if call.completion is not None]
    call_id = sampled[0].call_id if sampled else "CALL_ID"
    path = f"{base}/api/v1/rollouts/{rollout_id}"
    auth = '-H "Authorization: Bearer $ROLLOUT_EXPLORER_ADMIN_TOKEN"'
    body = (
        '{"weight_version": 8, "source": "trl", "calls": [{"call_id": "'
        f'{call_id}", "per_token_logps": [-0.12, null, …]}}]}}'
    )
    return (
        Command(
            "From a trainer", f"curl {auth} \\\n  {path}/trainer-logprobs \\\n  -d '{body}'"
        ),
        Command("From a file", "rollout-explorer trainer-logprobs FILE --format jsonl"),
        Command("Noise floor of the engine", f"curl -X POST {auth} \\\n  {path}/rescore"),
    )
