"""Finds the capture key of a request and takes it out of everything that is kept.

Owns: where a key may stand, and which headers and parameters are credentials.
Must not know: whether a key is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = dict[str, Any]
Header = tuple[bytes, bytes]

CREDENTIAL_HEADERS = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"cookie",
        b"ocp-apim-subscription-key",
    )
)
# Names of other credentials: a gateway's, another engine's, a proxy's.
_SECRET_NAME = re.compile(rb"(?:api[-_]?key|auth|authorization|token|secret|password)$")
# Our own keys, wherever they stand: in a Referer, or in the path a gateway writes down.
_OWN_KEY = re.compile(r"(rx[ka]_[A-Za-z0-9_-]{4})[A-Za-z0-9_-]+")
CREDENTIAL_PARAMETERS = frozenset(("key", "api_key", "access_token"))
_KEY_SEGMENT = "/k/"
SCOPE_KEY = "rollout_explorer.capture_key"


def take_from_path(scope: Scope) -> Scope:
    """The scope with ``/k/{key}`` and credential parameters cut from its path and query,
    the key kept beside; done before anything can log the path."""
    key: str | None = None
    path: str = scope["path"]
    raw_path: bytes = scope.get("raw_path") or path.encode()
    # Base addresses that end in a slash make paths that begin with two.
    if ("/" + path.lstrip("/")).startswith(_KEY_SEGMENT):
        key, _, rest = path.lstrip("/")[len(_KEY_SEGMENT) - 1 :].partition("/")
        path = "/" + rest.lstrip("/")
        raw_rest = raw_path.lstrip(b"/")[len(_KEY_SEGMENT) - 1 :].partition(b"/")[2]
        raw_path = b"/" + raw_rest.lstrip(b"/")
    query: bytes = scope.get("query_string", b"")
    if b"key=" in query or b"token=" in query:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        for name, value in pairs:
            if name == "key" and key is None:
                key = value
        query = urlencode(
            [pair for pair in pairs if pair[0] not in CREDENTIAL_PARAMETERS]
        ).encode("latin-1")
    if key is None and query == scope.get("query_string", b""):
        return scope
    return scope | {"path": path, "raw_path": raw_path, "query_string": query, SCOPE_KEY: key}


def capture_keys(scope: Scope) -> list[str]:
    """Every key the request offers, the most explicit first: URL prefix or ``?key=``,
    then ``x-api-key``, ``x-goog-api-key``, ``Authorization: Bearer``.

    Several may be offered at once (an SDK sends its own variable beside ours); the
    first that is known counts.
    """
    found: list[str] = []
    if scope.get(SCOPE_KEY):
        found.append(scope[SCOPE_KEY])
    bearer: list[str] = []
    for name, value in scope["headers"]:
        if name in (b"x-api-key", b"x-goog-api-key", b"api-key"):
            found.append(value.decode("latin-1").strip())
        elif name == b"authorization":
            text = value.decode("latin-1")
            if text[:7].lower() == "bearer ":
                bearer.append(text[7:].strip())
    return [key for key in found + bearer if key]


def without_keys(text: str) -> str:
    """`text` with every key of ours cut."""
    return _OWN_KEY.sub(r"\1***", text)


def keepable_headers(headers: Iterable[Header]) -> tuple[tuple[str, str], ...]:
    """Request headers without credentials, as they may be recorded; a key of ours in the
    value of another header is cut."""
    return tuple(
        (name.decode("latin-1"), without_keys(value.decode("latin-1")))
        for name, value in headers
        if name not in CREDENTIAL_HEADERS and not _SECRET_NAME.search(name)
    )
