"""The address at which a framework reads what a rollout's ledger holds.

Owns: the two paths, the bearer token, statuses.
Must not know: sign-in, roles, rollouts; the token is all that counts here.

It stands apart from the pages and their gate because its token is no operator's: who holds it
may read manifests, which hold no tokens and no words, and nothing else.
"""

from __future__ import annotations

import asyncio
import hmac
import re

import orjson

from explorer.capture.answers import Outgoing
from explorer.capture.body import Receive
from explorer.capture.credentials import Scope
from explorer.capture.driver import Send
from explorer.capture.proxy import send_whole
from explorer.custody.errors import LedgerError
from explorer.custody.ledger import CaptureLedger

_PATHS = (
    re.compile(r"/training-token-capture/control/rollouts/(.*)/manifest", re.DOTALL),
    re.compile(r"/api/v1/rollouts/(.*)/custody/manifest", re.DOTALL),
)
_JSON = (("content-type", "application/json"), ("cache-control", "no-store"))


def asked_for(path: str) -> str | None:
    """The rollout id of such an address; None for any other."""
    for pattern in _PATHS:
        found = pattern.fullmatch(path)
        if found is not None:
            return found[1]
    return None


class ManifestRoute:
    """Answers with manifests.

    Args:
        token: whoever shows it may read.
    """

    def __init__(self, ledger: CaptureLedger, token: str) -> None:
        self._ledger = ledger
        self._token = token.encode()

    def admits(self, scope: Scope) -> bool:
        """Whether a request asks for a manifest and shows the token."""
        return asked_for(scope.get("path", "")) is not None and self._is_shown(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        del receive
        await send_whole(send, await self._answer(scope))

    async def _answer(self, scope: Scope) -> Outgoing:
        if not self._is_shown(scope):
            told = (*_JSON, ("www-authenticate", "Bearer"))
            return _refusal(401, "credentials_refused", "send the control token", told)
        if scope["method"] != "GET":
            told = (*_JSON, ("allow", "GET"))
            return _refusal(405, "method_not_allowed", "manifests are read with GET", told)
        try:
            manifest = await asyncio.to_thread(
                self._ledger.manifest, asked_for(scope["path"]) or ""
            )
        except LedgerError as error:
            status = 400 if error.code == "invalid_rollout_id" else 503
            return _refusal(status, error.code, error.detail, _JSON)
        return Outgoing(200, orjson.dumps(manifest.to_json()), _JSON)

    def _is_shown(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        # As bytes: a comparison of text refuses what is not ASCII.
        return len(shown) == 1 and hmac.compare_digest(shown[0], b"Bearer " + self._token)


def _refusal(
    status: int, code: str, message: str, headers: tuple[tuple[str, str], ...]
) -> Outgoing:
    body = orjson.dumps({"error": {"code": code, "message": message}})
    return Outgoing(status, body, headers)
