"""Builds the tokens tab: sections, minimap, legend and the inspector's facts.

Owns: what is sent at once and what is fetched later.
Must not know: HTTP; the markup of single tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explorer.export.judged import Judged
from explorer.records import Call, CallId, MaskReason, Override, Role
from explorer.store.remarks import Annotation
from explorer.trace.branch import Segment
from explorer.trace.decode import Piece, pieces, visible
from explorer.web import words
from explorer.web.branch import (
    EDGES,
    REASONS,
    TRAINED,
    BranchView,
    alternatives_of,
    rank_of,
)
from explorer.web.branches import Shown
from explorer.web.contexts_rollout import (
    Alternative,
    Bar,
    Legend,
    TokenFacts,
    TurnSection,
)
from explorer.web.frames import rollout_href
from explorer.web.markup import TokenMarkup
from explorer.web.pretty import safe_text
from explorer.web.reasons import MEANINGS

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
    for flags, css in ((view.trained, "t"), (masked, "x"), (view.outliers, "o")):
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


def legend(judged: Judged, view: BranchView | None) -> Legend:
    """What the colours mean, with the semantics of the logprobs in words."""
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
    return f"T={seen.pop():g}"


def token_facts(
    judged: Judged, shown: Shown, index: int, notes: Sequence[Annotation] = ()
) -> TokenFacts:
    """Everything recorded about one token of a branch."""
    view, piece = shown.view, shown.pieces[index]
    segment = view.segment_at(index)
    call = view.calls[segment.call_id]
    reason = REASONS[int(view.reasons[index])]
    sampled = bool(view.sampled[index])
    value = float(view.logprobs[index])
    logprob = None if math.isnan(value) else value
    alternatives = _alternatives(call, shown, index, segment) if sampled else ()
    rank, rank_text = _rank(call, segment, index, logprob, sampled=sampled)
    rollout_id = judged.record.rollout.rollout_id
    decision = judged.judgement.roles[segment.call_id]
    href = rollout_href(rollout_id, "tokens", branch=view.leaf, t=index) + f"#t{index}"
    return TokenFacts(
        index=index,
        turn=view.turn_of(segment.call_id),
        label=shown.labels[segment.call_id],
        offset=index - segment.start,
        token_id=piece.token_id,
        text=edge_spaces(piece.display),
        hex_bytes=piece.raw.hex(" ") if piece.known else words.UNKNOWN,
        bytes_note=bytes_note(shown.pieces, index),
        special=piece.special,
        sampled=sampled,
        trained=reason is MaskReason.SAMPLED,
        reason=reason.value,
        why=" ".join((MEANINGS[reason], *_said_by_people(judged, call, reason, index))),
        logprob=logprob,
        logprob_text=_logprob_text(call, logprob, sampled=sampled),
        probability=None if logprob is None else math.exp(min(0.0, logprob)),
        rank=rank,
        rank_text=rank_text,
        alternatives=alternatives,
        role=f"{decision.role.value} ({decision.rule.replace('_', ' ')})",
        call_id=segment.call_id,
        call_href=rollout_href(rollout_id, f"requests/{segment.call_id}"),
        href=href,
        notes=_written(notes, segment.call_id, index),
        note_href=_note_href(rollout_id, segment.call_id, index),
        decide_href=_decide_href(rollout_id, segment.call_id, index) if sampled else None,
    )


def _written(notes: Sequence[Annotation], call_id: CallId, index: int) -> tuple[str, ...]:
    """What people wrote about spans of this call that hold the token."""
    found = []
    for item in notes:
        if item.call_id != call_id or item.start is None or item.end is None:
            continue
        if item.start <= index < item.end:
            parts = (item.who, item.label, item.note)
            found.append(": ".join(safe_text(part) for part in parts if part))
    return tuple(found)


def _note_href(rollout_id: str, call_id: CallId, index: int) -> str:
    page = rollout_href(rollout_id, "notes", call=call_id, start=index, end=index + 1)
    return f"{page}#write"


def _said_by_people(
    judged: Judged, call: Call, reason: MaskReason, index: int
) -> Iterator[str]:
    """Who left this token out, or gave its call the role, and why."""
    decision = judged.judgement.roles[call.call_id]
    if reason is MaskReason.EXCLUDED_BY_USER:
        for item in judged.record.overrides:
            if item.call_id == call.call_id and _leaves_out(item, index):
                yield f"{safe_text(item.who)}: {safe_text(item.reason)}."
    elif decision.rule == "override" and reason not in _NOT_SAMPLED:
        yield f"The role was given by {safe_text(decision.why)}."


def _leaves_out(item: Override, index: int) -> bool:
    if item.kind != "exclude_span" or item.start is None or item.end is None:
        return item.kind == "exclude_call"
    return item.start <= index < item.end


def _decide_href(rollout_id: str, call_id: str, index: int) -> str:
    """The form that leaves this token out; positions of a branch are those of the call's
    own row, since the rows of its ancestors are prefixes of it."""
    page = rollout_href(rollout_id, "findings", call=call_id, start=index, end=index + 1)
    return f"{page}#decide"


def _logprob_text(call: Call, logprob: float | None, *, sampled: bool) -> str:
    if not sampled:
        return "none: nobody sampled it"
    if logprob is None:
        return "not captured" if call.logprobs is None else "null: the engine gave no number"
    share = math.exp(min(0.0, logprob))
    odds = f"{100 * share:.1f} %" if share >= 0.001 else f"{share:.1e}"
    return f"{logprob:.3f} · p {odds}".replace("-", "−", 1)


def _rank(
    call: Call, segment: Segment, index: int, logprob: float | None, *, sampled: bool
) -> tuple[int | None, str]:
    if not sampled:
        return None, "none"
    rows = alternatives_of(call)
    at = index - segment.start
    if call.completion is None or len(rows) != call.completion.size or logprob is None:
        return None, "not recorded"
    rank = rank_of(int(call.completion[at]), logprob, rows[at])
    if rank is None:
        return None, "not recorded"
    return (rank, f"{rank}") if rank else (None, f"beyond the {len(rows[at])} recorded")


def _alternatives(
    call: Call, shown: Shown, index: int, segment: Segment
) -> tuple[Alternative, ...]:
    rows = alternatives_of(call)
    at = index - segment.start
    if call.completion is None or len(rows) != call.completion.size:
        return ()
    chosen = int(call.completion[at])
    found = [
        Alternative(
            text=_alternative_text(shown, token_id, text),
            token_id=token_id,
            logprob=logprob,
            probability=None if logprob is None else math.exp(min(0.0, logprob)),
            chosen=token_id == chosen,
        )
        for token_id, text, logprob in rows[at]
    ]
    return tuple(sorted(found, key=lambda item: -(item.logprob or -1e9)))


def _alternative_text(shown: Shown, token_id: int | None, text: str) -> str:
    """The engine's text, or the vocabulary's when the engine gave only an id."""
    if not text and token_id is not None:
        return edge_spaces(pieces([token_id], shown.vocabulary)[0].display)
    return edge_spaces(visible(text))


def edge_spaces(text: str) -> str:
    """Spaces at either end drawn, so that ` run` and `run` look different."""
    inner = text.strip(" ")
    if not inner:
        return text
    left = len(text) - len(text.lstrip(" "))
    return "␣" * left + inner + "␣" * (len(text) - left - len(inner))


def bytes_note(around: list[Piece], index: int) -> str:
    """What a token's bytes are when they are not whole characters."""
    piece = around[index]
    if not piece.known:
        return "the id is not in the stored vocabulary"
    if piece.partial is None:
        return "not valid UTF-8" if "\ufffd" in piece.text else ""
    first = index
    while first > 0 and around[first].partial == "rest" and not around[first].text:
        first -= 1
    character = around[first].text[-1:] if around[first].text else ""
    place = "first" if piece.partial == "first" else "later"
    return f"{place} bytes of {character}" if character else f"{place} bytes of a character"
