"""Who may do what on the local Hub: people, organisations, tokens and their scopes.

Owns: rights, and what a refusal of them says.
Must not know: files, commits, HTTP beyond the refusals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.hub.repos import Place
from tests.hub.wire import Refusal

Scope = Literal["read", "write", "contribute-repos", "manage-repos"]


@dataclass(frozen=True)
class Person:
    """Somebody with an account; `orgs` are those in which they may write."""

    name: str
    orgs: tuple[str, ...] = ()


@dataclass
class Token:
    """A token. `contribute-repos` creates repositories and touches only those it created."""

    value: str
    person: Person
    scope: Scope
    created: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class People:
    """Everybody, by token."""

    tokens: dict[str, Token] = field(default_factory=dict)

    def add(self, name: str, scope: Scope = "write", orgs: tuple[str, ...] = ()) -> str:
        """A new token of a person.

        Returns:
            What is sent as `Bearer`.
        """
        value = f"hf_{scope.replace('-', '')}{name}{len(self.tokens)}"
        self.tokens[value] = Token(value, Person(name, orgs), scope)
        return value

    def who(self, value: str | None) -> Token | None:
        """Raises:
        Refusal: the token is nobody's.
        """
        if value is None:
            return None
        if value not in self.tokens:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.tokens[value]


def whoami(token: Token | None) -> dict[str, Any]:
    """What `/api/whoami-v2` says."""
    if token is None:
        raise Refusal(401, "Invalid username or password.")
    person = token.person
    orgs = [
        {"type": "org", "id": f"o-{org}", "name": org, "fullname": org, "roleInOrg": "write"}
        for org in person.orgs
    ]
    role = token.scope if token.scope in ("read", "write") else "fineGrained"
    access = {"displayName": "local", "role": role, "createdAt": "2026-01-01T00:00:00.000Z"}
    return {
        "type": "user",
        "id": f"u-{person.name}",
        "name": person.name,
        "fullname": person.name,
        "isPro": False,
        "orgs": orgs,
        "auth": {"type": "access_token", "accessToken": access},
    }


def _member(token: Token, place: Place) -> bool:
    namespace = place.id.split("/")[0]
    return namespace == token.person.name or namespace in token.person.orgs


def may_create(token: Token | None, kind: str, namespace: str) -> Token:
    """Raises:
    Refusal: not this token, or not under this name.
    """
    if token is None:
        raise Refusal(401, "Invalid username or password.")
    mine = namespace == token.person.name or namespace in token.person.orgs
    if token.scope == "read" or not mine:
        raise Refusal(
            403,
            f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"',
        )
    return token


def may_see(token: Token | None, place: Place) -> bool:
    """Whether it exists for them."""
    if not place.private:
        return True
    if token is None or not _member(token, place):
        return False
    return token.scope != "contribute-repos" or (place.kind, place.id) in token.created


def see(token: Token | None, place: Place | None) -> Place:
    """Raises:
    Refusal: it is not there, or not for them; the Hub does not tell which.
    """
    if place is None or not may_see(token, place):
        # Without a token the Hub says 401 for both. The client reads that as "not found"
        # by the address, which must be https; the code says the same over http.
        if token is None:
            raise Refusal(401, "Invalid username or password.", "RepoNotFound")
        raise Refusal(404, "Repository not found", "RepoNotFound")
    return place


def read(token: Token | None, place: Place | None) -> Place:
    """The same for files: behind the gate, where there is one."""
    place = see(token, place)
    if not place.gated:
        return place
    if token is None:
        raise Refusal(
            401,
            f"Access to {place.kind} {place.id} is restricted. You must have access to it and "
            "be authenticated to access it. Please log in.",
            "GatedRepo",
        )
    if not _member(token, place) and token.person.name not in place.let_in:
        raise Refusal(
            403,
            f"Access to {place.kind} {place.id} is restricted and you are not in the "
            "authorized list. Visit its page to ask for access.",
            "GatedRepo",
        )
    return place


def write(token: Token | None, place: Place | None, deletes: bool = False) -> Place:
    """Raises:
    Refusal: they may not change it; `deletes`: nor delete it.
    """
    place = see(token, place)
    if token is None:
        raise Refusal(401, "Invalid username or password.")
    scopes = {"write", "manage-repos"} | (set() if deletes else {"contribute-repos"})
    own = token.scope != "contribute-repos" or (place.kind, place.id) in token.created
    if token.scope not in scopes or not own or not _member(token, place):
        raise Refusal(
            403,
            "Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request",
        )
    return place
