"""Numbers and times as people read them, the same on every page.

Owns: formatting. Must not know: what is formatted.
"""

from __future__ import annotations

from datetime import UTC, datetime

UNKNOWN = "unknown"
NONE = "–"


def thousands(value: float | None) -> str:
    """`9870` as `9,870`; a missing value is a dash, never a zero."""
    if value is None:
        return NONE
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{int(value):,}"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 call`, `2 calls`."""
    return f"{count:,} {noun if count == 1 else (many or noun + 's')}"


def reward_text(value: float | None) -> str:
    """A reward with two digits, more when two would hide it."""
    if value is None:
        return NONE
    return f"{value:.2f}" if round(value, 2) == value else f"{value:.4g}"


def percent(part: int, whole: int) -> str:
    """`44 %`; below one per cent it says so instead of rounding to nothing."""
    if whole <= 0:
        return NONE
    share = 100.0 * part / whole
    if 0 < share < 1:
        return "<1 %"
    if 99 < share < 100:
        return ">99 %"
    return f"{share:.0f} %"


def share(part: int, whole: int) -> float | None:
    """Part of the whole between 0 and 1; None when there is no whole."""
    return None if whole <= 0 else round(part / whole, 4)


def iso(time_us: int | None) -> str | None:
    """Microseconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    if time_us is None:
        return None
    moment = datetime.fromtimestamp(time_us / 1e6, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(time_us: int | None) -> str:
    """A time for reading: `2026-11-29 19:43:07 UTC`."""
    if time_us is None:
        return UNKNOWN
    return datetime.fromtimestamp(time_us / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age(then_us: int, now_us: int) -> str:
    """How long ago, in its largest unit."""
    seconds = max(0, (now_us - then_us) // 1_000_000)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def size(count: int | None) -> str:
    """Bytes with a unit."""
    if count is None:
        return UNKNOWN
    if count < 1024:
        return plural(count, "byte")
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024 or unit == "GiB":
            return f"{value:,.1f} {unit}"
    return f"{count} bytes"


def duration(value_ms: float | None) -> str:
    """Milliseconds as `412 ms`, `3.21 s` or `2 min 05 s`."""
    if value_ms is None:
        return UNKNOWN
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    if value_ms < 60_000:
        return f"{value_ms / 1000:.2f} s"
    minutes, seconds = divmod(round(value_ms / 1000), 60)
    return f"{minutes} min {seconds:02d} s"


def short_id(identifier: str) -> str:
    """Enough of an id to tell neighbours apart; the whole id is in the link."""
    return identifier if len(identifier) <= 10 else f"{identifier[:4]}…{identifier[-4:]}"
