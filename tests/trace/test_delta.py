"""δ per token: exact numbers, what is missing, and why a mean alone says nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import RecordInconsistent
from explorer.records import CallId, LogprobKind
from explorer.trace import delta_bins
from explorer.trace.delta import Limits, Report, floor_of, summary
from explorer.trace.delta_spread import Band, importance, ratio, spread
from explorer.trace.delta_tokens import CallDelta, Gap, Origin, call_delta, truncated_support
from tests.trace.build import logprobs_of, make_call


def of(
    rollout: Sequence[float | None],
    trainer: Sequence[float | None] | None,
    *,
    bits: Sequence[int] | None = None,
    versions: Sequence[int | None] | None = None,
    trained_by: int | None = 7,
    **more: Any,
) -> CallDelta:
    size = len(rollout)
    call = make_call("a", 0, [1, 2], [5] * size, logprobs=rollout, **more)
    return call_delta(
        call,
        np.array(bits or [1] * size, np.int8),
        None if trainer is None else logprobs_of(trainer),
        Origin(versions or [7] * size, trained_by, LogprobKind.PROCESSED),
    )


def test_lp_07_one_token_far_off_is_named_and_the_mean_never_stands_alone() -> None:
    rollout = [-0.2, *[-0.5] * 11, -6.0]
    trainer = [-6.0, *[-0.5] * 11, -0.2]
    report = summary([of(rollout, trainer)])
    # The two cancel in the mean: only the spread and the tokens themselves tell.
    assert report.whole.mean == pytest.approx(0, abs=1e-7)
    assert report.whole.share_outside == pytest.approx(2 / 13)
    assert report.whole.abs_max == pytest.approx(5.8)
    worst = report.worst[0]
    assert (worst.call_id, worst.index) == (CallId("a"), 0)
    assert worst.rollout == pytest.approx(-0.2)
    assert worst.trainer == -6.0
    assert worst.delta == pytest.approx(-5.8)
    assert worst.ratio == pytest.approx(math.exp(-5.8))
    assert [token.index for token in report.worst[:2]] == [0, 12]
    # Whoever gets a mean has its spread in the same hand.
    assert report.whole.sd is not None
    assert report.whole.sd > 2
    assert {"quantiles", "abs_max", "n_outside", "sd"} <= {f.name for f in fields(report.whole)}
    assert "mean" not in {field.name for field in fields(Report)}


def test_delta_is_taken_of_training_tokens_only_and_exactly() -> None:
    found = of([-1.0, -2.0, -0.5, -4.0], [-1.5, -2.0, -0.25, -1.0], bits=[1, 0, 1, 1])
    assert found.index.tolist() == [0, 2, 3]
    assert found.delta.tolist() == [-0.5, 0.25, 3.0]
    report = summary([found])
    assert (report.n_training, report.whole.n, report.whole.n_outside) == (3, 3, 3)
    assert report.whole.quantiles[50] == 0.25
    assert report.whole.quantiles[1] == pytest.approx(-0.5 + 0.02 * 0.75)
    assert report.whole.abs_quantiles[99] == pytest.approx(0.5 + 0.98 * 2.5)
    assert report.whole.k1 == pytest.approx(-2.75 / 3)
    terms = [math.exp(d) - 1 - d for d in (-0.5, 0.25, 3.0)]
    assert report.whole.k3 == pytest.approx(sum(terms) / 3)
    [sequence] = report.sequences
    assert (sequence.log_ratio, sequence.n_compared) == (2.75, 3)
    assert sequence.ratio == pytest.approx(math.exp(2.75))
    assert report.weights.n_capped == 1
    assert report.weights.quantiles[99] <= 2.0
    assert sum(report.bins.values()) == 3


def test_what_is_missing_is_counted_apart_and_is_never_zero() -> None:
    inf = float("inf")
    trainer = [None, float("nan"), -inf, -9999.0, -1.0, -12345.0]
    found = of([-1.0] * 6, trainer)
    assert [found.gaps.get(place) for place in range(6)] == [
        *(Gap.NULL, Gap.NOT_A_NUMBER, Gap.INFINITE, Gap.SENTINEL, None, Gap.SENTINEL),
    ]
    report = summary([found, of([-1.0, None], None, bits=[1, 1])])
    assert report.gaps == {
        Gap.NOT_TOLD: 1,
        Gap.NULL: 1,
        Gap.NOT_A_NUMBER: 1,
        Gap.INFINITE: 1,
        Gap.SENTINEL: 2,
        Gap.ROLLOUT: 1,
    }
    assert (report.n_training, report.whole.n) == (8, 1)
    assert report.whole.quantiles == dict.fromkeys((1, 5, 50, 95, 99), 0.0)
    assert report.whole.sd is None  # of a single token
    none = summary([of([-1.0], None)])
    assert none.whole.n == 0
    assert none.whole.share_outside is none.whole.mean is none.whole.k3 is None
    assert none.weights.share_capped is None
    assert [each.log_ratio for each in none.sequences] == [None]


def test_ratios_beyond_a_float_are_counted_and_turn_nothing_else_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = summary([of([-5000.0, -1.0], [-0.5, -1.0])])
        assert report.worst[0].ratio is None
        assert report.whole.n_overflow == 1
        assert report.whole.k3 is None
        assert (report.whole.abs_max, report.whole.n_outside) == (4999.5, 1)
        assert report.sequences[0].log_ratio == 4999.5
        assert report.sequences[0].ratio is None
        assert report.weights.n_capped == 1
        assert report.weights.effective == pytest.approx(9 / 5)
        low = summary([of([-0.5, -1.0], [-5000.0, -1.0])])
        assert low.worst[0].ratio == 0.0
        assert low.whole.k3 == pytest.approx((4999.5 - 1) / 2)
        # Each fits a float, and their sum does not.
        near = spread(np.array([709.0, 709.5, 709.7]), Band())
        assert (near.n_overflow, near.k3) == (0, None)
    assert ratio(709.0) == math.exp(709.0)
    assert ratio(710.0) is None


def test_the_band_holds_its_ends_and_can_be_another() -> None:
    delta = np.array(
        [math.log(0.9), math.log(1.1), math.log(1.1) + 1e-12, math.log(0.9) - 1e-12]
    )
    assert Band().outside(delta).tolist() == [False, False, True, True]
    assert spread(delta, Band(0.5, 2.0)).n_outside == 0
    for low, high in ((0.0, 1.1), (1.2, 1.3), (0.9, math.inf), (0.9, 0.95)):
        with pytest.raises(ValueError, match="band"):
            Band(low, high)
    with pytest.raises(ValueError, match="cap"):
        importance(delta, 0.0)


def test_everything_splits_by_version_kind_and_truncated_support() -> None:
    first = of([-1.0] * 3, [-1.0, -1.1, -3.0], versions=[7, 6, None])
    cut = of([-1.0], [-1.3], submitted_sampling={"top_p": 0.8, "top_k": 0, "min_p": 0.05})
    raw = replace(of([-1.0], [-2.0], trained_by=5), logprob_kind=LogprobKind.RAW)
    report = summary([first, cut, raw])
    assert {name: part.n for name, part in report.by_version} == {
        "same": 2,
        "older": 1,
        "unknown": 1,
        "newer": 1,
    }
    assert {name: part.n for name, part in report.by_age} == {0: 2, 1: 1, -2: 1, None: 1}
    assert {name: part.n for name, part in report.by_kind} == {"processed": 4, "raw": 1}
    support = dict(report.by_support)
    assert set(support) == {"whole", "top_p, min_p"}
    assert support["top_p, min_p"].quantiles[50] == pytest.approx(-0.3)
    for parts in (report.by_version, report.by_age, report.by_kind, report.by_support):
        assert sum(part.n for _, part in parts) == report.whole.n
        assert sum(part.n_outside for _, part in parts) == report.whole.n_outside


@pytest.mark.parametrize(
    ("sampling", "cut"),
    [
        ({}, ()),
        ({"top_p": 1.0, "top_k": -1, "min_p": 0.0}, ()),
        ({"top_p": 0.99}, ("top_p",)),
        ({"top_k": 50}, ("top_k",)),
        ({"top_p": None, "top_k": True, "min_p": "0.1"}, ()),
    ],
)
def test_what_cuts_the_support(sampling: dict[str, Any], cut: tuple[str, ...]) -> None:
    call = make_call("a", 0, [1], [2], submitted_sampling=sampling)
    assert truncated_support(call) == cut


def test_lengths_that_differ_are_refused() -> None:
    call = make_call("a", 0, [1], [2, 3])
    bits = np.ones(2, np.int8)
    origin = Origin([7, 7], 7, LogprobKind.RAW)
    with pytest.raises(RecordInconsistent, match="1 trainer logprobs"):
        call_delta(call, bits, logprobs_of([-1.0]), origin)
    with pytest.raises(RecordInconsistent, match="1 versions"):
        call_delta(call, bits, None, replace(origin, versions=[7]))


def test_the_noise_floor_is_measured_between_two_computations() -> None:
    one, other = logprobs_of([-1.0, -2.0, None, -9999.0]), logprobs_of([-1.25, -2.0, -1, -1])
    floor = floor_of([one], [other], Band())
    assert (floor.n, floor.n_outside, floor.abs_max) == (2, 1, 0.25)
    assert floor_of([], [], Limits().band).n == 0
    with pytest.raises(ValueError, match="4 values are compared with 1"):
        floor_of([one], [logprobs_of([-1.0])], Band())


numbers = st.floats(-50, 50, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=60))
def test_k3_is_never_below_zero_and_bins_hold_what_they_say(values: list[float]) -> None:
    delta = np.array(values, np.float64)
    made = spread(delta, Band())
    assert made.k3 is not None
    assert made.k3 >= 0
    counts = delta_bins.bins_of(delta)
    assert sum(counts.values()) == delta.size
    for q in (0.01, 0.5, 0.99):
        found = delta_bins.quantile(counts, q)
        assert found is not None
        exact = float(np.sort(delta)[max(1, math.ceil(q * delta.size)) - 1])
        assert found[0] <= exact <= found[1]


def test_k3_keeps_its_digits_where_the_difference_would_lose_them() -> None:
    tiny = spread(np.array([1e-9, -1e-9]), Band())
    assert tiny.k3 == pytest.approx(5e-19, rel=1e-9)
    added = delta_bins.added([{0: 2, 5: 1}, {5: 1, -5: 3}])
    assert added == {0: 2, 5: 2, -5: 3}
    assert delta_bins.folded(added) == {0: 2, 5: 5}
    assert delta_bins.quantile({}, 0.5) is None
    assert delta_bins.bounds(delta_bins.LAST)[1] == math.inf
