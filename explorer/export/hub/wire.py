"""Every request to the Hub while we publish: stopped when asked, its failures told apart.

Owns: which failures are worth another try, how long to wait, and the client that says so.
Must not know: what a request is for.

`huggingface_hub` has one HTTP client for a whole process, and repeats requests by itself:
deaf to `stop`, and waiting as long as a server says. So its client is replaced, once, by one
that does the same for everybody else and, inside `publishing`, raises `TryAgain`.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from huggingface_hub import get_session, set_client_factory
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from explorer.export.hub.target import go_on

_AGAIN = (408, 429, 500, 502, 503, 504)
# Seconds: a commit of many files takes the Hub a while; a silent upload does not.
_TIMEOUT = {"connect": 15.0, "read": 180.0, "write": 60.0, "pool": 15.0}
_TELEMETRY = "/api/agent-harnesses"

_stop: ContextVar[threading.Event | None] = ContextVar("publishing", default=None)


class TryAgain(Exception):
    """A failure that may pass. `status` is None where there was no answer at all.

    Attributes:
        asked: seconds that the server wants us to wait.
    """

    def __init__(self, why: str, status: int | None = None, asked: float | None = None) -> None:
        super().__init__(why)
        self.why, self.status, self.asked = why, status, asked


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and how long.

    Attributes:
        tries: of one request, all together.
        first, longest: seconds before the second try, and the most by doubling it.
        limit: the longest wait that a server may ask for; its windows are of five minutes.
    """

    tries: int = 8
    first: float = 1.0
    longest: float = 30.0
    limit: float = 330.0

    def wait(self, tried: int, asked: float | None) -> float:
        """Seconds until the next try; somewhat more than asked, so that not all come back
        at once."""
        if asked is not None:
            return asked + random.uniform(0.0, min(2.0, self.first))  # noqa: S311
        most = min(self.longest, self.first * 2 ** (tried - 1))
        return random.uniform(most / 2, most)  # noqa: S311


class PatientClient(httpx2.Client):
    """The client of the whole process; it is itself only inside `publishing`."""

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        stop = _stop.get()
        if stop is None:
            return super().send(request, **options)
        go_on(stop)
        if request.url.path == _TELEMETRY:
            raise httpx2.ConnectError("publishing asks for nothing that is not needed")
        request.extensions["timeout"] = dict(_TIMEOUT)
        try:
            response = super().send(request, **options)
        except httpx2.UnsupportedProtocol:
            raise
        except httpx2.TransportError as error:
            raise TryAgain(f"the connection failed ({type(error).__name__})") from error
        if response.status_code in _AGAIN:
            asked = _asked(response.headers)
            response.close()
            raise TryAgain(f"it answered {response.status_code}", response.status_code, asked)
        return response


def _asked(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, by `Retry-After` or, where the quota is used up, by `RateLimit`."""
    value = headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    left = re.search(r";\s*r\s*=\s*(\d+)\s*;\s*t\s*=\s*(\d+)", headers.get("ratelimit", ""))
    if left and left[1] == "0":
        return float(left[2])
    return None


class _NoXetNotice(logging.Filter):
    """Files go up by HTTP on purpose; the library warns of it at each one."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Falling back to HTTP upload" not in record.getMessage()


_lock = threading.Lock()
_installed = False


def _install() -> None:
    """Puts our client in the place of the library's, with everything that it does."""
    global _installed
    with _lock:
        if _installed:
            return
        hooks = get_session().event_hooks

        def made() -> httpx2.Client:
            # No cookies: what the Hub sets for one person's token is not sent with another's.
            jar = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
            return PatientClient(
                event_hooks=hooks, follow_redirects=True, timeout=None, cookies=jar
            )

        set_client_factory(made)
        # Its bars would be drawn through ours, and into a server's log.
        disable_progress_bars()
        logging.getLogger("huggingface_hub._commit_api").addFilter(_NoXetNotice())
        _installed = True


@contextmanager
def publishing(stop: threading.Event) -> Iterator[None]:
    """Requests of this thread are ours from here on.

    Raises:
        PublishStopped: by a request, once `stop` is set.
        TryAgain: by a request that failed in a way that may pass.
    """
    _install()
    before = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(before)
