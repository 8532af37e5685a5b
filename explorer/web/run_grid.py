"""Builds the page of runs and the page of one run: groups × samples, and their spread.

Owns: orders and pages of runs and groups, histograms.
Must not know: HTML, HTTP, SQL.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from explorer.store.interface import Store
from explorer.store.queries import GroupPart, GroupSort, GroupSummary, RunSummary
from explorer.web import filters, words
from explorer.web.contexts import Frame
from explorer.web.contexts_lists import GroupRow, Histogram, HistogramBar, RunPage, RunsPage
from explorer.web.frames import list_href, run_href, with_query
from explorer.web.lists import group_row, now_us, run_row
from explorer.web.pretty import safe_text
from explorer.web.run_charts import run_charts

GROUPS = 40
SAMPLES = 32
RUNS = 200
BINS = 12
# A run without an open rollout may be between two steps for so long.
LIVE_US = 30 * 60 * 1_000_000
NO_GROUP = "(no task given)"

_RUN_SORTS = {
    "newest": lambda row: row.last_created_us,
    "run": lambda row: row.run,
    "rollouts": lambda row: row.n_rollouts,
    "trainable": lambda row: row.n_trainable,
    "reward": lambda row: -math.inf if row.reward_mean is None else row.reward_mean,
    "share": lambda row: words.share(row.supervised_tokens, row.judged_tokens) or 0.0,
    "findings": lambda row: (row.n_fatal, row.n_warn),
    "calls": lambda row: row.n_calls,
    "tokens": lambda row: row.generated_tokens,
}


def _sort(text: str, known: Sequence[str], usual: str) -> tuple[str, bool]:
    """The key and whether the largest comes first; the usual one for an unknown key."""
    wanted = text if text.removeprefix("-") in known else usual
    return wanted.removeprefix("-"), wanted.startswith("-")


def _sort_hrefs(path: str, sort: str, descending: bool, known: Sequence[str]) -> dict[str, str]:
    """By each key; the one in force turns around, a name begins at its start."""
    found = {}
    for name in known:
        first = "" if name in ("run", "name") else "-"
        turned = ("" if descending else "-") if name == sort else first
        found[name] = with_query(path, sort=turned + name)
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0


def runs_page(store: Store, frame: Frame, query: Mapping[str, str]) -> RunsPage:
    """Every run, in the order asked for."""
    sort, descending = _sort(query.get("sort", ""), tuple(_RUN_SORTS), "-newest")
    found = sorted(store.list_runs(), key=_RUN_SORTS[sort], reverse=descending)
    start = _number(query.get("start", "")) // RUNS * RUNS
    now = now_us()
    order = f"-{sort}" if descending else sort

    def at(place: int) -> str:
        return with_query("/runs", sort=order, start=place or None)

    return RunsPage(
        frame=frame,
        runs=tuple(run_row(row, now) for row in found[start : start + RUNS]),
        total=len(found),
        sort=order,
        sort_hrefs=_sort_hrefs("/runs", sort, descending, tuple(_RUN_SORTS)),
        next_href=at(start + RUNS) if start + RUNS < len(found) else None,
        previous_href=at(start - RUNS) if start else None,
    )


def stamp_of(store: Store, summary: RunSummary) -> str:
    """Differs whenever something was stored; cheap, so that a page may ask often."""
    return f"{store.health().commits}.{summary.n_rollouts}.{summary.n_calls}"


def run_page(
    store: Store, frame: Frame, summary: RunSummary, query: Mapping[str, str]
) -> RunPage:
    """The grid of one run."""
    # Read first: what is stored meanwhile is told the next time, never left out.
    stamp, now = stamp_of(store, summary), now_us()
    known = tuple(key.value for key in GroupSort)
    asked = query.get("sort", "")
    sort, descending = _sort(asked, known, "name")
    start = _number(query.get("start", "")) // GROUPS * GROUPS
    part = GroupPart(GroupSort(sort), descending, offset=start, limit=GROUPS)
    found = store.run_groups(summary.run, part)
    groups = tuple(_group(summary.run, group) for group in found.groups)
    width = max((len(group.samples) for group in groups), default=0)
    spread = store.run_spread(summary.run)
    path, order = run_href(summary.run), f"-{sort}" if descending else sort

    def at(place: int) -> str:
        return with_query(path, sort=order if asked else None, start=place or None)

    lengths = [row.generated_tokens for group in groups for row in group.samples]
    bad = asked and asked.removeprefix("-") not in known
    problem = f"sort “{asked[:80]}” is not one of {', '.join(known)}, with - for descending"
    return RunPage(
        frame=frame,
        summary=run_row(summary, now),
        groups=groups,
        width=width,
        columns=_columns(groups, width),
        n_groups=found.total,
        n_zero_variance=found.n_zero_variance,
        first=start + 1 if groups else 0,
        last=start + len(groups),
        longest=max(lengths, default=0),
        sort=order,
        sort_hrefs=_sort_hrefs(path, sort, descending, known),
        next_href=at(start + GROUPS) if start + GROUPS < found.total else None,
        previous_href=at(max(0, start - GROUPS)) if start else None,
        histograms=(
            histogram("Reward", spread.rewards, summary.n_rollouts),
            histogram("Sampled tokens", spread.lengths, summary.n_rollouts),
        ),
        charts=run_charts(store.run_points(summary.run), store.run_deltas(summary.run)),
        stamp=stamp,
        live=summary.n_open > 0 or now - summary.last_created_us < LIVE_US,
        list_href=list_href(run=filters.written(summary.run)),
        problems=(safe_text(problem),) if bad else (),
    )


def _group(run: str, group: GroupSummary) -> GroupRow:
    """A group of which the first samples are here."""
    members = group.members[:SAMPLES]
    field = "task" if members and members[0].group is None else "group"
    asked = {field: filters.written(group.name)}
    if group.name is None:
        asked["group"] = filters.NONE_TEXT
    mean = group.reward_mean
    row = group_row(
        safe_text(group.name) if group.name is not None else NO_GROUP,
        members,
        now_us(),
        href=list_href(run=filters.written(run), **asked),
    )
    return replace(
        row,
        n_samples=group.n_rollouts,
        n_rewarded=group.n_rewarded,
        reward_mean=mean,
        reward_text=words.reward_text(None if mean is None else round(mean, 2)),
        zero_variance=group.zero_variance,
        n_trainable=group.n_trainable,
        share=words.share(group.supervised_tokens, group.judged_tokens),
        share_text=words.percent(group.supervised_tokens, group.judged_tokens),
        n_fatal=group.n_fatal if group.n_judged else None,
        n_warn=group.n_warn if group.n_judged else None,
        length_mean=round(group.length_mean),
    )


def _columns(groups: Sequence[GroupRow], width: int) -> tuple[str, ...]:
    """Attempts as heads when each column holds one attempt only, else plain numbers."""
    attempts: list[set[int | None]] = [set() for _ in range(width)]
    for group in groups:
        for place, sample in enumerate(group.samples):
            attempts[place].add(sample.attempt)
    if any(len(found) != 1 or None in found for found in attempts):
        return tuple(str(place + 1) for place in range(width))
    return tuple(f"#{attempt}" for found in attempts for attempt in found)


def histogram(title: str, values: Sequence[float], total: int) -> Histogram:
    """A bar for each value where they are few, else bins of one width."""
    finite = [value for value in values if math.isfinite(value)]
    counted = Counter(finite)
    if len(counted) <= BINS:
        bars = [
            HistogramBar(words.thousands(value), count)
            for value, count in sorted(counted.items())
        ]
    else:
        bars = _bins(finite)
    return Histogram(
        title=title,
        bars=tuple(bars),
        most=max((bar.count for bar in bars), default=0),
        n=len(finite),
        missing=max(0, total - len(finite)),
    )


def _bins(values: Sequence[float]) -> list[HistogramBar]:
    low, step = _scale(min(values), max(values))
    places = Counter(int((value - low) // step) for value in values)
    edges = [words.thousands(low + place * step) for place in range(max(places) + 2)]
    return [
        HistogramBar(f"{edges[place]}–{edges[place + 1]}", places[place])
        for place in range(max(places) + 1)
    ]


def _scale(low: float, high: float) -> tuple[float, float]:
    """A round start and width, so that about a dozen bins hold everything."""
    rough = (high - low) / BINS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * each for each in (1, 2, 5, 10) if size * each >= rough)
    return math.floor(low / step) * step, step
