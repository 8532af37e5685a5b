"""What the lists say: the rollout list with its facets, runs, and the page of one run.

Owns: their contexts. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import (
    Choice,
    Command,
    Frame,
    RolloutRow,
    RunRow,
    ViewLink,
    page,
    said,
)
from explorer.web.contexts_run_charts import RunCharts


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter in force."""

    name: str = said("Parameter of the address.")
    text: str = said("The filter in words.")
    remove_href: str = said("Address of the list without it.")


@dataclass(frozen=True, slots=True)
class FacetValue:
    """One value of a facet."""

    text: str = said("The value as shown.")
    value: str = said("The value as the filter language writes it.")
    count: int | None = said("Rollouts that have it; null where it was not counted.")
    selected: bool = said("Whether the list is narrowed to it.")
    href: str = said("Address of the list with the value added, or taken away again.")


@dataclass(frozen=True, slots=True)
class FacetBox:
    """The values of one field, counted within the other filters."""

    name: str = said("Field of the filter language.")
    title: str = said("The field in words.")
    values: tuple[FacetValue, ...] = said("Its commonest values.")
    more: bool = said("Whether it has further values, which are not listed.")
    shown: int = said("Values that were counted.")


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of the list."""

    name: str = said("Name in the address.")
    label: str = said("Its head.")
    shown: bool = said("Whether the list shows it.")
    numeric: bool = said("Whether it is set flush right.")
    wide: bool = said("Whether narrow screens leave it out.")
    sort_href: str | None = said("Address of the list sorted by it; null: not sortable.")
    sorted: str = said("`ascending`, `descending` or empty.")


@dataclass(frozen=True, slots=True)
class RangeField:
    """A field of the form for ranges."""

    name: str = said("Parameter of the address.")
    label: str = said("What it filters.")
    value: str = said("Value in force.")
    hint: str = said("An example.")


@page
@dataclass(frozen=True, slots=True)
class RolloutListPage:
    """`/rollouts`: the rollout list."""

    template: ClassVar[str] = "rollouts.html"
    frame: Frame = said("What surrounds the page.")
    q: str = said("Words of the text box.")
    chips: tuple[Chip, ...] = said("Filters in force.")
    problems: tuple[str, ...] = said("What could not be read and was ignored.")
    filtered: bool = said("Whether any filter is in force.")
    facets: tuple[FacetBox, ...] = said("Values to narrow the list by, counted.")
    ranges: tuple[RangeField, ...] = said("Ranges to narrow the list by.")
    columns: tuple[ListColumn, ...] = said("Every column, in order.")
    rows: tuple[RolloutRow, ...] = said("Rollouts of this page of the list.")
    total: int = said("Rollouts that match.")
    first: int = said("Place of the first row among them, from 1; 0 when there is none.")
    last: int = said("Place of the last row.")
    next_href: str | None = said("Address of the next page, null on the last.")
    previous_href: str | None = said("Address of the page before, null on the first.")
    first_href: str | None = said("Address of the first page, null when this is it.")
    clear_href: str = said("Address of the list without filters.")
    kept: tuple[Choice, ...] = said("Filters, order and columns as hidden form fields.")
    csv_href: str = said("Address of all matching rows as CSV.")
    publish_href: str = said("Where a dataset of all that match is planned and published.")
    parquet_href: str = said("Address of all matching rows as Parquet.")
    commands: tuple[Command, ...] = said("How to ask for the same rollouts by program.")
    query: str = said("Query string of the list, as a saved view keeps it.")
    views: tuple[ViewLink, ...] = said("Saved views.")


@page
@dataclass(frozen=True, slots=True)
class RunsPage:
    """`/runs`: every run."""

    template: ClassVar[str] = "runs.html"
    frame: Frame = said("What surrounds the page.")
    runs: tuple[RunRow, ...] = said("Runs of this page, in the order asked for.")
    total: int = said("Runs on record.")
    sort: str = said("What they are sorted by; `-` in front: the largest first.")
    sort_hrefs: dict[str, str] = said("Address of the runs by each sort key.")
    next_href: str | None = said("Address of the next page, null on the last.")
    previous_href: str | None = said("Address of the page before, null on the first.")


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One line of the grid: the samples of one task or group."""

    name: str = said("Task or group.")
    href: str = said("Address of the list of its rollouts.")
    samples: tuple[RolloutRow, ...] = said("Its rollouts by attempt, as many as are shown.")
    n_samples: int = said("Its rollouts, all of them.")
    n_rewarded: int = said("Samples with a reward.")
    reward_mean: float | None = said("Mean of their rewards.")
    reward_text: str = said("The mean as shown.")
    zero_variance: bool = said(
        "Two or more rewarded samples, all with the same reward: no advantage to learn from."
    )
    n_trainable: int = said("Samples judged trainable.")
    share: float | None = said("Supervised of generated tokens of the judged samples.")
    share_text: str = said("The share as shown.")
    n_fatal: int | None = said("FATAL findings of its samples; null until one is judged.")
    n_warn: int | None = said("WARN findings of its samples; null until one is judged.")
    length_mean: int = said("Mean of the samples' sampled tokens, rounded.")


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """One bar of a histogram."""

    label: str = said("Values that it counts.")
    count: int = said("Rollouts that have one.")


@dataclass(frozen=True, slots=True)
class Histogram:
    """How one number of a run's rollouts is spread."""

    title: str = said("What is counted.")
    bars: tuple[HistogramBar, ...] = said("Bars from the smallest value to the largest.")
    most: int = said("Count of the highest bar.")
    n: int = said("Rollouts that have the number.")
    missing: int = said("Rollouts that have none.")


@page
@dataclass(frozen=True, slots=True)
class RunPage:
    """`/runs/{run}`: groups × samples."""

    template: ClassVar[str] = "run.html"
    frame: Frame = said("What surrounds the page.")
    summary: RunRow = said("The run in numbers.")
    groups: tuple[GroupRow, ...] = said("One line per group of this page.")
    width: int = said("Largest number of samples shown in a group.")
    columns: tuple[str, ...] = said(
        "Heads of the samples' columns: the attempts where every group has the same, else "
        "numbers from 1."
    )
    n_groups: int = said("Groups of the run.")
    n_zero_variance: int = said("Groups whose rewards are all equal.")
    first: int = said("Place of the first group shown, from 1.")
    last: int = said("Place of the last group shown.")
    longest: int = said("Sampled tokens of the longest sample shown.")
    sort: str = said("What the groups are sorted by; `-` in front: the largest first.")
    sort_hrefs: dict[str, str] = said("Address of the page by each sort key.")
    next_href: str | None = said("Address of the next groups, null on the last page.")
    previous_href: str | None = said("Address of the groups before, null on the first page.")
    histograms: tuple[Histogram, ...] = said("Spread of rewards and lengths.")
    charts: RunCharts = said("The run over its steps.")
    stamp: str = said("What a reader names as `since` to be told only of what is newer.")
    live: bool = said("Whether a rollout is open or new, so that the page looks for more.")
    list_href: str = said("Address of the list of this run's rollouts.")
    problems: tuple[str, ...] = said("What could not be read and was ignored.")
