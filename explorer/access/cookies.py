"""The cookies of signing in: their names, how they are set, and how they are read.

Owns: `Set-Cookie` lines. Must not know: what a value refers to.

`__Host-` lets a browser take a cookie only over a secure connection, for this host alone and
for every path, so no other host of the same domain can plant one. Inside another site's frame
(a Hugging Face Space) a browser sends only what says `SameSite=None` and `Partitioned`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from explorer.settings import is_loopback

SESSION_COOKIE = "__Host-rx-session"
LOGIN_COOKIE = "__Host-rx-login"
# What `secrets.token_urlsafe(32)` makes.
_VALUE = re.compile(r"[A-Za-z0-9_-]{43}")
Headers = Iterable[tuple[bytes, bytes]]


def set_cookie(name: str, value: str, *, max_age_s: int, framed: bool) -> str:
    """The header line that sets a cookie; of an age of 0, the one that takes it away."""
    site = "SameSite=None; Secure; Partitioned" if framed else "SameSite=Lax; Secure"
    return f"{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; {site}"


def drop_cookie(name: str, *, framed: bool) -> str:
    """The header line that takes a cookie away."""
    return set_cookie(name, "", max_age_s=0, framed=framed)


def values_of(header: str, name: str) -> list[str]:
    """Every well-formed value of the cookie of exactly this name.

    There may be two: of a partition, and of the top level.
    """
    if name not in header:
        return []
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for each, _, value in pairs if each == name and _VALUE.fullmatch(value)]


def takes_secure_cookies(origin: str) -> bool:
    """Whether browsers keep a secure cookie of this origin: https, or this machine."""
    parts = urlsplit(origin)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
