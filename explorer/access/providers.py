"""OpenID providers: what their discovery documents and their keys say, kept for a while.

Owns: fetching and checking both, and how long they are believed.
Must not know: logins, persons.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

from explorer.errors import ExplorerError, NotFound, SignInFailed
from explorer.sign_in_settings import ProviderSettings

KEEP_S = 3600.0
# Between two fetches of the same document, whatever made us want it again.
PAUSE_S = 5.0
_LONGEST_KEYS = 64
SigningKey = RSAKey | ECKey | OKPKey


class Answer(Protocol):
    """What an outbound request gives."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class Client(Protocol):
    """Asks addresses outside; keeps no cookies, so each call shows only its own token."""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, the whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a discovery document says, as far as we use it."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str
    secret_in_body: bool
    names_itself: bool


@dataclass(slots=True)
class _Known:
    """What is kept of one provider."""

    metadata: Metadata | None = None
    keys: tuple[SigningKey, ...] = ()
    metadata_s: float = float("-inf")
    keys_s: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def unreachable(settings: ProviderSettings, why: str) -> SignInFailed:
    """The provider cannot be used now."""
    return SignInFailed(
        f"{settings.title} cannot be used to sign in at the moment: {why}.", why="provider"
    )


async def ask_json(
    client: Client, settings: ProviderSettings, what: str, request: tuple[str, str], **more: Any
) -> dict[str, Any]:
    """A JSON object of a provider; `request` is the method and the address.

    Raises:
        SignInFailed: it gave none. The answer's text is told to nobody: it may hold tokens.
    """
    method, url = request
    headers = {"accept": "application/json", **more.pop("headers", {})}
    try:
        reply = await client.request(method, url, headers=headers, **more)
    except ExplorerError as error:
        raise unreachable(settings, f"its {what} was not reached ({error.message})") from error
    if reply.status != 200:
        raise unreachable(settings, f"its {what} answered with status {reply.status}")
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise unreachable(settings, f"its {what} is not JSON") from error
    if not isinstance(found, dict):
        raise unreachable(settings, f"its {what} is not a JSON object")
    return found


class Providers:
    """The providers that the settings name.

    Args:
        configured: in the order in which people choose.
        client: for every request to a provider.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        configured: Iterable[ProviderSettings],
        client: Client,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._clock = clock
        self._configured = {each.name: each for each in configured}
        self._known = {name: _Known() for name in self._configured}

    def __bool__(self) -> bool:
        return bool(self._configured)

    @property
    def all(self) -> tuple[ProviderSettings, ...]:
        """Every provider."""
        return tuple(self._configured.values())

    def get(self, name: str) -> ProviderSettings:
        """One provider.

        Raises:
            NotFound: none has this name.
        """
        if name not in self._configured:
            raise NotFound("nobody can sign in with a provider of this name here")
        return self._configured[name]

    async def metadata(self, name: str) -> Metadata:
        """What the provider's discovery document says; fetched when it is old.

        Raises:
            SignInFailed: it cannot be had, or is not this issuer's.
        """
        settings, known = self.get(name), self._known[name]
        async with known.lock:
            if known.metadata is None or self._clock() - known.metadata_s > KEEP_S:
                address = settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
                document = await ask_json(
                    self.client, settings, "discovery document", ("GET", address)
                )
                known.metadata = _read_metadata(settings, document)
                known.metadata_s = self._clock()
            return known.metadata

    async def key(self, name: str, kid: str | None, algorithm: str) -> SigningKey:
        """The provider's key for a signature; an unknown one is looked up anew, once.

        Raises:
            SignInFailed: the provider has no such key.
        """
        settings, known = self.get(name), self._known[name]
        metadata = await self.metadata(name)
        async with known.lock:
            age = self._clock() - known.keys_s
            found = _pick(known.keys, kid, algorithm) if age <= KEEP_S else None
            if found is None and age > PAUSE_S:
                document = await ask_json(
                    self.client, settings, "list of keys", ("GET", metadata.jwks_uri)
                )
                known.keys, known.keys_s = _read_keys(document), self._clock()
                found = _pick(known.keys, kid, algorithm)
        if found is None:
            raise SignInFailed(
                f"{settings.title} signed with a key that it does not publish.", why="key"
            )
        return found


def _read_metadata(settings: ProviderSettings, document: Mapping[str, Any]) -> Metadata:
    issuer = document.get("issuer")
    # Another issuer's document would let that issuer vouch for this one's people.
    if not isinstance(issuer, str) or issuer.rstrip("/") != settings.issuer.rstrip("/"):
        raise unreachable(settings, "its discovery document names another issuer")
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
    found = {name: _address(settings, document.get(name)) for name in names}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise unreachable(settings, f"its discovery document has no {', '.join(missing)}")
    methods = document.get("code_challenge_methods_supported")
    if isinstance(methods, list) and "S256" not in methods:
        raise unreachable(settings, "it does not know the PKCE method S256")
    ways = document.get("token_endpoint_auth_methods_supported")
    in_body = isinstance(ways, list) and "client_secret_basic" not in ways
    return Metadata(
        issuer=issuer,
        **found,
        userinfo_endpoint=_address(settings, document.get("userinfo_endpoint")),
        secret_in_body=in_body and "client_secret_post" in (ways or ()),
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _address(settings: ProviderSettings, value: object) -> str:
    """An endpoint over https; over http only where the issuer may be private."""
    if not isinstance(value, str):
        return ""
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    allowed = ("https", "http") if settings.allow_private else ("https",)
    return value if parts.scheme in allowed and parts.hostname else ""


def _read_keys(document: Mapping[str, Any]) -> tuple[SigningKey, ...]:
    """The public keys that sign; anything else in the list is left out."""
    listed = document.get("keys")
    made: list[SigningKey] = []
    for each in (listed if isinstance(listed, list) else [])[:_LONGEST_KEYS]:
        if not isinstance(each, dict) or each.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        if each.get("use", "sig") != "sig":
            continue
        # The other curves of this kind do not sign, or hardly anywhere.
        if each["kty"] == "OKP" and each.get("crv") != "Ed25519":
            continue
        try:
            key = import_key(each)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if isinstance(key, (RSAKey, ECKey, OKPKey)):
            made.append(key)
    return tuple(made)


def _pick(keys: Iterable[SigningKey], kid: str | None, algorithm: str) -> SigningKey | None:
    kinds: dict[str, type[SigningKey]] = {"ES": ECKey, "Ed": OKPKey}
    kind = kinds.get(algorithm[:2], RSAKey)
    fitting = [
        each for each in keys if isinstance(each, kind) and each.get("alg") in (None, algorithm)
    ]
    if kid is None:
        # Without a name only a single key is meant.
        return fitting[0] if len(fitting) == 1 else None
    return next((each for each in fitting if each.kid == kid), None)
