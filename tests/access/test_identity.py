"""Who a request is taken for: what counts, in which order, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer.access.api_tokens import ApiToken
from explorer.access.cookies import SESSION_COOKIE
from explorer.access.identity import MOST_WRONG, Identity
from explorer.access.oidc import SignedIn
from explorer.access.people import NOBODY, Caller, How, Membership, Person, Role, Scope
from explorer.errors import CapacityReached, ConfigurationError, CredentialsRefused
from explorer.settings import load
from tests.access.making import TOKEN, Parts, parts

CORP = {"name": "test", "issuer": "https://login.example", "client_id": "c"}
ANA = Person("test:u-ana", "ana", (Membership("o-lab", "lab"),))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Parts]:
    with parts(
        tmp_path / "a.duckdb",
        providers=(CORP,),
        operators=("test:u-op",),
        curators=("test:org:o-lab", "test:u-cur"),
    ) as built:
        yield built


def scope(*headers: tuple[str, str], client: str = "203.0.113.5") -> dict[str, Any]:
    listed = [(name.encode(), value.encode()) for name, value in headers]
    return {"type": "http", "headers": listed, "client": (client, 1234), "path": "/"}


def bearer(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


def basic(token: str) -> tuple[str, str]:
    return ("authorization", "Basic " + base64.b64encode(f"me:{token}".encode()).decode())


def caller(made: Parts, *headers: tuple[str, str], client: str = "203.0.113.5") -> Caller:
    return asyncio.run(made.sign_in.identity.caller(scope(*headers, client=client)))


def signed_in(made: Parts, person: Person = ANA) -> tuple[str, str]:
    value, _ = made.sign_in.open_session(SignedIn(person, (), None), NOBODY)
    return ("cookie", f"theme=dark; {SESSION_COOKIE}={value}")


def token_of(made: Parts, person: Person, *scopes: Scope) -> tuple[str, ApiToken]:
    role = made.sign_in.roles.of(person)
    owner = Caller(role, How.SESSION, person=person)
    return made.sign_in.tokens.make(owner, "a program", scopes or (Scope.READ,), 1)


def test_nothing_shown_is_nobody(made: Parts) -> None:
    found = caller(made)
    assert (found.role, found.how, found.address) == (
        Role.ANONYMOUS,
        How.NOTHING,
        "203.0.113.5",
    )
    for odd in ("Basic ???", "Bearer ", "Digest x", "x", "Basic " + "=" * 9):
        assert caller(made, ("authorization", odd)).role is Role.ANONYMOUS


def test_a_session_is_its_person(made: Parts) -> None:
    cookie = signed_in(made)
    found = caller(made, cookie)
    assert found.person == ANA
    assert found.how is How.SESSION
    assert found.may_change
    assert found.scopes is None
    assert made.sign_in.sessions.get(found.session_hash) is not None
    assert caller(made, (cookie[0], cookie[1][:-1] + "-")).role is Role.ANONYMOUS


@pytest.mark.parametrize(
    ("person", "role"),
    [
        (ANA, Role.CURATOR),
        (Person("test:u-cur", "c"), Role.CURATOR),
        (Person("test:u-op", "o"), Role.OPERATOR),
        (Person("test:u-ben", "b"), Role.VIEWER),
        # Names are no authority, and another provider's people are others.
        (Person("test:u-x", "test:u-op"), Role.VIEWER),
        (Person("other:u-op", "o"), Role.VIEWER),
        (Person("other:u-y", "y", (Membership("o-lab", "lab"),)), Role.VIEWER),
        (Person("test:u-z", "z", (Membership("o-other", "lab"),)), Role.VIEWER),
    ],
)
def test_roles_of_the_settings(made: Parts, person: Person, role: Role) -> None:
    assert caller(made, signed_in(made, person)).role is role


def test_a_role_counts_at_the_next_request_and_ends_the_sessions(made: Parts) -> None:
    ben = Person("test:u-ben", "ben")
    secret, _ = token_of(made, ben)
    cookie = signed_in(made, ben)
    operator = caller(made, bearer(TOKEN))
    roles = made.sign_in.roles
    roles.change("test:u-ben", Role.CURATOR, True, operator, "labels")
    # The cookie from before the change is dead; a new one has the role, as has the token.
    assert caller(made, cookie).role is Role.ANONYMOUS
    cookie = signed_in(made, ben)
    assert caller(made, cookie).role is Role.CURATOR
    assert caller(made, bearer(secret)).role is Role.CURATOR
    roles.change("test:u-ben", Role.CURATOR, False, operator, "done")
    assert caller(made, cookie).role is Role.ANONYMOUS
    assert caller(made, bearer(secret)).role is Role.VIEWER
    assert [row["object"] for row in made.events("role_given")] == ["test:u-ben"]
    assert roles.given() == []


def test_the_operators_token_as_bearer_and_as_password(made: Parts) -> None:
    for header in (bearer(TOKEN), basic(TOKEN)):
        found = caller(made, header)
        assert (found.role, found.how) == (Role.OPERATOR, How.OPERATOR_TOKEN)


def test_an_api_token_is_its_owner_narrowed(made: Parts) -> None:
    secret, token = token_of(made, ANA, Scope.READ, Scope.DOWNLOAD)
    found = caller(made, bearer(secret))
    assert found.person == ANA
    assert found.how is How.API_TOKEN
    assert found.role is Role.CURATOR
    assert found.scopes == frozenset((Scope.READ, Scope.DOWNLOAD))
    assert made.sign_in.tokens.of(ANA.subject)[0].used_us is not None
    made.sign_in.tokens.revoke(token.token_id, found)
    with pytest.raises(CredentialsRefused):
        caller(made, bearer(secret))


def test_a_wrong_token_is_refused_and_never_overlooked(made: Parts) -> None:
    cookie = signed_in(made)
    for wrong in ("nonsense", "rxt_" + "x" * 43, "rxa_" + "x" * 43, "wröng"):
        with pytest.raises(CredentialsRefused) as caught:
            caller(made, bearer(wrong), cookie)
        assert wrong not in caught.value.message
    rows = made.events("refused")
    assert {row["object"] for row in rows} == {"operator_token", "api_token"}
    assert not any(wrong in str(rows) for wrong in ("nonsense", "x" * 43))


def test_a_browser_that_sends_basic_by_itself_is_still_who_signed_in(made: Parts) -> None:
    cookie = signed_in(made)
    assert caller(made, basic(TOKEN), cookie).person == ANA
    assert caller(made, bearer(TOKEN), cookie).how is How.OPERATOR_TOKEN


def test_a_capture_key_says_nothing_about_who_asks(made: Parts) -> None:
    assert caller(made, bearer("rxk_" + "x" * 43)).role is Role.ANONYMOUS
    assert made.events("refused") == []


def test_wrong_tokens_of_one_address_are_only_so_many(made: Parts) -> None:
    for _ in range(MOST_WRONG):
        with pytest.raises(CredentialsRefused):
            caller(made, bearer("wrong"))
    with pytest.raises(CapacityReached):
        caller(made, bearer(TOKEN))
    assert caller(made, bearer(TOKEN), client="203.0.113.6").role is Role.OPERATOR
    # Others behind the same address go on, by sessions and tokens of their own.
    assert caller(made, signed_in(made)).person == ANA
    secret, _ = token_of(made, ANA)
    assert caller(made, bearer(secret)).person == ANA
    assert len(made.events("refused")) == MOST_WRONG
    tries = made.sign_in.identity.tries
    tries._clock = lambda: time.monotonic() + 61
    assert caller(made, bearer(TOKEN)).role is Role.OPERATOR


def test_wrong_api_tokens_do_not_lock_the_operator_out(made: Parts) -> None:
    for _ in range(MOST_WRONG + 3):
        with pytest.raises(CredentialsRefused):
            caller(made, bearer("rxt_" + "x" * 43))
    assert caller(made, bearer(TOKEN)).role is Role.OPERATOR
    assert len(made.events("refused")) == MOST_WRONG


LOCAL = {"host": "127.0.0.1:7860"}


def on_this_machine(made: Parts) -> Identity:
    sign_in = made.sign_in
    operator = replace(sign_in.identity.operator, trust_loopback=True)
    return Identity(operator, sign_in.sessions, sign_in.tokens, sign_in.roles, made.audit)


@pytest.mark.parametrize(
    ("headers", "client", "role", "may_change"),
    [
        ((("host", "127.0.0.1:7860"),), "127.0.0.1", Role.OPERATOR, False),
        (
            (("host", "localhost:7860"), ("sec-fetch-site", "same-origin")),
            "127.0.0.1",
            Role.OPERATOR,
            True,
        ),
        ((("host", "127.0.0.1"),), "203.0.113.5", Role.ANONYMOUS, True),
        ((("host", "evil.example"),), "127.0.0.1", Role.ANONYMOUS, True),
        (
            (("host", "127.0.0.1"), ("x-forwarded-for", "1.2.3.4")),
            "127.0.0.1",
            Role.ANONYMOUS,
            True,
        ),
    ],
)
def test_this_machine(
    made: Parts,
    headers: tuple[tuple[str, str], ...],
    client: str,
    role: Role,
    may_change: bool,
) -> None:
    found = asyncio.run(on_this_machine(made).caller(scope(*headers, client=client)))
    assert (found.role, found.may_change) == (role, may_change)
    if role is Role.OPERATOR:
        assert found.how is How.LOOPBACK


def test_whoever_signs_in_on_this_machine_is_that_person(made: Parts) -> None:
    ben = Person("test:u-ben", "ben")
    asked = scope(("host", "127.0.0.1"), signed_in(made, ben), client="127.0.0.1")
    assert asyncio.run(on_this_machine(made).caller(asked)).person == ben


def test_an_open_server_lets_anybody_do_anything(made: Parts) -> None:
    identity = on_this_machine(made)
    identity.operator = replace(identity.operator, trust_loopback=False, open_to_all=True)
    found = asyncio.run(identity.caller(scope()))
    assert (found.role, found.how, found.may_change) == (Role.OPERATOR, How.NOTHING, True)


def test_asking_costs_microseconds(made: Parts) -> None:
    identity = made.sign_in.identity
    plain = scope(("host", "here.example"), ("accept", "*/*"), ("user-agent", "x"))
    cookie = scope(("host", "here.example"), signed_in(made))

    async def best(asked: dict[str, Any]) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(1000):
                await identity.caller(asked)
            times.append((time.perf_counter() - began) / 1000)
        return min(times)

    assert asyncio.run(best(plain)) < 50e-6
    assert asyncio.run(best(cookie)) < 100e-6


@pytest.mark.parametrize(
    "given",
    [
        {"operators": "nobody"},
        {"operators": "other:u-1"},
        {"curators": "test:"},
        {"providers": ({**CORP, "name": "Operator"},)},
        {"providers": ({**CORP, "name": "operator"},)},
        {"providers": (CORP, CORP)},
        {"providers": ({**CORP, "issuer": "http://login.example"},)},
        {"providers": ({**CORP, "issuer": "login.example"},)},
        {"providers": ({**CORP, "client_id": ""},)},
        {"providers": ({**CORP, "scopes": "profile"},)},
        {"providers": ({**CORP, "secret": "x"},)},
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        load(**({"providers": (CORP,)} | given))


def test_a_spaces_variables_count_in_a_space_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OAUTH_CLIENT_ID": "space-client",
        "OAUTH_CLIENT_SECRET": "space-secret",
        "OAUTH_SCOPES": "openid profile read-memberships",
        "OPENID_PROVIDER_URL": "https://huggingface.co",
    }.items():
        monkeypatch.setenv(name, value)
    assert load().providers == ()
    monkeypatch.setenv("SPACE_ID", "ana/explorer")
    monkeypatch.setenv("SPACE_HOST", "ana-explorer.hf.space")
    chosen = load(providers=(CORP,), operators=("huggingface:u-1",))
    assert [each.name for each in chosen.providers] == ["test", "huggingface"]
    hub = chosen.providers[1]
    assert (hub.client_id, hub.scopes) == (
        "space-client",
        ("openid", "profile", "read-memberships"),
    )
    # The Space did not declare that scope, so the Hub would refuse it.
    assert hub.publish_scopes == ()
    assert hub.client_secret is not None
    assert "space-secret" not in repr(chosen)
    assert chosen.public_url == "https://ana-explorer.hf.space"
    assert chosen.framed
