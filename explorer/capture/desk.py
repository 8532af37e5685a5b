"""Who may call, and where their calls go: live rollouts by key hash.

Owns: rollouts as the proxy needs them in memory: state, next sequence, prefix index,
calls in flight.
Must not know: HTTP, dialects.

A rollout not in memory (after a restart, or long idle) is read back from the store
once; an index that was dropped for memory is rebuilt from the stored deltas.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.capture.budgets import Ledger
from explorer.capture.ids import hash_key, new_capture_key, new_rollout_id, now_us
from explorer.capture.lineage import Lineage
from explorer.capture.retries import Retries
from explorer.capture.token_in import Book
from explorer.capture.token_in_recall import stored_book
from explorer.capture.watch import SetUpWatch
from explorer.errors import NotFound, RolloutClosed, UnknownKey
from explorer.records import (
    Call,
    CallId,
    EventKind,
    KeyHash,
    Override,
    Rollout,
    RolloutEvent,
    RolloutId,
)
from explorer.store.interface import RolloutStatus, Store
from explorer.store.rows import override_payload

# Characters of argument texts that one rollout keeps in memory.
_MOST_ARGUMENTS = 4_000_000


@dataclass(slots=True, eq=False)
class LiveRollout:
    """One rollout in memory. `next_sequence` counts admitted calls from 0."""

    rollout: Rollout
    lineage: Lineage
    next_sequence: int = 0
    closed: bool = False
    in_flight: set[CallId] = field(default_factory=set)
    ledger: Ledger = field(default_factory=Ledger)
    retries: Retries = field(default_factory=Retries)
    strays: int = 0
    book: Book | None = None
    sampled_arguments: dict[str, str] = field(default_factory=dict)
    _arguments_size: int = 0

    def remember(self, arguments: Mapping[str, str]) -> None:
        """Keeps the argument texts of a reply's tool calls, the newest ones longest."""
        known = self.sampled_arguments
        for name, text in arguments.items():
            known[name] = text
            self._arguments_size += len(text)
        while known and self._arguments_size > _MOST_ARGUMENTS:
            oldest = next(iter(known))
            self._arguments_size -= len(known.pop(oldest))

    def check_open(self) -> None:
        """Raises RolloutClosed where the rollout takes no more calls."""
        if self.closed:
            raise RolloutClosed(
                "this rollout is closed and takes no more calls; create a new one"
            )

    def seal(self) -> None:
        """No more calls: what only later calls would need is forgotten."""
        self.closed = True
        self.retries.clear()
        self.sampled_arguments.clear()
        self._arguments_size = 0
        self.book = None

    @property
    def size_bytes(self) -> int:
        """Memory that the rollout takes, roughly (bytes)."""
        book = 0 if self.book is None else self.book.size_bytes
        return self.lineage.size_bytes + self.retries.size_bytes + self._arguments_size + book

    def take_sequence(self) -> int:
        """The place of the next call in arrival order."""
        sequence = self.next_sequence
        self.next_sequence += 1
        return sequence


class Desk:
    """Every rollout that may be called.

    Args:
        store: where rollouts live.
        lineage_bytes: memory that all rollouts may take together, their prefix indexes
            first of all (bytes).
        retry_window_s: how long a reply is kept for a retry (seconds).
        watch: looks at every call that is stored.
    """

    def __init__(
        self,
        store: Store,
        lineage_bytes: int,
        retry_window_s: float = 600.0,
        watch: SetUpWatch | None = None,
    ) -> None:
        self._retry_window_us = int(retry_window_s * 1_000_000)
        self._store = store
        self._limit = lineage_bytes
        self._live: OrderedDict[RolloutId, LiveRollout] = OrderedDict()
        self._by_key: dict[KeyHash, RolloutId] = {}
        self._known_keys: dict[KeyHash, RolloutId] = {}
        self._loading: dict[RolloutId, asyncio.Task[LiveRollout]] = {}
        self.unknown_keys = 0
        self.watch = watch or SetUpWatch()

    async def start(self) -> None:
        """Reads the keys of rollouts that are still open."""
        for rollout in await asyncio.to_thread(self._store.open_rollouts):
            self._known_keys[rollout.key_hash] = rollout.rollout_id

    async def create(self, rollout: Rollout) -> tuple[Rollout, str]:
        """A new rollout, durable, with the key that is shown this once.

        `rollout` gives everything but id, time and key hash.

        Raises:
            EngineSetUpWrong: the engine does not give what training needs.
        """
        self.watch.check(rollout.purpose)
        time_us = now_us()
        key = new_capture_key()
        made = replace(
            rollout,
            rollout_id=new_rollout_id(time_us),
            created_us=time_us,
            key_hash=hash_key(key),
        )
        await self._store.add_rollout(made)
        self._known_keys[made.key_hash] = made.rollout_id
        self._live[made.rollout_id] = LiveRollout(
            made,
            Lineage(),
            ledger=Ledger(made.budgets, made.created_us),
            retries=Retries(self._retry_window_us),
            book=Book() if made.token_in else None,
        )
        self._shrink()
        return made, key

    def knows(self, keys: list[str]) -> bool:
        """Whether one of these keys is in memory; one of a rollout that was closed before
        the server started may be known to the store alone."""
        return any(hash_key(key) in self._known_keys for key in keys)

    async def find(self, keys: list[str]) -> LiveRollout:
        """The rollout of the first known key.

        Raises:
            UnknownKey: none of them is known.
            RolloutClosed: the rollout takes no more calls.
        """
        for key in keys:
            rollout_id = self._known_keys.get(hash_key(key))
            if rollout_id is None:
                rollout_id = await self._look_up(hash_key(key))
            if rollout_id is not None:
                live = await self.live(rollout_id)
                live.check_open()
                return live
        self.unknown_keys += 1
        raise UnknownKey(
            "no rollout has this capture key: create one with POST /api/v1/rollouts or "
            "`rollout-explorer rollouts create`, and send its capture_key as the API key"
        )

    async def _look_up(self, key_hash: KeyHash) -> RolloutId | None:
        """A closed rollout's key is still a known key; it deserves the better answer."""
        rollout = await asyncio.to_thread(self._store.rollout_by_key, key_hash)
        if rollout is None:
            return None
        self._known_keys[key_hash] = rollout.rollout_id
        return rollout.rollout_id

    async def live(self, rollout_id: RolloutId) -> LiveRollout:
        """The rollout in memory, read back from the store when it is not.

        Raises:
            NotFound: there is no such rollout.
        """
        live = self._live.get(rollout_id)
        if live is not None:
            self._live.move_to_end(rollout_id)
            return live
        task = self._loading.get(rollout_id)
        if task is None:
            task = asyncio.create_task(self._load(rollout_id))
            self._loading[rollout_id] = task
            task.add_done_callback(lambda _: self._loading.pop(rollout_id, None))
        return await asyncio.shield(task)

    async def _load(self, rollout_id: RolloutId) -> LiveRollout:
        record = await asyncio.to_thread(self._store.record, rollout_id)
        state = await asyncio.to_thread(self._store.rollout_state, rollout_id)
        if record is None or state is None:
            raise NotFound(f"there is no rollout {rollout_id}")
        lineage = await asyncio.to_thread(Lineage.from_calls, record.calls)
        live = LiveRollout(
            record.rollout,
            lineage,
            next_sequence=await asyncio.to_thread(self._store.next_sequence, rollout_id),
            closed=state.status is not RolloutStatus.OPEN,
            ledger=Ledger(record.rollout.budgets, record.rollout.created_us, record.calls),
            retries=Retries(self._retry_window_us),
            book=await asyncio.to_thread(stored_book, self._store, record)
            if record.rollout.token_in
            else None,
        )
        self._live[rollout_id] = live
        self._shrink()
        return live

    def _shrink(self) -> None:
        """Forgets the least recently used idle rollouts until the indexes fit."""
        total = sum(live.size_bytes for live in self._live.values())
        for rollout_id in list(self._live):
            if total <= self._limit and len(self._live) <= 50_000:
                break
            live = self._live[rollout_id]
            if live.in_flight or rollout_id == next(reversed(self._live)):
                continue
            total -= live.size_bytes
            del self._live[rollout_id]

    def settled(
        self,
        live: LiveRollout,
        call: Call,
        arguments: Mapping[str, str] | None = None,
        *,
        promised: bool = False,
    ) -> None:
        """A call is durable: from now on it can be a parent, and an echo of its tool calls
        is known by their `arguments`, texts by id."""
        self.watch.saw(call, promised=promised)
        live.remember(arguments or {})
        live.in_flight.discard(call.call_id)
        live.lineage.add(call)

    async def joined(self, live: LiveRollout, call_id: CallId) -> None:
        """A retry was answered with the reply of this call."""
        await self._store.add_event(
            RolloutEvent(
                live.rollout.rollout_id,
                -1,
                now_us(),
                EventKind.JOINED,
                payload={"call_id": call_id},
            )
        )

    async def reward(
        self,
        rollout_id: RolloutId,
        reward: float | None,
        payload: Mapping[str, Any],
        ok: bool | None,
    ) -> RolloutEvent:
        """Records a reward; the latest one counts."""
        await self.live(rollout_id)
        return await self._store.add_event(
            RolloutEvent(
                rollout_id, -1, now_us(), EventKind.REWARD, reward, ok, None, dict(payload)
            )
        )

    async def close(
        self,
        rollout_id: RolloutId,
        ok: bool | None,
        reason: str | None,
        payload: Mapping[str, Any],
    ) -> RolloutEvent:
        """Seals a rollout: later calls are refused; what was open is recorded.

        Raises:
            RolloutClosed: it is closed already.
        """
        live = await self.live(rollout_id)
        if live.closed:
            raise RolloutClosed("this rollout is closed already")
        live.seal()
        noted = dict(payload) | {"open_calls": sorted(live.in_flight)}
        return await self._store.add_event(
            RolloutEvent(rollout_id, -1, now_us(), EventKind.CLOSED, None, ok, reason, noted)
        )

    async def override(self, rollout_id: RolloutId, override: Override) -> RolloutEvent:
        """Records a person's decision about a rollout; also after it was closed."""
        await self.live(rollout_id)
        return await self._store.add_event(
            RolloutEvent(
                rollout_id,
                -1,
                override.time_us,
                EventKind.OVERRIDE,
                reason=override.reason,
                payload=override_payload(override),
            )
        )

    async def delete(self, rollout_id: RolloutId) -> RolloutEvent:
        """Tombstones a rollout at once; `compact` removes its bytes."""
        live = await self.live(rollout_id)
        live.seal()
        event = await self._store.add_event(
            RolloutEvent(rollout_id, -1, now_us(), EventKind.DELETED)
        )
        self._live.pop(rollout_id, None)
        self._known_keys.pop(live.rollout.key_hash, None)
        return event
