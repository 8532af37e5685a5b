"""One branch as arrays: ids, logprobs, mask and bins, token by token.

Owns: what a page knows about the tokens of a root-to-leaf path.
Must not know: HTML, HTTP, the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from explorer.export.judged import Judged
from explorer.records import (
    SENTINEL_LOGPROB,
    Call,
    CallId,
    IdArray,
    LogprobArray,
    MaskReason,
)
from explorer.trace.branch import Segment, branch_segments
from explorer.trace.versions import version_spans
from explorer.web.alternatives import NO_VALUE, entropies_of, rank_code, ranks_of

REASONS: Final = tuple(MaskReason)
REASON_INDEX: Final = {reason: index for index, reason in enumerate(REASONS)}
TRAINED: Final = REASON_INDEX[MaskReason.SAMPLED]

# -logp edges in nats. Below the first a token is paper-coloured; they never move, so
# that two rollouts compare.
EDGES: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
OUTLIER_NATS: Final = 4.0
# Edges of the entropy in nats: at 0.7 two tokens are as likely as each other, at 1.6 five.
ENTROPY_EDGES: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0)
# Weight versions of a branch, in order, take turns at this many colours.
VERSION_COLOURS: Final = 6
CROSSED: Final = 7  # code of a call that saw the weights change

# Edges of δ in nats and of the ratio exp δ; between the middle two lies what numerics alone do.
DELTA_EDGES: Final = (-0.7, -0.3, -0.1, 0.1, 0.3, 0.7)
RATIO_EDGES: Final = (0.5, 0.75, 0.9, 1.1, 1.33, 2.0)

# Codes of one-byte columns stand for these classes; `static/explorer.js` has the same.
BIN_CLASSES: Final = ("", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "bn")
DELTA_CLASSES: Final = ("", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "bn", "bn")
MASK_CLASSES: Final = ("", "mt", "mr", "mq", "mp")
VERSION_CLASSES: Final = ("", "v0", "v1", "v2", "v3", "v4", "v5", "vx", "bn", "bn")
METRICS: Final = {
    "logprob": BIN_CLASSES,
    "rank": BIN_CLASSES,
    "entropy": BIN_CLASSES,
    "version": VERSION_CLASSES,
    "mask": MASK_CLASSES,
    "delta": DELTA_CLASSES,
    "ratio": DELTA_CLASSES,
}
_ROLE_REASONS: Final = frozenset(
    {
        MaskReason.AUXILIARY,
        MaskReason.SUBAGENT,
        MaskReason.DISCARDED,
        MaskReason.AMBIGUOUS_SIBLING,
        MaskReason.OWNED_BY_OTHER_ROW,
    }
)
_POLICY_REASONS: Final = frozenset(
    {
        MaskReason.UNCERTIFIED,
        MaskReason.CONSTRAINED,
        MaskReason.GREEDY,
        MaskReason.TRUNCATED_POLICY,
        MaskReason.VERSION_CROSSED,
        MaskReason.INJECTED_BY_PROXY,
        MaskReason.EXCLUDED_BY_USER,
    }
)
_NOT_SAMPLED: Final = frozenset({MaskReason.PROMPT, MaskReason.ENVIRONMENT})


def mask_code(reason: MaskReason) -> int:
    """The column code of a mask reason."""
    if reason is MaskReason.SAMPLED:
        return 1
    if reason in _NOT_SAMPLED:
        return 0
    if reason in _ROLE_REASONS:
        return 2
    return 4 if reason in _POLICY_REASONS else 3


_MASK_CODES: Final = np.array([mask_code(reason) for reason in REASONS], dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class BranchView:
    """A branch, token by token; every array has one entry per token.

    `logprobs` is NaN where there is no number: prompt text, null, sentinel. `trainer` are
    those that a trainer told, likewise; None where none told any.
    """

    leaf: CallId
    path: tuple[CallId, ...]
    segments: tuple[Segment, ...]
    calls: dict[CallId, Call]
    ids: IdArray
    logprobs: LogprobArray
    reasons: NDArray[np.uint8]
    sampled: NDArray[np.bool_]
    trainer: LogprobArray | None = None

    @property
    def length(self) -> int:
        """Tokens of the branch."""
        return int(self.ids.size)

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """True where a token trains."""
        return np.equal(self.reasons, TRAINED)

    @cached_property
    def logprob_column(self) -> NDArray[np.uint8]:
        """Bin codes of -logp."""
        with np.errstate(invalid="ignore"):
            codes = np.digitize(-self.logprobs, EDGES).astype(np.uint8)
        codes[np.isnan(self.logprobs)] = NO_VALUE
        codes[~self.sampled] = 0
        return codes

    @cached_property
    def outliers(self) -> NDArray[np.bool_]:
        """Sampled tokens the engine itself found very unlikely."""
        with np.errstate(invalid="ignore"):
            return -self.logprobs >= OUTLIER_NATS

    @cached_property
    def deltas(self) -> NDArray[np.float64]:
        """Trainer − rollout logprob of each sampled token, NaN where either is missing."""
        if self.trainer is None:
            return np.full(self.length, np.nan)
        return self.trainer.astype(np.float64) - self.logprobs.astype(np.float64)

    @cached_property
    def delta_column(self) -> NDArray[np.uint8]:
        """Bin codes of δ."""
        return self._off_codes(DELTA_EDGES)

    @cached_property
    def ratio_column(self) -> NDArray[np.uint8]:
        """Bin codes of the ratio; compared as logarithms, so that nothing overflows."""
        return self._off_codes(np.log(RATIO_EDGES))

    def _off_codes(self, edges: Sequence[float] | NDArray[np.float64]) -> NDArray[np.uint8]:
        codes = (np.digitize(self.deltas, edges) + 1).astype(np.uint8)
        codes[np.isnan(self.deltas)] = NO_VALUE
        codes[~self.sampled] = 0
        return codes

    @cached_property
    def far_off(self) -> NDArray[np.bool_]:
        """Sampled tokens whose δ is beyond the outermost edges."""
        with np.errstate(invalid="ignore"):
            return np.abs(self.deltas) >= DELTA_EDGES[-1]

    @cached_property
    def mask_column(self) -> NDArray[np.uint8]:
        """Codes of the kind of mask reason."""
        found: NDArray[np.uint8] = _MASK_CODES[self.reasons]
        return found

    @cached_property
    def rank_column(self) -> NDArray[np.uint8]:
        """Codes of the rank among the recorded alternatives."""
        codes = np.zeros(self.length, dtype=np.uint8)
        codes[self.sampled] = NO_VALUE
        for segment in self.segments:
            if segment.kind == "completion":
                ranks = ranks_of(self.calls[segment.call_id])
                if len(ranks) == segment.end - segment.start:
                    codes[segment.start : segment.end] = [rank_code(rank) for rank in ranks]
        return codes

    @cached_property
    def entropies(self) -> NDArray[np.float32]:
        """Entropy of each sampled token's recorded alternatives in nats, NaN without."""
        found = np.full(self.length, np.nan, dtype=np.float32)
        for segment in self.segments:
            if segment.kind == "completion":
                values = entropies_of(self.calls[segment.call_id])
                if values.size == segment.end - segment.start:
                    found[segment.start : segment.end] = values
        return found

    @cached_property
    def entropy_column(self) -> NDArray[np.uint8]:
        """Bin codes of the entropy."""
        codes = np.digitize(self.entropies, ENTROPY_EDGES).astype(np.uint8)
        codes[np.isnan(self.entropies)] = NO_VALUE
        codes[~self.sampled] = 0
        return codes

    @cached_property
    def versions(self) -> tuple[int, ...]:
        """Weight versions that sampled its tokens, ascending."""
        found = {
            span.version
            for segment in self.segments
            if segment.kind == "completion"
            for span in version_spans(self.calls[segment.call_id])
        }
        return tuple(sorted(version for version in found if version is not None))

    @cached_property
    def version_column(self) -> NDArray[np.uint8]:
        """Codes of the weight version that sampled a token."""
        codes = np.zeros(self.length, dtype=np.uint8)
        for segment in self.segments:
            if segment.kind != "completion":
                continue
            call = self.calls[segment.call_id]
            told = call.weight_version_start is not None or call.weight_version_end is not None
            for span in version_spans(call):
                code = CROSSED if told else NO_VALUE
                if span.version is not None:
                    code = 1 + self.versions.index(span.version) % VERSION_COLOURS
                here = slice(segment.start + span.start, segment.start + span.end)
                codes[here] = code
        return codes

    def column(self, metric: str) -> NDArray[np.uint8]:
        """The one-byte column of a metric.

        Raises:
            KeyError: it is none of `METRICS`.
        """
        columns: dict[str, NDArray[np.uint8]] = {
            "logprob": self.logprob_column,
            "mask": self.mask_column,
        }
        if metric in columns:
            return columns[metric]
        if metric not in METRICS:
            raise KeyError(metric)
        found: NDArray[np.uint8] = getattr(self, f"{metric}_column")
        return found

    def segment_at(self, index: int) -> Segment:
        """The segment that holds a token."""
        for segment in self.segments:
            if segment.start <= index < segment.end:
                return segment
        raise IndexError(index)

    def turn_of(self, call_id: CallId) -> int:
        """Number of a call on the branch, from 1."""
        return self.path.index(call_id) + 1


def branch_view(
    judged: Judged, leaf: CallId, told: Mapping[CallId, LogprobArray] | None = None
) -> BranchView:
    """The arrays of one branch.

    Args:
        told: a trainer's logprobs by call.

    Raises:
        KeyError: the rollout has no such call.
    """
    judgement = judged.judgement
    calls = {call.call_id: call for call in judged.record.calls}
    segments = branch_segments(judgement, leaf)
    length = segments[-1].end if segments else 0
    ids = np.zeros(length, dtype=np.int32)
    logprobs = np.full(length, np.nan, dtype=np.float32)
    trainer = np.full(length, np.nan, dtype=np.float32)
    # What no span covers has no reason to train.
    reasons = np.full(length, REASON_INDEX[MaskReason.LOGPROB_MISSING], dtype=np.uint8)
    sampled = np.zeros(length, dtype=np.bool_)
    for segment in segments:
        here = slice(segment.start, segment.end)
        call = calls[segment.call_id]
        for span in segment.spans:
            reasons[span.start : span.end] = REASON_INDEX[span.reason]
        if segment.kind != "completion":
            ids[here] = judgement.tree.sequences.slice(
                segment.call_id, segment.start, segment.end
            )
            continue
        assert call.completion is not None  # a completion segment has tokens
        ids[here] = call.completion
        sampled[here] = True
        if call.logprobs is not None and call.logprobs.size == call.completion.size:
            logprobs[here] = call.logprobs
        theirs = (told or {}).get(segment.call_id)
        if theirs is not None and theirs.size == call.completion.size:
            trainer[here] = theirs
    trainer[~(np.isfinite(trainer) & (trainer > SENTINEL_LOGPROB))] = np.nan
    logprobs[~(np.isfinite(logprobs) & (logprobs > SENTINEL_LOGPROB))] = np.nan
    return BranchView(
        leaf=leaf,
        path=judgement.tree.path(leaf),
        segments=segments,
        calls=calls,
        ids=ids,
        logprobs=logprobs,
        reasons=reasons,
        sampled=sampled,
        trainer=trainer if told else None,
    )
