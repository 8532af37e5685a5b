"""Weight versions and their ages, as people read them.

Owns: the wording. Must not know: where versions come from, which page says so.
"""

from __future__ import annotations

from explorer.records import Call
from explorer.store.interface import Store
from explorer.trace.versions import (
    Line,
    RolloutVersions,
    Shut,
    announced,
    line_of,
    sampled_us,
    shut_times,
    version_spans,
)
from explorer.web import words

# Announcements that are read for a page; nothing that is older than these gets an age.
READ = 2000


def line_now(store: Store) -> Line:
    """The weights that were announced last, as of now."""
    return line_of(announced(store.weight_updates(READ)))


def shut_now(store: Store) -> tuple[Shut, ...]:
    """When calls waited for new weights, as far as pages look back."""
    return shut_times(store.weight_updates(READ))


def behind_words(behind: int | None) -> str:
    """An age: `newest`, `3 behind`, `1 ahead`; empty where it is not known."""
    if behind is None:
        return ""
    if behind == 0:
        return "newest"
    return f"{behind:,} behind" if behind > 0 else f"{-behind:,} ahead"


def age_words(line: Line, version: int | None, at_us: int) -> str:
    """The age of tokens, or why they have none; empty where nobody announced anything."""
    if version is None or line.newest is None:
        return ""
    found = line.behind(version, at_us)
    if found is not None:
        return behind_words(found)
    if line.earlier(at_us):
        return f"sampled before the weights went back from {line.back_from}"
    return "sampled before any announcement"


def rollout_words(found: RolloutVersions) -> str:
    """One line for a rollout's head; empty where nobody told any version."""
    span = found.span
    if span is None and found.line.newest is None:
        return ""
    low, high = span or (None, None)
    said = ["weights unknown" if low is None else f"weights {low}"]
    if low != high:
        said = [f"weights {low}–{high}"]
    if span is not None and found.oldest_behind is not None:
        age = behind_words(found.oldest_behind)
        said.append(f"oldest token {age}" if found.oldest_behind else age)
    if found.earlier:
        said.append(f"went back from {found.line.back_from} since")
    if found.crossed:
        said.append(f"{words.plural(len(found.crossed), 'call')} of mixed or unknown weights")
    return " · ".join(said)


def call_words(call: Call, line: Line) -> str:
    """Which weights sampled a call; empty where it sampled nothing, or nobody told."""
    spans = version_spans(call)
    if not spans or (len(spans) == 1 and spans[0].version is None and not _told(call)):
        return ""
    if len(spans) == 1:
        version = spans[0].version
        if version is None:
            return f"weights unknown, {_ends(call)}"
        age = age_words(line, version, sampled_us(call))
        return f"weights {version}" + (f", {age}" if age else "")
    parts = (
        f"{words.UNKNOWN if span.version is None else span.version} for "
        f"{words.plural(span.end - span.start, 'token')}"
        for span in spans[:6]
    )
    return "weights " + ", then ".join(parts) + (" …" if len(spans) > 6 else "")


def token_words(call: Call, offset: int, line: Line) -> str:
    """Which weights sampled one token."""
    version = next(
        (span.version for span in version_spans(call) if span.start <= offset < span.end), None
    )
    if version is None:
        return f"{words.UNKNOWN}: {_ends(call)}" if _told(call) else words.UNKNOWN
    age = age_words(line, version, sampled_us(call))
    return f"{version}, {age}" if age else f"{version}"


def _told(call: Call) -> bool:
    return call.weight_version_start is not None or call.weight_version_end is not None


def _ends(call: Call) -> str:
    first, last = (
        words.UNKNOWN if each is None else str(each)
        for each in (call.weight_version_start, call.weight_version_end)
    )
    if first == last:
        return f"its call had {first} at both ends, and more is told of it"
    return f"its call began with {first} and ended with {last}"
