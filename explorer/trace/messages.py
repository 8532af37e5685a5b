"""Places calls by the digests of their messages: what continues what by meaning.

Owns: the longest-message-prefix rule.
Must not know: tokens.

A call's messages followed by its reply are a path in a trie of digests; another call
continues it when its own messages run along that whole path. Where there are no token ids
this is the tree; where there are, it is evidence, since most harnesses write a turn anew and
the tokens then differ.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable

from explorer.records import Call, CallId

_ROOT = 0


def continuations(calls: Iterable[Call]) -> dict[CallId, CallId]:
    """By call, the earlier call whose messages and reply are the longest beginning of its
    own messages; of equal ones the latest. Calls that continue nothing are left out.

    Args:
        calls: in any order.
    """
    # What was said, by its length and the reply to it: one look at each finds most misses.
    ends: dict[tuple[int, str], dict[tuple[str, ...], CallId]] = defaultdict(dict)
    places: list[int] = []
    found: dict[CallId, CallId] = {}
    for call in sorted(calls, key=lambda call: (call.sequence, call.call_id)):
        said = call.message_digests
        # From the longest down: what a call continues stands near its end.
        for place in reversed(places[: bisect_left(places, len(said))]):
            known = ends.get((place, said[place]))
            parent = None if known is None else known.get(said[:place])
            if parent is not None:
                found[call.call_id] = parent
                break
        if said and call.reply_digest is not None:
            if not _holds(places, len(said)):
                insort(places, len(said))
            ends[len(said), call.reply_digest][said] = call.call_id
    return found


def _holds(ordered: list[int], value: int) -> bool:
    at = bisect_left(ordered, value)
    return at < len(ordered) and ordered[at] == value


class MessageIndex:
    """Which call's messages and reply begin another call's messages.

    Args:
        calls: in admission order; of equal conversations the earliest is the parent.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self._steps: dict[tuple[int, str], int] = {}
        self._ends: dict[int, CallId] = {}
        for call in calls:
            if call.reply_digest is not None and call.message_digests:
                self._add(call)

    def _add(self, call: Call) -> None:
        place = _ROOT
        steps = self._steps
        for digest in (*call.message_digests, str(call.reply_digest)):
            place = steps.setdefault((place, digest), len(steps) + 1)
        self._ends.setdefault(place, call.call_id)

    def find_parent(self, call: Call) -> CallId | None:
        """The call whose messages and reply are the longest prefix of this one's
        messages; costs one pass over its own messages."""
        place: int | None = _ROOT
        found: CallId | None = None
        for digest in call.message_digests:
            place = self._steps.get((place, digest)) if place is not None else None
            if place is None:
                break
            found = self._ends.get(place, found)
        return found
