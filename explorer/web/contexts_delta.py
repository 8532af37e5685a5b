"""What the page about a trainer's logprobs shows.

Owns: every field of it and its meaning. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Command, Frame, page, said
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """What a set of δ looks like; numbers are null where there is no token."""

    label: str = said("Which tokens.")
    n: int = said("Compared tokens: they train and have two finite logprobs.")
    n_outside: int = said("Of these, with a ratio exp δ outside the band.")
    share_outside: float | None = said("The same as a share.")
    p1: float | None = said("Quantile 1 % of δ in nats.")
    p5: float | None = said("Quantile 5 %.")
    p50: float | None = said("Median.")
    p95: float | None = said("Quantile 95 %.")
    p99: float | None = said("Quantile 99 %.")
    abs_p99: float | None = said("Quantile 99 % of |δ|.")
    abs_max: float | None = said("Greatest |δ|.")
    mean: float | None = said("Mean of δ: says nothing without the numbers before it.")
    sd: float | None = said("Standard deviation of δ.")
    k1: float | None = said("Mean of −δ: estimate of KL(rollout ‖ trainer).")
    k1_error: float | None = said("Its standard error, as if tokens were independent.")
    k3: float | None = said("Mean of exp δ − 1 − δ: the same, never below 0.")
    k3_error: float | None = said("Its standard error.")
    n_overflow: int = said("Ratios beyond the range of a float; there is no k3 then.")
    share_text: str = said("Share outside, as shown.")
    cells: tuple[str, ...] = said("p1, p5, p50, p95, p99 of δ, p99 of |δ|, max |δ| as shown.")
    mean_text: str = said("Mean and deviation, as shown: never one without the other.")
    kl_text: str = said("Both estimates with their errors, as shown.")


@dataclass(frozen=True, slots=True)
class SetRow:
    """What one source told with one version."""

    kind: str = said("`trainer`, `trainer_repeat`, `reference` or `rescored`.")
    source: str = said("Who computed them, in the poster's words.")
    version_text: str = said("Weights that computed them.")
    n_calls: int = said("Calls that it is about.")
    told: str = said("When it was told last.")
    href: str | None = said("The page against this set; null for a noise floor.")
    current: bool = said("Whether this page is against it.")


@dataclass(frozen=True, slots=True)
class GapRow:
    """Training tokens that have no δ."""

    code: str = said("Why, as a code.")
    text: str = said("Why, in words.")
    count: int = said("How many.")


@dataclass(frozen=True, slots=True)
class DeltaBar:
    """One bar of the histogram of δ."""

    label: str = said("Bounds in nats.")
    count: int = said("Compared tokens.")
    css: str = said("Class of its colour.")
    height: float = said("Height as drawn, on a logarithmic scale, 88 at most.")


@dataclass(frozen=True, slots=True)
class FloorRow:
    """A measured noise floor."""

    what: str = said("What was compared with what.")
    spread: SpreadRow = said("How far the two are apart.")


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """One call as a sequence."""

    label: str = said("The turn, as labelled in the tree.")
    href: str = said("Its first sampled token.")
    n_training: int = said("Tokens that train.")
    n_compared: int = said("Of these, compared.")
    log_ratio: float | None = said("Sum of δ in nats.")
    ratio: float | None = said("exp of it; null beyond the range of a float.")
    log_ratio_text: str = said("The sum as shown.")
    ratio_text: str = said("The ratio as shown.")


@dataclass(frozen=True, slots=True)
class WorstDelta:
    """One of the tokens that are furthest off."""

    before: str = said("The text before it.")
    text: str = said("The token.")
    after: str = said("The text after it.")
    label: str = said("Its turn, as labelled in the tree.")
    index: int = said("Position in its call's own row.")
    href: str = said("The token, coloured by δ.")
    rollout: float = said("Logprob that the engine sampled with.")
    trainer: float = said("Logprob that was told.")
    delta: float = said("The difference in nats.")
    ratio: float | None = said("exp of it; null beyond the range of a float.")
    version_text: str = said("Weights that sampled it.")
    cells: tuple[str, ...] = said("Rollout, trainer, δ and ratio as shown.")


@dataclass(frozen=True, slots=True)
class DeltaFacts:
    """A rollout's δ against one set of logprobs."""

    band: str = said("Ratios that count as noise.")
    cap: float = said("Cap of the truncated importance weights.")
    n_training: int = said("Tokens that train.")
    gaps: tuple[GapRow, ...] = said("Training tokens without a δ, by reason.")
    whole: SpreadRow = said("All compared tokens.")
    bars: tuple[DeltaBar, ...] = said("The histogram.")
    floors: tuple[FloorRow, ...] = said("Noise floors that were measured.")
    versions: tuple[SpreadRow, ...] = said("By whether the trainer had the sampling weights.")
    ages: tuple[SpreadRow, ...] = said("By how many versions the trainer was newer.")
    kinds: tuple[SpreadRow, ...] = said("By what the rollout's logprobs were proved to be.")
    supports: tuple[SpreadRow, ...] = said("By what cut the support.")
    n_capped: int = said("Tokens whose ratio is above the cap.")
    capped_share: float | None = said("The same as a share.")
    capped_text: str = said("The share as shown.")
    effective: float | None = said("How many equal weights the weights are worth.")
    effective_text: str = said("The same as shown.")
    weight_cells: tuple[str, ...] = said("p1, p5, p50, p95, p99 of the weights, as shown.")
    sequences: tuple[SequenceRow, ...] = said("Calls, the furthest off first.")
    sequences_left_out: int = said("Calls that the table has no line for.")
    worst: tuple[WorstDelta, ...] = said("Tokens that are furthest off.")


@page
@dataclass(frozen=True, slots=True)
class DeltaPage:
    """`/rollouts/{rollout_id}/delta`: the trainer's logprobs against the engine's."""

    template: ClassVar[str] = "delta.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    sets: tuple[SetRow, ...] = said("Everything that was told, the newest first.")
    facts: DeltaFacts | None = said("The comparison; null where nothing can be compared.")
    chosen: str = said("The set that the page is against, in words.")
    covered: bool = said("Whether parts are hidden from this reader.")
    commands: tuple[Command, ...] = said("How to send logprobs, and how to measure the floor.")
