"""Processors, random streams and reported values of the sampler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.tiny.sampling import (
    MISSING_LOGPROB,
    LogprobsMode,
    Sampler,
    SamplingParameters,
    log_softmax,
)
from explorer.engine.tiny.weights import Floats

LOGITS: Floats = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], np.float32)


def sampler(mode: LogprobsMode = LogprobsMode.PROCESSED, **fields: object) -> Sampler:
    parameters = replace(SamplingParameters(seed=1), **fields)  # type: ignore[arg-type]
    return Sampler(parameters, prompt=[0, 1], stop_ids=[5], mode=mode)


def test_temperature_scales_differences() -> None:
    cold = sampler(temperature=0.5).logprobs(LOGITS, [])
    assert cold[0] - cold[1] == pytest.approx(2.0)


def test_greedy_is_not_divided_by_temperature() -> None:
    greedy = sampler(temperature=0.0)
    np.testing.assert_array_equal(greedy.logprobs(LOGITS, []), log_softmax(LOGITS))
    assert greedy.sample(LOGITS, []).token_id == 0


def test_tiny_temperatures_are_raised() -> None:
    found = sampler(temperature=0.001).logprobs(LOGITS, [])
    assert found[1] == pytest.approx(-100.0, abs=1e-3)


def test_top_k_floors_the_rest() -> None:
    found = sampler(top_k=2).logprobs(LOGITS, [])
    assert np.isfinite(found).sum() == 2
    assert np.exp(found).sum() == pytest.approx(1.0)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    weights = np.exp(log_softmax(LOGITS))
    for top_p in (0.01, 0.3, 0.6, 0.85, 0.999):
        kept = np.isfinite(sampler(top_p=top_p).logprobs(LOGITS, []))
        size = int(kept.sum())
        assert kept[:size].all()
        assert weights[:size].sum() >= top_p - 1e-6
        assert size == 1 or weights[: size - 1].sum() < top_p


def test_min_p_is_relative_to_the_top() -> None:
    kept = np.isfinite(sampler(min_p=0.3).logprobs(LOGITS, []))
    assert kept.tolist() == [True, True, False, False, False, False]


def test_bias_shifts_and_minimum_length_masks_the_end() -> None:
    biased = sampler(logit_bias={1: 2.0}).logprobs(LOGITS, [])
    assert biased[1] - biased[0] == pytest.approx(1.0)
    waiting = sampler(min_tokens=2)
    assert waiting.logprobs(LOGITS, [3])[5] == -np.inf
    assert np.isfinite(waiting.logprobs(LOGITS, [3, 3])[5])


def test_penalties() -> None:
    x = sampler(presence_penalty=0.5, frequency_penalty=0.25).logprobs(LOGITS, [2, 2, 3])
    base = log_softmax(LOGITS)
    moved = (x - base) - (x - base)[0]
    assert moved[2] == pytest.approx(-1.0, abs=1e-5)
    assert moved[3] == pytest.approx(-0.75, abs=1e-5)
    repeated = sampler(repetition_penalty=2.0).logprobs(LOGITS, [4])
    expected = np.array([1.0, 0.5, 0.5, 0.0, -2.0, -3.0], np.float32)
    np.testing.assert_allclose(repeated, log_softmax(expected), atol=1e-6)


def test_allowed_ids() -> None:
    found = sampler(allowed_token_ids=(3, 4)).logprobs(LOGITS, [])
    assert np.flatnonzero(np.isfinite(found)).tolist() == [3, 4]


def test_raw_mode_reports_the_networks_own_values() -> None:
    raw = sampler(LogprobsMode.RAW, temperature=0.5, top_k=1, logprobs=3)
    token = raw.sample(LOGITS, [])
    assert token.token_id == 0
    assert token.logprob == pytest.approx(float(log_softmax(LOGITS)[0]))
    assert [i for i, _ in token.candidates] == [0, 1, 2]


def test_sampled_token_is_first_and_counts() -> None:
    chosen = sampler(logprobs=2)
    processed = chosen.logprobs(LOGITS, [])
    assert [i for i, _ in chosen.report(LOGITS, processed, 4).candidates] == [4, 0]
    assert [i for i, _ in chosen.report(LOGITS, processed, 1).candidates] == [1, 0]
    floored = sampler(logprobs=3, top_k=1)
    values = floored.report(LOGITS, floored.logprobs(LOGITS, []), 0).candidates
    assert [value for _, value in values] == [0.0, MISSING_LOGPROB, MISSING_LOGPROB]


def test_seeds_repeat_and_differ() -> None:
    def draw(seed: int | None) -> list[int]:
        one = sampler(seed=seed, temperature=1.5)
        return [one.sample(LOGITS, []).token_id for _ in range(40)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_draws_follow_the_reported_probabilities() -> None:
    one = sampler(seed=11, temperature=1.3, top_p=0.9)
    expected = np.exp(one.logprobs(LOGITS, []).astype(np.float64))
    counts = np.bincount([one.sample(LOGITS, []).token_id for _ in range(4000)], minlength=6)
    np.testing.assert_allclose(counts / 4000, expected, atol=0.03)
    assert not counts[expected == 0].any()


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.floats(0.05, 2),
    st.floats(0.01, 1),
    st.integers(0, 5),
    st.floats(0, 1),
)
def test_processed_values_are_a_distribution(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    one = Sampler(
        SamplingParameters(
            temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=0
        ),
        [0],
        [1],
    )
    x = np.array(logits, np.float32)
    found = one.logprobs(x, [])
    assert np.exp(found.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-4)
    token = one.sample(x, [])
    assert MISSING_LOGPROB < token.logprob <= 1e-6
