"""Who asks: persons, their roles, and the caller of one request.

Owns: the frozen records that say who somebody is. Must not know: how that was found out,
what they may do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

OPERATOR_SUBJECT = "operator"
ANONYMOUS_SUBJECT = "anonymous"
SERVER_SUBJECT = "server"


class Role(IntEnum):
    """What somebody may do by being who they are; each may do what those before it may.

    A downloader is no role: a viewer with a grant is one.
    """

    ANONYMOUS = 0
    VIEWER = 1
    CURATOR = 2
    OPERATOR = 3

    @property
    def word(self) -> str:
        """The name on pages and in the API."""
        return self.name.lower()


class How(StrEnum):
    """What showed who somebody is."""

    NOTHING = "nothing"
    LOOPBACK = "loopback"
    OPERATOR_TOKEN = "operator_token"  # noqa: S105 - a word, no secret
    SESSION = "session"
    API_TOKEN = "api_token"  # noqa: S105 - a word, no secret


class Scope(StrEnum):
    """What an API token may be used for, within what its owner may do."""

    READ = "read"
    DOWNLOAD = "download"
    CURATE = "curate"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True)
class Membership:
    """An organisation the provider says somebody belongs to; `subject` never changes."""

    subject: str
    name: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who signed in. `subject` is ``<provider>:<sub>`` and the only identity;
    names may change hands."""

    subject: str
    name: str
    memberships: tuple[Membership, ...] = ()

    @property
    def provider(self) -> str:
        """The provider that vouches for the person."""
        return self.subject.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes one request, and how that is known.

    Attributes:
        address: of the client, after listed proxies; empty when unknown.
        may_change: whether the request came in a way that may change something: a page
            of this server, or a program with a token.
        scopes: what an API token was made for; None where no token narrows the role.
        session_hash: names the session, for signing out and for the provider's token.
        token_id: names the API token.
    """

    role: Role
    how: How
    address: str = ""
    person: Person | None = None
    may_change: bool = True
    scopes: frozenset[Scope] | None = None
    session_hash: str = field(default="", repr=False)
    token_id: str = ""

    @property
    def subject(self) -> str:
        """Who it is, as grants and the audit log name them."""
        if self.person is not None:
            return self.person.subject
        return OPERATOR_SUBJECT if self.role is Role.OPERATOR else ANONYMOUS_SUBJECT

    @property
    def name(self) -> str:
        """What people call them; empty for nobody in particular."""
        return self.person.name if self.person is not None else ""

    @property
    def signed_in(self) -> bool:
        """Whether it is known who this is."""
        return self.role is not Role.ANONYMOUS


NOBODY = Caller(Role.ANONYMOUS, How.NOTHING)
