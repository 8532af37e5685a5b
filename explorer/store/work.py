"""The queue between event loops and the writer thread.

Owns: one piece of work with the future that waits for it, how a group is collected,
and how futures are answered. Must not know: rows, the database.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from explorer.records import (
    Admission,
    Body,
    Call,
    Certificate,
    Rollout,
    RolloutEvent,
    VocabularyEntry,
    WeightUpdate,
)
from explorer.store.deltas import DeltaSummary, TrainerPost
from explorer.store.interface import JudgementRow
from explorer.store.remarks import Annotation, SavedView
from explorer.store.seals import Seal
from explorer.store.secret_marks import SecretDecision, SecretMark, SecretRow

GROUP_ITEMS = 256
GROUP_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class EndedCall:
    """A call with its bodies, stored together."""

    call: Call
    bodies: Sequence[Body]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one or more tokenizers."""

    entries: Sequence[VocabularyEntry]


Record = (
    Rollout
    | RolloutEvent
    | Admission
    | EndedCall
    | Certificate
    | Vocabulary
    | JudgementRow
    | Annotation
    | SavedView
    | Seal
    | SecretMark
    | SecretRow
    | SecretDecision
    | WeightUpdate
    | TrainerPost
    | DeltaSummary
)


@dataclass(slots=True, eq=False)
class Work:
    """One record on its way to the database, and who waits for it."""

    record: Record
    future: asyncio.Future[Any]
    size: int
    result: Any = None
    error: Exception | None = None


def size_of(record: Record) -> int:
    """Estimate the bytes a record adds to a commit."""
    if isinstance(record, EndedCall):
        return 1024 + sum(len(body.data) for body in record.bodies)
    if isinstance(record, Vocabulary):
        return 32 * len(record.entries)
    if isinstance(record, TrainerPost):
        return sum(256 + row.logps.nbytes for row in record.rows)
    return 512


class WorkQueue:
    """Work waiting for the writer thread; `put` never blocks."""

    def __init__(self, linger_s: float, interval_s: float) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._held: Work | None = None
        self._linger_s = linger_s
        self._interval_s = interval_s
        self._next_group = 0.0
        self._guard = threading.Lock()
        self._closed = False

    def put(self, work: Work) -> bool:
        """Queue work; False once the queue is closed."""
        with self._guard:
            if self._closed:
                return False
            self._queue.put(work)
            return True

    def close(self) -> None:
        """Take no more work; `collect` empties the queue and then answers None."""
        with self._guard:
            if not self._closed:
                self._closed = True
                self._queue.put(None)

    def depth(self) -> int:
        """How many pieces of work wait."""
        return self._queue.qsize()

    def _next(self, wait_s: float) -> Work | bool | None:
        """Return work, None for "closed", False for "nothing came"."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        try:
            if wait_s <= 0:
                return self._queue.get_nowait()
            return self._queue.get(timeout=wait_s)
        except queue.Empty:
            return False

    def collect(self, wait_s: float) -> list[Work] | None:
        """Return the next group, empty after ``wait_s`` without work, None at the end.

        While one group commits, the next one gathers. Beyond that, when the last group
        held several calls the next one starts at least the interval after it, because
        a commit of one row costs nearly as much as one of ten; and admissions alone wait
        for company, because nobody waits for them.
        """
        first = self._next(wait_s)
        if first is None:
            return None
        if isinstance(first, bool):
            return []
        group, size = [first], first.size
        now = time.monotonic()
        linger_until = now + self._linger_s
        while len(group) < GROUP_ITEMS and size < GROUP_BYTES:
            until = self._next_group
            if isinstance(group[-1].record, Admission):
                until = max(until, linger_until)
            else:
                linger_until = 0.0
            work = self._next(until - now)
            if work is None:
                self._queue.put(None)  # for the next call
                break
            if isinstance(work, bool):
                break
            if size + work.size > GROUP_BYTES:
                self._held = work
                break
            group.append(work)
            size += work.size
            now = time.monotonic()
        busy = sum(isinstance(work.record, EndedCall) for work in group) > 1
        self._next_group = time.monotonic() + self._interval_s if busy else 0.0
        return group


def answer(group: Sequence[Work]) -> None:
    """Answer every future of a finished group, one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Work]] = {}
    for work in group:
        by_loop.setdefault(work.future.get_loop(), []).append(work)
    for loop, works in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, works)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _settle(works: Sequence[Work]) -> None:
    for work in works:
        if work.future.done():
            continue
        if work.error is None:
            work.future.set_result(work.result)
        else:
            work.future.set_exception(work.error)
            if isinstance(work.record, Admission):
                work.future.exception()  # seldom awaited: no "never retrieved" warning
