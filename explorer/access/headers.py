"""The headers on every answer: what a browser may do with it.

Owns: the content policy as data, and the other headers that keep a page to itself.
Must not know: what is answered.

A route that needs another source than this server names it in `routes`; it is added to the
policy of the addresses that begin so, and to no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Header = tuple[bytes, bytes]
Csp = Mapping[str, str]
# The one page that may frame ours, and only in a Space.
SPACES = "https://huggingface.co"

CSP: dict[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
_SAME_EVERYWHERE: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    # Who asks decides what is told, so nothing between may keep it; routes may say more.
    (b"cache-control", b"private, no-cache"),
)
# A year; not for other hosts of the domain, which are not ours to speak for.
_HSTS: Header = (b"strict-transport-security", b"max-age=31536000")


def merged(base: Csp, more: Csp) -> dict[str, str]:
    """A policy with further sources; `'none'` gives way to the first one."""
    made = dict(base)
    for name, sources in more.items():
        known = made.get(name, "'none'")
        made[name] = sources if known == "'none'" else f"{known} {sources}"
    return made


def in_words(policy: Csp) -> bytes:
    """A policy as its header has it."""
    return "; ".join(f"{name} {value}" for name, value in policy.items()).encode()


@dataclass(frozen=True, slots=True)
class HeaderPolicy:
    """Headers by address and scheme.

    Attributes:
        framed: the page of a Space frames ours.
        routes: further sources by the beginning of a path.
    """

    framed: bool = False
    routes: Mapping[str, Csp] = field(default_factory=dict)
    _made: dict[str, tuple[Header, ...]] = field(default_factory=dict, init=False, repr=False)

    def of(self, path: str, scheme: str) -> tuple[Header, ...]:
        """The headers of an answer at `path`."""
        begins = max(
            (each for each in self.routes if path.startswith(each)), default="", key=len
        )
        headers = self._made.get(begins)
        if headers is None:
            headers = self._made[begins] = self._make(self.routes.get(begins, {}))
        return (*headers, _HSTS) if scheme == "https" else headers

    def _make(self, more: Csp) -> tuple[Header, ...]:
        policy = merged(CSP, more)
        if self.framed:
            policy = merged(policy, {"frame-ancestors": SPACES})
            return ((b"content-security-policy", in_words(policy)), *_SAME_EVERYWHERE)
        return (
            (b"content-security-policy", in_words(policy)),
            (b"x-frame-options", b"DENY"),
            *_SAME_EVERYWHERE,
        )
