"""δ of single tokens: which have one, which are worst, and how calls fall into parts.

Owns: δ of a call's training tokens, why a token has none, sequences. Must not know: pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from explorer.errors import RecordInconsistent
from explorer.records import (
    NULL_LOGPROB_BITS,
    SENTINEL_LOGPROB,
    Call,
    CallId,
    LogprobArray,
    LogprobKind,
)
from explorer.trace.delta_spread import Band, Floats, Spread, ratio, spread

Key = TypeVar("Key", bound=Hashable)


class Gap(StrEnum):
    """Why a training token has no δ. Closed."""

    NOT_TOLD = "not_told"
    NULL = "null"
    NOT_A_NUMBER = "not_a_number"
    INFINITE = "infinite"
    SENTINEL = "sentinel"
    ROLLOUT = "rollout_logprob"


@dataclass(frozen=True, slots=True, eq=False)
class CallDelta:
    """The training tokens of one call beside the trainer's word on them.

    Attributes:
        index: places of the training tokens in the completion, from 0, ascending.
        rollout, trainer: their logprobs; NaN where there is none.
        delta: trainer − rollout; NaN where either is missing.
        gaps: why a token has no δ, by place in `index`.
        versions: of the weights that sampled each of them; None: not known.
        weight_version: of the weights that the trainer computed with; None: not told.
        truncated: settings that cut the support the tokens were drawn from (`top_p`).
    """

    call_id: CallId
    index: NDArray[np.int64]
    rollout: Floats
    trainer: Floats
    delta: Floats
    gaps: Mapping[int, Gap]
    versions: tuple[int | None, ...]
    weight_version: int | None
    logprob_kind: LogprobKind
    truncated: tuple[str, ...]

    @property
    def known(self) -> Floats:
        """Every δ there is, in order."""
        return self.delta[np.isfinite(self.delta)]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a call's δ is split by: the version of every sampled token, what the rollout's
    logprobs were proved to be, and which weights the trainer had."""

    versions: Sequence[int | None]
    weight_version: int | None
    logprob_kind: LogprobKind


def truncated_support(call: Call) -> tuple[str, ...]:
    """Settings of a call that cut the support: its logprobs, if processed, are those of the
    cut distribution, which no trainer computes."""
    sent = call.submitted_sampling or call.requested_sampling
    found = []
    for name, idle in (("top_p", 1), ("top_k", 0), ("min_p", 0)):
        value = sent.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        cuts = value < idle if name == "top_p" else value > idle
        if cuts:
            found.append(name)
    return tuple(found)


def call_delta(
    call: Call, bits: NDArray[np.int8], told: LogprobArray | None, origin: Origin
) -> CallDelta:
    """δ of one call's training tokens.

    Args:
        bits: 1 where a sampled token trains, one per token of the completion.
        told: the trainer's logprobs, one per token of the completion; None: none were told.

    Raises:
        RecordInconsistent: the lengths differ.
    """
    sampled = 0 if call.completion is None else int(call.completion.size)
    told_size = sampled if told is None else int(told.size)
    if not sampled == bits.size == told_size == len(origin.versions):
        raise RecordInconsistent(
            f"call {call.call_id} has {sampled} sampled tokens, {bits.size} mask bits, "
            f"{told_size} trainer logprobs and {len(origin.versions)} versions"
        )
    index = np.flatnonzero(bits == 1)
    empty: LogprobArray = np.full(sampled, np.nan, np.float32)
    own = (empty if call.logprobs is None else call.logprobs)[index]
    theirs = (empty if told is None else told)[index]
    gaps: dict[int, Gap] = {}
    for place in np.flatnonzero(~_usable(theirs)):
        gaps[int(place)] = Gap.NOT_TOLD if told is None else _gap(theirs[place : place + 1])
    for place in np.flatnonzero(~_usable(own)):
        gaps[int(place)] = Gap.ROLLOUT
    rollout = np.where(_usable(own), own, np.nan).astype(np.float64)
    trainer = np.where(_usable(theirs), theirs, np.nan).astype(np.float64)
    return CallDelta(
        call_id=call.call_id,
        index=index,
        rollout=rollout,
        trainer=trainer,
        delta=trainer - rollout,
        gaps=gaps,
        versions=tuple(origin.versions[int(place)] for place in index),
        weight_version=origin.weight_version,
        logprob_kind=origin.logprob_kind,
        truncated=truncated_support(call),
    )


def _usable(values: LogprobArray) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        usable: NDArray[np.bool_] = np.isfinite(values) & (values > SENTINEL_LOGPROB)
    return usable


def _gap(value: LogprobArray) -> Gap:
    """Why one value cannot be used."""
    if int(np.ascontiguousarray(value).view(np.uint32)[0]) == NULL_LOGPROB_BITS:
        return Gap.NULL
    if np.isnan(value[0]):
        return Gap.NOT_A_NUMBER
    return Gap.INFINITE if np.isinf(value[0]) else Gap.SENTINEL


@dataclass(frozen=True, slots=True)
class SequenceRatio:
    """One call as a sequence: what sequence-level corrections multiply.

    Attributes:
        log_ratio: sum of δ over the compared tokens; its spread grows with their number.
        ratio: exp of it; None beyond the range of a float, or without any token.
    """

    call_id: CallId
    n_training: int
    n_compared: int
    log_ratio: float | None
    ratio: float | None


def sequence_ratio(call: CallDelta) -> SequenceRatio:
    """The ratio of a call's compared tokens taken together."""
    known = call.known
    total = math.fsum(known.tolist()) if known.size else None
    return SequenceRatio(
        call_id=call.call_id,
        n_training=int(call.index.size),
        n_compared=int(known.size),
        log_ratio=total,
        ratio=None if total is None else ratio(total),
    )


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """One compared token; `index` is its place in the completion of its call."""

    call_id: CallId
    index: int
    rollout: float
    trainer: float
    delta: float
    version: int | None

    @property
    def ratio(self) -> float | None:
        """exp δ; None beyond the range of a float."""
        return ratio(self.delta)


def worst_tokens(calls: Iterable[CallDelta], limit: int) -> tuple[TokenDelta, ...]:
    """The tokens with the greatest |δ|; of equal ones the earlier first."""
    found: list[TokenDelta] = []
    for call in calls:
        size = np.abs(call.delta)
        order = np.argsort(-size, kind="stable")
        for place in order[: min(limit, call.known.size)]:
            found.append(
                TokenDelta(
                    call.call_id,
                    int(call.index[place]),
                    float(call.rollout[place]),
                    float(call.trainer[place]),
                    float(call.delta[place]),
                    call.versions[place],
                )
            )
    return tuple(sorted(found, key=lambda token: -abs(token.delta))[:limit])


def split(
    calls: Sequence[CallDelta], key: Callable[[CallDelta, int], Key], band: Band
) -> tuple[tuple[Key, Spread], ...]:
    """The spread of δ by a key of each token, the most tokens first.

    Args:
        key: of a call and a place among its training tokens.
    """
    parts: dict[Key, list[float]] = {}
    for call in calls:
        for place, value in enumerate(call.delta.tolist()):
            if math.isfinite(value):
                parts.setdefault(key(call, place), []).append(value)
    made = ((name, spread(np.array(values), band)) for name, values in parts.items())
    return tuple(sorted(made, key=lambda part: (-part[1].n, str(part[0]))))


def age(call: CallDelta, place: int) -> int | None:
    """By how many versions the trainer's weights are newer than those that sampled a token;
    None where either is not known."""
    version = call.versions[place]
    if version is None or call.weight_version is None:
        return None
    return call.weight_version - version
