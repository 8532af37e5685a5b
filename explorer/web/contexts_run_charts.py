"""What the charts of a run say: its rollouts, step by step.

Owns: these contexts. Must not know: where the values come from, how they are drawn.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass

from explorer.web.contexts import said


@dataclass(frozen=True, slots=True)
class Spread:
    """How one number of some rollouts is spread; a mean is never alone."""

    n: int = said("Rollouts that have the number.")
    mean: float | None = said("Their mean, null where there is none.")
    low: float | None = said("The smallest.")
    q1: float | None = said("A quarter are below it.")
    median: float | None = said("Half are below it.")
    q3: float | None = said("Three quarters are below it.")
    high: float | None = said("The largest.")


@dataclass(frozen=True, slots=True)
class VersionTokens:
    """Sampled tokens of one weight version."""

    version: int | None = said("Weight version; null: untold, or the call crossed an update.")
    tokens: int = said("Sampled tokens.")
    behind: int | None = said("Versions behind the highest of the same step.")


@dataclass(frozen=True, slots=True)
class DeltaBand:
    """How far a trainer's logprobs are from the rollout's, over training tokens; quantiles
    are the far bounds of bins that are 15 % wide."""

    n_rollouts: int = said("Rollouts whose trainer told its logprobs.")
    n_compared: int = said("Tokens that were compared.")
    n_outside: int = said("Of these, outside the band of the ratio.")
    share_outside: float | None = said("Their share; null where nothing was compared.")
    p1: float | None = said("Quantile 1 % of trainer − rollout, in nats.")
    p5: float | None = said("Quantile 5 %.")
    median: float | None = said("Quantile 50 %.")
    p95: float | None = said("Quantile 95 %.")
    p99: float | None = said("Quantile 99 %.")
    noise: float | None = said("Largest measured noise floor (99 % of |δ|), null: none was.")


@dataclass(frozen=True, slots=True)
class RunStep:
    """One place on the axis: a step, some steps, or some rollouts in a row."""

    label: str = said("The step or place, or the first and the last that it holds.")
    title: str = said("The same with its noun.")
    first: int = said("First step, or place of the first rollout, from 1.")
    last: int = said("Last step or place.")
    n: int = said("Rollouts.")
    n_open: int = said("Of these, still open: not in the lengths.")
    reward: Spread = said("Latest rewards.")
    length: Spread = said("Sampled tokens of closed rollouts.")
    n_groups: int = said("Groups with two or more rewards.")
    n_zero_variance: int = said("Of these, groups whose rewards are all equal.")
    tokens: int = said("Sampled tokens of committed calls.")
    versions: tuple[VersionTokens, ...] = said("The same by weight version, unknown last.")
    delta: DeltaBand | None = said("Trainer against rollout; null: no trainer told anything.")


@dataclass(frozen=True, slots=True)
class RunCharts:
    """The charts of a run."""

    axis: str = said("`step`: `global_step` of the metadata; `order`: order of creation.")
    axis_title: str = said("What stands along the axis.")
    rows: tuple[RunStep, ...] = said("Places along the axis, in order.")
    steps: int = said("Different steps, or rollouts, along the axis.")
    each: int = said("How many of them one place holds at most.")
    left_out: int = said("Rollouts that name no step while others do; they are not drawn.")
    rewarded: bool = said("Whether any rollout has a reward.")
    told: bool = said("Whether any token has a known weight version.")
    compared: bool = said("Whether any trainer told its logprobs.")
    band_low: float | None = said("Least ratio within the band; null where they differ.")
    band_high: float | None = said("Greatest ratio within the band.")
