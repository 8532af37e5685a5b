"""The ledger: reservations, the truth afterwards, and calls that come at the same time."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.capture.budgets import Ledger, Reservation
from explorer.errors import BudgetSpent, CapacityReached, ContextOverflow
from explorer.records import Call, CallId, CallStatus, Dialect, RolloutId
from tests.capture.playbook import TIME

CALL = Call(CallId("c"), RolloutId("r"), 0, Dialect.CHAT, CallStatus.COMMITTED, TIME, TIME + 1)


def ended(prompt: int, completion: int, status: CallStatus = CallStatus.COMMITTED) -> Call:
    return replace(
        CALL,
        status=status,
        prompt_len=prompt,
        completion_len=completion,
        completion=np.zeros(completion, np.int32),
    )


def test_without_budgets_nothing_is_capped() -> None:
    ledger = Ledger()
    assert not ledger.counts_prompts
    for _ in range(50):
        assert ledger.reserve(TIME, 0, None).max_tokens is None


def test_calls_that_come_together_cannot_overspend_together() -> None:
    ledger = Ledger({"calls": 3})
    taken: list[Reservation] = []
    refused: list[CapacityReached] = []

    def call() -> None:
        try:
            taken.append(ledger.reserve(TIME, 0, None))
        except CapacityReached as error:
            refused.append(error)

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (3, 9)
    # A call that the engine never answered gives its place back.
    ledger.settle(taken[0], ended(5, 0, CallStatus.FAILED))
    taken[0] = ledger.reserve(TIME, 0, None)
    for reservation in taken:
        ledger.settle(reservation, ended(5, 1))
    with pytest.raises(BudgetSpent, match="3 model calls"):
        ledger.reserve(TIME, 0, None)


def test_output_tokens_are_capped_to_what_is_left() -> None:
    ledger = Ledger({"output_tokens": 100})
    first = ledger.reserve(TIME, 0, 30)
    assert first.max_tokens == 30
    second = ledger.reserve(TIME, 0, None)
    assert second.max_tokens == 70
    with pytest.raises(CapacityReached, match="reserved by calls in flight"):
        ledger.reserve(TIME, 0, 1)
    ledger.settle(second, ended(9, 10))
    assert ledger.reserve(TIME, 0, 500).max_tokens == 60
    ledger.settle(first, ended(9, 90))
    with pytest.raises(BudgetSpent, match="100 output tokens"):
        ledger.reserve(TIME, 0, 1)


def test_a_stream_that_broke_off_was_worked_for() -> None:
    broken = ended(9, 40, CallStatus.FAILED)
    ledger = Ledger({"calls": 2, "output_tokens": 100})
    ledger.settle(ledger.reserve(TIME, 0, None), broken)
    second = ledger.reserve(TIME, 0, None)
    assert second.max_tokens == 60
    ledger.settle(second, ended(9, 1))
    with pytest.raises(BudgetSpent, match="2 model calls"):
        ledger.reserve(TIME, 0, None)
    # It counts after a restart as well.
    assert Ledger({"output_tokens": 100}, 0, [broken]).reserve(TIME, 0, None).max_tokens == 60


def test_total_tokens_count_prompts_too() -> None:
    ledger = Ledger({"total_tokens": 100})
    assert ledger.counts_prompts
    first = ledger.reserve(TIME, 40, None)
    assert first.max_tokens == 60
    ledger.settle(first, ended(40, 5))
    with pytest.raises(BudgetSpent, match="100 tokens"):
        ledger.reserve(TIME, 55, None)
    assert ledger.reserve(TIME, 54, None).max_tokens == 1


def test_a_long_prompt_is_an_overflow_and_not_the_end() -> None:
    ledger = Ledger({"context_tokens": 50})
    with pytest.raises(ContextOverflow) as caught:
        ledger.reserve(TIME, 50, 10)
    assert caught.value.details == {"prompt_tokens": 50, "limit_tokens": 50}
    assert ledger.reserve(TIME, 45, 10).max_tokens == 5


def test_wall_time_ends_and_shortens_calls() -> None:
    ledger = Ledger({"wall_s": 10}, TIME)
    assert ledger.remaining_s(TIME + 4_000_000) == 6
    ledger.reserve(TIME + 9_999_999, 0, None)
    with pytest.raises(BudgetSpent, match="10 seconds"):
        ledger.reserve(TIME + 10_000_000, 0, None)


def test_what_was_spent_before_a_restart_is_spent() -> None:
    calls = [ended(10, 20), ended(10, 0, CallStatus.FAILED), ended(30, 7, CallStatus.ABORTED)]
    with pytest.raises(BudgetSpent):
        Ledger({"calls": 2}, TIME, calls).reserve(TIME, 0, None)
    assert Ledger({"output_tokens": 30}, TIME, calls).reserve(TIME, 0, None).max_tokens == 3


STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.none() | st.integers(1, 60), st.integers(0, 60)),
    max_size=30,
)


@given(STEPS, st.integers(1, 200), st.sampled_from(["output_tokens", "total_tokens"]))
def test_no_budget_is_ever_overspent(
    steps: list[tuple[int, int | None, int]], limit: int, name: str
) -> None:
    """Whatever is reserved, capped and settled in whatever order, the sum stays below."""
    ledger = Ledger({name: limit})
    spent: Any = 0
    held: list[Reservation] = []
    for prompt, asked, sampled in steps:
        try:
            held.append(ledger.reserve(TIME, prompt, asked))
        except (BudgetSpent, CapacityReached):
            continue
        if len(held) > 2:
            first = held.pop(0)
            assert first.max_tokens is not None
            took = min(sampled, first.max_tokens)
            ledger.settle(first, ended(first.prompt, took))
            spent += took + (first.prompt if name == "total_tokens" else 0)
    assert spent <= limit
