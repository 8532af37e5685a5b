"""The operator: who may create, close and read everything on this server.

Owns: the check of the admin token, and the rule that a person on this machine's
loopback address is the operator.
Must not know: routes.

The issue "Grants" replaces this gate with people and grants.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from explorer.errors import AdminTokenNeeded
from explorer.settings import Settings, is_loopback


def make_token() -> str:
    """A token for an operator who set none."""
    return "rxa_" + secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Operator:
    """Decides whether a request is the operator's.

    Attributes:
        token: the admin token; compared in constant time.
        trust_loopback: a browser on this machine needs no token for reading.
        open_to_all: the loud setting that lets anybody do anything.
    """

    token: str
    trust_loopback: bool
    open_to_all: bool

    @classmethod
    def of(cls, settings: Settings, made: str) -> Operator:
        """From settings, with `made` where no token is set."""
        token = settings.admin_token
        return cls(
            token=token.get_secret_value() if token is not None else made,
            trust_loopback=settings.on_loopback,
            open_to_all=settings.allow_public_without_auth,
        )

    def may_read(self, client_host: str | None, headers: Mapping[str, str]) -> bool:
        """Whether this request may see pages and download."""
        if self.open_to_all or self.holds_token(headers):
            return True
        return self.trust_loopback and client_host is not None and is_loopback(client_host)

    def may_change(self, client_host: str | None, headers: Mapping[str, str]) -> bool:
        """Whether this request may create, close, reward or delete.

        A browser page on loopback may too: the guard has already refused other sites.
        A program must show the token, so that a harness that only holds a capture key
        cannot reach the admin routes by accident.
        """
        if self.open_to_all or self.holds_token(headers):
            return True
        from_page = headers.get("sec-fetch-site") == "same-origin"
        return from_page and self.may_read(client_host, headers)

    def holds_token(self, headers: Mapping[str, str]) -> bool:
        """Whether ``Authorization: Bearer`` carries the admin token."""
        value = headers.get("authorization", "")
        scheme, _, given = value.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self.token.encode()
        )

    def require_change(self, client_host: str | None, headers: Mapping[str, str]) -> None:
        """Raises:
        AdminTokenNeeded: the request is not the operator's.
        """
        if not self.may_change(client_host, headers):
            raise AdminTokenNeeded(
                "this route needs the operator's token: send `Authorization: Bearer <token>` "
                "with ROLLOUT_EXPLORER_ADMIN_TOKEN, or the token printed at start"
            )

    def require_read(self, client_host: str | None, headers: Mapping[str, str]) -> None:
        """Raises:
        AdminTokenNeeded: the request is not the operator's.
        """
        if not self.may_read(client_host, headers):
            raise AdminTokenNeeded(
                "reading needs the operator's token: send `Authorization: Bearer <token>`"
            )
