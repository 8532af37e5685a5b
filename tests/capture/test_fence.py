"""The weight fence, pure: which calls get in, and what their record says of the weights."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from explorer.capture import events as ev
from explorer.capture.fence import CROSSED, UNKNOWN, Ended, Fence, FenceState
from explorer.engine.fence import UNREADABLE
from explorer.engine.replyfacts import LabelledSpan
from explorer.errors import WeightsSyncing
from explorer.records import CallId, CallStatus, FailureKind, WeightSpan, WeightUpdate
from tests.capture.playbook import TIME, answered, completion, kinds, make_exchange, only
from tests.capture.playbook import received as asked

S = 1_000_000
A, B = CallId("a"), CallId("b")


def at(version: int = 7, label: str | None = None) -> Fence:
    """A fence whose version was announced."""
    fence = Fence()
    fence.ready(version, label)
    return fence


def codes(ended: Ended) -> list[str]:
    """What the record says against training."""
    return [note.code for note in ended.notes]


def test_a_call_within_one_version_has_it_at_both_ends() -> None:
    fence = at()
    ticket = fence.begin(A, 1)
    assert ticket is not None
    assert ticket.version == 7
    assert fence.end(A, 2) == Ended(7)


def test_nobody_told_a_version_and_nothing_is_held_against_the_call() -> None:
    fence = Fence()
    assert fence.begin(A, 1) is not None
    assert fence.end(A, 2) == Ended(None)


def test_the_fence_is_shut_while_weights_are_loaded_and_drains() -> None:
    fence = at()
    fence.begin(A, 1)
    fence.syncing(2, 8, 300 * S)
    assert fence.begin(B, 3) is None
    standing = fence.standing(3)
    assert (standing.state, standing.version, standing.coming) == (FenceState.SYNCING, 7, 8)
    assert (standing.in_flight, standing.drained) == (1, False)
    # The trainer waits for it, so the weights are still the old ones.
    assert fence.end(A, 4) == Ended(7)
    assert fence.standing(5).drained
    fence.ready(8)
    ticket = fence.begin(B, 6)
    assert ticket is not None
    assert ticket.version == 8


def test_a_reply_that_began_before_and_ended_after_crosses_whatever_the_numbers() -> None:
    for version in (8, 7):
        fence = at()
        fence.begin(A, 1)
        fence.syncing(2, version, 300 * S)
        fence.ready(version)
        ended = fence.end(A, 3)
        assert ended.version == version
        assert codes(ended) == [CROSSED]


def test_what_is_in_flight_crosses_as_soon_as_the_trainer_goes_on() -> None:
    fence = at()
    fence.begin(A, 1)
    fence.syncing(2, 8, 300 * S)
    fence.hand_over()
    fence.syncing(3, 8, 300 * S)  # a renewed lease does not take that back
    ended = fence.end(A, 4)
    assert ended.version is None
    assert codes(ended) == [CROSSED]


def test_a_lease_that_runs_out_opens_the_fence_and_nobody_knows_the_version() -> None:
    fence = at()
    fence.begin(A, 1)
    fence.syncing(2, 8, 10 * S)
    assert fence.begin(B, 2 + 10 * S - 1) is None
    ticket = fence.begin(B, 2 + 10 * S)
    assert ticket is not None
    assert ticket.version is None
    assert fence.standing(2 + 10 * S).doubt
    assert codes(fence.end(A, 2 + 10 * S)) == [CROSSED]
    assert codes(fence.end(B, 3 + 10 * S)) == [UNKNOWN]
    assert fence.take_expiry(4 + 10 * S)
    assert not fence.take_expiry(4 + 10 * S)
    fence.ready(8)
    assert fence.standing(5 + 10 * S).doubt == ""


def test_a_call_that_begins_in_doubt_is_not_trusted_when_the_version_is_told() -> None:
    fence = at()
    fence.doubt("the engine was away")
    fence.begin(A, 1)
    fence.ready(8)
    assert codes(fence.end(A, 2)) == [UNKNOWN, CROSSED]


def test_labels_are_compared_and_become_versions() -> None:
    fence = at(7, "step-7")
    fence.begin(A, 1)
    ended = fence.end(A, 2, [LabelledSpan("step-7", 0, 4)], sampled=4)
    assert ended == Ended(7, (WeightSpan("step-7", 7, 0, 4),))
    fence.begin(A, 3)
    fence.ready(8, "step-8")
    spans = [LabelledSpan("step-7", 0, 3), LabelledSpan("step-8", 3, 5)]
    ended = fence.end(A, 4, spans, sampled=5)
    assert [span.weight_version for span in ended.spans] == [7, 8]
    assert CROSSED in codes(ended)


ODD: list[tuple[dict[str, Any], str]] = [
    ({"spans": [LabelledSpan("step-6", 0, 4)]}, UNKNOWN),
    ({"spans": [LabelledSpan("step-7", 0, 3)]}, UNKNOWN),
    ({"spans": [LabelledSpan("step-7", 0, 2), LabelledSpan("step-7", 2, 4)]}, CROSSED),
    ({"labels": ("step-7", "step-8")}, CROSSED),
    ({"labels": ("step-7", None)}, CROSSED),
    ({"labels": ("step-8", "step-8")}, UNKNOWN),
    ({"labels": (UNREADABLE, UNREADABLE)}, UNKNOWN),
]


@pytest.mark.parametrize(("said", "code"), ODD)
def test_an_engine_that_says_something_else_is_not_trusted(
    said: dict[str, Any], code: str
) -> None:
    fence = at(7, "step-7")
    fence.begin(A, 1)
    assert codes(fence.end(A, 2, sampled=4, **said)) == [code]


def test_a_label_that_stayed_the_same_through_two_versions_tells_nothing() -> None:
    fence = at(7, "default")
    fence.ready(8, "default")
    fence.begin(A, 1)
    ended = fence.end(A, 2, [LabelledSpan("default", 0, 4)], sampled=4)
    assert ended == Ended(8, (WeightSpan("default", 8, 0, 4),))


ROWS = (
    WeightUpdate(1, 1 * S, "ready", 7, "step-7"),
    WeightUpdate(2, 2 * S, "syncing", 8, None, {"lease_expires_us": 12 * S}),
)


def test_a_restart_takes_up_the_fence_as_it_was() -> None:
    fence = Fence()
    fence.restore(ROWS)
    assert fence.standing(3 * S).coming == 8
    assert fence.begin(A, 11 * S) is None
    assert fence.begin(A, 12 * S) is not None
    assert codes(fence.end(A, 13 * S)) == [UNKNOWN]
    again = Fence()
    again.restore((*ROWS, WeightUpdate(3, 3 * S, "ready", 8)))
    assert again.standing(20 * S).version == 8
    assert not again.take_expiry(20 * S)
    assert again.begin(A, 20 * S) is not None


def test_the_exchange_waits_and_then_asks_under_the_new_version() -> None:
    fence = at(7)
    fence.syncing(TIME, 8, 300 * S)
    exchange = make_exchange(fence=fence)
    assert kinds(exchange.handle(asked())) == ["AwaitFence"]
    assert fence.standing(TIME).in_flight == 0
    fence.ready(8)
    assert "Ask" in kinds(exchange.handle(ev.LetIn(TIME + 1)))
    call = only(exchange.handle(answered(completion())), ev.Commit).call
    assert (call.weight_version_start, call.weight_version_end) == (8, 8)


def test_the_fence_may_shut_again_before_a_waiting_call_gets_in() -> None:
    fence = at(7)
    fence.syncing(TIME, 8, 300 * S)
    exchange = make_exchange(fence=fence)
    exchange.handle(asked())
    assert kinds(exchange.handle(ev.LetIn(TIME + 1))) == ["AwaitFence"]


def test_a_call_that_waited_too_long_is_refused_and_may_be_tried_again() -> None:
    fence = at(7)
    fence.syncing(TIME, 8, 300 * S)
    exchange = make_exchange(fence=fence)
    exchange.handle(asked())
    refusal = WeightsSyncing("version 8 is being loaded", retry_after_s=4)
    call = only(exchange.handle(ev.ShutOut(TIME + 1, refusal)), ev.Commit).call
    assert (call.status, call.failure_kind) == (CallStatus.REFUSED, FailureKind.FENCED)
    head = only(exchange.handle(ev.Stored(TIME + 2)), ev.StartReply)
    assert head.status == 429
    assert ("retry-after", "4") in head.headers
    assert ("x-should-retry", "true") in head.headers


class Machine(RuleBasedStateMachine):
    """Whatever happens in whatever order: no call that overlaps a change is trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.fence = Fence()
        self.now = 1
        self.count = 0
        # What was true when each open call began; a change in between makes it untrue.
        self.open: dict[CallId, tuple[int | None, bool]] = {}
        self.version: int | None = None
        self.lease: int | None = None
        self.handed = False
        self.doubted = False

    def changed(self) -> None:
        """From here on no open call may be trusted."""
        self.open = {call: (version, False) for call, (version, _) in self.open.items()}

    def tick(self) -> None:
        """The lease, as a reader of the contract would write it."""
        if self.lease is not None and self.now >= self.lease:
            self.lease, self.handed, self.doubted = None, False, True
            self.changed()

    @rule(seconds=st.integers(0, 20))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * S

    @rule(version=st.integers(0, 3), lease=st.integers(1, 15))
    def syncing(self, version: int, lease: int) -> None:
        self.tick()
        self.fence.syncing(self.now, version, lease * S)
        self.lease = self.now + lease * S

    @rule()
    def hand_over(self) -> None:
        self.tick()
        self.fence.standing(self.now)
        self.fence.hand_over()
        if self.lease is not None:
            self.handed = True

    @rule(version=st.integers(0, 3))
    def ready(self, version: int) -> None:
        self.fence.ready(version)
        self.version, self.lease, self.handed, self.doubted = version, None, False, False
        self.changed()

    @rule()
    def begin(self) -> None:
        self.tick()
        call = CallId(f"c{self.count}")
        self.count += 1
        ticket = self.fence.begin(call, self.now)
        assert (ticket is None) == (self.lease is not None)
        if ticket is not None:
            expected = None if self.doubted else self.version
            assert ticket.version == expected
            self.open[call] = (expected, not self.doubted)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.tick()
        call = data.draw(st.sampled_from(sorted(self.open)))
        version, trusted = self.open.pop(call)
        ended = self.fence.end(call, self.now)
        if trusted and not self.handed:
            assert ended == Ended(version)
        else:
            assert ended.notes

    @invariant()
    def counted(self) -> None:
        assert self.fence.standing(self.now).in_flight == len(self.open)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMachine = Machine.TestCase
