"""Trainer logprobs as they were told, and one row per rollout about how far they are off.

Owns: the records. Must not know: rows, how a difference is computed.

A summary is derived, never a source: it is made again when logprobs are posted and when the
rollout is judged anew, and ``inputs_sha256`` says what it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from explorer.records import CallId, LogprobArray, RolloutId


class LogpsKind(StrEnum):
    """Whose logprobs they are, and what they may be compared with."""

    TRAINER = "trainer"
    TRAINER_REPEAT = "trainer_repeat"
    REFERENCE = "reference"
    RESCORED = "rescored"


@dataclass(frozen=True, slots=True, eq=False)
class TrainerLogps:
    """One call's logprobs as somebody told them: one entry per sampled id.

    Attributes:
        post_id: one posting; its calls came together.
        source: who computed them, in the poster's words (`trl`).
        weight_version: of the weights that computed them; None when not told.
        logps: float32; a null is the NaN of `NULL_LOGPROB_BITS`, as in a call.
    """

    rollout_id: RolloutId
    call_id: CallId
    post_id: str
    time_us: int
    kind: LogpsKind
    source: str
    weight_version: int | None
    logps: LogprobArray

    @property
    def key(self) -> tuple[str, LogpsKind, str, int | None]:
        """What a later posting replaces."""
        return (self.call_id, self.kind, self.source, self.weight_version)


@dataclass(frozen=True, slots=True, eq=False)
class TrainerPost:
    """What is stored together: all of a posting, or none of it."""

    rollout_id: RolloutId
    rows: tuple[TrainerLogps, ...]


@dataclass(frozen=True, slots=True)
class DeltaSummary:
    """What lists and charts read about one rollout's δ, of the set posted last.

    δ is trainer logprob − rollout logprob, over training tokens only. Every number but the
    counts is None where there is nothing to compute it from.

    Attributes:
        n_training: tokens that train; n_compared: of these, with two finite logprobs.
        n_outside: compared tokens whose ratio exp δ lies outside [band_low, band_high].
        delta_p1 … delta_p99: quantiles of δ; abs_p99, abs_max: of |δ|.
        mean, sd: of δ; a mean is never shown without the rest.
        k1, k3: estimates of KL(rollout ‖ trainer), see `explorer.trace.delta`.
        log_ratio_low, log_ratio_high: least and greatest sum of δ over one call.
        n_same_version, n_other_version, n_unknown_version: compared tokens by whether the
            trainer's weights were those that sampled them.
        bins: compared tokens by bin of `explorer.trace.delta_bins`, for sums over rollouts.
        noise_kind, noise_abs_p99, noise_share: the measured noise floor, where there is one.
    """

    rollout_id: RolloutId
    time_us: int
    inputs_sha256: str
    source: str
    weight_version: int | None
    n_training: int
    n_compared: int
    n_outside: int
    band_low: float
    band_high: float
    delta_p1: float | None = None
    delta_p5: float | None = None
    delta_p50: float | None = None
    delta_p95: float | None = None
    delta_p99: float | None = None
    abs_p99: float | None = None
    abs_max: float | None = None
    mean: float | None = None
    sd: float | None = None
    k1: float | None = None
    k3: float | None = None
    log_ratio_low: float | None = None
    log_ratio_high: float | None = None
    n_same_version: int = 0
    n_other_version: int = 0
    n_unknown_version: int = 0
    bins: Mapping[int, int] = field(default_factory=dict)
    noise_kind: str | None = None
    noise_abs_p99: float | None = None
    noise_share: float | None = None

    @property
    def share_outside(self) -> float | None:
        """Share of the compared tokens outside the band."""
        return self.n_outside / self.n_compared if self.n_compared else None
