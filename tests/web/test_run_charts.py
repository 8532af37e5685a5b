"""The charts of a run: places, numbers, marks, and the page that follows a training."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from explorer.records import RolloutId
from explorer.store.deltas import DeltaSummary
from explorer.store.queries import RunPoint
from explorer.web import charts, words
from explorer.web.render import environment
from explorer.web.run_charts import MOST_PLACES, run_charts, spread
from tests.web.conftest import Site
from tests.web.parsing import lookup, read

RUN = "/runs/grpo-tiny%20%23412"


def point(number: int, step: int | None = None, **changes: object) -> RunPoint:
    made = RunPoint(RolloutId(f"r{number}"), number, step, False, None, 10, None)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_steps_stand_in_order_and_hold_their_rollouts_whatever_the_order_of_creation() -> None:
    found = run_charts([point(1, 7), point(2, 3), point(3, 7), point(4)], ())
    assert (found.axis, found.steps, found.each, found.left_out) == ("step", 2, 1, 1)
    assert [(row.label, row.title, row.n) for row in found.rows] == [
        ("3", "step 3", 1),
        ("7", "step 7", 2),
    ]


def test_without_steps_rollouts_stand_in_the_order_of_creation() -> None:
    found = run_charts([point(n) for n in range(MOST_PLACES * 5 - 1)], ())
    assert (found.axis, found.each, len(found.rows)) == ("order", 5, MOST_PLACES)
    assert (found.rows[0].title, found.rows[-1].title) == ("rollouts 1–5", "rollouts 296–299")
    assert sum(row.n for row in found.rows) == MOST_PLACES * 5 - 1
    # A few stand alone; as soon as there are enough, none does: one has no spread.
    assert run_charts([point(n) for n in range(7)], ()).each == 1
    assert run_charts([point(n) for n in range(9)], ()).each == 4


def test_many_steps_share_places_and_none_is_lost() -> None:
    found = run_charts([point(n, n * 10) for n in range(MOST_PLACES + 1)], ())
    assert found.each == 2
    assert found.rows[0].label == "0–10"
    assert sum(row.n for row in found.rows) == MOST_PLACES + 1


def test_a_run_without_rollouts_has_no_places() -> None:
    assert run_charts((), ()).rows == ()


def test_a_mean_never_stands_alone_and_what_is_missing_is_not_zero() -> None:
    found = spread([0.0, 0.0, 1.0, float("nan"), 0.5], digits=3)
    assert (found.n, found.mean, found.low, found.median, found.high) == (4, 0.375, 0, 0.25, 1)
    assert spread([], digits=3).mean is None
    (row,) = run_charts([point(1, 1, open=True, length=3), point(2, 1, length=9)], ()).rows
    assert (row.reward.n, row.reward.mean) == (0, None)
    assert (row.length.n, row.length.high, row.n_open) == (1, 9, 1)


def test_a_group_is_compared_within_its_step_only() -> None:
    rewards = ((1, "a", 1.0), (1, "a", 1.0), (1, "b", 0.0), (2, "a", 0.0), (2, "a", 1.0))
    points = [
        point(at, step, cohort=cohort, reward=reward)
        for at, (step, cohort, reward) in enumerate(rewards)
    ]
    counts = [(row.n_groups, row.n_zero_variance) for row in run_charts(points, ()).rows]
    assert counts == [(1, 1), (1, 0)]
    # Without steps, the same group is one, at the place of its last rollout.
    plain = run_charts([replace(each, step=None) for each in points], ())
    assert [(row.n_groups, row.n_zero_variance) for row in plain.rows][-1] == (1, 0)


def test_versions_count_tokens_and_lag_behind_the_highest_of_their_step() -> None:
    points = [
        point(1, 1, versions=((6, 10), (None, 5))),
        point(2, 1, versions=((7, 30), (6, 5))),
        point(3, 2, versions=((None, 4),)),
    ]
    first, second = run_charts(points, ()).rows
    assert [(v.version, v.tokens, v.behind) for v in first.versions] == [
        (6, 15, 1),
        (7, 30, 0),
        (None, 5, None),
    ]
    assert (first.tokens, second.tokens) == (50, 4)
    assert [v.behind for v in second.versions] == [None]


def delta(number: int, bins: dict[int, int], outside: int, **changes: object) -> DeltaSummary:
    n = sum(bins.values())
    made = DeltaSummary(
        RolloutId(f"r{number}"), 1, "x", "trl", 1, n, n, outside, 0.9, 1.1, bins=bins
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_band_of_a_step_holds_all_its_rollouts_and_looks_no_narrower_than_it_is() -> None:
    told = [delta(1, {0: 98, 81: 1}, 0), delta(2, {-81: 1}, 1, noise_abs_p99=0.02)]
    first, second = run_charts([point(1, 1), point(2, 1), point(3, 2)], told).rows
    band = first.delta
    assert band is not None
    assert (band.n_rollouts, band.n_compared, band.n_outside) == (2, 100, 1)
    assert (band.share_outside, band.noise, band.median) == (0.01, 0.02, 0.0)
    assert band.p1 is not None
    assert band.p1 == pytest.approx(-(10 ** (-7 + 81 / 16)))
    assert second.delta is None
    empty = run_charts([point(1, 1)], [delta(1, {}, 0)]).rows[0].delta
    assert empty is not None
    assert (empty.p1, empty.share_outside) == (None, None)


@pytest.mark.parametrize(
    ("values", "zero", "low", "high"),
    [
        ([0.0, 1.0], False, 0, 1),
        ([3.0, 3.0], False, 1, 5),
        ([0.0], True, 0, 1),
        ([0.0], False, -1, 1),
        ([17, 183], True, 0, 200),
        ([-0.31, 0.12], True, -0.4, 0.2),
        ([1e-9, 2e-9], False, 1e-9, 2e-9),
        ([None, 1e12], True, 0, 1e12),
    ],
)
def test_a_scale_is_round_and_holds_its_values(
    values: list[float | None], zero: bool, low: float, high: float
) -> None:
    found = charts.scale(values, zero=zero)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high))
    for value in values:
        if value is not None:
            assert charts.TOP - 0.01 <= found.y(value) <= charts.BOTTOM + 0.01
    assert len({found.text(tick) for tick in found.ticks}) == len(found.ticks)


def test_nothing_to_draw_is_no_scale_and_holes_break_lines() -> None:
    assert charts.scale([None, float("nan")]) is None
    axis = charts.scale([0.0, 1.0])
    assert axis is not None
    assert len(charts.lines([0.0, None, 1.0, 1.0], axis)) == 2
    assert len(charts.band([0.0, None, 0.5], [1.0, None, 1.0], axis)) == 2


def test_parts_of_a_bar_fill_it_from_the_bottom() -> None:
    (lower, upper) = charts.stack([1, 3], 4)
    assert lower == ("99.5", "30.5")
    assert upper == ("8", "91.5")
    assert charts.stack([0], 0) == [("130", "0")]


def test_every_number_of_the_charts_is_text_and_the_twins(site: Site) -> None:
    page, twin = read(site.text(RUN)), site.json(f"{RUN}.json")
    keys = [each.attributes["data-k"] for each in page.numbers]
    drawn = [key for key in keys if key.startswith("charts.")]
    assert any(".reward.mean" in key for key in drawn)
    assert any(".n_zero_variance" in key for key in drawn)
    for number in page.numbers:
        value = lookup(twin, number.attributes["data-k"])
        assert number.text == words.thousands(value)
    rows: Any = lookup(twin, "charts.rows")
    assert sum(row["n"] for row in rows) == lookup(twin, "summary.n_rollouts")
    assert sum(row["tokens"] for row in rows) == lookup(twin, "summary.generated_tokens")


def test_a_page_is_told_when_nothing_was_stored_since(site: Site) -> None:
    stamp = site.json(f"{RUN}.json")["stamp"]
    same = site.client.get(f"{RUN}?since={stamp}")
    assert (same.status_code, same.content) == (204, b"")
    assert site.client.get(f"{RUN}?since=1.2.3").status_code == 200
    assert site.client.get(f"/runs/none?since={stamp}").status_code == 404


def test_charts_have_words_where_there_is_nothing_to_draw() -> None:
    source = '{% from "_run_charts.html" import run_charts with context %}{{ run_charts(c) }}'
    made = environment().from_string(source).render(c=run_charts([point(1, 1, open=True)], ()))
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", made))
    for text in (
        "No reward yet.",
        "No closed rollout yet.",
        "No group has two rewards yet.",
        "No trainer has told this server which weights the engine had.",
        "No trainer has told its logprobs",
    ):
        assert text in said
    assert "<svg" not in made
