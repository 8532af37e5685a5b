"""What the pages of signing in and of one's own account say.

Owns: their contexts. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, page, said


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """A provider that people may sign in with."""

    name: str = said("Short name, as in subjects.")
    title: str = said("What people call it.")
    href: str = said("Address that begins to sign in there.")


@page
@dataclass(frozen=True, slots=True)
class SignInPage:
    """`/sign-in`: with whom to sign in, and why; and why it came to nothing."""

    template: ClassVar[str] = "sign_in.html"
    frame: Frame = said("What surrounds the page.")
    failure: str = said("What came in the way just now, empty when nothing did.")
    why: str = said("The same in one word, as in the audit log.")
    retry_href: str = said("Address that tries again, empty when nothing failed.")
    providers: tuple[ProviderChoice, ...] = said("Providers, in the order of the settings.")
    next: str = said("Address on this server that follows.")
    plain_http: bool = said("Whether browsers would keep no cookie at this address.")
    current: str = said("Who is signed in already, empty when nobody is.")


@dataclass(frozen=True, slots=True)
class OrganisationRow:
    """An organisation that the provider told of at sign-in."""

    subject: str = said("Its subject, as grants and settings name it; empty if not counted.")
    name: str = said("Its name.")
    role: str = said("The person's role in it, empty when the provider said none.")
    counts: bool = said("False where the person has not met the organisation's own rules.")


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A browser that is signed in."""

    session_id: str = said("Id of the session.")
    started: str = said("When it began (UTC).")
    ends: str = said("When it ends by itself (UTC).")
    here: bool = said("Whether it is the one that asks.")
    end_action: str = said("Where a form that ends it is sent.")


@dataclass(frozen=True, slots=True)
class TokenRow:
    """An API token that works."""

    token_id: str = said("Id of the token.")
    label: str = said("What its owner calls it.")
    scopes: tuple[str, ...] = said("What it may be used for.")
    made: str = said("When it was made (UTC).")
    ends: str = said("When it ends by itself (UTC).")
    used: str = said("Newest use, to the minute (UTC); empty when it was never used.")
    revoke_action: str = said("Where a form that takes it back is sent.")


@dataclass(frozen=True, slots=True)
class ScopeChoice:
    """Something that a token may be made for."""

    value: str = said("Value in the form and in the API.")
    about: str = said("What it allows.")
    chosen: bool = said("Whether the form starts with it.")


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A token just made: the only time that it is shown."""

    secret: str = said("The token.")
    label: str = said("What its owner calls it.")
    ends: str = said("When it ends by itself (UTC).")
    command: str = said("A command that uses it.")


@page
@dataclass(frozen=True, slots=True)
class AccountPage:
    """`/account`: who you are here, what you may do and why, your sessions and tokens."""

    template: ClassVar[str] = "account.html"
    frame: Frame = said("What surrounds the page.")
    subject: str = said("Who it is, as grants and settings name them.")
    name: str = said("What people call them; empty for nobody in particular.")
    role: str = said("`anonymous`, `viewer`, `curator` or `operator`.")
    how: str = said("What showed who it is, in words.")
    reasons: tuple[str, ...] = said("Why the role is above viewer.")
    organisations: tuple[OrganisationRow, ...] = said("Organisations the provider told of.")
    sessions: tuple[SessionRow, ...] = said("Browsers that are signed in, the newest first.")
    tokens: tuple[TokenRow, ...] = said("API tokens that work, the newest first.")
    scopes: tuple[ScopeChoice, ...] = said("What a new token may be made for; empty: none.")
    most_days: float = said("Longest life of a token (days).")
    made: MadeToken | None = said("A token just made, else null.")
