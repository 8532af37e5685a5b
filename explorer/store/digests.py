"""Message digests of a call as a delta against an earlier call, as its tokens are.

Owns: what is shared with which call, and putting the whole back together.
Must not know: what a digest is of.

A request repeats the conversation, so a list of one digest per message would grow with
the square of the turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from explorer.records import Call, CallId, RolloutId

Digests = tuple[str, ...]
_KEPT = 400_000  # digests remembered by the writer, over all rollouts
_WORTH_IT = 4  # fewer shared digests than this are written again


class DigestMemory:
    """The writer's memory of recent calls' digests."""

    def __init__(self) -> None:
        self._calls: OrderedDict[CallId, tuple[int, Digests]] = OrderedDict()
        self._latest: dict[RolloutId, CallId] = {}
        self._held = 0

    def delta(self, call: Call) -> list[str] | dict[str, Any]:
        """What is stored for a call: its digests, or what it adds to an earlier call's."""
        whole = call.message_digests
        base_id = call.stored_parent_id or self._latest.get(call.rollout_id)
        base = self._calls.get(base_id) if base_id is not None else None
        stored: list[str] | dict[str, Any] = list(whole)
        # Only what comes before in the record's own order can be built upon.
        if base is not None and base[0] < call.sequence:
            shared = _shared(base[1], whole)
            if shared >= _WORTH_IT:
                tail = list(whole[shared:])
                stored = {"of": base_id, "shared": shared, "tail": tail}
                # The shared strings are the earlier call's own, and are kept once.
                whole = base[1][:shared] + tuple(tail)
        self._remember(call, whole)
        return stored

    def _remember(self, call: Call, whole: Digests) -> None:
        self.forget(call.call_id)
        self._calls[call.call_id] = (call.sequence, whole)
        self._latest[call.rollout_id] = call.call_id
        self._held += len(whole) + 1
        while self._held > _KEPT and len(self._calls) > 1:
            old, (_, dropped) = self._calls.popitem(last=False)
            self._held -= len(dropped) + 1
            if self._latest.get(call.rollout_id) == old:
                del self._latest[call.rollout_id]

    def forget(self, call_id: CallId) -> None:
        """Nothing builds on a call that was not stored."""
        found = self._calls.pop(call_id, None)
        if found is not None:
            self._held -= len(found[1]) + 1


def _shared(one: Digests, other: Digests) -> int:
    if other[: len(one)] == one:
        return len(one)
    size = min(len(one), len(other))
    return next((place for place in range(size) if one[place] != other[place]), size)


def whole(stored: Any, known: Mapping[CallId, Digests]) -> Digests:
    """The digests of a call from what is stored for it.

    Args:
        stored: a list, or the delta that `DigestMemory` made.
        known: the digests of calls before it; a call that is not there (it was set aside)
            leaves the digests unknown, which is the empty tuple.
    """
    if not isinstance(stored, dict):
        return tuple(stored)
    base = known.get(CallId(stored["of"]))
    if base is None or len(base) < stored["shared"]:
        return ()
    return base[: stored["shared"]] + tuple(stored["tail"])
