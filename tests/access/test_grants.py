"""Grants: whom and what they cover, how they end, and that a count is never exceeded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.access.grants import (
    DAY_US,
    SAME_USE_US,
    Grant,
    ObjectKind,
    Place,
    State,
    Step,
    SubjectKind,
    Terms,
    Use,
    facts,
)
from explorer.access.people import Caller
from explorer.access.policy import Kind
from explorer.errors import CapacityReached, GrantNeeded, InvalidValue, NotFound
from tests.access.granting import ANA, BEN, OPERATOR, START_US, Book, book, person, wanted

PLACE = Place("r1", "run-1", frozenset({"view-1"}))
TRACE = Kind.TRAINING_TRACE


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Book]:
    with book(tmp_path / "access.duckdb") as made:
        yield made


def facts_of(opened: Book, caller: Caller, place: Place = PLACE) -> tuple[str, bool]:
    found = facts(opened.grants.all, caller, place, TRACE, opened.clock())
    return found.grant_id, found.sees


# -- what may follow what


def test_a_request_waits_until_somebody_decides(opened: Book) -> None:
    asked = opened.grants.ask(ANA, wanted())
    assert asked.state(opened.clock()) is State.PENDING
    assert facts_of(opened, ANA) == ("", False)
    terms = Terms(opened.clock() + DAY_US, 2)
    opened.grants.decide(OPERATOR, asked.grant_id, State.APPROVED, "go on", terms)
    assert facts_of(opened, ANA) == (asked.grant_id, True)
    assert facts_of(opened, BEN) == ("", False)
    opened.grants.decide(OPERATOR, asked.grant_id, State.REVOKED, "over")
    assert facts_of(opened, ANA) == ("", False)
    assert opened.events() == ["grant_requested", "grant_approved", "grant_revoked"]


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ((), State.REVOKED),
        ((State.APPROVED,), State.APPROVED),
        ((State.APPROVED,), State.REJECTED),
        ((State.REJECTED,), State.APPROVED),
        ((State.REJECTED,), State.REVOKED),
        ((State.APPROVED, State.REVOKED), State.APPROVED),
        ((State.APPROVED, State.REVOKED), State.REVOKED),
    ],
)
def test_what_is_over_stays_over(opened: Book, before: tuple[State, ...], then: State) -> None:
    asked = opened.grants.ask(ANA, wanted())
    for state in before:
        opened.grants.decide(OPERATOR, asked.grant_id, state, "why")
    written = opened.events()
    with pytest.raises(InvalidValue, match="only one that is"):
        opened.grants.decide(OPERATOR, asked.grant_id, then, "why")
    assert opened.events() == written


def test_asking_twice_is_one_request_and_nobody_asks_without_end(opened: Book) -> None:
    first = opened.grants.ask(ANA, wanted(purpose="please"))
    assert opened.grants.ask(ANA, wanted(purpose="pretty please")).grant_id == first.grant_id
    for n in range(19):
        opened.grants.ask(ANA, wanted("test:u-ana", f"r{n + 2}"))
    with pytest.raises(CapacityReached):
        opened.grants.ask(ANA, wanted("test:u-ana", "r99"))
    opened.grants.ask(BEN, wanted("test:u-ben"))


def test_grants_are_the_same_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    with book(path) as first:
        asked = first.grants.ask(ANA, wanted(purpose="漢字 \x00 🦊"))
        terms = Terms(first.clock() + DAY_US, 3)
        first.grants.decide(OPERATOR, asked.grant_id, State.APPROVED, "go on", terms)
        first.grants.spend(ANA, asked.grant_id, "r1", TRACE)
        first.grants.give(OPERATOR, wanted("test:u-ben", "r2"), Terms())
        before = first.grants.all
    with book(path) as second:
        assert second.grants.all == before


# -- how they end


def test_a_grant_ends_at_its_time_and_not_before(opened: Book) -> None:
    end = START_US + DAY_US
    given_ = opened.grants.give(OPERATOR, wanted(), Terms(end, None))
    opened.clock.now = end - 1
    assert opened.grants.stands(given_.grant_id) == ""
    assert facts_of(opened, ANA) == (given_.grant_id, True)
    opened.clock.now = end
    assert opened.grants.stands(given_.grant_id) == "the grant is expired"
    assert facts_of(opened, ANA) == ("", False)
    with pytest.raises(GrantNeeded, match="expired"):
        opened.grants.spend(ANA, given_.grant_id, "r1", TRACE)


def test_resuming_within_the_hour_is_the_same_use(opened: Book) -> None:
    given_ = opened.grants.give(OPERATOR, wanted("test:u-ana", "r1", "r2"), Terms(None, 1))
    first = opened.grants.spend(ANA, given_.grant_id, "r1", TRACE)
    opened.clock.now += SAME_USE_US - 1
    assert opened.grants.spend(ANA, given_.grant_id, "r1", TRACE) == first
    assert facts_of(opened, ANA) == (given_.grant_id, True)
    # Another document is another use, and there is none left.
    assert facts_of(opened, ANA, Place("r2", "run-1")) == ("", True)
    with pytest.raises(GrantNeeded, match="spent"):
        opened.grants.spend(ANA, given_.grant_id, "r2", TRACE)
    opened.clock.now += 1
    with pytest.raises(GrantNeeded, match="spent"):
        opened.grants.spend(ANA, given_.grant_id, "r1", TRACE)
    # Nor does a use outlive the grant.
    assert opened.grants.get(given_.grant_id).uses == (first,)


def test_a_use_of_a_revoked_grant_is_not_resumed(opened: Book) -> None:
    given_ = opened.grants.give(OPERATOR, wanted(), Terms(None, 5))
    opened.grants.spend(ANA, given_.grant_id, "r1", TRACE)
    opened.grants.decide(OPERATOR, given_.grant_id, State.REVOKED, "over")
    with pytest.raises(GrantNeeded, match="revoked"):
        opened.grants.spend(ANA, given_.grant_id, "r1", TRACE)


def test_sixteen_threads_get_one_use_out_of_one(opened: Book) -> None:
    people = [person(f"p{n}", "lab") for n in range(16)]
    lab = wanted("test:org:lab", kind=SubjectKind.ORGANISATION)
    given_ = opened.grants.give(OPERATOR, lab, Terms(None, 1))
    gate = threading.Barrier(16)

    def spend(caller: Caller) -> Use | None:
        gate.wait()
        try:
            return opened.grants.spend(caller, given_.grant_id, "r1", TRACE)
        except GrantNeeded:
            return None

    with ThreadPoolExecutor(16) as pool:
        uses = [use for use in pool.map(spend, people) if use is not None]
    assert len(uses) == 1
    assert opened.grants.get(given_.grant_id).uses == tuple(uses)
    with ThreadPoolExecutor(16) as pool:
        winner = next(each for each in people if each.subject == uses[0].subject)
        again = set(pool.map(spend, [winner] * 16))
    # The same person and document: the same use, sixteen times over.
    assert again == set(uses)


@given(max_uses=st.integers(1, 4), taken=st.lists(st.integers(0, 5), max_size=12))
def test_a_count_is_never_exceeded(max_uses: int, taken: list[int]) -> None:
    """As the book counts, over the record alone."""
    objects = tuple(f"r{n}" for n in range(6))
    step = Step(State.APPROVED, "operator", "", START_US, Terms(None, max_uses))
    grant = Grant("g1", START_US, wanted("test:u-ana", *objects), "operator", (step,))
    uses: list[Use] = []
    for n, index in enumerate(taken):
        now = START_US + n
        current = Grant("g1", START_US, grant.wanted, "operator", (step,), tuple(uses))
        found = facts([current], ANA, Place(objects[index], ""), TRACE, now)
        if found.grant_id and current.same_use(ANA.subject, objects[index], TRACE, now) is None:
            uses.append(Use(f"u{n}", ANA.subject, objects[index], TRACE, now))
    assert len(uses) == min(max_uses, len(set(taken)))
    assert len({use.rollout_id for use in uses}) == len(uses)


# -- whom and what they cover


@pytest.mark.parametrize(
    ("kind", "subject", "names"),
    [
        (SubjectKind.PERSON, "test:u-ana", True),
        (SubjectKind.PERSON, "other:u-ana", False),
        (SubjectKind.PERSON, "test:u-ben", False),
        (SubjectKind.PERSON, "ana", False),
        (SubjectKind.ORGANISATION, "test:org:lab", True),
        # An organisation of another provider that is called the same.
        (SubjectKind.ORGANISATION, "other:org:lab", False),
        (SubjectKind.ORGANISATION, "test:org:bank", False),
        (SubjectKind.HUB_GATE, "ns/data", False),
    ],
)
def test_whom_a_grant_names(opened: Book, kind: SubjectKind, subject: str, names: bool) -> None:
    grant = opened.grants.give(OPERATOR, wanted(subject, kind=kind), Terms())
    assert grant.names(ANA) is names
    assert not grant.names(Caller(OPERATOR.role, OPERATOR.how))


def test_a_gate_of_the_hub_counts_when_it_was_passed_just_now(opened: Book) -> None:
    opened.grants.give(OPERATOR, wanted("ns/data", kind=SubjectKind.HUB_GATE), Terms())
    for gates, allowed in (((), False), (("ns/other",), False), (("ns/data",), True)):
        found = facts(opened.grants.all, ANA, PLACE, TRACE, opened.clock(), gates)
        assert bool(found.grant_id) is allowed


@pytest.mark.parametrize(
    ("object_kind", "name", "covered"),
    [
        (ObjectKind.ROLLOUTS, "r1", True),
        (ObjectKind.ROLLOUTS, "run-1", False),
        (ObjectKind.RUN, "run-1", True),
        (ObjectKind.RUN, "r1", False),
        (ObjectKind.VIEW, "view-1", True),
        (ObjectKind.VIEW, "run-1", False),
        (ObjectKind.DATASET, "r1", False),
    ],
)
def test_what_a_grant_covers(
    opened: Book, object_kind: ObjectKind, name: str, covered: bool
) -> None:
    grant = opened.grants.give(
        OPERATOR, wanted("test:u-ana", name, object_kind=object_kind), Terms()
    )
    assert grant.covers(PLACE.rollout_id, PLACE.run, PLACE.views) is covered
    assert facts_of(opened, ANA)[1] is covered


def test_a_grant_in_use_is_used_on_before_another_is_begun(opened: Book) -> None:
    once = opened.grants.give(OPERATOR, wanted(), Terms(START_US + DAY_US, 1))
    assert facts_of(opened, ANA)[0] == once.grant_id
    opened.grants.spend(ANA, once.grant_id, "r1", TRACE)
    later = opened.grants.give(OPERATOR, wanted(), Terms(START_US + 9 * DAY_US, 5))
    assert facts_of(opened, ANA)[0] == once.grant_id
    opened.clock.now += SAME_USE_US
    assert facts_of(opened, ANA)[0] == later.grant_id
    # One without a count keeps the counted ones whole.
    free = opened.grants.give(OPERATOR, wanted(), Terms(START_US + DAY_US, None))
    assert facts_of(opened, ANA)[0] == free.grant_id


def test_what_waits_is_told_before_what_is_over(opened: Book) -> None:
    rejected = opened.grants.ask(ANA, wanted())
    opened.grants.decide(OPERATOR, rejected.grant_id, State.REJECTED, "no")
    told = facts(opened.grants.all, ANA, PLACE, TRACE, opened.clock())
    assert told.why_not == f"your request {rejected.grant_id} was rejected: no"
    assert told.waiting == ""
    waits = opened.grants.ask(ANA, wanted())
    told = facts(opened.grants.all, ANA, PLACE, TRACE, opened.clock())
    assert told.waiting == waits.grant_id
    # Of another kind of document nothing waits.
    told = facts(opened.grants.all, ANA, PLACE, Kind.RAW, opened.clock())
    assert (told.waiting, told.why_not) == ("", "")


def test_an_unknown_grant_is_not_there(opened: Book) -> None:
    with pytest.raises(NotFound):
        opened.grants.get("g" + "0" * 16)
    assert opened.grants.stands("g0") == "the grant is gone"


def test_a_demo_that_begins_anew_forgets_what_waits_and_nothing_else(opened: Book) -> None:
    opened.grants.ask(ANA, wanted())
    given_ = opened.grants.give(OPERATOR, wanted(), Terms())
    assert opened.grants.forget_pending() == 1
    assert [grant.grant_id for grant in opened.grants.all] == [given_.grant_id]
