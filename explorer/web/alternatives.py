"""What the engine weighed: the recorded alternatives of sampled tokens.

Owns: reading them, ranks and entropies from them. Must not know: pages.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from explorer.records import Call

RANK_EDGES: Final = (2, 3, 4, 6, 11, 21)
BEYOND: Final = 7  # code of a rank that no recorded alternative reaches
NO_VALUE: Final = 9
# Probabilities that add up to more are not those of one distribution.
_MOST_MASS: Final = 1.02
# A logprob above 0 by more than rounding is none.
_MOST_LOGPROB: Final = 0.01


def rank_code(rank: int | None) -> int:
    """The column code of a rank; 0 stands for "beyond what was recorded"."""
    if rank is None:
        return NO_VALUE
    if rank == 0:
        return BEYOND
    return int(np.digitize(rank, RANK_EDGES)) if rank <= 20 else BEYOND


def alternatives_of(call: Call) -> list[list[tuple[int | None, str, float | None]]]:
    """The recorded alternatives of each sampled token; empty when there are none."""
    if not call.top_logprobs:
        return []
    try:
        rows = orjson.loads(call.top_logprobs)
    except orjson.JSONDecodeError:
        return []
    if not isinstance(rows, list):
        return []
    return [_alternatives(row) for row in rows]


def _alternatives(row: object) -> list[tuple[int | None, str, float | None]]:
    found: list[tuple[int | None, str, float | None]] = []
    for item in row if isinstance(row, list) else ():
        if isinstance(item, list) and len(item) == 3:
            token_id, text, logprob = item
            found.append(
                (
                    token_id if isinstance(token_id, int) else None,
                    text if isinstance(text, str) else "",
                    float(logprob) if isinstance(logprob, int | float) else None,
                )
            )
    return found


def ranks_of(call: Call) -> list[int | None]:
    """Rank of each sampled token; 0 when it is beyond the recorded ones, None unknown."""
    rows = alternatives_of(call)
    if call.completion is None or call.logprobs is None or len(rows) != call.completion.size:
        return []
    ranks: list[int | None] = []
    for token_id, logprob, row in zip(
        call.completion.tolist(), call.logprobs.tolist(), rows, strict=True
    ):
        ranks.append(rank_of(token_id, logprob, row))
    return ranks


def rank_of(
    token_id: int, logprob: float, row: list[tuple[int | None, str, float | None]]
) -> int | None:
    """Rank of the sampled token among its alternatives."""
    if not row or logprob != logprob:
        return None
    better = sum(
        other is not None and name != token_id and other > logprob for name, _, other in row
    )
    inside = any(name == token_id for name, _, _ in row)
    return better + 1 if inside or better < len(row) else 0


def entropies_of(call: Call) -> NDArray[np.float32]:
    """Entropy of each sampled token's alternatives in nats; empty when none are recorded.

    What was not recorded counts as one further outcome, so that the number is a lower bound
    of the engine's entropy, and close to it when the recorded ones hold most of the mass.
    """
    rows = alternatives_of(call)
    if call.completion is None or len(rows) != call.completion.size:
        return np.zeros(0, dtype=np.float32)
    found = [entropy_of(row) for row in rows]
    return np.array([math.nan if each is None else each for each in found], dtype=np.float32)


def entropy_of(row: list[tuple[int | None, str, float | None]]) -> float | None:
    """Entropy of one token's alternatives; None when they are not one distribution."""
    given = [item for _, _, item in row if item is not None and math.isfinite(item)]
    if any(item > _MOST_LOGPROB for item in given):
        return None
    shares = [math.exp(item) for item in given]
    mass = sum(shares)
    if not shares or mass > _MOST_MASS:
        return None
    shares.append(max(0.0, 1.0 - mass))
    return max(0.0, -sum(share * math.log(share) for share in shares if share > 0))
