"""Logprobs of a prompt's own tokens, as vLLM's `prompt_logprobs` gives them.

Owns: what is told of a token that was given, and its JSON. Must not know: batches, requests.

They are the network's own: never scaled by a temperature, never cut, whatever the engine's
mode is for sampled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from explorer.engine.tiny.cache import Cache
from explorer.engine.tiny.model import Chunk
from explorer.engine.tiny.parts import Spellings
from explorer.engine.tiny.sampling import log_softmax, reported
from explorer.engine.tiny.weights import Floats


@runtime_checkable
class Scorer(Protocol):
    """A network that also tells the logits after every token it reads."""

    def score(self, chunk: Chunk[Any]) -> Floats:
        """Read one chunk and give the logits after each of its tokens, (tokens, vocab)."""
        ...


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token that was given; `others` are the best ones beside it: (id, logprob, rank)."""

    token_id: int
    logprob: float
    rank: int
    others: tuple[tuple[int, float, int], ...]

    def as_json(self, spellings: Spellings) -> dict[str, Any]:
        """The entry of a reply."""
        told = ((self.token_id, self.logprob, self.rank), *self.others)
        return {
            str(token_id): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": spellings.raw(token_id).decode("utf-8", "replace"),
            }
            for token_id, logprob, rank in told
        }


def score_chunk(
    network: Scorer, prompt: Sequence[int], cache: Cache, most: int, count: int
) -> list[ScoredToken]:
    """Read up to `most` tokens of a prompt behind what its cache holds, all but its last one,
    and tell what each says about the next; empty when only the last is left."""
    start = cache.length
    chunk = prompt[start : len(prompt) - 1][:most]
    if not chunk:
        return []
    following = prompt[start + 1 : start + 1 + len(chunk)]
    logits = network.score(Chunk(chunk, cache))
    return [_scored(row, each, count) for row, each in zip(logits, following, strict=True)]


def _scored(logits: Floats, token_id: int, count: int) -> ScoredToken:
    shown = log_softmax(logits)
    best = np.argsort(-shown, kind="stable")[:count].tolist()
    others = tuple(
        (each, reported(shown[each]), place)
        for place, each in enumerate(best, 1)
        if each != token_id
    )
    rank = 1 + int((shown > shown[token_id]).sum())
    return ScoredToken(token_id, reported(shown[token_id]), rank, others)
