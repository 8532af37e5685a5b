"""Places calls by the digests of their messages, where there are no token ids.

Owns: the longest-message-prefix rule.
Must not know: tokens.

A call's messages followed by its reply are a path in a trie of digests; another call
continues it when its own messages run along that whole path.
"""

from __future__ import annotations

from collections.abc import Iterable

from explorer.records import Call, CallId

_ROOT = 0


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
