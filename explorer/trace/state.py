"""What a rollout's event rows add up to.

Owns: open or closed, succeeded or failed, deleted, and the reward that stands.
Must not know: calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from explorer.records import EventKind, RolloutEvent


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The sum of the events.

    `ok` is the last verdict that anybody gave (closing or rewarding), None when nobody
    did; `exit_code` is the harness's, as told when the rollout was closed.
    """

    closed: bool = False
    deleted: bool = False
    ok: bool | None = None
    reward: float | None = None
    reason: str | None = None
    exit_code: int | None = None


def rollout_state(events: Iterable[RolloutEvent]) -> RolloutState:
    """Reads the events by their sequence; later words win."""
    closed = deleted = False
    ok: bool | None = None
    reward: float | None = None
    reason: str | None = None
    exit_code: int | None = None
    for event in sorted(events, key=lambda event: event.sequence):
        if event.kind is EventKind.DELETED:
            deleted = True
        elif event.kind in (EventKind.CLOSED, EventKind.REWARD):
            closed = closed or event.kind is EventKind.CLOSED
            ok = ok if event.ok is None else event.ok
            reward = reward if event.reward is None else event.reward
            reason = event.reason or reason
            code = event.payload.get("exit_code")
            exit_code = code if type(code) is int else exit_code
    return RolloutState(closed, deleted, ok, reward, reason, exit_code)
