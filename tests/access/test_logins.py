"""Logins under way: each by its own state, once, in time, of one browser."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.access.logins import LIFE_S, MOST, MOST_OF_A_BROWSER, Login, Logins, safe_next
from explorer.errors import SignInFailed


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def begin(logins: Logins, browser: str = "b" * 43, provider: str = "one") -> Login:
    return logins.start(
        provider=provider,
        browser=browser,
        next="/runs",
        publish=False,
        redirect_uri="https://here.example/cb",
    )


def why(logins: Logins, login: Login, browser: str = "b" * 43, provider: str = "one") -> str:
    with pytest.raises(SignInFailed) as caught:
        logins.finish(provider=provider, state=login.state, browsers=[browser])
    return caught.value.why


def test_auth_01_each_login_has_its_own_state() -> None:
    logins = Logins()
    first, second = begin(logins), begin(logins)
    assert len({first.state, second.state, first.nonce, second.nonce, first.verifier}) == 5
    for login in (second, first):
        assert logins.finish(provider="one", state=login.state, browsers=["b" * 43]) == login


def test_a_login_is_used_once() -> None:
    logins = Logins()
    login = begin(logins)
    logins.finish(provider="one", state=login.state, browsers=["b" * 43])
    assert why(logins, login) == "unknown_state"


def test_auth_11_another_browser_uses_it_up() -> None:
    logins = Logins()
    login = begin(logins)
    assert why(logins, login, browser="c" * 43) == "other_browser"
    assert why(logins, login) == "unknown_state"
    assert why(logins, begin(logins), browser="") == "other_browser"


def test_another_providers_callback_does_not_finish_it() -> None:
    logins = Logins()
    assert why(logins, begin(logins), provider="two") == "unknown_state"


def test_it_ends_after_ten_minutes() -> None:
    clock = Clock()
    logins = Logins(clock)
    old = begin(logins)
    clock.now += LIFE_S - 1
    young = begin(logins)
    clock.now += 1
    assert why(logins, old) == "unknown_state"
    assert logins.finish(provider="one", state=young.state, browsers=["b" * 43]) == young


def test_a_browser_has_only_so_many() -> None:
    logins = Logins()
    other = begin(logins, "c" * 43)
    first = begin(logins)
    rest = [begin(logins) for _ in range(MOST_OF_A_BROWSER)]
    assert len(logins) == MOST_OF_A_BROWSER + 1
    assert why(logins, first) == "unknown_state"
    assert logins.finish(provider="one", state=rest[0].state, browsers=["b" * 43]) == rest[0]
    assert logins.finish(provider="one", state=other.state, browsers=["c" * 43]) == other


def test_all_together_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.access.logins.MOST", 5)
    logins = Logins()
    made = [begin(logins, f"{n}" * 43) for n in range(8)]
    assert len(logins) == 5 < MOST
    assert why(logins, made[0], "0" * 43) == "unknown_state"
    assert logins.finish(provider="one", state=made[7].state, browsers=["7" * 43]) == made[7]


def test_a_browser_keeps_a_value_that_was_made_here_only() -> None:
    logins = Logins()
    value = logins.browser([])
    begin(logins, value)
    assert logins.browser(["x" * 43, value]) == value
    assert logins.browser(["x" * 43]) not in ("x" * 43, value)


def test_what_is_remembered_is_not_shown() -> None:
    login = begin(Logins())
    for secret in (login.state, login.nonce, login.verifier):
        assert secret not in repr(login)


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("/rollouts?q=a%20b&c=d#t4", "/rollouts?q=a%20b&c=d#t4"),
        ("/runs/grpo%20%23412", "/runs/grpo%20%23412"),
        ("/a/../b", "/b"),
        ("/ü", "/%C3%BC"),
        ("////evil.example/x", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\\b", "/"),
        ("https:evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/\t/evil.example", "/"),
        ("/\n/evil.example", "/"),
        ("/\r\nSet-Cookie: a=b", "/"),
        ("/\u2028x", "/"),
        ("/ /evil.example", "/"),
        ("evil.example", "/"),
        ("?q=1", "/"),
        ("", "/"),
        (None, "/"),
        ("/" + "a" * 3000, "/"),
        ("/sign-in/test", "/"),
        ("/sign-out", "/"),
        ("/a/..//evil.example", "/evil.example"),
    ],
)
def test_auth_05_where_one_goes_afterwards(given: str | None, safe: str) -> None:
    assert safe_next(given) in (safe, "/")
    if not (given or "").startswith("/a/..//"):
        assert safe_next(given) == safe


@given(st.text(st.sampled_from("/\\.:?#@%aä \t\n\r" + string.ascii_lowercase), max_size=40))
def test_auth_05_is_always_one_path_of_this_server(text: str) -> None:
    for found in (safe_next(text), safe_next("/" + text), safe_next(safe_next("/" + text))):
        assert found.startswith("/")
        assert found[1:2] not in ("/", "\\")
        assert found.isascii()
        assert not set(found) & set(" \t\r\n\\")
