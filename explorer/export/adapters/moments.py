"""Times in files for people.

Owns: how a moment is written.
Must not know: anything else.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_START = datetime(1970, 1, 1, tzinfo=UTC)


def iso(time_us: int) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC; None for what no calendar has."""
    try:
        moment = _START + timedelta(microseconds=time_us)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
