"""Versions of tokens, and their ages within one line of weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    RolloutId,
    WeightSpan,
    WeightUpdate,
)
from explorer.trace.verdict import judge
from explorer.trace.versions import (
    Announced,
    Line,
    Shut,
    announced,
    behind_at_end,
    line_of,
    rollout_versions,
    shut_times,
    token_versions,
    version_spans,
    waited_us,
)
from tests.trace.build import make_call, record

LINE = line_of([Announced(1, 7), Announced(50, 8), Announced(60, 9)])


def at(call: Call, time_us: int) -> Call:
    return replace(call, started_us=time_us, ended_us=time_us + 1)


def test_a_token_has_the_version_that_its_call_began_and_ended_under() -> None:
    call = make_call("a", 1, [1, 2], [5, 6, 7])
    assert token_versions(call) == [7, 7, 7]
    assert version_spans(call) == ((0, 3, 7),)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_version_end": 8},
        {"weight_version_start": None, "weight_version_end": None},
        {"weight_version_start": None},
        {"weight_version_end": None},
        {"engine_weight_label": "step-7,step-8"},
    ],
)
def test_what_nobody_can_know_is_unknown_and_never_a_number(changes: dict[str, Any]) -> None:
    call = replace(make_call("a", 1, [1, 2], [5, 6]), **changes)
    assert token_versions(call) == [None, None]


def spanned(*spans: tuple[str, int | None, int, int], **changes: Any) -> Call:
    call = make_call("a", 1, [1, 2], [5, 6, 7, 8])
    return replace(call, weight_spans=tuple(WeightSpan(*span) for span in spans), **changes)


def test_ver_01_a_call_across_an_update_expands_to_tokens_where_the_engine_says_which() -> None:
    call = spanned(("step-7", 7, 0, 3), ("step-8", 8, 3, 4), weight_version_end=8)
    assert token_versions(call) == [7, 7, 7, 8]
    assert version_spans(call) == ((0, 3, 7), (3, 4, 8))


@pytest.mark.parametrize(
    ("call", "versions"),
    [
        # One label that nobody announced says nothing against the call's own version.
        (spanned(("default", None, 0, 4)), [7, 7, 7, 7]),
        (spanned(("a", None, 0, 2), ("b", None, 2, 4)), [None] * 4),
        (spanned(("default", None, 0, 4), weight_version_end=8), [None] * 4),
        # What the engine leaves out, says twice, or beyond the tokens.
        (spanned(("8", 8, 1, 3)), [None, 8, 8, None]),
        (spanned(("7", 7, 0, 3), ("8", 8, 2, 4)), [7, 7, None, 8]),
        (spanned(("7", 7, -5, 2), ("8", 8, 2, 99)), [7, 7, 8, 8]),
        (spanned(("7", 7, 0, 2), ("x", None, 2, 4)), [7, 7, None, None]),
        (spanned(("7", 7, 0, 4), ("9", 9, 4, 4), ("9", 9, 3, 1)), [7, 7, 7, 7]),
    ],
)
def test_what_the_engine_says_of_its_tokens(call: Call, versions: list[int | None]) -> None:
    assert token_versions(call) == versions


def test_who_came_while_new_weights_were_loaded_waited_for_them() -> None:
    told = [
        WeightUpdate(4, 70, "syncing", 9),
        WeightUpdate(1, 10, "syncing", 8),
        WeightUpdate(2, 20, "syncing", 8),  # a lease renewed
        WeightUpdate(3, 40, "ready", 8),
    ]
    shut = shut_times(told)
    assert shut == (Shut(10, 40), Shut(70, None))
    call = make_call("a", 1, [1], [2])

    def waited(start: int, end: int) -> int:
        return waited_us(replace(call, started_us=start, ended_us=end), shut)

    assert [waited(*each) for each in ((5, 60), (10, 60), (25, 60), (40, 60))] == [0, 30, 15, 0]
    assert waited(25, 30) == 5, "it was refused while it waited"
    assert waited(80, 95) == 15


def test_only_what_is_ready_was_announced() -> None:
    told = [
        WeightUpdate(1, 10, "ready", 7),
        WeightUpdate(2, 20, "syncing", 8),
        WeightUpdate(3, 30, "unknown", 7),
        WeightUpdate(4, 40, "ready", None),
    ]
    assert announced(told) == ((10, 7),)


def test_a_call_without_ids_has_as_many_versions_as_it_sampled_tokens() -> None:
    call = replace(make_call("a", 1, [1], [5]), completion=None, completion_len=3)
    assert token_versions(call) == [7, 7, 7]
    assert token_versions(replace(call, completion_len=None)) == []


def test_ages_count_versions_behind_the_one_announced_last() -> None:
    assert Line(9, 1, None) == LINE
    assert [LINE.behind(version, 40) for version in (7, 9, 10, None)] == [2, 0, -1, None]
    assert Line().behind(7, 40) is None


def test_nothing_is_as_old_as_weights_that_were_announced_after_it() -> None:
    assert LINE.behind(7, 0) is None  # before any announcement


def test_a_step_back_begins_a_line_in_which_old_numbers_have_no_age() -> None:
    line = line_of([*(Announced(t, v) for t, v in ((1, 8), (2, 9), (10, 7), (20, 8)))])
    assert line == Line(8, 10, 9)
    assert line.behind(9, 5) is None, "9 is of other weights than the next 9 will be"
    assert line.behind(7, 12) == 1
    assert line.earlier(5)
    assert not line.earlier(12)


def test_the_order_in_which_announcements_are_read_changes_nothing() -> None:
    told = [Announced(1, 8), Announced(2, 9), Announced(10, 7), Announced(20, 8)]
    assert line_of(reversed(told)) == line_of(told)
    assert line_of([Announced(5, 8), Announced(5, 7)]) == Line(8, 5, None)


def test_the_age_at_the_end_of_a_call_is_against_what_was_newest_then() -> None:
    call = replace(make_call("a", 1, [1, 2], [5]), weight_version_end=9)
    assert behind_at_end(call, 7) == 2
    assert behind_at_end(call, None) is None
    assert behind_at_end(replace(call, weight_version_end=6), 7) == -1
    assert behind_at_end(replace(call, weight_version_end=None), 7) is None


def test_the_mix_counts_each_sampled_token_once_and_what_of_it_trains() -> None:
    first = at(make_call("a", 1, [1, 2], [5, 6]), 20)
    second = at(
        make_call(
            "b",
            2,
            [1, 2, 5, 6, 9],
            [7, 7, 7],
            weight_version_start=8,
            weight_version_end=8,
        ),
        55,
    )
    across = at(make_call("c", 3, [1, 2, 5, 6, 9, 7, 7, 7], [4], weight_version_end=9), 58)
    judgement = judge(record(first, second, across))
    found = rollout_versions((across, second, first), judgement.masks, LINE)
    shares = [(s.version, s.sampled, s.trained, s.calls, s.behind) for s in found.mix]
    assert shares == [(7, 2, 2, 1, 2), (8, 3, 3, 1, 1), (None, 1, 0, 1, None)]
    assert sum(s.sampled for s in found.mix) == judgement.generated_tokens
    assert sum(s.trained for s in found.mix) == judgement.supervised_tokens
    assert (found.crossed, found.untold) == ((CallId("c"),), ())
    assert (found.span, found.oldest_behind, found.ageless) == ((7, 8), 2, False)


def test_a_rollout_of_which_nothing_trains_still_tells_its_weights() -> None:
    call = at(make_call("a", 1, [1, 2], [5, 6], greedy=True), 20)
    found = rollout_versions((call,), judge(record(call)).masks, LINE)
    assert [(s.version, s.trained) for s in found.mix] == [(7, 0)]
    assert (found.span, found.oldest_behind) == ((7, 7), 2)


def test_failed_calls_without_tokens_and_untold_calls_are_told_apart() -> None:
    told = at(make_call("a", 1, [1, 2], [5]), 20)
    untold = at(
        make_call("b", 2, [1, 9], [6], weight_version_start=None, weight_version_end=None), 21
    )
    failed = replace(
        make_call("c", 3, [1, 8], []), status=CallStatus.FAILED, rollout_id=RolloutId("r1")
    )
    found = rollout_versions((told, untold, failed), {}, LINE)
    assert found.untold == (CallId("b"),)
    assert [(s.version, s.sampled) for s in found.mix] == [(7, 1), (None, 1)]
    assert found.ageless


def test_a_call_that_waited_for_new_weights_belongs_to_their_line() -> None:
    line = line_of([Announced(1, 9), Announced(30, 7)])
    waited = replace(make_call("a", 1, [1, 2], [5]), started_us=25, ended_us=40)
    found = rollout_versions((waited,), {}, line)
    assert (found.oldest_behind, found.earlier) == (0, False)
    crossed = replace(waited, weight_version_start=9)
    assert rollout_versions((crossed,), {}, line).earlier


def test_an_earlier_line_is_said() -> None:
    line = line_of([Announced(1, 7), Announced(10, 9), Announced(30, 7)])
    old = at(make_call("a", 1, [1, 2], [5]), 20)
    found = rollout_versions((old,), {}, line)
    assert found.earlier
    assert (found.span, found.oldest_behind, found.ageless) == ((7, 7), None, True)
