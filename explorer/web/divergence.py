"""Where two rows of tokens first differ, and the proof that they agree before it.

Owns: the shared prefix of two branches, its two hashes, and the tokens at the difference.
Must not know: pages, HTML.

Each side's hash is computed from that side's own ids. After the difference nothing is
aligned again: a token further on that happens to be the same follows another history.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from explorer.custody.digest import cumulative_hash
from explorer.records import IdArray
from explorer.trace.decode import Piece
from explorer.trace.secret_hiding import HIDDEN_ID
from explorer.web.branch import BIN_CLASSES
from explorer.web.branches import Shown
from explorer.web.contexts_compare import Divergence, SideToken

ENDS: Final = "(its end)"
HIDDEN: Final = "hidden"
NOT_SAMPLED: Final = "prompt, not sampled"
NO_LOGPROB: Final = "logprob not recorded"


def shared_tokens(a: IdArray, b: IdArray) -> int:
    """How many leading ids both have."""
    room = min(a.size, b.size)
    differ: NDArray[np.bool_] = a[:room] != b[:room]
    return int(differ.argmax()) if differ.any() else room


def divergence(a: Shown, b: Shown) -> Divergence | None:
    """The first difference, None when both rows are the same to the end."""
    at = shared_tokens(a.view.ids, b.view.ids)
    if at == a.view.length == b.view.length:
        return None
    one, other = prefix_hash(a, at), prefix_hash(b, at)
    return Divergence(
        position=at,
        hash_a=one,
        hash_b=other,
        proved=one == other != HIDDEN,
        a=side_token(a, at),
        b=side_token(b, at),
    )


def prefix_hash(shown: Shown, length: int) -> str:
    """Cumulative hash of the first ids, as custody computes it for a whole sequence;
    `hidden` where some of them are: what is shown has no such hash."""
    ids = shown.view.ids[:length]
    return HIDDEN if np.equal(ids, HIDDEN_ID).any() else cumulative_hash(ids).hex()


def side_token(shown: Shown, at: int) -> SideToken:
    """One side at the difference. A prompt token has no probability, and none is made up."""
    view = shown.view
    if at >= view.length:
        return SideToken(ENDS, None, False, None, "the row ends here", "")
    sampled = bool(view.sampled[at])
    value = float(view.logprobs[at])
    logprob = None if math.isnan(value) else value
    text = NOT_SAMPLED
    if sampled:
        text = NO_LOGPROB if logprob is None else probability(logprob)
    return SideToken(
        piece=piece_words(shown.pieces[at]),
        token_id=int(view.ids[at]),
        sampled=sampled,
        logprob=logprob if sampled else None,
        probability_text=text,
        css=BIN_CLASSES[int(view.logprob_column[at])] if sampled else "",
    )


def probability(logprob: float) -> str:
    """exp(logprob) with two digits; a tiny one says so and is never 0."""
    value = math.exp(min(0.0, logprob))
    if value < 0.0001:
        return "p < .0001"
    if value >= 0.995:
        return "p > .99" if value < 1 else "p 1"
    shown = f"{value:.2f}" if value >= 0.01 else f"{value:.2g}"
    return f"p {shown.removeprefix('0')}"


def piece_words(piece: Piece) -> str:
    """A token in visible text; one that shows nothing by itself by its bytes."""
    return piece.display or piece.raw.hex(" ") or "(no bytes)"
