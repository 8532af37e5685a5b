"""Parts of signing in over a real access database, and a small OpenID provider that lies.

The provider is a real HTTP server with real keys; a test says what its next id token holds.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, RSAKey

from explorer.access.audit import AuditLog
from explorer.access.database import AccessDatabase
from explorer.access.operator import Operator
from explorer.access.signing_in import SignIn
from explorer.settings import Settings, load

CLIENT = "the-client"
TOKEN = "the operator's token"


@dataclass
class Parts:
    """What signing in is made of, over one database."""

    database: AccessDatabase
    audit: AuditLog
    sign_in: SignIn
    settings: Settings

    def events(self, event: str) -> list[dict[str, Any]]:
        """Rows of the audit log of one event, the newest first."""
        return self.audit.page({"event": event}, None, 1000)


@contextmanager
def parts(path: Path, **settings: Any) -> Iterator[Parts]:
    """Over the file `path`; nobody is trusted for being on this machine."""
    chosen = load(public_url="https://here.example", **settings)
    database = AccessDatabase(path)
    try:
        audit = AuditLog(database)
        operator = Operator(token=TOKEN, trust_loopback=False, open_to_all=False)
        made = SignIn.of(chosen, database, audit, operator)
        yield Parts(database, audit, made, chosen)
    finally:
        database.close()


@cache
def _key() -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})


@dataclass
class Liar:
    """A provider whose answers a test chooses.

    Attributes:
        claims: of the next id token, over what it would honestly say.
        drop: claims that are left out.
        userinfo: None: the endpoint fails.
        sign_with: signs the id token; default: the published key.
        discovery: over what the discovery document would honestly say.
        asked: requests it got: path, headers, form.
    """

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    header: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] | None = field(default_factory=dict)
    raw_id_token: str | None = None
    sign_with: Any = None
    algorithm: str = "RS256"
    published: list[Any] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)
    token_reply: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""
    asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = field(default_factory=list)
    key: RSAKey = field(default_factory=_key)

    def settings(self, **more: Any) -> dict[str, Any]:
        """The setting that names it."""
        return {
            "name": "liar",
            "issuer": self.issuer,
            "client_id": CLIENT,
            "allow_private": True,
        } | more

    def paths(self) -> list[str]:
        """The paths that were asked for."""
        return [path for path, _, _ in self.asked]

    def id_token(self) -> str:
        """The next id token."""
        if self.raw_id_token is not None:
            return self.raw_id_token
        now = int(time.time())
        told = {
            "iss": self.issuer,
            "sub": "u-1",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": self.nonce,
            "preferred_username": "someone",
        } | self.claims
        told = {name: value for name, value in told.items() if name not in self.drop}
        header = {"alg": self.algorithm, "kid": "one"} | self.header
        key = self.sign_with or self.key
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.encode(header, told, key, algorithms=[self.algorithm])

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body of one answer."""
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "authorization_endpoint": self.issuer + "/auth",
                "token_endpoint": self.issuer + "/token",
                "jwks_uri": self.issuer + "/keys",
                "userinfo_endpoint": self.issuer + "/me",
            } | self.discovery
        if path == "/keys":
            return 200, {"keys": [each.as_dict(private=False) for each in self.published]}
        if path == "/token":
            honest = {"access_token": "at-1", "token_type": "Bearer", "expires_in": 600}
            return 200, honest | {"id_token": self.id_token()} | self.token_reply
        if path == "/me":
            if self.userinfo is None:
                return 500, {}
            return 200, {"sub": "u-1"} | self.userinfo
        return 404, {}


@contextmanager
def liar() -> Iterator[Liar]:
    """A running one, honest until told otherwise."""
    told = Liar()
    told.published = [told.key]

    class Handler(BaseHTTPRequestHandler):
        def _go(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            form = parse_qs(self.rfile.read(length).decode())
            path = self.path.partition("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            told.asked.append((path, headers, form))
            status, body = told.answer(path)
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.send_header("set-cookie", f"person=number-{len(told.asked)}; Path=/")
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _go

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def other_keys() -> tuple[RSAKey, ECKey, OctKey]:
    """Keys that nobody published."""
    return (
        RSAKey.generate_key(2048, {"kid": "one"}),
        ECKey.generate_key("P-256", {"kid": "two", "use": "sig"}),
        OctKey.import_key("a shared secret of some length, known to many"),
    )
