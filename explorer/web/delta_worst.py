"""The tokens that a trainer and the engine disagree about most, in their context.

Owns: what stands before and after such a token. Must not know: HTTP, which tokens they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from explorer.export.judged import Judged
from explorer.records import CallId
from explorer.trace.decode import REST_MARK, pieces
from explorer.trace.delta_tokens import TokenDelta
from explorer.web import words
from explorer.web.branches import Shown
from explorer.web.contexts_delta import WorstDelta
from explorer.web.contexts_rollout import OffToken
from explorer.web.delta_words import nats, ratio_text
from explorer.web.frames import rollout_href
from explorer.web.inspector import edge_spaces

AROUND = 8
MOST = 12
Vocabulary = Mapping[int, tuple[bytes, bool]]


def worst_rows(
    judged: Judged,
    tokens: Iterable[TokenDelta],
    labels: Mapping[CallId, str],
    vocabulary: Vocabulary,
) -> tuple[WorstDelta, ...]:
    """These tokens, each with the text around it."""
    return tuple(_row(judged, token, labels, vocabulary) for token in tokens)


def _row(
    judged: Judged, token: TokenDelta, labels: Mapping[CallId, str], vocabulary: Vocabulary
) -> WorstDelta:
    at = judged.judgement.masks[token.call_id].prompt_len + token.index
    first = max(0, at - AROUND)
    around = judged.sequences.slice(token.call_id, first, at + AROUND + 1).tolist()
    shown = [piece.display for piece in pieces(around, vocabulary)]
    here = at - first
    href = rollout_href(
        judged.record.rollout.rollout_id, "tokens", branch=token.call_id, m="delta", t=at
    )
    return WorstDelta(
        before="".join(shown[:here]),
        text=edge_spaces(shown[here]) or REST_MARK,
        after="".join(shown[here + 1 :]),
        label=labels.get(token.call_id, words.short_id(token.call_id)),
        index=at,
        href=f"{href}#t{at}",
        rollout=token.rollout,
        trainer=token.trainer,
        delta=token.delta,
        ratio=token.ratio,
        version_text=words.UNKNOWN if token.version is None else str(token.version),
        cells=(
            nats(token.rollout),
            nats(token.trainer),
            nats(token.delta),
            ratio_text(token.ratio, token.delta),
        ),
    )


def furthest_tokens(judged: Judged, shown: Shown) -> tuple[OffToken, ...]:
    """The tokens of a branch with the greatest |δ|, the worst first."""
    view = shown.view
    at = np.flatnonzero(~np.isnan(view.deltas))
    ordered = at[np.argsort(-np.abs(view.deltas[at]), kind="stable")][:MOST].tolist()
    rollout_id = judged.record.rollout.rollout_id
    found = []
    for index in ordered:
        href = rollout_href(rollout_id, "tokens", branch=view.leaf, m="delta", t=index)
        value = float(view.deltas[index])
        found.append(
            OffToken(
                index=index,
                text=edge_spaces(shown.pieces[index].display) or REST_MARK,
                delta=value,
                delta_text=nats(value),
                label=shown.labels[view.segment_at(index).call_id],
                trained=bool(view.trained[index]),
                href=f"{href}#t{index}",
            )
        )
    return tuple(found)
