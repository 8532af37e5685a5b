"""Sessions: a random reference of which the file keeps the hash, and their ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.cookies import (
    SESSION_COOKIE,
    drop_cookie,
    set_cookie,
    takes_secure_cookies,
    values_of,
)
from explorer.access.database import AccessDatabase
from explorer.access.oidc import ProviderToken, SignedIn
from explorer.access.people import NOBODY, Membership, Person
from explorer.access.sessions import HOUR_US, MOST_OF_A_PERSON, Session, Sessions
from explorer.access.tables import PERSON, SESSION

NOW = 1_800_000_000_000_000
ENTRY = Entry(Event.SIGNED_IN, "x:y")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        self.now += 1
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
def sessions(database: AccessDatabase, clock: Clock) -> Sessions:
    return Sessions(database, AuditLog(database), 12, clock)


def signed(name: str = "ana", token: str = "") -> SignedIn:
    person = Person(f"test:u-{name}", name, (Membership("o-1", "lab", "admin"),))
    kept = ProviderToken(token, frozenset({"openid"}), NOW + HOUR_US) if token else None
    return SignedIn(person, ("bank",), kept)


def test_the_file_holds_no_reference(sessions: Sessions, database: AccessDatabase) -> None:
    value, session = sessions.start(signed(token="at-1"), ENTRY)
    assert sessions.find(value) == session
    assert len(value) == 43
    rows = database.read(lambda rows: rows.select(SESSION))
    assert len(rows) == 1
    assert value not in str(rows)
    assert "at-1" not in str(rows)
    # The hash is no reference: it does not open what it names.
    assert sessions.find(session.session_hash) is None
    assert value not in repr(session)


def test_auth_09_a_reference_is_new_at_each_sign_in(sessions: Sessions) -> None:
    first, before = sessions.start(signed(), ENTRY)
    second, after = sessions.start(signed(), ENTRY, old=before.session_hash)
    assert first != second
    assert sessions.find(first) is None
    assert sessions.find(second) == after
    assert sessions.find("A" * 43) is None


def test_an_ended_session_is_dead_also_after_a_restart(
    sessions: Sessions, database: AccessDatabase, clock: Clock
) -> None:
    gone, ended = sessions.start(signed(), ENTRY)
    kept, session = sessions.start(signed(), ENTRY)
    assert sessions.end(ended.session_hash, Entry(Event.SIGNED_OUT, "test:u-ana"))
    assert not sessions.end(ended.session_hash, Entry(Event.SIGNED_OUT, "test:u-ana"))
    again = Sessions(database, AuditLog(database), 12, clock)
    for each in (sessions, again):
        assert each.find(gone) is None
        assert each.find(kept) == session
    assert again.find(kept).restricted == ("bank",)  # type: ignore[union-attr]


def test_it_ends_by_itself(sessions: Sessions, clock: Clock, database: AccessDatabase) -> None:
    value, session = sessions.start(signed(token="at-1"), ENTRY)
    clock.now = session.expires_us - 2
    assert sessions.find(value) is not None
    clock.now = session.expires_us
    assert sessions.find(value) is None
    assert sessions.of("test:u-ana") == []
    assert sessions.provider_token(session.session_hash) is None
    assert Sessions(database, AuditLog(database), 12, clock).find(value) is None


def test_the_oldest_gives_way(sessions: Sessions) -> None:
    made = [sessions.start(signed(), ENTRY)[0] for _ in range(MOST_OF_A_PERSON + 2)]
    other, _ = sessions.start(signed("ben"), ENTRY)
    assert [sessions.find(value) is not None for value in made].count(True) == MOST_OF_A_PERSON
    assert sessions.find(made[0]) is None
    assert sessions.find(made[1]) is None
    assert sessions.find(other) is not None


def test_the_providers_token_lasts_as_long_as_it_says_and_is_in_memory_only(
    sessions: Sessions, database: AccessDatabase, clock: Clock
) -> None:
    _, session = sessions.start(signed(token="at-1"), ENTRY)
    token = sessions.provider_token(session.session_hash)
    assert token is not None
    assert token.access_token == "at-1"
    again = Sessions(database, AuditLog(database), 12, clock)
    assert again.provider_token(session.session_hash) is None
    clock.now = NOW + HOUR_US
    assert sessions.provider_token(session.session_hash) is None


def test_the_operators_session_does_not_outlive_the_server(
    sessions: Sessions, database: AccessDatabase, clock: Clock
) -> None:
    value, session = sessions.start(None, ENTRY)
    assert session.subject == "operator"
    assert sessions.find(value) == session
    assert database.read(lambda rows: rows.select(SESSION)) == []
    assert Sessions(database, AuditLog(database), 12, clock).find(value) is None


def test_everybody_who_signed_in_is_known(sessions: Sessions, database: AccessDatabase) -> None:
    sessions.start(signed(), ENTRY)
    renamed = replace(signed(), person=Person("test:u-ana", "anastasia"))
    sessions.start(renamed, ENTRY)
    (row,) = database.read(lambda rows: rows.select(PERSON))
    assert row["name"] == "anastasia"
    assert row["provider"] == "test"
    assert row["first_time"] < row["last_time"]


def test_a_sign_in_that_cannot_be_written_down_opens_nothing(
    sessions: Sessions, database: AccessDatabase
) -> None:
    broken = Entry(Event.SIGNED_IN, "x:y", detail={"a": object()})
    with pytest.raises(TypeError):
        sessions.start(signed(), broken)
    assert sessions.of("test:u-ana") == []
    assert database.read(lambda rows: rows.select(SESSION)) == []


def test_all_of_one_person_end_together(sessions: Sessions) -> None:
    mine = [sessions.start(signed(), ENTRY)[0] for _ in range(3)]
    other, _ = sessions.start(signed("ben"), ENTRY)
    assert sessions.end_all("test:u-ana") == 3
    assert [sessions.find(each) for each in mine] == [None] * 3
    assert isinstance(sessions.find(other), Session)
    assert NOBODY.session_hash == ""
    assert sessions.get("") is None


@pytest.mark.parametrize("framed", [False, True])
def test_auth_04_cookies_in_and_outside_of_a_frame(framed: bool) -> None:
    line = set_cookie(SESSION_COOKIE, "v" * 43, max_age_s=60, framed=framed)
    parts = set(line.split("; "))
    assert {"Path=/", "Max-Age=60", "HttpOnly", "Secure"} < parts
    assert not any(part.lower().startswith("domain") for part in parts)
    assert ("Partitioned" in parts, "SameSite=None" in parts) == (framed, framed)
    assert ("SameSite=Lax" in parts) is not framed
    assert "Max-Age=0" in drop_cookie(SESSION_COOKIE, framed=framed)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("__Host-rx-session=" + "a" * 43, ["a" * 43]),
        ("x=1; __Host-rx-session=" + "a" * 43 + "; y=2", ["a" * 43]),
        # Of a partition, and of the top level.
        (f"__Host-rx-session={'a' * 43}; __Host-rx-session={'b' * 43}", ["a" * 43, "b" * 43]),
        ("__host-rx-session=" + "a" * 43, []),
        ("rx-session=" + "a" * 43, []),
        ("x__Host-rx-session=" + "a" * 43, []),
        ("=__Host-rx-session=" + "a" * 43, []),
        ("__Host-rx-session=short", []),
        ("__Host-rx-session=" + "é" * 43, []),
        ("__Host-rx-session", []),
        ("", []),
    ],
)
def test_auth_10_only_the_exact_name_counts(header: str, found: list[str]) -> None:
    assert values_of(header, SESSION_COOKIE) == found


def test_where_browsers_keep_secure_cookies() -> None:
    kept = ("https://a.example", "http://127.0.0.1:80", "http://localhost:7", "http://[::1]:7")
    assert all(takes_secure_cookies(each) for each in kept)
    assert not takes_secure_cookies("http://192.168.1.2:7860")
    assert not takes_secure_cookies("http://localhost.evil.example")
