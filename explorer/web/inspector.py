"""Everything recorded about one token, for the inspector.

Owns: how each fact reads. Must not know: HTTP, the markup of single tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from explorer.export.judged import Judged
from explorer.records import Call, CallId, MaskReason, Override
from explorer.store.remarks import Annotation
from explorer.trace.branch import Segment
from explorer.trace.decode import Piece, pieces, visible
from explorer.trace.secret_hiding import HIDDEN_ID
from explorer.trace.versions import Line
from explorer.web import words
from explorer.web.alternatives import alternatives_of, entropy_of, rank_of
from explorer.web.branch import REASONS
from explorer.web.branches import Shown
from explorer.web.contexts_rollout import Alternative, TokenFacts
from explorer.web.delta_pane import trainer_value, trainer_words
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text
from explorer.web.reasons import MEANINGS
from explorer.web.version_words import token_words

NO_LINE = Line()
_NOT_SAMPLED = (MaskReason.PROMPT, MaskReason.ENVIRONMENT)


def token_facts(
    judged: Judged,
    shown: Shown,
    index: int,
    notes: Sequence[Annotation] = (),
    line: Line = NO_LINE,
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
    trainer = trainer_value(shown, index)
    rank, rank_text = _rank(call, segment, index, logprob, sampled=sampled)
    entropy = _entropy(alternatives)
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
        bytes_note=_hidden_note(judged, shown, index) or bytes_note(shown.pieces, index),
        special=piece.special,
        sampled=sampled,
        trained=reason is MaskReason.SAMPLED,
        reason=reason.value,
        why=" ".join((MEANINGS[reason], *_said_by_people(judged, call, reason, index))),
        logprob=logprob,
        logprob_text=_logprob_text(call, logprob, sampled=sampled),
        probability=None if logprob is None else math.exp(min(0.0, logprob)),
        trainer=trainer,
        delta=None if trainer is None or logprob is None else trainer - logprob,
        trainer_text=trainer_words(trainer, logprob) if shown.told and sampled else "",
        rank=rank,
        rank_text=rank_text,
        entropy=entropy,
        entropy_text=_entropy_text(entropy, alternatives, sampled=sampled),
        weight_text=token_words(call, index - segment.start, line) if sampled else "none",
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
                yield ": ".join(filter(None, map(safe_text, (item.who, item.reason)))) + "."
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


def _hidden_note(judged: Judged, shown: Shown, index: int) -> str:
    """What a hidden token looks like; empty for one that is shown."""
    if judged.cover is None or int(shown.view.ids[index]) != HIDDEN_ID:
        return ""
    return f"hidden: it {judged.cover.kind_at(shown.view.path, index)}"


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


def _entropy(alternatives: Sequence[Alternative]) -> float | None:
    return entropy_of([(item.token_id, item.text, item.logprob) for item in alternatives])


def _entropy_text(
    entropy: float | None, alternatives: Sequence[Alternative], *, sampled: bool
) -> str:
    if not sampled:
        return "none"
    if entropy is None:
        return "not recorded"
    return f"{entropy:.3f} nats or more, from {words.plural(len(alternatives), 'alternative')}"
