"""Builds the tokens tab: sections, minimap, legend and the inspector's facts.

Owns: what is sent at once and what is fetched later.
Must not know: HTTP; the markup of single tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explorer.export.judged import Judged
from explorer.records import MaskReason, Role
from explorer.trace.branch import Segment
from explorer.web import words
from explorer.web.branch import (
    TRAINED,
    BranchView,
)
from explorer.web.branches import Shown
from explorer.web.contexts_rollout import (
    Bar,
    TurnSection,
)
from explorer.web.frames import rollout_href
from explorer.web.markup import TokenMarkup

_NOT_SAMPLED = (MaskReason.PROMPT, MaskReason.ENVIRONMENT)
# A branch up to this long is sent whole, so that find-in-page reaches all of it.
SEND_WHOLE = 110_000
FOLD_ABOVE = 2_048
FOLDED = 768
PART = 8_192

MAP_CELLS = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """What of a section is on the page: its first tokens, or all."""

    segment: Segment
    shown: int
    on_sight: bool


def windows(view: BranchView, wanted: int | None) -> tuple[Window, ...]:
    """How much of each section to send.

    A long branch folds its long prompts; what is still too much is fetched when the
    reader comes near. The token that the address names is always on the page.
    """
    whole = view.length <= SEND_WHOLE
    sent = 0
    chosen = []
    for segment in view.segments:
        length = segment.end - segment.start
        shown, on_sight = length, False
        if not whole:
            if segment.kind != "completion" and length > FOLD_ABOVE:
                shown = FOLDED
            elif sent + length > SEND_WHOLE:
                shown, on_sight = 0, True
            if wanted is not None and segment.start <= wanted < segment.end:
                shown = max(shown, min(length, wanted - segment.start + PART // 2))
        sent += shown
        chosen.append(Window(segment, shown, on_sight and shown < length))
    return tuple(chosen)


class Sections:
    """Makes the sections of one branch for one rollout."""

    def __init__(self, judged: Judged, shown: Shown, markup: TokenMarkup) -> None:
        self._judged = judged
        self._shown = shown
        self._markup = markup
        self._rollout_id = judged.record.rollout.rollout_id
        self._turns = {call_id: n for n, call_id in enumerate(shown.view.path, 1)}

    def make(self, window: Window, first: int = 0) -> TurnSection:
        """One section, or the part of it from `first` on."""
        segment, view = window.segment, self._shown.view
        judgement = self._judged.judgement
        role = judgement.roles[segment.call_id].role
        sampled = segment.kind == "completion"
        mask = judgement.masks[segment.call_id]
        whole_masked = sampled and mask.supervised == 0
        start = segment.start + first
        end = min(segment.end, start + window.shown)
        trained = int(np.count_nonzero(view.trained[segment.start : segment.end]))
        rest = end - segment.start
        return TurnSection(
            kind="sampled" if sampled else segment.kind,
            css=role.value if sampled else segment.kind,
            title=_title(segment, role),
            turn=self._turns[segment.call_id],
            label=self._shown.labels[segment.call_id],
            call_id=segment.call_id,
            short_call=words.short_id(segment.call_id),
            call_href=rollout_href(self._rollout_id, f"requests/{segment.call_id}"),
            start=segment.start,
            count=segment.end - segment.start,
            trained=trained,
            note=_note(mask.reason) if whole_masked else "",
            hatched=whole_masked,
            blocks=self._markup.section(start, end, hatched=whole_masked),
            token_ids=view.ids[start:end].tolist(),
            shown=rest,
            more_href=self._more(segment, rest, page=True),
            more_part=self._more(segment, rest, page=False),
            on_sight=window.on_sight,
        )

    def _more(self, segment: Segment, rest: int, *, page: bool) -> str | None:
        if segment.start + rest >= segment.end:
            return None
        branch = self._shown.view.leaf
        at = segment.start + rest
        if page:
            return rollout_href(self._rollout_id, "tokens", branch=branch, t=at) + f"#t{at}"
        return rollout_href(self._rollout_id, "tokens/section", branch=branch, t=at)


def _title(segment: Segment, role: Role) -> str:
    if segment.kind == "prompt":
        return "prompt"
    if segment.kind == "environment":
        return "environment"
    return "assistant" if role is Role.AGENT else f"assistant ({role.value})"


def _note(reason: MaskReason | None) -> str:
    return "" if reason is None else f"not trained: {reason.value.replace('_', ' ')}"


def minimap(view: BranchView) -> tuple[Bar, ...]:
    """Trained and masked spans and outliers, at most one bar per cell."""
    bars = [
        Bar(round(MAP_CELLS * segment.start / view.length, 1), 0.6, "turn")
        for segment in view.segments
        if segment.kind == "completion" and len(view.segments) <= 200
    ]
    masked = view.sampled & (view.reasons != TRAINED)
    for flags, css in (
        (view.trained, "t"),
        (masked, "x"),
        (view.outliers, "o"),
        (view.far_off, "od"),
    ):
        bars += _runs(flags, css)
    return tuple(bars)


def _runs(flags: NDArray[np.bool_], css: str) -> list[Bar]:
    """Runs of cells that hold a flagged token; a rare token still makes a mark."""
    if not flags.size:
        return []
    cells = np.zeros(MAP_CELLS, dtype=np.bool_)
    at = np.flatnonzero(flags)
    cells[(at * MAP_CELLS // flags.size).astype(np.int64)] = True
    if flags.size < MAP_CELLS:
        ends = np.minimum((at + 1) * MAP_CELLS // flags.size, MAP_CELLS)
        for first, last in zip(
            (at * MAP_CELLS // flags.size).tolist(), ends.tolist(), strict=True
        ):
            cells[first:last] = True
    edges = np.flatnonzero(np.diff(np.concatenate(([False], cells, [False])).astype(np.int8)))
    return [
        Bar(float(first), float(max(1, last - first)), css)
        for first, last in edges.reshape(-1, 2).tolist()
    ]
