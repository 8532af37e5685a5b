"""The live tail: what happened to a rollout since a reader last looked, as events.

Owns: the position a reader has reached, the messages after it, one watch per rollout.
Must not know: HTTP routes, HTML, what a browser does with a message.

A position is made of durable facts only (the next event's number, and which calls have
been told), so it holds after a restart of the server: no message twice, none left out.
Calls end in another order than they begin, so a position names the first call that has
not been told and those told beyond it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from explorer.errors import CapacityReached, InvalidValue, StoreFailed
from explorer.export.judged import Judged, JudgedSource
from explorer.records import RolloutId, RolloutRecord
from explorer.store.interface import Store
from explorer.web import api_shapes as shapes
from explorer.web.timing import budget_rows

POLL_S = 0.4
HEARTBEAT_S = 15.0
MOST_READERS = 200
MOST_OF_ONE = 20
RETRY_MS = 1500
_POSITION = re.compile(r"e(\d{1,9})\.c(\d{1,9})((?:\+\d{1,9}){0,2000})")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has come: every event below `events`, every call whose sequence is
    below `calls`, and the calls `beyond`."""

    events: int = 0
    calls: int = 0
    beyond: frozenset[int] = frozenset()

    def __str__(self) -> str:
        told = "".join(f"+{number}" for number in sorted(self.beyond))
        return f"e{self.events}.c{self.calls}{told}"

    def with_call(self, sequence: int) -> Position:
        """This position after a call was told."""
        beyond = set(self.beyond)
        calls = self.calls
        if sequence >= calls:
            beyond.add(sequence)
        while calls in beyond:
            beyond.remove(calls)
            calls += 1
        return Position(self.events, calls, frozenset(beyond))

    def has_call(self, sequence: int) -> bool:
        """Whether the call was told."""
        return sequence < self.calls or sequence in self.beyond


def read_position(text: str) -> Position:
    """A position as it was sent.

    Raises:
        InvalidValue: it is none.
    """
    found = _POSITION.fullmatch(text.strip())
    if found is None:
        raise InvalidValue(
            "the position to go on from is not one of ours; leave it out to begin at the start"
        )
    beyond = frozenset(int(number) for number in found[3].split("+") if number)
    return Position(int(found[1]), int(found[2]), beyond)


def position_of(record: RolloutRecord) -> Position:
    """Where a reader stands who has seen this record whole."""
    position = Position(events=len(record.events))
    for call in sorted(record.calls, key=lambda call: call.sequence):
        position = position.with_call(call.sequence)
    return position


@dataclass(frozen=True, slots=True)
class Message:
    """One event of the stream; `position` is where a reader stands after it, None where
    it may be told again (a state)."""

    name: str
    data: Mapping[str, Any]
    position: Position | None = None

    def encode(self) -> bytes:
        """The event on the wire."""
        head = f"event: {self.name}\n"
        if self.position is not None:
            head += f"id: {self.position}\n"
        return head.encode() + b"data: " + orjson.dumps(shapes.plain(self.data)) + b"\n\n"


def news(judged: Judged, since: Position) -> Iterator[Message]:
    """What happened after `since`: events in order, then calls in admission order."""
    position = since
    for event in judged.record.events:
        if event.sequence < since.events:
            continue
        position = Position(event.sequence + 1, position.calls, position.beyond)
        told = {
            "sequence": event.sequence,
            "kind": event.kind,
            "time_us": event.time_us,
            "reward": event.reward,
            "ok": event.ok,
            "reason": event.reason,
        }
        yield Message("event", told, position)
    for call in sorted(judged.record.calls, key=lambda call: call.sequence):
        if since.has_call(call.sequence):
            continue
        position = position.with_call(call.sequence)
        told = shapes.call_json(judged, call) | {"preview": call.preview}
        yield Message("call", told, position)


def _told(judged: Judged, since: Position) -> tuple[Message, ...]:
    return tuple(news(judged, since))


def state(judged: Judged) -> Message:
    """How it stands now: told at the beginning and after every change."""
    judgement, record = judged.judgement, judged.record
    told = {
        "status": "closed" if judgement.state.closed else "open",
        "calls": len(record.calls),
        "open_calls": len(record.open_calls),
        "reward": judgement.state.reward,
        "ok": judgement.state.ok,
        "trainable": judgement.trainable,
        "supervised_tokens": judgement.supervised_tokens,
        "generated_tokens": judgement.generated_tokens,
        "reasons": [reason.code for reason in judgement.reasons],
        "budgets": budget_rows(judged),
    }
    return Message("state", told)


@dataclass(slots=True)
class _Watch:
    """One rollout that somebody reads: its stamp, and who waits for the next."""

    stamp: tuple[int, int] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    readers: int = 0
    task: asyncio.Task[None] | None = None


class LiveRollouts:
    """Streams of rollouts, however many read them: one look at the store for all.

    Args:
        store: tells whether rows were added.
        judged: the record with its verdict, as pages show it.
        poll_s: time between two looks (seconds).
    """

    def __init__(self, store: Store, judged: JudgedSource, poll_s: float = POLL_S) -> None:
        self._store = store
        self._judged = judged
        self._poll_s = poll_s
        self._watches: dict[RolloutId, _Watch] = {}
        self._by_reader: Counter[str] = Counter()
        self._closing = asyncio.Event()

    @property
    def readers(self) -> int:
        """Streams that are open."""
        return sum(watch.readers for watch in self._watches.values())

    def close(self) -> None:
        """Ends every stream, so that a server that stops need not wait for its readers; they
        come back to the next one with their position."""
        self._closing.set()
        for watch in self._watches.values():
            watch.changed.set()

    async def stream(
        self,
        rollout_id: RolloutId,
        since: Position,
        judged: JudgedSource | None = None,
        reader: str = "",
    ) -> AsyncIterator[bytes]:
        """The messages after `since`, then those to come, until the rollout is closed.

        `judged` is what this reader may see, where that is less than everything; `reader`
        names whom the stream counts for, so that one cannot take every place.

        Raises:
            CapacityReached: before the first byte, when too many are reading already.
        """
        if self.readers >= MOST_READERS:
            raise CapacityReached(f"{MOST_READERS} readers follow rollouts already; try later")
        if reader and self._by_reader[reader] >= MOST_OF_ONE:
            raise CapacityReached(f"you follow {MOST_OF_ONE} rollouts already; close some")
        return self._counted(reader, self._messages(rollout_id, since, judged or self._judged))

    async def _counted(
        self, reader: str, messages: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        self._by_reader[reader] += 1
        try:
            async for message in messages:
                yield message
        finally:
            self._by_reader[reader] -= 1
            if self._by_reader[reader] <= 0:
                del self._by_reader[reader]
            await messages.aclose()

    async def _messages(
        self, rollout_id: RolloutId, since: Position, source: JudgedSource
    ) -> AsyncGenerator[bytes, None]:
        watch = self._watches.setdefault(rollout_id, _Watch())
        watch.readers += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._look(rollout_id, watch))
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self._closing.is_set():
                changed = watch.changed
                judged = await source.get(rollout_id)
                if judged is None:
                    yield Message("end", {"status": "deleted"}).encode()
                    return
                for message in await asyncio.to_thread(_told, judged, since):
                    since = message.position or since
                    yield message.encode()
                yield (await asyncio.to_thread(state, judged)).encode()
                if judged.judgement.state.closed and not judged.record.open_calls:
                    yield Message("end", {"status": "closed"}, since).encode()
                    return
                while not changed.is_set():
                    try:
                        await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
                    except TimeoutError:
                        yield b": nothing new\n\n"
        finally:
            watch.readers -= 1
            if not watch.readers:
                self._watches.pop(rollout_id, None)
                if watch.task is not None:
                    watch.task.cancel()

    async def _look(self, rollout_id: RolloutId, watch: _Watch) -> None:
        """Wakes the readers whenever rows were added."""
        while True:
            stamp = watch.stamp
            # While the store is being opened again nothing is new; readers hear of it then.
            with contextlib.suppress(StoreFailed):
                stamp = await asyncio.to_thread(self._store.record_stamp, rollout_id)
            if stamp != watch.stamp:
                watch.stamp = stamp
                before, watch.changed = watch.changed, asyncio.Event()
                before.set()
            if self._closing.is_set():
                watch.changed.set()
                return
            await asyncio.sleep(self._poll_s)
