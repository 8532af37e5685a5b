"""OpenID Connect: the authorisation code flow with PKCE, and what an id token must prove.

Owns: the requests of the flow, the checks of the id token, and how claims become a person.
Must not know: cookies, sessions, pages.

Authlib builds the requests and checks the claims, joserfc the signature; the requests go
through the client that reaches checked addresses only. Authlib's own clients are not used:
they keep the flow's state in a signed cookie, and a token in a client.
"""

from __future__ import annotations

import base64
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning

from explorer.access.logins import Login
from explorer.access.people import Membership, Person
from explorer.access.providers import Metadata, Providers, ask_json
from explorer.errors import SignInFailed
from explorer.sign_in_settings import ProviderSettings

# Asymmetric ones only: with a shared secret, or none, others could make a token.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
    *("EdDSA", "Ed25519"),
)
LEEWAY_S = 60
_LONGEST_SUB = 255
_LONGEST_NAME = 100
_MOST_MEMBERSHIPS = 500
# What a provider may answer instead of a code, in our words; its own are not repeated.
_REFUSALS = {
    "access_denied": "You, or {title}, said no: nobody was signed in.",
    "login_required": "{title} wants you to sign in there first.",
    "consent_required": "{title} wants you to agree there first.",
    "invalid_scope": "{title} does not know what this server asks for (`scopes` in its "
    "settings).",
    "temporarily_unavailable": "{title} is not available at the moment.",
    "server_error": "{title} had an error of its own.",
}


@dataclass(frozen=True, slots=True)
class ProviderToken:
    """The provider's access token of one session: kept in memory, never written down."""

    access_token: str = field(repr=False)
    scopes: frozenset[str]
    expires_us: int


@dataclass(frozen=True, slots=True)
class SignedIn:
    """What a sign-in proved.

    Attributes:
        restricted: organisations whose own rules (such as single sign-on) the person has not
            met; they do not count.
    """

    person: Person
    restricted: tuple[str, ...]
    token: ProviderToken | None


class OpenId:
    """The flow with every configured provider.

    Args:
        providers: and the client that asks them.
        clock: seconds since the epoch.
    """

    def __init__(self, providers: Providers, clock: Callable[[], float] = time.time) -> None:
        self.providers = providers
        self._clock = clock

    async def address(self, login: Login) -> str:
        """Where the browser is sent to sign in.

        Raises:
            SignInFailed: the provider cannot be used.
        """
        settings = self.providers.get(login.provider)
        metadata = await self.providers.metadata(login.provider)
        more = settings.publish_scopes if login.publish else ()
        found: str = prepare_grant_uri(
            metadata.authorization_endpoint,
            client_id=settings.client_id,
            response_type="code",
            redirect_uri=login.redirect_uri,
            scope=[*settings.scopes, *more],
            state=login.state,
            nonce=login.nonce,
            code_challenge=create_s256_code_challenge(login.verifier),
            code_challenge_method="S256",
        )
        return found

    async def finish(self, login: Login, reply: Mapping[str, str]) -> SignedIn:
        """Who signed in, by the parameters that the provider sent the browser back with.

        Raises:
            SignInFailed: nobody, or it was not proved.
        """
        settings = self.providers.get(login.provider)
        metadata = await self.providers.metadata(login.provider)
        _check_reply(settings, metadata, reply)
        tokens = await self._exchange(settings, metadata, login, reply["code"])
        claims = await self._claims(settings, metadata, login, tokens)
        access = tokens.get("access_token")
        if isinstance(access, str) and access:
            claims = await self._with_userinfo(settings, metadata, claims, access)
        person, restricted = person_of(settings, claims)
        return SignedIn(person, restricted, self._token(settings, login, tokens))

    async def _exchange(
        self, settings: ProviderSettings, metadata: Metadata, login: Login, code: str
    ) -> dict[str, Any]:
        body = dict(
            parse_qsl(
                prepare_token_request(
                    "authorization_code",
                    redirect_uri=login.redirect_uri,
                    code=code,
                    code_verifier=login.verifier,
                )
            )
        )
        headers = {}
        secret = settings.client_secret
        if secret is None:
            body["client_id"] = settings.client_id
        elif metadata.secret_in_body:
            body |= {
                "client_id": settings.client_id,
                "client_secret": secret.get_secret_value(),
            }
        else:
            pair = f"{_form(settings.client_id)}:{_form(secret.get_secret_value())}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return await ask_json(
            self.providers.client,
            settings,
            "token endpoint",
            ("POST", metadata.token_endpoint),
            headers=headers,
            data=body,
        )

    async def _claims(
        self,
        settings: ProviderSettings,
        metadata: Metadata,
        login: Login,
        tokens: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The claims of the id token, once everything about it was checked."""
        text = tokens.get("id_token")
        header = _header(text)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(text, str) or algorithm not in ALGORITHMS:
            raise _unproved(
                settings, "its id token is missing, or not signed with a key", "alg"
            )
        if not isinstance(kid, str | None):
            raise _unproved(settings, "its id token names no key", "key")
        key = await self.providers.key(settings.name, kid, algorithm)
        try:
            with warnings.catch_warnings():
                # RFC 9864 gave the name EdDSA up; providers have not yet.
                warnings.simplefilter("ignore", SecurityWarning)
                found = jwt.decode(text, key, algorithms=[algorithm])
        except (JoseError, ValueError) as error:
            raise _unproved(
                settings, "the signature of its id token is wrong", "signature"
            ) from error
        claims = CodeIDToken(
            found.claims,
            found.header,
            options={
                "iss": {"essential": True, "value": metadata.issuer},
                "aud": {"essential": True, "value": settings.client_id},
                "sub": {"essential": True},
                "nonce": {"essential": True, "value": login.nonce},
            },
            params={
                "nonce": login.nonce,
                "client_id": settings.client_id,
                # Which hash goes with that name, nobody has said.
                "access_token": tokens.get("access_token") if algorithm != "Ed25519" else None,
            },
        )
        try:
            claims.validate(now=int(self._clock()), leeway=LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            which = getattr(error, "claim", "") or type(error).__name__
            raise _unproved(
                settings, "its id token is old, or meant for somebody else", f"claim:{which}"
            ) from error
        return dict(claims)

    async def _with_userinfo(
        self,
        settings: ProviderSettings,
        metadata: Metadata,
        claims: dict[str, Any],
        access: str,
    ) -> dict[str, Any]:
        """The claims with those that the provider only tells when it is asked again."""
        enough = settings.memberships in claims and _name(claims)
        if enough or not metadata.userinfo_endpoint:
            return claims
        told = await ask_json(
            self.providers.client,
            settings,
            "user information",
            ("GET", metadata.userinfo_endpoint),
            headers={"authorization": f"Bearer {access}"},
        )
        if told.get("sub") != claims["sub"]:
            raise _unproved(settings, "its user information is about somebody else", "userinfo")
        return {**told, **claims}

    def _token(
        self, settings: ProviderSettings, login: Login, tokens: Mapping[str, Any]
    ) -> ProviderToken | None:
        access, lasts, scope = (
            tokens.get(name) for name in ("access_token", "expires_in", "scope")
        )
        if not isinstance(access, str) or not access:
            return None
        seconds = float(lasts) if isinstance(lasts, int | float) and 0 < lasts < 1e9 else 3600.0
        asked = (*settings.scopes, *(settings.publish_scopes if login.publish else ()))
        # What is not said was given as it was asked for (RFC 6749, 5.1).
        given = scope.split() if isinstance(scope, str) else asked
        return ProviderToken(
            access, frozenset(given), int((self._clock() + seconds) * 1_000_000)
        )


def person_of(
    settings: ProviderSettings, claims: Mapping[str, Any]
) -> tuple[Person, tuple[str, ...]]:
    """The person that claims tell of, and the organisations that do not count.

    Raises:
        SignInFailed: the subject cannot name a person.
    """
    sub = claims.get("sub")
    # `provider:org:…` is how the settings name the members of an organisation.
    if (
        not isinstance(sub, str)
        or not 0 < len(sub) <= _LONGEST_SUB
        or not sub.isprintable()
        or sub.startswith("org:")
    ):
        raise _unproved(settings, "it names you in a way that cannot be kept", "sub")
    counted: list[Membership] = []
    restricted: list[str] = []
    listed = claims.get(settings.memberships)
    for each in (listed if isinstance(listed, list) else [])[:_MOST_MEMBERSHIPS]:
        membership, free = _membership(each)
        if membership is None:
            continue
        if free:
            counted.append(membership)
        else:
            restricted.append(membership.name)
    person = Person(f"{settings.name}:{sub}", _name(claims) or sub[:40], tuple(counted))
    return person, tuple(restricted)


def _membership(told: object) -> tuple[Membership | None, bool]:
    """A membership, and whether the person met the organisation's own rules."""
    if isinstance(told, str):
        told = {"sub": told, "name": told}
    if not isinstance(told, dict):
        return None, False
    sub = told.get("sub")
    if not isinstance(sub, str) or not 0 < len(sub) <= _LONGEST_SUB or not sub.isprintable():
        return None, False
    name = _shown(told.get("preferred_username")) or _shown(told.get("name")) or sub[:40]
    role = _shown(told.get("roleInOrg"))
    # Anything that is said here, in whatever shape, is a rule that was not met.
    rules = (told.get("securityRestrictions"), told.get("security_restrictions"))
    return Membership(sub, name, role), not any(rules)


def _name(claims: Mapping[str, Any]) -> str:
    for key in ("preferred_username", "name", "nickname", "email"):
        shown = _shown(claims.get(key))
        if shown:
            return shown
    return ""


def _shown(value: object) -> str:
    """A name without what could be mistaken for something else; empty without one."""
    if not isinstance(value, str):
        return ""
    return "".join(each for each in value if each.isprintable()).strip()[:_LONGEST_NAME]


def _header(text: object) -> dict[str, Any]:
    """The header of a token, not to be believed yet."""
    if not isinstance(text, str) or text.count(".") != 2:
        return {}
    part = text.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_reply(
    settings: ProviderSettings, metadata: Metadata, reply: Mapping[str, str]
) -> None:
    """That the provider's answer is this provider's, and holds a code."""
    issuer = reply.get("iss")
    if (issuer is None and metadata.names_itself) or issuer not in (None, metadata.issuer):
        raise _unproved(settings, "the answer is another provider's", "iss")
    error = reply.get("error")
    if error is not None:
        known = _REFUSALS.get(error, "{title} refused to sign you in.")
        code = error if error in _REFUSALS else "other"
        raise SignInFailed(known.format(title=settings.title), why=f"refused:{code}")
    if not reply.get("code"):
        raise _unproved(settings, "its answer holds no code", "code")


def _unproved(settings: ProviderSettings, what: str, why: str) -> SignInFailed:
    return SignInFailed(f"{settings.title} did not prove who you are: {what}.", why=why)


def _form(text: str) -> str:
    """As in a form, which the password of Basic must be here (RFC 6749, 2.3.1)."""
    return quote(text, safe="")
