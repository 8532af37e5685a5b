"""Who makes a request: found out from what the request shows.

Owns: the order in which credentials count, and how many wrong ones an address may show.
Must not know: what a caller may do, pages.

What counts, in this order: a token in `Authorization` (a person's, or the operator's), the
cookie of a session, being on this machine. A token that is wrong is refused and never
overlooked: a program must hear that it is no longer whom it believes to be. A request that
shows nothing costs a walk through its headers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from starlette.datastructures import Headers

from explorer.access.api_tokens import PREFIX, ApiToken, ApiTokens
from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.cookies import SESSION_COOKIE, values_of
from explorer.access.database import now_us
from explorer.access.limits import address_key
from explorer.access.operator import Operator
from explorer.access.people import ANONYMOUS_SUBJECT, NOBODY, Caller, How, Person, Role
from explorer.access.roles import Roles
from explorer.access.sessions import Session, Sessions
from explorer.errors import CapacityReached, CredentialsRefused

# A capture key says which rollout a call belongs to, not who somebody is.
_CAPTURE_KEY = "rxk_"
MOST_WRONG = 10
WRONG_WINDOW_S = 60.0
_MOST_ADDRESSES = 10_000
# What was wrong, as the audit log says it; each is counted by itself.
_OPERATOR, _API = "operator_token", "api_token"


class WrongTries:
    """How often each address showed something wrong, in the last minute; a network of IPv6
    that one person has whole is one address.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, what: str, address: str) -> None:
        """Raises:
        CapacityReached: too often; what it shows now is not looked at.
        """
        since, count = self._seen.get(f"{what} {address_key(address)}", (0.0, 0))
        if count >= MOST_WRONG and self._clock() - since < WRONG_WINDOW_S:
            raise CapacityReached("too many wrong tokens from this address; wait a minute")

    def note(self, what: str, address: str) -> bool:
        """One more; whether it is among the first of the minute."""
        key, now = f"{what} {address_key(address)}", self._clock()
        since, count = self._seen.pop(key, (now, 0))
        if now - since >= WRONG_WINDOW_S:
            since, count = now, 0
        self._seen[key] = (since, count + 1)
        while len(self._seen) > _MOST_ADDRESSES:
            self._seen.popitem(last=False)
        return count < MOST_WRONG


class Identity:
    """Finds out who makes a request.

    Args:
        operator: the operator's token and the rule about this machine.
        sessions: of browsers.
        tokens: of programs.
        roles: of persons.
        audit: gets a row for each wrong token.
    """

    def __init__(
        self,
        operator: Operator,
        sessions: Sessions,
        tokens: ApiTokens,
        roles: Roles,
        audit: AuditLog,
    ) -> None:
        self.operator = operator
        self.sessions = sessions
        self.tokens = tokens
        self.roles = roles
        self.tries = WrongTries()
        self._audit = audit

    async def caller(self, scope: Mapping[str, Any]) -> Caller:
        """Who makes the request of this ASGI scope; writes down what must be.

        Raises:
            CredentialsRefused: it shows a token that is wrong, ended or taken back.
            CapacityReached: its address showed too many of these.
        """
        try:
            caller, token = self._find(scope)
        except CredentialsRefused:
            own = _token_in(_shown(scope)[0])[1].startswith(PREFIX)
            await self._note_wrong(_API if own else _OPERATOR, _address(scope))
            raise
        if token is not None and self.tokens.touched(token):
            await asyncio.to_thread(self.tokens.keep_use, token)
        return caller

    def look(self, scope: Mapping[str, Any]) -> Caller:
        """As `caller`, but nothing is written and nothing refused: for the head of a page
        that no gate stands before, such as an error."""
        try:
            return self._find(scope)[0]
        except (CredentialsRefused, CapacityReached):
            return NOBODY

    def is_operator(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request is an operator's, for whom no rate counts. Of an address that
        showed too many wrong tokens it is not: the difference would tell a right one."""
        caller = self.look(scope)
        return caller.role is Role.OPERATOR and caller.how is not How.NOTHING

    def slowed_down(self, scope: Mapping[str, Any]) -> None:
        """Counts what a request shows that was refused for its rate, before anybody looked:
        else guesses would cost nothing from there on."""
        try:
            self._find(scope)
        except CredentialsRefused:
            if not _token_in(_shown(scope)[0])[1].startswith(PREFIX):
                self.tries.note(_OPERATOR, _address(scope))
        except CapacityReached:
            pass  # counted enough

    def _find(self, scope: Mapping[str, Any]) -> tuple[Caller, ApiToken | None]:
        authorization, cookies = _shown(scope)
        address = _address(scope)
        scheme, given = _token_in(authorization)
        if given.startswith(PREFIX):
            return self._by_api_token(given, address)
        if given.startswith(_CAPTURE_KEY):
            given = ""
        # Basic a browser sends by itself, also after somebody signed in.
        if not given or scheme == "basic":
            for cookie in cookies:
                for value in values_of(cookie, SESSION_COOKIE):
                    session = self.sessions.find(value)
                    if session is not None:
                        return self.of_session(session, address), None
        if given:
            self.check_operator_token(given, address)
            return Caller(Role.OPERATOR, How.OPERATOR_TOKEN, address), None
        return self._by_place(scope, address), None

    def ended(self, caller: Caller) -> str:
        """Why somebody is no longer who they were when a request began, or nothing.

        Cheap: asked for each chunk of a download.
        """
        if caller.session_hash and self.sessions.get(caller.session_hash) is None:
            return "the session has ended"
        if caller.token_id and not self.tokens.stands(caller.token_id):
            return "the API token has ended or was taken back"
        if caller.person is not None and self.roles.of(caller.person) < caller.role:
            return "the role was taken"
        return ""

    def of_session(self, session: Session, address: str) -> Caller:
        """Whom a session is of, with the role as it is now."""
        person = session.person
        return Caller(
            role=self._role(person),
            how=How.SESSION,
            address=address,
            person=person,
            session_hash=session.session_hash,
        )

    async def operator_shown(self, given: str, address: str) -> None:
        """That a form holds the operator's token.

        Raises:
            CredentialsRefused: it is not the operator's token.
            CapacityReached: the address showed too many wrong ones.
        """
        try:
            self.check_operator_token(given, address)
        except CredentialsRefused:
            await self._note_wrong(_OPERATOR, address)
            raise

    def check_operator_token(self, given: str, address: str) -> None:
        """As `operator_shown`, but nothing is written down."""
        self.tries.check(_OPERATOR, address)
        # As bytes: a comparison of text refuses what is not ASCII.
        if not hmac.compare_digest(
            given.encode(errors="replace"), self.operator.token.encode()
        ):
            raise _refused()

    def _by_api_token(self, given: str, address: str) -> tuple[Caller, ApiToken]:
        # Tries are not limited: nobody guesses one, and others may share the address.
        token = self.tokens.find(given)
        if token is None:
            raise _refused()
        person = token.person(now_us())
        caller = Caller(
            role=self._role(person),
            how=How.API_TOKEN,
            address=address,
            person=person,
            scopes=token.scopes,
            token_id=token.token_id,
        )
        return caller, token

    def _by_place(self, scope: Mapping[str, Any], address: str) -> Caller:
        """The operator where everybody, or everybody on this machine, is; else nobody."""
        operator = self.operator
        if operator.open_to_all:
            return Caller(Role.OPERATOR, How.NOTHING, address)
        if operator.trust_loopback:
            headers, client = Headers(scope=dict(scope)), scope.get("client")
            host = client[0] if client else None
            if operator.on_this_machine(host, headers):
                may_change = operator.may_change(host, headers)
                return Caller(Role.OPERATOR, How.LOOPBACK, address, may_change=may_change)
        return Caller(Role.ANONYMOUS, How.NOTHING, address)

    def _role(self, person: Person | None) -> Role:
        return Role.OPERATOR if person is None else self.roles.of(person)

    async def _note_wrong(self, what: str, address: str) -> None:
        """A row for a wrong token, for the first ones of an address in a minute."""
        if not self.tries.note(what, address):
            return
        entry = Entry(
            Event.REFUSED,
            ANONYMOUS_SUBJECT,
            object=what,
            address=address,
            reason="wrong_token",
        )
        await asyncio.to_thread(self._audit.append, entry)


def _refused() -> CredentialsRefused:
    return CredentialsRefused(
        "this token is wrong, has ended or was taken back; signed-in people make tokens at "
        "/account, the operator's is ROLLOUT_EXPLORER_ADMIN_TOKEN or was printed at start"
    )


def _shown(scope: Mapping[str, Any]) -> tuple[str, list[str]]:
    authorization, cookies = "", []
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization = value.decode("latin-1")
        elif name == b"cookie":
            cookies.append(value.decode("latin-1"))
    return authorization, cookies


def _address(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _token_in(authorization: str) -> tuple[str, str]:
    """The scheme, and the token of Bearer or the password of Basic, which a browser can ask
    for; of anything else, nothing."""
    scheme, _, given = authorization.partition(" ")
    scheme, given = scheme.lower(), given.strip()
    if scheme == "bearer":
        return scheme, given
    if scheme != "basic":
        return scheme, ""
    try:
        pair = base64.b64decode(given, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return scheme, ""
    return scheme, pair.partition(":")[2]
