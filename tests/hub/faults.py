"""What goes wrong on the local Hub, on purpose and countably.

Owns: which request is hit, and what happens to it; the limit of requests.
Must not know: what a request would have done.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.hub.wire import Answer, CutOff, Refusal, Request

Doing = Callable[[], Answer]
# Gets what would answer the request, and answers instead.
Act = Callable[[Doing], Answer]


def failing(status: int, message: str = "", **headers: str) -> Act:
    """Answers an error and does nothing; `retry_after` becomes `Retry-After`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def act(doing: Doing) -> Answer:
        words = message or f"Internal Error {status}"
        given = Refusal(status, words).answer()
        return Answer(status, given.body, given.headers | named)

    return act


def limited(reset: int) -> Act:
    """429 as the Hub says it without `Retry-After`: in the draft's header."""
    policy = '"fixed window";"api";q=500;w=300'
    said = {"ratelimit": f'"api";r=0;t={reset}', "ratelimit-policy": policy}
    return failing(429, "We had to rate limit you", **said)


def cutting() -> Act:
    """Ends the connection before anything is done."""

    def act(doing: Doing) -> Answer:
        raise CutOff

    return act


def losing() -> Act:
    """Does what was asked, and ends the connection instead of saying so."""

    def act(doing: Doing) -> Answer:
        doing()
        raise CutOff

    return act


def halving() -> Act:
    """Ends the connection in the middle of the answer."""

    def act(doing: Doing) -> Answer:
        given = doing()
        raise CutOff(given, len(given.body) // 2)

    return act


def waiting(seconds: float) -> Act:
    """Answers late."""

    def act(doing: Doing) -> Answer:
        time.sleep(seconds)
        return doing()

    return act


def calling(told: Callable[[], object], before: bool = True) -> Act:
    """Calls something, then (or before that) answers as always."""

    def act(doing: Doing) -> Answer:
        if before:
            told()
            return doing()
        given = doing()
        told()
        return given

    return act


@dataclass
class Fault:
    """What happens to the requests `first` to `first + times - 1` that match."""

    pattern: re.Pattern[str]
    act: Act
    first: int
    times: int
    seen: int = 0


@dataclass
class Faults:
    """Every fault, and every request that came, with whose it said it is."""

    planned: list[Fault] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)
    tokens: set[str | None] = field(default_factory=set)
    cookies: set[str | None] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, pattern: str, act: Act, first: int = 1, times: int = 1) -> Fault:
        """Plans one; `pattern` is searched in `METHOD /path`."""
        fault = Fault(re.compile(pattern), act, first, times)
        self.planned.append(fault)
        return fault

    def clear(self) -> None:
        """Nothing goes wrong from here on, and nothing was asked yet."""
        self.planned.clear()
        self.log.clear()

    def asked(self, pattern: str) -> list[str]:
        """The requests so far that match."""
        return [line for line in self.log if re.search(pattern, line)]

    def through(self, request: Request, doing: Doing) -> Answer:
        """The answer to a request, or what happens to it instead."""
        line = f"{request.method} {request.path}"
        with self.lock:
            self.log.append(line)
            self.agents.add(request.headers.get("user-agent") or "")
            self.tokens.add(request.token)
            self.cookies.add(request.headers.get("cookie"))
            hit = None
            for fault in self.planned:
                if fault.pattern.search(line):
                    fault.seen += 1
                    if hit is None and fault.first <= fault.seen < fault.first + fault.times:
                        hit = fault
        return doing() if hit is None else hit.act(doing)


@dataclass
class Limit:
    """So many requests to `/api` in a window of seconds, by token."""

    quota: int
    window: float
    used: dict[str | None, list[float]] = field(default_factory=dict)

    def headers(self, request: Request) -> dict[str, str]:
        """What every answer says.

        Raises:
            Refusal: the quota is used up.
        """
        now = time.monotonic()
        times = [at for at in self.used.get(request.token, []) if now - at < self.window]
        reset = int(self.window - (now - times[0])) + 1 if times else int(self.window)
        left = self.quota - len(times) - 1
        said = {
            "ratelimit": f'"api";r={max(left, 0)};t={reset}',
            "ratelimit-policy": f'"fixed window";"api";q={self.quota};w={int(self.window)}',
        }
        if left < 0:
            raise Spent(said)
        self.used[request.token] = [*times, now]
        return said


class Spent(Refusal):
    """429, with the headers that say until when."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__(429, "We had to rate limit you, hit the quota of 'api' requests")
        self.headers = headers

    def answer(self) -> Answer:
        given = super().answer()
        return Answer(429, given.body, given.headers | self.headers)
