"""Sign-ins that began and have not ended: each is known by its own `state`.

Owns: what is remembered from the start to the end of a sign-in, for how long, and where a
browser may be sent afterwards. Must not know: providers, HTTP.

A login is used once, within ten minutes, by the browser that began it: that browser holds a
random value in a cookie, and only its hash is kept here. Two tabs have two logins.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit

from explorer.errors import SignInFailed

LIFE_S = 600.0
MOST_OF_A_BROWSER = 10
MOST = 10_000
_LONGEST_NEXT = 2000
_HERE = "https://here.invalid"


@dataclass(frozen=True, slots=True)
class Login:
    """One sign-in under way.

    Attributes:
        state: names it; the provider gives it back.
        nonce: must stand in the id token.
        verifier: of PKCE; the provider has only its hash until the code is exchanged.
        next: where the browser goes afterwards.
        publish: the person was asked for leave to publish, too.
        redirect_uri: where the provider sends the browser.
    """

    provider: str
    next: str
    publish: bool
    redirect_uri: str
    started_s: float
    browser_hash: str = field(repr=False)
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)


def fingerprint(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def safe_next(given: str | None) -> str:
    """`given` where it is the path of a page of this server, else `/`.

    A browser reads `//evil.example`, `/\\evil.example` and some control characters as another
    host; so a path begins with exactly one slash, holds none of these, and still lies here
    once it is resolved.
    """
    if not given or len(given) > _LONGEST_NEXT or given[0] != "/" or given[1:2] in ("/", "\\"):
        return "/"
    if "\\" in given or any(not each.isprintable() or each.isspace() for each in given):
        return "/"
    try:
        found = urlsplit(urljoin(_HERE, given))
    except ValueError:
        return "/"
    path = found.path
    if f"{found.scheme}://{found.netloc}" != _HERE or path[:1] != "/" or path[1:2] == "/":
        return "/"
    # Signing in again, or posting, is nowhere to go.
    if path.startswith(("/sign-in", "/sign-out")):
        return "/"
    query = f"?{found.query}" if found.query else ""
    fragment = f"#{found.fragment}" if found.fragment else ""
    return quote(path + query + fragment, safe="/%:?#[]@!$&'()*+,;=~-._")


class Logins:
    """Every login under way, in memory: a restart ends them all.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def __len__(self) -> int:
        return len(self._logins)

    def browser(self, values: list[str]) -> str:
        """The value that ties logins to a browser: one of its own that was made here and is
        in use, else a new one."""
        known = {each.browser_hash for each in self._logins.values()} if values else set()
        for value in values:
            if fingerprint(value) in known:
                return value
        return secrets.token_urlsafe(32)

    def start(
        self, *, provider: str, browser: str, next: str, publish: bool, redirect_uri: str
    ) -> Login:
        """A new login; the oldest of the browser, or of all, gives way when there are too
        many."""
        login = Login(
            provider=provider,
            next=safe_next(next),
            publish=publish,
            redirect_uri=redirect_uri,
            started_s=self._clock(),
            browser_hash=fingerprint(browser),
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
        )
        self._forget_old()
        own = [
            each.state
            for each in self._logins.values()
            if each.browser_hash == login.browser_hash
        ]
        for state in own[: max(0, len(own) + 1 - MOST_OF_A_BROWSER)]:
            del self._logins[state]
        while len(self._logins) >= MOST:
            self._logins.popitem(last=False)
        self._logins[login.state] = login
        return login

    def finish(self, *, provider: str, state: str, browsers: list[str]) -> Login:
        """The login that `state` names; whatever comes of it, it is used up.

        Raises:
            SignInFailed: it is unknown, too old, or another browser began it.
        """
        self._forget_old()
        login = self._logins.pop(state, None) if state else None
        if login is None or login.provider != provider:
            raise SignInFailed(
                "This sign-in is unknown here: it was used already, took longer than ten "
                "minutes, or the server was started anew.",
                why="unknown_state",
            )
        found = [fingerprint(value) for value in browsers]
        if not any(hmac.compare_digest(each, login.browser_hash) for each in found):
            raise SignInFailed(
                "This sign-in was begun in another browser, or your browser keeps no cookies "
                "of this server.",
                why="other_browser",
            )
        return login

    def _forget_old(self) -> None:
        due = self._clock() - LIFE_S
        while self._logins and next(iter(self._logins.values())).started_s <= due:
            self._logins.popitem(last=False)
