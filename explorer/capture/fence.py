"""The weight fence, sans IO: which weights sample now, and which calls saw them change.

Owns: whether a call may begin, which calls are in flight, leases, and what the record of a
call says about the versions that sampled it.
Must not know: sockets, tasks, the clock, the store, engines' clients.

    ready ──syncing──▶ syncing ──ready──▶ ready
      ▲                   │ the lease runs out
      └── ready ── unknown ◀┘   (open again, and nobody knows which weights the engine has)

An *epoch* is the time between two changes. A call that begins in one epoch and ends in
another crosses, whatever the numbers say. Once a trainer was told to go on (`hand_over`), a
call that is still in flight crosses, too: from then on the weights may change at any moment.
Everything here may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from explorer.engine.fence import UNREADABLE
from explorer.engine.replyfacts import LabelledSpan
from explorer.records import CallId, Note, WeightSpan, WeightUpdate

# Codes of the notes of a call that `trace` reads.
CROSSED, UNKNOWN = "version_crossed", "version_unknown"
# Labels of earlier weights that are remembered; a span never reaches further back.
_MOST_LABELS = 1000
LEASE_RAN_OUT = "the trainer's lease ran out before it said that its update was ready"


class FenceState(StrEnum):
    """Whether calls are let in."""

    READY = "ready"
    SYNCING = "syncing"


class Drain(StrEnum):
    """What becomes of calls in flight when an update begins."""

    WAIT = "wait"
    PAUSE = "pause"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Ticket:
    """What was known when a call began; `doubt` says why the version is not known."""

    epoch: int
    version: int | None
    doubt: str


@dataclass(frozen=True, slots=True)
class Ended:
    """What the record of a call says about its versions.

    Attributes:
        version: the one at the end, None where it is not known.
        spans: what the engine said about each part of the completion, or about the whole of
            it before and after the call.
        notes: facts for which the call does not train by default.
    """

    version: int | None = None
    spans: tuple[WeightSpan, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """How the fence stands; times are microseconds since the epoch."""

    state: FenceState
    version: int | None
    coming: int | None
    lease_expires_us: int | None
    in_flight: int
    drained: bool
    doubt: str


class Fence:
    """The fence of one engine. It begins open, at a version that nobody has told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = FenceState.READY
        self._version: int | None = None
        self._coming: int | None = None
        self._label: str | None = None
        self._doubt = ""
        self._lease_us: int | None = None
        self._epoch = 0
        self._handed_over = False
        self._open: dict[CallId, Ticket] = {}
        self._labels: dict[str, int | None] = {}
        self._ran_out = False

    # -- reading

    def standing(self, now_us: int) -> Standing:
        """How it stands at this moment."""
        with self._lock:
            self._tick(now_us)
            return Standing(
                self._state,
                None if self._doubt else self._version,
                self._coming,
                self._lease_us,
                len(self._open),
                not self._open,
                self._doubt,
            )

    def is_open(self, now_us: int) -> bool:
        """Whether a call may begin now."""
        with self._lock:
            self._tick(now_us)
            return self._state is FenceState.READY

    def steady_epoch(self, now_us: int) -> int | None:
        """The present epoch; None while weights may be changing."""
        with self._lock:
            self._tick(now_us)
            return self._epoch if self._state is FenceState.READY else None

    @property
    def last_version(self) -> int | None:
        """The version that was known last, whatever became of it."""
        return self._version

    @property
    def label(self) -> str | None:
        """What the engine was said to call its present weights."""
        return self._label

    def take_expiry(self, now_us: int) -> bool:
        """Whether a lease has run out since this was last asked."""
        with self._lock:
            self._tick(now_us)
            found, self._ran_out = self._ran_out, False
            return found

    # -- calls

    def begin(self, call_id: CallId, now_us: int) -> Ticket | None:
        """Lets a call in, or not: then it waits."""
        with self._lock:
            self._tick(now_us)
            if self._state is FenceState.SYNCING:
                return None
            version = None if self._doubt else self._version
            ticket = self._open[call_id] = Ticket(self._epoch, version, self._doubt)
            return ticket

    def leave(self, call_id: CallId) -> None:
        """The engine works for this call no more, whether or not it ever did."""
        with self._lock:
            self._open.pop(call_id, None)

    def end(
        self,
        call_id: CallId,
        now_us: int,
        spans: Sequence[LabelledSpan] = (),
        *,
        sampled: int | None = None,
        labels: tuple[str | None, str | None] = (None, None),
    ) -> Ended:
        """The engine has answered, well or not.

        Args:
            spans: the engine's own words about its completion.
            sampled: tokens of the completion, None where they are not known.
            labels: what the engine called its weights before and after the call.
        """
        with self._lock:
            self._tick(now_us)
            ticket = self._open.pop(call_id, None)
            notes, version = self._by_time(ticket)
            before, after = labels
            if UNREADABLE in labels:
                notes.append(Note(UNKNOWN, "the engine did not say which weights it has"))
            elif before != after:
                said = f"the engine called its weights {before!r} before it and {after!r} after"
                notes.append(Note(CROSSED, said))
            elif before is not None and not spans:
                spans = [LabelledSpan(before, 0, sampled or 0)]
            notes += self._by_name(ticket, spans, sampled)
            known = self._spans(spans, ticket, trusted=not notes)
        return Ended(version, known, tuple(notes))

    def _by_time(self, ticket: Ticket | None) -> tuple[list[Note], int | None]:
        """What follows from when a call began and ended, and the version at its end."""
        if ticket is None:
            return [Note(UNKNOWN, "the call was not counted by the fence")], None
        notes = [Note(UNKNOWN, ticket.doubt)] if ticket.doubt else []
        if ticket.epoch != self._epoch:
            open_now = self._state is FenceState.READY and not self._doubt
            version = self._version if open_now else None
            told = f"it began under {_named(ticket.version)} and ended under {_named(version)}"
            return [*notes, Note(CROSSED, told)], version
        if self._state is FenceState.SYNCING and self._handed_over:
            coming = _named(self._coming)
            told = f"it was still in flight when the trainer had gone on to load {coming}"
            return [*notes, Note(CROSSED, told)], None
        return notes, ticket.version

    def _by_name(
        self,
        ticket: Ticket | None,
        spans: Sequence[LabelledSpan],
        sampled: int | None,
    ) -> list[Note]:
        """What the engine's own words contradict."""
        if not spans or ticket is None:
            return []
        if len(spans) > 1:
            told = ", ".join(f"{s.label[:80]!r} from {s.start} to {s.end}" for s in spans[:4])
            return [Note(CROSSED, f"the engine names {told}")]
        span = spans[0]
        if sampled is not None and (span.start, span.end) != (0, sampled):
            return [Note(UNKNOWN, "the engine's span does not cover the completion")]
        mapped = self._labels.get(span.label)
        if mapped is not None and ticket.version is not None and mapped != ticket.version:
            told = f"the engine names {span.label[:80]!r}, which is version {mapped}"
            return [Note(UNKNOWN, f"{told}, while {ticket.version} was announced")]
        if (
            self._label is not None
            and ticket.epoch == self._epoch
            and span.label != self._label
        ):
            told = f"the engine names {span.label[:80]!r}"
            return [Note(UNKNOWN, f"{told} where {self._label[:80]!r} was announced")]
        return []

    def _spans(
        self, spans: Sequence[LabelledSpan], ticket: Ticket | None, *, trusted: bool
    ) -> tuple[WeightSpan, ...]:
        made = []
        for span in spans:
            version = self._labels.get(span.label)
            if version is None and trusted and ticket is not None and len(spans) == 1:
                version = ticket.version
            made.append(WeightSpan(span.label, version, span.start, span.end))
        return tuple(made)

    # -- the trainer

    def syncing(self, now_us: int, coming: int, lease_us: int) -> None:
        """An update begins, or goes on: calls wait until it is ready or its lease is over."""
        with self._lock:
            self._tick(now_us)
            if self._state is FenceState.READY:
                self._handed_over = False
            self._state = FenceState.SYNCING
            self._coming, self._lease_us = coming, now_us + lease_us

    def hand_over(self) -> None:
        """From now on the engine's weights may change at any moment."""
        with self._lock:
            if self._state is FenceState.SYNCING:
                self._handed_over = True

    def reopen(self) -> None:
        """The update did not happen, and no weight was touched: as it was before."""
        with self._lock:
            self._let_in()

    def ready(self, version: int, label: str | None = None) -> None:
        """The engine has these weights now."""
        with self._lock:
            self._let_in()
            self._epoch += 1
            self._version, self._label, self._doubt = version, label, ""
            self._ran_out = False
            self._learn(label, version)

    def doubt(self, reason: str) -> None:
        """Nobody knows any more which weights the engine has, until it is told anew."""
        with self._lock:
            self._let_in()
            self._doubt_now(reason)
            self._ran_out = False

    def restore(self, updates: Iterable[WeightUpdate]) -> None:
        """Takes up what was stored, the oldest first; a lease may have run out since."""
        for update in updates:
            if update.state == "ready" and update.weight_version is not None:
                self.ready(update.weight_version, update.engine_weight_label)
            elif update.state == "unknown":
                self.doubt(str(update.detail.get("reason") or LEASE_RAN_OUT))
            elif update.state == "syncing" and update.weight_version is not None:
                lease_us = int(update.detail.get("lease_expires_us") or 0) - update.time_us
                self.syncing(update.time_us, update.weight_version, max(0, lease_us))
                # A trainer that was told so before the restart may have begun long ago.
                self.hand_over()

    # -- how, with the lock held

    def _let_in(self) -> None:
        self._state = FenceState.READY
        self._coming = self._lease_us = None
        self._handed_over = False

    def _doubt_now(self, reason: str) -> None:
        self._epoch += 1
        self._doubt, self._label = reason, None

    def _tick(self, now_us: int) -> None:
        if self._lease_us is not None and now_us >= self._lease_us:
            self._let_in()
            self._doubt_now(LEASE_RAN_OUT)
            self._ran_out = True

    def _learn(self, label: str | None, version: int) -> None:
        """A label that two versions have had tells nothing."""
        if label is None:
            return
        known = self._labels.pop(label, version)
        self._labels[label] = version if known == version else None
        while len(self._labels) > _MOST_LABELS:
            del self._labels[next(iter(self._labels))]


def _named(version: int | None) -> str:
    return "an unknown version" if version is None else f"version {version}"
