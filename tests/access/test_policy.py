"""The one policy: every rule is reached, and what must hold whoever asks for whatever."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.access.people import Caller, How, Person, Role, Scope
from explorer.access.policy import (
    CLOSEDNESS,
    LEVEL_WORDS,
    NO_GRANT,
    RULES,
    Action,
    Decision,
    GrantFacts,
    Kind,
    Level,
    Rule,
    decide,
    most_closed,
    sees_all,
)
from tests.access.granting import ANA, OPERATOR, person

NOBODY = Caller(Role.ANONYMOUS, How.NOTHING)
CURATOR = person("cleo", role=Role.CURATOR)
LOOPBACK = Caller(Role.OPERATOR, How.LOOPBACK, may_change=False)
SEE = Rule(Action.SEE)
TAKE = Rule(Action.TAKE, kind=Kind.TRAINING_TRACE)
HELD = GrantFacts(grant_id="g1", sees=True)

callers = st.builds(
    lambda role, how, scopes, may_change: Caller(
        role,
        how if role is not Role.ANONYMOUS else How.NOTHING,
        person=Person("test:u-x", "x") if role is not Role.ANONYMOUS else None,
        scopes=scopes if how is How.API_TOKEN and role is not Role.ANONYMOUS else None,
        may_change=may_change,
    ),
    st.sampled_from(Role),
    st.sampled_from([How.SESSION, How.API_TOKEN, How.OPERATOR_TOKEN, How.LOOPBACK]),
    st.frozensets(st.sampled_from(Scope)),
    st.booleans(),
)
rules = st.builds(
    lambda action, changes, kind: Rule(
        action, changes, kind if action is Action.TAKE else None
    ),
    st.sampled_from(Action),
    st.booleans(),
    st.sampled_from(Kind),
)
levels = st.none() | st.sampled_from(Level)
facts = st.builds(
    GrantFacts, st.sampled_from(["", "g1"]), st.booleans(), st.sampled_from(["", "it ended"])
)


@pytest.mark.parametrize(
    ("caller", "rule", "level", "grants", "named"),
    [
        (NOBODY, Rule(Action.OPEN), None, NO_GRANT, "open"),
        (OPERATOR, TAKE, Level.PRIVATE, NO_GRANT, "role_operator"),
        (CURATOR, TAKE, Level.PRIVATE, NO_GRANT, "role_curator"),
        (ANA, Rule(Action.OWN, changes=True), None, NO_GRANT, "own_account"),
        (ANA, Rule(Action.ASK, changes=True), None, NO_GRANT, "may_ask"),
        (NOBODY, Rule(Action.LIST), None, NO_GRANT, "narrowed"),
        (NOBODY, SEE, Level.PUBLIC, NO_GRANT, "level_public"),
        (ANA, SEE, Level.SIGNED_IN, NO_GRANT, "level_signed_in"),
        (ANA, SEE, Level.GRANTED, GrantFacts(sees=True), "grant"),
        (ANA, TAKE, Level.PUBLIC, HELD, "grant"),
    ],
)
def test_what_allows(
    caller: Caller, rule: Rule, level: Level | None, grants: GrantFacts, named: str
) -> None:
    decision = decide(caller, rule, level, grants)
    assert (decision.allowed, decision.rule, decision.code) == (True, named, "")


@pytest.mark.parametrize(
    ("caller", "rule", "level", "grants", "named", "code"),
    [
        (
            LOOPBACK,
            Rule(Action.OPERATE, changes=True),
            None,
            NO_GRANT,
            "no_credentials",
            "admin_token_needed",
        ),
        (
            replace(ANA, how=How.API_TOKEN, scopes=frozenset({Scope.READ})),
            TAKE,
            Level.PUBLIC,
            HELD,
            "scope_missing",
            "scope_needed",
        ),
        (NOBODY, TAKE, Level.PUBLIC, NO_GRANT, "not_signed_in", "sign_in_needed"),
        (NOBODY, SEE, Level.SIGNED_IN, NO_GRANT, "not_signed_in", "sign_in_needed"),
        (NOBODY, Rule(Action.OWN), None, NO_GRANT, "not_signed_in", "sign_in_needed"),
        (NOBODY, Rule(Action.DECIDE), None, NO_GRANT, "not_signed_in", "sign_in_needed"),
        (ANA, Rule(Action.CURATE), None, NO_GRANT, "role_missing", "role_needed"),
        (CURATOR, Rule(Action.DECIDE), None, NO_GRANT, "role_missing", "role_needed"),
        (CURATOR, Rule(Action.OPERATE), None, NO_GRANT, "role_missing", "role_needed"),
        (ANA, SEE, Level.PRIVATE, HELD, "not_there", "not_found"),
        (OPERATOR, SEE, None, NO_GRANT, "not_there", "not_found"),
        (ANA, SEE, Level.GRANTED, NO_GRANT, "grant_missing", "grant_needed"),
        (ANA, TAKE, Level.PUBLIC, GrantFacts(sees=True), "grant_missing", "grant_needed"),
    ],
)
def test_what_refuses(
    caller: Caller, rule: Rule, level: Level | None, grants: GrantFacts, named: str, code: str
) -> None:
    decision = decide(caller, rule, level, grants)
    assert (decision.allowed, decision.rule, decision.code) == (False, named, code)
    assert len(decision.words) > 10


def test_every_rule_is_reached_and_documented() -> None:
    seen = set()
    scopes = [None, frozenset[Scope](), frozenset(Scope)]
    for caller, action, level, grants, scope, changes in product(
        (NOBODY, ANA, CURATOR, OPERATOR, LOOPBACK),
        Action,
        (None, *Level),
        (NO_GRANT, HELD),
        scopes,
        (False, True),
    ):
        kind = Kind.RAW if action is Action.TAKE else None
        asking = replace(caller, scopes=scope if caller.person is not None else None)
        seen.add(decide(asking, Rule(action, changes, kind), level, grants).rule)
    # The last one is said by the gate, of a route that nobody may use.
    assert seen == set(RULES) - {"no_rule"}
    assert set(LEVEL_WORDS) == set(CLOSEDNESS) == set(Level)


def test_a_refusal_says_what_became_of_the_grant() -> None:
    told = decide(ANA, TAKE, Level.PUBLIC, GrantFacts(why_not="your grant g1 has expired"))
    assert "your grant g1 has expired" in told.words
    assert "/grants/new" in told.words
    waits = decide(ANA, TAKE, Level.PUBLIC, GrantFacts(why_not="it waits", waiting="g2"))
    assert waits.waiting == "g2"
    assert "/grants/new" not in waits.words


@given(callers, rules, levels, facts)
def test_nothing_is_taken_without_a_grant_or_a_role(
    caller: Caller, rule: Rule, level: Level | None, grants: GrantFacts
) -> None:
    decision = decide(caller, rule, level, grants)
    if rule.action is Action.TAKE and decision.allowed and caller.role < Role.CURATOR:
        assert decision.grant_id == grants.grant_id != ""
        assert level is not Level.PRIVATE
    if level is Level.PRIVATE and rule.action in (Action.SEE, Action.TAKE):
        assert not decision.allowed or caller.role >= Role.CURATOR
    assert decision.rule in RULES
    assert bool(decision.code) is not decision.allowed


@given(callers, rules, levels, facts)
def test_private_and_absent_are_told_apart_by_nobody_below_a_curator(
    caller: Caller, rule: Rule, level: Level | None, grants: GrantFacts
) -> None:
    if rule.action in (Action.SEE, Action.TAKE) and caller.role < Role.CURATOR:
        private = decide(caller, rule, Level.PRIVATE, grants)
        assert private == decide(caller, rule, None, NO_GRANT)


@given(callers, rules, levels, facts, st.sampled_from(Role))
def test_a_higher_role_never_may_less(
    caller: Caller, rule: Rule, level: Level | None, grants: GrantFacts, role: Role
) -> None:
    if not decide(caller, rule, level, grants).allowed or role < caller.role:
        return
    higher = replace(caller, role=role)
    if caller.role is Role.ANONYMOUS:
        higher = replace(higher, how=How.SESSION, person=Person("test:u-x", "x"))
    assert decide(higher, rule, level, grants).allowed


@given(callers, rules, levels, facts, st.frozensets(st.sampled_from(Scope)))
def test_scopes_only_take_away(
    caller: Caller,
    rule: Rule,
    level: Level | None,
    grants: GrantFacts,
    scopes: frozenset[Scope],
) -> None:
    free = decide(replace(caller, scopes=None), rule, level, grants)
    narrow = decide(replace(caller, scopes=scopes), rule, level, grants)
    assert free.allowed or not narrow.allowed
    wider = decide(replace(caller, scopes=scopes | {Scope.READ}), rule, level, grants)
    assert wider.allowed or not narrow.allowed
    assert not sees_all(replace(caller, scopes=frozenset({Scope.DOWNLOAD})))


@given(st.lists(st.sampled_from(Level), min_size=1))
def test_the_most_closed_level_is_no_more_open_than_any(given_: list[Level]) -> None:
    closed = most_closed(given_)
    assert closed in given_
    for caller in (NOBODY, ANA):
        if decide(caller, SEE, closed).allowed:
            assert all(decide(caller, SEE, each).allowed for each in given_)


def test_decisions_are_values() -> None:
    assert decide(ANA, SEE, Level.PUBLIC) == Decision(
        True, "level_public", RULES["level_public"]
    )
