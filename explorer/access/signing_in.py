"""Everything that signing in needs, made once.

Owns: how the parts are put together, and what one sign-in and one sign-out do.
Must not know: HTTP, pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from explorer.access.api_tokens import ApiTokens
from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase
from explorer.access.identity import Identity
from explorer.access.logins import Login, Logins
from explorer.access.oidc import OpenId, SignedIn
from explorer.access.operator import Operator
from explorer.access.outbound import Outbound, OutboundPolicy
from explorer.access.people import OPERATOR_SUBJECT, Caller
from explorer.access.providers import Providers
from explorer.access.roles import Roles
from explorer.access.sessions import Session, Sessions
from explorer.errors import SignInFailed
from explorer.settings import Settings


@dataclass(frozen=True, slots=True)
class SignIn:
    """The parts of signing in.

    Attributes:
        framed: cookies must work inside another site's frame.
    """

    openid: OpenId
    logins: Logins
    sessions: Sessions
    tokens: ApiTokens
    roles: Roles
    identity: Identity
    audit: AuditLog
    outbound: Outbound
    framed: bool

    @classmethod
    def of(
        cls, settings: Settings, database: AccessDatabase, audit: AuditLog, operator: Operator
    ) -> SignIn:
        """By the settings, over an open access database."""
        outbound = Outbound(
            OutboundPolicy.listing((*settings.outbound_private, *settings.outbound_addresses))
        )
        sessions = Sessions(database, audit, settings.session_hours)
        tokens = ApiTokens(database, audit, settings.token_days, operator=operator.token)
        roles = Roles(database, audit, settings.operators, settings.curators, sessions.end_all)
        return cls(
            openid=OpenId(Providers(settings.providers, outbound)),
            logins=Logins(),
            sessions=sessions,
            tokens=tokens,
            roles=roles,
            identity=Identity(operator, sessions, tokens, roles, audit),
            audit=audit,
            outbound=outbound,
            framed=settings.framed,
        )

    @property
    def providers(self) -> Providers:
        """The providers that people may choose from."""
        return self.openid.providers

    async def prove(self, login: Login, reply: Mapping[str, str]) -> SignedIn:
        """Who signed in at the provider.

        Raises:
            SignInFailed: nobody, or it was not proved.
        """
        return await self.openid.finish(login, reply)

    def open_session(self, signed_in: SignedIn, before: Caller) -> tuple[str, Session]:
        """A session for somebody who proved who they are, and the value of its cookie."""
        person = signed_in.person
        entry = Entry(
            Event.SIGNED_IN,
            person.subject,
            object=person.provider,
            name=person.name,
            address=before.address,
            detail={
                "organisations": [each.subject for each in person.memberships],
                "restricted": list(signed_in.restricted),
            },
        )
        made = self.sessions.start(signed_in, entry, before.session_hash)
        self.tokens.tell_memberships(person)
        return made

    def open_operator_session(self, before: Caller) -> tuple[str, Session]:
        """A session for a browser that showed the operator's token."""
        entry = Entry(
            Event.SIGNED_IN, OPERATOR_SUBJECT, object="operator_token", address=before.address
        )
        return self.sessions.start(None, entry, before.session_hash)

    def note_failure(self, caller: Caller, provider: str, error: SignInFailed) -> None:
        """A row for a sign-in that came to nothing; its reason is one word of ours."""
        self.audit.append(Entry.by(caller, Event.SIGN_IN_FAILED, provider, reason=error.why))
