"""Which request is the same one again: retries join the call they repeat.

Owns: what counts as evidence of a retry, the canonical form of a body, and the replies kept
for one that comes back.
Must not know: dialects, the store, sockets.

Two equal bodies alone prove nothing: an agent may sample twice. A request joins an earlier
one only with an idempotency key that both carry, or with an SDK's retry counter above zero
and the same body in canonical form, within a window. Bytes are not compared: Codex writes
equal requests with their keys in another order.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field

import orjson

from explorer.errors import BadRequest
from explorer.records import CallId

_COUNTER = "x-stainless-retry-count"
_KEY = "idempotency-key"
_NUMBER = re.compile("[0-9]{1,6}")
_MOST_CALLS = 64
_MOST_BYTES = 16 * 1024 * 1024
_LONGEST_KEY = 256

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a request says about being a retry. `retries` is an SDK's own counter."""

    key: str | None
    retries: int


def evidence_in(headers: Headers) -> Evidence | None:
    """What the headers say; None where they say nothing, and no later request could join."""
    found = {name: value for name, value in headers if name in (_COUNTER, _KEY)}
    if not found:
        return None
    counter = found.get(_COUNTER, "0")
    key = found.get(_KEY)
    return Evidence(
        key=_bounded(key) if key else None,
        retries=int(counter) if _NUMBER.fullmatch(counter) else 0,
    )


def _bounded(key: str) -> str:
    """The key itself, or for a very long one what no other key has."""
    if len(key) <= _LONGEST_KEY:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def canonical_digest(raw: bytes) -> bytes:
    """Equal for two bodies that are the same JSON; bodies that are none compare as bytes."""
    try:
        body = orjson.dumps(orjson.loads(raw), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):
        body = raw
    return hashlib.blake2b(body, digest_size=16).digest()


@dataclass(slots=True)
class Answer:
    """The bytes that a call was answered with."""

    status: int
    headers: Headers
    body: bytes


@dataclass(slots=True, eq=False)
class Attempt:
    """A call that a retry may still be one of. `answer` is None where it was not committed;
    `retries` is the highest counter with which it was asked for."""

    call_id: CallId
    key: str | None
    retries: int
    digest: bytes
    path: str
    started_us: int
    answer: asyncio.Future[Answer | None]
    waiting: int = 0

    @property
    def failed(self) -> bool:
        """Whether it ended without a reply that could be given again."""
        return self.answer.done() and self.answer.result() is None


def _same(one: Attempt, other: Attempt) -> bool:
    return one.digest == other.digest and one.path == other.path


@dataclass(slots=True)
class Retries:
    """The joinable calls of one rollout, the oldest first."""

    window_us: int = 600_000_000
    _attempts: OrderedDict[CallId, Attempt] = field(default_factory=OrderedDict)
    _bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory that the kept replies take (bytes)."""
        return self._bytes

    def clear(self) -> None:
        """Forgets every attempt; those that wait for an answer still get it."""
        self._attempts.clear()
        self._bytes = 0

    def find(self, evidence: Evidence, asked: Attempt) -> Attempt | None:
        """The call that the request `asked` repeats.

        Raises:
            BadRequest: its idempotency key was used with another body.
        """
        self._forget(asked.started_us)
        if evidence.key is not None:
            return self._by_key(evidence.key, asked)
        if evidence.retries == 0:
            return None
        # The counter says only that some equal request came before, with the counter one
        # lower. Where two did, two samples were wanted, and nobody can say of which this is
        # the retry.
        earlier = [
            attempt
            for attempt in self._attempts.values()
            if attempt.retries == evidence.retries - 1 and _same(attempt, asked)
        ]
        if len(earlier) != 1 or earlier[0].failed:
            return None
        earlier[0].retries = evidence.retries
        return earlier[0]

    def _by_key(self, key: str, asked: Attempt) -> Attempt | None:
        for attempt in reversed(self._attempts.values()):
            if attempt.key != key:
                continue
            if not _same(attempt, asked):
                raise BadRequest(
                    "this idempotency key was used with another request; use a new key "
                    "for a new request"
                )
            return None if attempt.failed else attempt
        return None

    def open(self, attempt: Attempt) -> None:
        """From now on retries of this call join it."""
        self._attempts[attempt.call_id] = attempt
        while len(self._attempts) > _MOST_CALLS:
            self._drop(next(iter(self._attempts)))

    def close(self, attempt: Attempt, answer: Answer | None) -> None:
        """The call has ended; only a committed one (`answer`) can still be joined. One that
        came to nothing is remembered, so that its retry is not taken for another's."""
        if not attempt.answer.done():
            attempt.answer.set_result(answer)
        if answer is None or attempt.call_id not in self._attempts:
            return
        self._bytes += len(answer.body)
        while self._bytes > _MOST_BYTES and self._attempts:
            self._drop(next(iter(self._attempts)))

    def _forget(self, time_us: int) -> None:
        for call_id, attempt in list(self._attempts.items()):
            if time_us - attempt.started_us <= self.window_us:
                break
            if attempt.answer.done():
                self._drop(call_id)

    def _drop(self, call_id: CallId) -> None:
        attempt = self._attempts.pop(call_id)
        if attempt.answer.done():
            answer = attempt.answer.result()
            self._bytes -= len(answer.body) if answer is not None else 0
