"""Which call a call continues by what was said, whatever became of the tokens."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.records import Call, CallStatus


def continued(calls: Mapping[int, Call]) -> dict[int, int | None]:
    """For every call the earlier one whose messages and reply are the longest beginning of
    its own messages; of equal ones the latest. None for one that continues nothing."""
    found: dict[int, int | None] = {}
    for n, call in calls.items():
        best: tuple[int, int] | None = None
        for m, other in calls.items():
            if m >= n or other.status is not CallStatus.COMMITTED or other.reply_digest is None:
                continue
            whole = (*other.message_digests, other.reply_digest)
            if call.message_digests[: len(whole)] == whole:
                best = max(best or (0, 0), (len(whole), m))
        found[n] = None if best is None else best[1]
    return found
