"""What the trainer's own model says of captured tokens, posted back to the server.

Owns: which sequences are computed, in which order and chunks, and what is posted.
Must not know: weights' files, the trainer's loss.

Computed after the rollouts and before the step, so that trainer and engine have the same
version where the engine was given one. The server compares; nothing here judges.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.contract import Trace, Turn
from explorer.integrations.rows import branches

logger = logging.getLogger(__name__)
SOURCE = "trl"
_POSTS_AT_ONCE = 4
# Positions whose logits are held in float32 at once.
_SLICE = 2048


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One branch: its tokens, and the calls to read off it."""

    rollout: int
    ids: tuple[int, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class TrainerLogprobs:
    """Recomputes the logprobs of a batch's sampled tokens and posts them.

    Attributes:
        version: the version of the trainer's weights, e.g. `WeightPush.version_of`.
        repeat: also computes them a second time in other chunks and another order, which
            says how far the trainer is from itself (the noise floor).
        chunk_tokens: most tokens of a forward pass, padding included; a longer sequence
            has a pass of its own.
    """

    server: ExplorerServer
    version: Callable[[Any], int]
    repeat: bool = False
    chunk_tokens: int = 8192

    def post(self, traces: Sequence[tuple[str, Trace]], trainer: Any) -> None:
        """For rollouts by id; call it before the step."""
        version = self.version(trainer)
        fallback = getattr(trainer, "temperature", None)
        kinds = [("trainer", self.chunk_tokens, False)]
        if self.repeat:
            kinds.append(("trainer_repeat", max(1, self.chunk_tokens // 2), True))
        for kind, tokens, backwards in kinds:
            found = trainer_logprobs(
                trainer.model,
                [trace for _, trace in traces],
                temperature=float(fallback) if isinstance(fallback, int | float) else 1.0,
                chunk_tokens=tokens,
                backwards=backwards,
            )
            self._send(traces, found, version, kind)

    def _send(
        self,
        traces: Sequence[tuple[str, Trace]],
        found: Sequence[dict[str, list[float | None]]],
        version: int,
        kind: str,
    ) -> None:
        def one(place: int) -> None:
            rollout_id, trace = traces[place]
            calls = [
                {
                    "call_id": turn.node_id,
                    "per_token_logps": found[place][turn.node_id],
                    "completion_token_ids": list(turn.completion_ids),
                }
                for turn in trace.turns
                if turn.node_id in found[place]
            ]
            if not calls:
                return
            try:
                self.server.post_trainer_logprobs(
                    rollout_id, version, calls, source=SOURCE, kind=kind
                )
            except OSError as error:
                # A comparison is worth less than a training that goes on. A refusal, though,
                # says that ids do not fit, and is not caught here.
                logger.warning("the logprobs of %s were not posted: %s", rollout_id, error)

        with ThreadPoolExecutor(max_workers=_POSTS_AT_ONCE) as pool:
            # `list` raises what a thread raised.
            list(pool.map(one, range(len(traces))))


def trainer_logprobs(
    model: Any,
    traces: Sequence[Trace],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 8192,
    backwards: bool = False,
) -> list[dict[str, list[float | None]]]:
    """For each trace, by call: the log probability of every sampled token, in order.

    Args:
        temperature: for calls whose request does not name one.
        backwards: begin with the shortest sequences; the values should not notice.
    """
    found: list[dict[str, list[float | None]]] = [{} for _ in traces]
    for chunk in _chunks(_sequences(traces), chunk_tokens, backwards):
        _forward(model, chunk, temperature, found)
    return found


def _sequences(traces: Sequence[Trace]) -> Iterator[_Sequence]:
    """Every branch that has calls which no branch before it had."""
    for place, trace in enumerate(traces):
        done: set[str] = set()
        for path in branches(trace):
            sampled = [turn for turn in path if turn.completion_ids]
            new = tuple(turn for turn in sampled if turn.node_id not in done)
            if new:
                done.update(turn.node_id for turn in new)
                last = sampled[-1]
                yield _Sequence(place, last.prompt_ids + last.completion_ids, new)


def _chunks(
    sequences: Iterable[_Sequence], tokens: int, backwards: bool
) -> Iterator[list[_Sequence]]:
    """Of similar length, so that little of a pass is padding."""
    chunk: list[_Sequence] = []
    for one in sorted(sequences, key=lambda item: len(item.ids), reverse=not backwards):
        longest = max(len(item.ids) for item in (*chunk, one))
        if chunk and longest * (len(chunk) + 1) > tokens:
            yield chunk
            chunk = []
        chunk.append(one)
    if chunk:
        yield chunk


def _forward(
    model: Any,
    chunk: Sequence[_Sequence],
    temperature: float,
    found: list[dict[str, list[float | None]]],
) -> None:
    import torch

    width = max(len(one.ids) for one in chunk)
    # Before the first sampled token of any sequence no logits are needed.
    begin = min(len(turn.prompt_ids) for one in chunk for turn in one.turns) - 1
    device = next(model.parameters()).device
    ids = torch.zeros((len(chunk), width), dtype=torch.long)
    attended = torch.zeros((len(chunk), width), dtype=torch.long)
    for row, one in enumerate(chunk):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        attended[row, : len(one.ids)] = 1
    with torch.no_grad(), _without_dropout(model):
        logits = model(
            input_ids=ids.to(device),
            attention_mask=attended.to(device),
            logits_to_keep=width - begin,
            use_cache=False,
        ).logits
        for row, one in enumerate(chunk):
            for turn in one.turns:
                first = len(turn.prompt_ids) - 1 - begin
                values = _of_turn(logits[row], first, turn, _temperature(turn, temperature))
                found[one.rollout][turn.node_id] = values


def _of_turn(logits: Any, first: int, turn: Turn, temperature: float) -> list[float | None]:
    import torch

    values: list[float | None] = []
    for start in range(0, len(turn.completion_ids), _SLICE):
        wanted = turn.completion_ids[start : start + _SLICE]
        begin = first + start
        scores = logits[begin : begin + len(wanted)].float() / temperature
        picked = torch.log_softmax(scores, dim=-1).gather(
            1, torch.tensor(wanted, device=scores.device)[:, None]
        )
        values += [value if math.isfinite(value) else None for value in picked[:, 0].tolist()]
    return values


def _temperature(turn: Turn, fallback: float) -> float:
    sent = turn.request.get("submitted_sampling")
    found = sent.get("temperature") if isinstance(sent, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float) or found <= 0:
        return fallback
    return float(found)


@contextmanager
def _without_dropout(model: Any) -> Iterator[None]:
    training = bool(model.training)
    model.eval()
    try:
        yield
    finally:
        model.train(training)
