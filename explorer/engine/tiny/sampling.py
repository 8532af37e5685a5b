"""From logits to one sampled token and the logprobs that are reported for it.

Owns: the order of processors, which is vLLM's: bias and minimum length, penalties, temperature,
min-p, top-k, top-p. Must not know: the network, text, requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from explorer.engine.tiny.weights import Floats

GREEDY_BELOW = 1e-5
"""Temperatures below this pick the most likely token and are not divided by."""
LOWEST_TEMPERATURE = 0.01
"""Temperatures between `GREEDY_BELOW` and this one are raised to it, as vLLM does."""
MISSING_LOGPROB = -9999.0
"""What stands for minus infinity in a reply."""


class LogprobsMode(StrEnum):
    """Whether reported logprobs are those sampled from, or the network's own."""

    PROCESSED = "processed_logprobs"
    RAW = "raw_logprobs"


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How to choose tokens; the defaults change nothing. Counts are in tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token, its logprob, and the candidates to report: (id, logprob), itself first."""

    token_id: int
    logprob: float
    candidates: tuple[tuple[int, float], ...]


class Sampler:
    """Samples one sequence; holds its random stream.

    `stop_ids` are the ids that end it, masked until `min_tokens` are there.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
        mode: LogprobsMode = LogprobsMode.PROCESSED,
    ) -> None:
        self.parameters = parameters
        self.mode = mode
        self._prompt = np.unique(np.asarray(prompt, np.intp))
        self._stop = np.asarray(stop_ids, np.intp)
        self._random = np.random.default_rng(parameters.seed)

    def sample(self, logits: Floats, output: Sequence[int]) -> SampledToken:
        """Choose the token after `output`; `logits` is (vocab,) and is left unchanged."""
        processed = self.logprobs(logits, output)
        if self.parameters.greedy:
            chosen = int(processed.argmax())
        else:
            sums = np.cumsum(np.exp(processed.astype(np.float64)))
            drawn = self._random.random() * sums[-1]
            chosen = int(np.searchsorted(sums, drawn, side="right"))
        return self.report(logits, processed, chosen)

    def report(self, logits: Floats, processed: Floats, chosen: int) -> SampledToken:
        """What is told about `chosen`, in the mode of this sampler."""
        shown = log_softmax(logits) if self.mode is LogprobsMode.RAW else processed
        count = self.parameters.logprobs or 0
        others: list[int] = []
        if count:
            best = np.argpartition(-shown, min(count, len(shown) - 1))[:count]
            others = [
                int(i) for i in best[np.argsort(-shown[best], kind="stable")] if i != chosen
            ]
        candidates = tuple((i, reported(shown[i])) for i in [chosen, *others][:count])
        return SampledToken(chosen, reported(shown[chosen]), candidates)

    def logprobs(self, logits: Floats, output: Sequence[int]) -> Floats:
        """Log-probabilities that the next token is drawn from, (vocab,), -inf where never."""
        wanted = self.parameters
        x = self._constrain(logits.astype(np.float32, copy=True), output)
        if not wanted.greedy:
            if wanted.temperature != 1.0:
                x /= np.float32(max(wanted.temperature, LOWEST_TEMPERATURE))
            if wanted.min_p > 0.0:
                x[log_softmax(x) < x.dtype.type(_top(x) + np.log(wanted.min_p))] = -np.inf
            if 0 < wanted.top_k < len(x):
                x[x < np.partition(x, -wanted.top_k)[-wanted.top_k]] = -np.inf
            if wanted.top_p < 1.0:
                x = _nucleus(x, wanted.top_p)
        return log_softmax(x)

    def _constrain(self, x: Floats, output: Sequence[int]) -> Floats:
        """Processors that apply to greedy sampling as well."""
        wanted = self.parameters
        if wanted.allowed_token_ids:
            keep = np.asarray(wanted.allowed_token_ids, np.intp)
            allowed = x[keep]
            x[:] = -np.inf
            x[keep] = allowed
        if len(output) < wanted.min_tokens:
            x[self._stop] = -np.inf
        for token_id, bias in wanted.logit_bias.items():
            x[token_id] += np.float32(bias)
        return self._penalise(x, output)

    def _penalise(self, x: Floats, output: Sequence[int]) -> Floats:
        wanted = self.parameters
        if not wanted.penalises:
            return x  # the usual case, and counting is not free
        ids, counts = np.unique(np.asarray(output, np.intp), return_counts=True)
        if wanted.repetition_penalty != 1.0:
            seen = np.union1d(ids, self._prompt)
            factor = np.float32(wanted.repetition_penalty)
            x[seen] = np.where(x[seen] > 0, x[seen] / factor, x[seen] * factor)
        if wanted.frequency_penalty:
            x[ids] -= np.float32(wanted.frequency_penalty) * counts.astype(np.float32)
        if wanted.presence_penalty:
            x[ids] -= np.float32(wanted.presence_penalty)
        return x


def log_softmax(x: Floats) -> Floats:
    """Normalised log-probabilities in float32; -inf stays."""
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum(dtype=np.float32)), np.float32)


def reported(value: np.float32) -> float:
    """A logprob as a reply carries it: a float32 value, minus infinity as -9999."""
    return float(value) if np.isfinite(value) else MISSING_LOGPROB


def _top(x: Floats) -> float:
    return float(log_softmax(x).max())


def _nucleus(x: Floats, top_p: float) -> Floats:
    """Mask all but the smallest set of most likely tokens that reaches `top_p`."""
    order = np.argsort(x, kind="stable")
    sums = np.cumsum(np.exp(log_softmax(x)[order]))
    dropped = sums <= 1 - top_p
    dropped[-1] = False  # the most likely token always stays
    x[order[dropped]] = -np.inf
    return x
