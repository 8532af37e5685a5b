"""The operator: who may create, close and read everything on this server.

Owns: the check of the admin token, and the rule that a person on this machine's loopback
address is the operator. Must not know: what the pages and routes do, other people.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from explorer.access.guard import LOOPBACK_NAMES, host_name
from explorer.errors import AdminTokenNeeded
from explorer.settings import Settings, is_loopback

# Set by reverse proxies: behind one, a loopback peer says nothing about the person.
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def make_token() -> str:
    """A token for an operator who set none."""
    return "rxa_" + secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Operator:
    """Decides whether a request is the operator's.

    Attributes:
        token: the admin token; compared in constant time.
        trust_loopback: a browser on this machine needs no token.
        open_to_all: the loud setting that lets anybody do anything.
    """

    token: str
    trust_loopback: bool
    open_to_all: bool

    @classmethod
    def of(cls, settings: Settings, made: str) -> Operator:
        """From settings, with `made` where no token is set.

        A server that is told to be reachable under other names stands behind a proxy,
        where every peer is on loopback; then nobody is the operator without the token.
        """
        token = settings.admin_token
        named = (
            bool(settings.allowed_hosts)
            or settings.public_url is not None
            or bool(settings.trusted_proxies)
        )
        return cls(
            token=token.get_secret_value() if token is not None else made,
            trust_loopback=settings.on_loopback and not named,
            open_to_all=settings.allow_public_without_auth,
        )

    def may_read(self, client_host: str | None, headers: Mapping[str, str]) -> bool:
        """Whether this request may see pages and download."""
        return (
            self.open_to_all
            or self.holds_token(headers)
            or self.on_this_machine(client_host, headers)
        )

    def on_this_machine(self, client_host: str | None, headers: Mapping[str, str]) -> bool:
        """Whether the request comes from a person on this machine, and nothing is between."""
        return (
            self.trust_loopback
            and client_host is not None
            and is_loopback(client_host)
            and host_name(headers.get("host", "")) in LOOPBACK_NAMES
            and not any(name in headers for name in FORWARDED)
        )

    def may_change(self, client_host: str | None, headers: Mapping[str, str]) -> bool:
        """Whether this request may create, close, reward or delete.

        A browser page on loopback may too: the guard has already refused other sites.
        A program must show the token, so that a harness that only holds a capture key
        cannot reach the admin routes by accident.
        """
        if self.open_to_all or self.holds_token(headers):
            return True
        from_page = headers.get("sec-fetch-site") == "same-origin"
        return from_page and self.on_this_machine(client_host, headers)

    def holds_token(self, headers: Mapping[str, str]) -> bool:
        """Whether ``Authorization`` carries the admin token: as Bearer, or as the
        password of Basic, which a browser can ask a person for."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip()
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(given, validate=True).decode("utf-8")
            except (binascii.Error, UnicodeDecodeError):
                return False
            given = pair.partition(":")[2]
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.encode(), self.token.encode())

    def require_change(self, client_host: str | None, headers: Mapping[str, str]) -> None:
        """Raises:
        AdminTokenNeeded: the request is not the operator's.
        """
        if not self.may_change(client_host, headers):
            raise AdminTokenNeeded(
                "this route needs the operator's token: send `Authorization: Bearer <token>` "
                "with ROLLOUT_EXPLORER_ADMIN_TOKEN, or the token printed at start"
            )
