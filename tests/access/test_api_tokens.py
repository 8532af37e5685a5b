"""API tokens: shown once, hashed, scoped, expiring, taken back at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from explorer.access.api_tokens import (
    DAY_US,
    MEMBERSHIPS_LAST_US,
    MINUTE_US,
    MOST_OF_A_PERSON,
    ApiTokens,
)
from explorer.access.audit import AuditLog
from explorer.access.database import AccessDatabase
from explorer.access.people import Caller, How, Membership, Person, Role, Scope
from explorer.access.tables import API_TOKEN
from explorer.errors import InvalidValue, NotFound

NOW = 1_800_000_000_000_000 // MINUTE_US * MINUTE_US


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[AccessDatabase]:
    made = AccessDatabase(tmp_path / "a.duckdb")
    yield made
    made.close()


@pytest.fixture
def tokens(database: AccessDatabase, clock: Clock) -> ApiTokens:
    return ApiTokens(database, AuditLog(database), 90, clock)


def person(name: str = "ana", role: Role = Role.VIEWER) -> Caller:
    who = Person(f"test:u-{name}", name, (Membership("o-1", "lab"),))
    return Caller(role, How.SESSION, person=who)


READ = (Scope.READ,)


def test_the_file_holds_no_token(tokens: ApiTokens, database: AccessDatabase) -> None:
    secret, token = tokens.make(person(), "nightly", READ, 30)
    assert secret.startswith("rxt_")
    assert len(secret) == 47
    assert tokens.find(secret) == token
    rows = database.read(lambda rows: rows.select(API_TOKEN))
    assert secret not in str(rows)
    assert secret[4:] not in str(rows)
    assert tokens.find("rxt_" + token.token_hash) is None
    assert token.token_hash not in repr(token)
    log = str(AuditLog(database).page({}, None, 10))
    assert token.token_id in log
    assert secret not in log


def test_it_works_after_a_restart_until_it_ends(
    tokens: ApiTokens, database: AccessDatabase, clock: Clock
) -> None:
    secret, token = tokens.make(person(), "nightly", (Scope.READ, Scope.DOWNLOAD), 2)
    again = ApiTokens(database, AuditLog(database), 90, clock)
    assert again.find(secret) == token
    clock.now += 2 * DAY_US - 1
    assert again.find(secret) is not None
    clock.now += 1
    assert again.find(secret) is None
    assert again.of("test:u-ana") == []
    assert ApiTokens(database, AuditLog(database), 90, clock).find(secret) is None


def test_only_its_owner_or_an_operator_takes_it_back(
    tokens: ApiTokens, database: AccessDatabase, clock: Clock
) -> None:
    secret, token = tokens.make(person(), "nightly", READ, 30)
    for other in (person("ben"), person("cleo", Role.CURATOR)):
        with pytest.raises(NotFound):
            tokens.revoke(token.token_id, other)
    assert tokens.find(secret) is not None
    tokens.revoke(token.token_id, person("dora", Role.OPERATOR))
    assert tokens.find(secret) is None
    assert ApiTokens(database, AuditLog(database), 90, clock).find(secret) is None
    with pytest.raises(NotFound):
        tokens.revoke(token.token_id, person())


def test_a_use_does_not_bring_a_token_back(tokens: ApiTokens, clock: Clock) -> None:
    secret, token = tokens.make(person(), "nightly", READ, 30)
    tokens.revoke(token.token_id, person())
    clock.now += MINUTE_US
    assert tokens.touched(token)
    tokens.keep_use(token)
    tokens.tell_memberships(Person("test:u-ana", "ana"))
    assert tokens.find(secret) is None


def test_the_newest_use_is_kept_to_the_minute(
    tokens: ApiTokens, database: AccessDatabase, clock: Clock
) -> None:
    _, token = tokens.make(person(), "nightly", READ, 30)
    assert tokens.of("test:u-ana")[0].used_us is None
    clock.now += 61_000_000
    assert tokens.touched(token)
    tokens.keep_use(token)
    clock.now += 1_000_000
    assert not tokens.touched(token)
    again = ApiTokens(database, AuditLog(database), 90, clock)
    for each in (tokens, again):
        assert each.of("test:u-ana")[0].used_us == NOW + MINUTE_US
    assert not again.touched(token)


@pytest.mark.parametrize(
    ("label", "scopes", "days", "path"),
    [
        ("", READ, 1.0, "$.label"),
        ("\n\u202e ", READ, 1.0, "$.label"),
        ("x" * 81, READ, 1.0, "$.label"),
        ("x", (), 1.0, "$.scopes"),
        ("x", (Scope.CURATE,), 1.0, "$.scopes"),
        ("x", (Scope.READ, Scope.OPERATE), 1.0, "$.scopes"),
        ("x", READ, 0.0, "$.days"),
        ("x", READ, -1.0, "$.days"),
        ("x", READ, 90.1, "$.days"),
        ("x", READ, float("nan"), "$.days"),
        ("x", READ, float("inf"), "$.days"),
    ],
)
def test_what_cannot_be(
    tokens: ApiTokens, label: str, scopes: tuple[Scope, ...], days: float, path: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        tokens.make(person(), label, scopes, days)
    assert caught.value.details == {"path": path}
    assert tokens.of("test:u-ana") == []


def test_a_token_makes_no_wider_one(tokens: ApiTokens) -> None:
    narrow = Caller(Role.OPERATOR, How.API_TOKEN, scopes=frozenset({Scope.READ}))
    with pytest.raises(InvalidValue):
        tokens.make(narrow, "more", (Scope.OPERATE,), 1)


def test_one_person_has_only_so_many(tokens: ApiTokens) -> None:
    for number in range(MOST_OF_A_PERSON):
        tokens.make(person(), f"number {number}", READ, 1)
    with pytest.raises(InvalidValue, match="50 tokens"):
        tokens.make(person(), "one more", READ, 1)
    tokens.make(person("ben"), "his first", READ, 1)


def test_memberships_are_those_of_the_newest_sign_in_and_last_a_week(
    tokens: ApiTokens, clock: Clock
) -> None:
    secret, token = tokens.make(person(), "nightly", READ, 30)
    assert token.person(clock.now) == person().person
    clock.now += DAY_US
    left = Person("test:u-ana", "ana", (Membership("o-2", "club"),))
    tokens.tell_memberships(left)
    found = tokens.find(secret)
    assert found is not None
    assert found.person(clock.now) == left
    clock.now += MEMBERSHIPS_LAST_US + 1
    known = found.person(clock.now)
    assert known is not None
    assert known.memberships == ()


def test_a_token_of_the_operator_acts_for_nobody_in_particular(tokens: ApiTokens) -> None:
    operator = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)
    _, token = tokens.make(operator, "backup", (Scope.OPERATE,), 1)
    assert token.person(NOW) is None
    assert [each.token_id for each in tokens.of("operator")] == [token.token_id]
