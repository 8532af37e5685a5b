"""Continuous batching: which sequences read or write a token in each step.

Owns: the queue, the running batch, prefixes of earlier prompts. Pure: no IO, no clock, no
threads; the caller steps it. Must not know: chat, text, JSON.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from explorer.engine.tiny.cache import Cache, PrefixPool
from explorer.engine.tiny.model import Chunk
from explorer.engine.tiny.parts import Network
from explorer.engine.tiny.sampling import (
    LogprobsMode,
    SampledToken,
    Sampler,
    SamplingParameters,
)
from explorer.engine.tiny.scoring import ScoredToken, Scorer, score_chunk

StopRule = Callable[[int], str | int | None]
"""Told each new token id; answers what stopped the sequence, or None to go on."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to generate. `end_ids` end it silently, and are masked by `min_tokens`.

    With `prompt_logprobs` the prompt's own tokens are scored, with so many others each.
    """

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    parameters: SamplingParameters
    end_ids: tuple[int, ...]
    ignore_end: bool = False
    stop_ids: tuple[int, ...] = ()
    stop_rule: StopRule | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """All tokens of a job. `reason` is `stop` or `length`; `stopped_by` what matched; `spans`
    say which weights sampled which tokens: (label, start, end)."""

    job: Job
    tokens: tuple[SampledToken, ...]
    reason: str
    stopped_by: str | int | None
    cached_tokens: int
    spans: tuple[tuple[str, int, int], ...] = ()
    prompt_scores: tuple[ScoredToken, ...] = ()


@dataclass(slots=True)
class _Running(Generic[Cache]):
    job: Job
    sampler: Sampler
    cache: Cache | None = None
    cached_tokens: int = 0
    output: list[int] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    # (number of the weights, their label, first token)
    begun: list[tuple[int, str, int]] = field(default_factory=list)
    prompt_scores: list[ScoredToken] = field(default_factory=list)

    @property
    def unread(self) -> Sequence[int]:
        """Ids the network has not read yet: the rest of the prompt, or the last token; all
        of them after a change of the weights."""
        read = self.cache.length if self.cache else 0
        before = len(self.job.prompt)
        if self.output and read == before + len(self.output) - 1:
            return self.output[-1:]
        if self.output:
            return self.known()[read:]
        return self.job.prompt[read:]

    @property
    def reading(self) -> bool:
        """Whether more than the last token has not been read."""
        read = self.cache.length if self.cache else 0
        return not self.output or read < len(self.job.prompt) + len(self.output) - 1

    def known(self) -> list[int]:
        return [*self.job.prompt, *self.output]


class Scheduler(Generic[Cache]):
    """Decodes up to `max_batch` jobs at once; others wait in order.

    One prompt is read at a time, `chunk_tokens` a step, so that running jobs go on meanwhile
    and memory stays bounded. The sizes of prefix pool and chunk are in tokens.
    """

    def __init__(
        self,
        decoder: Network[Cache],
        *,
        max_batch: int = 8,
        chunk_tokens: int = 256,
        pool_tokens: int = 49_152,
        mode: LogprobsMode = LogprobsMode.PROCESSED,
        label: str = "default",
    ) -> None:
        self.decoder = decoder
        self.label = label
        self._weights = 0
        self.max_batch, self.chunk_tokens, self.mode = max_batch, chunk_tokens, mode
        self.pool = PrefixPool[Cache](pool_tokens)
        self._waiting: deque[Job] = deque()
        self._running: list[_Running[Cache]] = []

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> int:
        """How many jobs hold a place in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many jobs wait for a place."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Queue a job. Raises ValueError for an empty prompt or no room to generate."""
        if not job.prompt or job.max_tokens < 1:
            raise ValueError("a job needs a prompt and at least one token to generate")
        self._waiting.append(job)

    def change(self, decoder: Network[Cache], label: str) -> None:
        """Go on with other weights, called `label`, from the next token on.

        Nothing that the old weights computed is used again: prefixes are forgotten, and what
        running jobs have so far is read once more, as vLLM does when its prefix cache is
        reset with its running requests.
        """
        self.decoder, self.label = decoder, label
        self._weights += 1
        self.pool.clear()
        for row in self._running:
            row.cache, row.cached_tokens = None, 0

    def cancel(self, name: str) -> bool:
        """Forget a job at once, wherever it is; False when there is none of that name."""
        for job in self._waiting:
            if job.name == name:
                self._waiting.remove(job)
                return True
        for row in self._running:
            if row.job.name == name:
                self._leave(row)
                return True
        return False

    def step(self) -> list[Finished]:
        """Read one chunk of one prompt and one token of every other job; give what ended."""
        while self._waiting and len(self._running) < self.max_batch:
            self._running.append(self._admit(self._waiting.popleft()))
        rows, chunks = self._plan()
        if not rows:
            return []
        logits = self.decoder.forward(chunks)
        finished = []
        for row, scores in zip(rows, logits, strict=True):
            if row.cache is None or row.cache.length < len(row.job.prompt) + len(row.output):
                continue  # the reading goes on in the next step
            if not row.output:
                # From here on others may start from this prompt; it is only appended to.
                self.pool.keep(row.job.prompt, row.cache)
            token = row.sampler.sample(scores, row.output)
            if not row.begun or row.begun[-1][0] != self._weights:
                row.begun.append((self._weights, self.label, len(row.tokens)))
            row.tokens.append(token)
            row.output.append(token.token_id)
            ended = self._ended(row)
            if ended is not None:
                finished.append(ended)
                self._leave(row)
        return finished

    def _admit(self, job: Job) -> _Running[Cache]:
        # vLLM masks the end for `min_tokens` even when it is told to ignore it.
        stops = (*job.end_ids, *job.stop_ids)
        return _Running(job, Sampler(job.parameters, job.prompt, stops, self.mode))

    def _plan(self) -> tuple[list[_Running[Cache]], list[Chunk[Cache]]]:
        rows, chunks, reading = [], [], False
        for row in self._running:
            if row.reading:
                if reading:
                    continue
                reading = True
                if self._scores(row):
                    continue
                if row.cache is None:
                    # Looked up as late as possible: a twin may have read the prompt meanwhile.
                    known = row.known() if row.output else row.job.prompt
                    row.cache = self.pool.find(known) or self.decoder.new_cache()
                    row.cached_tokens = row.cache.length
            if row.cache is not None:
                rows.append(row)
                chunks.append(Chunk(row.unread[: self.chunk_tokens], row.cache))
        return rows, chunks

    def _scores(self, row: _Running[Cache]) -> bool:
        """Whether a chunk of a prompt was read for its own sake; its last token is not."""
        count = row.job.prompt_logprobs
        if count is None or row.output:
            return False
        if row.cache is None:
            row.cache, row.prompt_scores = self.decoder.new_cache(), []
        assert isinstance(self.decoder, Scorer)  # the runtime takes no such job otherwise
        found = score_chunk(self.decoder, row.job.prompt, row.cache, self.chunk_tokens, count)
        row.prompt_scores += found
        return bool(found)

    def _ended(self, row: _Running[Cache]) -> Finished | None:
        job, last = row.job, row.output[-1]
        stopped_by: str | int | None = None
        reason = ""
        if last in job.end_ids and not job.ignore_end:
            reason = "stop"
        elif len(row.output) >= job.parameters.min_tokens and last in job.stop_ids:
            reason, stopped_by = "stop", last
        elif job.stop_rule is not None:
            stopped_by = job.stop_rule(last)
            reason = "stop" if stopped_by is not None else ""
        if not reason and len(row.output) >= job.max_tokens:
            reason = "length"
        if not reason:
            return None
        starts = [start for _, _, start in row.begun]
        ends = [*starts[1:], len(row.tokens)]
        spans = zip(row.begun, ends, strict=True)
        told = tuple((label, start, end) for (_, label, start), end in spans)
        return Finished(
            job,
            tuple(row.tokens),
            reason,
            stopped_by,
            row.cached_tokens,
            told,
            tuple(row.prompt_scores),
        )

    def _leave(self, row: _Running[Cache]) -> None:
        self._running.remove(row)
        if row.cache is not None:
            self.pool.keep(row.known(), row.cache)
