"""Which weights sampled which token, and how old they are.

Owns: the versions of a call's tokens as spans, the mix of a rollout, ages against what a
trainer announced.
Must not know: who announces, when a page is drawn, whether a crossing may train.

A version is only as true as what was told: a token has one where the engine named it, or
where its call began and ended under one and the same. Everything else is unknown, which is
never 0. An age counts versions. It is only given within one line of weights: a trainer that
goes back (a restored checkpoint, another training on the same server) begins a new line, in
which an old number means other weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from explorer.records import Call, CallId, CallStatus, MaskReason, WeightUpdate
from explorer.trace.checks import crossed_versions
from explorer.trace.mask import CallMask


class VersionSpan(NamedTuple):
    """Sampled tokens ``[start, end)`` of a completion, counted from 0, of one version."""

    start: int
    end: int
    version: int | None


class Announced(NamedTuple):
    """A trainer's word that the engine has a version from this moment on."""

    time_us: int
    version: int


@dataclass(frozen=True, slots=True)
class Line:
    """The weights that a server was told about last.

    Attributes:
        newest: the version announced last; None: nobody announced any.
        since_us: when the line began: the first announcement, or the last step back.
        back_from: the version that the last step back left; None: there was none.
    """

    newest: int | None = None
    since_us: int | None = None
    back_from: int | None = None

    def behind(self, version: int | None, at_us: int) -> int | None:
        """By how many versions tokens that were sampled at a time are older than the newest;
        None where that is not known, or where they belong to an earlier line."""
        if version is None or self.newest is None or self.since_us is None:
            return None
        return None if at_us < self.since_us else self.newest - version

    def earlier(self, at_us: int) -> bool:
        """Whether the weights went back after this time."""
        if self.back_from is None or self.since_us is None:
            return False
        return at_us < self.since_us


def line_of(announced: Iterable[Announced]) -> Line:
    """The line of the latest announcement, whatever order they come in."""
    found = Line()
    # Of one moment, the smaller first: only a later one can be a step back.
    for time_us, version in sorted(announced):
        if found.newest is None:
            found = Line(version, time_us)
        elif version < found.newest:
            found = Line(version, time_us, found.newest)
        else:
            found = Line(version, found.since_us, found.back_from)
    return found


def announced(updates: Iterable[WeightUpdate]) -> tuple[Announced, ...]:
    """The announcements among the updates: what is only coming, or lost, is none."""
    return tuple(
        Announced(update.time_us, update.weight_version)
        for update in updates
        if update.state == "ready" and update.weight_version is not None
    )


@dataclass(frozen=True, slots=True)
class Shut:
    """A time in which new calls waited for weights; ``end_us`` None: they still do."""

    start_us: int
    end_us: int | None


def shut_times(updates: Iterable[WeightUpdate]) -> tuple[Shut, ...]:
    """When the fence was shut: from a `syncing` to whatever came next that is none."""
    found: list[Shut] = []
    since: int | None = None
    for update in sorted(updates, key=lambda update: update.number):
        if update.state == "syncing":
            since = update.time_us if since is None else since
        elif since is not None:
            found.append(Shut(since, update.time_us))
            since = None
    if since is not None:
        found.append(Shut(since, None))
    return tuple(found)


def waited_us(call: Call, shut: Iterable[Shut]) -> int:
    """How long a call waited for new weights: one that came while the fence was shut was let
    in, or refused, when that ended."""
    for each in shut:
        if each.start_us <= call.started_us and (
            each.end_us is None or call.started_us < each.end_us
        ):
            last = call.ended_us if each.end_us is None else min(each.end_us, call.ended_us)
            return max(0, last - call.started_us)
    return 0


def sampled_len(call: Call) -> int:
    """Tokens that the engine sampled in a call."""
    if call.completion is not None:
        return int(call.completion.size)
    return call.completion_len or 0


def sampled_us(call: Call) -> int:
    """A time at which a call's tokens were being sampled, as far as lines are concerned.

    A call that came while new weights were loaded waited for them: it was sampled under what
    it ended with. One that crossed an update may have been sampled before it.
    """
    return call.started_us if crossed_versions(call) else call.ended_us


def version_spans(call: Call) -> tuple[VersionSpan, ...]:
    """The versions of a call's sampled tokens: maximal spans that cover all of them.

    What the engine says of single tokens wins. Where it has no version that was announced
    for any of them, its labels only say whether there was one or several.
    """
    size = sampled_len(call)
    if not size:
        return ()
    if any(span.weight_version is not None for span in call.weight_spans):
        return _told_spans(call, size)
    labels = {span.version_label for span in call.weight_spans}
    crossed = crossed_versions(call) or len(labels) > 1
    return (VersionSpan(0, size, None if crossed else call.weight_version_start),)


def _told_spans(call: Call, size: int) -> tuple[VersionSpan, ...]:
    """The engine's own spans, with what they leave out unknown; a token that two of them
    claim for different versions is unknown, too."""
    edges = {0: Counter[int | None](), size: Counter[int | None]()}
    for span in call.weight_spans:
        if span.start >= span.end:
            continue
        for at, change in ((span.start, 1), (span.end, -1)):
            edges.setdefault(min(size, max(0, at)), Counter())[span.weight_version] += change
    found: list[VersionSpan] = []
    open_spans: Counter[int | None] = Counter()
    for start, end in pairwise(sorted(edges)):
        for version, change in edges[start].items():
            open_spans[version] += change
            if not open_spans[version]:
                del open_spans[version]
        only = next(iter(open_spans)) if len(open_spans) == 1 else None
        if found and found[-1].version == only:
            start = found.pop().start
        found.append(VersionSpan(start, end, only))
    return tuple(found)


def token_versions(call: Call) -> list[int | None]:
    """The version of every sampled token of a call, in order."""
    return [version for start, end, version in version_spans(call) for _ in range(end - start)]


def behind_at_end(call: Call, version: int | None) -> int | None:
    """By how many versions a token was older than the newest when its call ended; below 0
    where the weights went back meanwhile, None where either is unknown."""
    if version is None or call.weight_version_end is None:
        return None
    return call.weight_version_end - version


@dataclass(frozen=True, slots=True)
class Share:
    """Tokens of a rollout that one version sampled; a version of None is unknown.

    Attributes:
        behind: how old they are by the line asked about; None where that is not known. Of
            tokens sampled at several times the oldest line counts: one earlier, no age.
        first_us: `sampled_us` of the first of their calls.
    """

    version: int | None
    sampled: int
    trained: int
    calls: int
    behind: int | None
    first_us: int


@dataclass(frozen=True, slots=True)
class RolloutVersions:
    """The weights of a rollout.

    Attributes:
        mix: by version, ascending, the unknown last; whole completions of every call that
            was committed or whose tokens train.
        crossed: calls that may have seen more than one version.
        untold: calls that sampled and of which no version was told.
        earlier: some of it was sampled before the weights went back.
        line: what the ages are counted against.
    """

    mix: tuple[Share, ...]
    crossed: tuple[CallId, ...]
    untold: tuple[CallId, ...]
    earlier: bool
    line: Line

    @property
    def training(self) -> tuple[Share, ...]:
        """The shares that train; where nothing does, all of them."""
        return tuple(share for share in self.mix if share.trained) or self.mix

    @property
    def span(self) -> tuple[int, int] | None:
        """The lowest and the highest version of tokens that train (else of all)."""
        known = [share.version for share in self.training if share.version is not None]
        return (min(known), max(known)) if known else None

    @property
    def oldest_behind(self) -> int | None:
        """The age of the oldest token that trains (else of all), where any has one."""
        return max(
            (share.behind for share in self.training if share.behind is not None), default=None
        )

    @property
    def ageless(self) -> bool:
        """Whether some token that trains (else of all) has no age."""
        return any(share.behind is None for share in self.training)


def rollout_versions(
    calls: Iterable[Call], masks: Mapping[CallId, CallMask], line: Line
) -> RolloutVersions:
    """The weights of all tokens that a rollout sampled.

    Args:
        masks: by call; a call without one trains nothing.
        line: the weights to count ages against.
    """
    sampled: Counter[int | None] = Counter()
    trained: Counter[int | None] = Counter()
    seen: Counter[int | None] = Counter()
    first_us: dict[int | None, int] = {}
    crossed, untold = [], []
    for call in sorted(calls, key=lambda call: (call.sequence, call.call_id)):
        spans = version_spans(call)
        if not spans or (call.status is not CallStatus.COMMITTED and call.call_id not in masks):
            continue
        if crossed_versions(call):
            crossed.append(call.call_id)
        elif all(span.version is None for span in spans):
            untold.append(call.call_id)
        mask = masks.get(call.call_id)
        for span in spans:
            sampled[span.version] += span.end - span.start
            trained[span.version] += 0 if mask is None else _trained(mask, span)
            at_us = sampled_us(call)
            first_us[span.version] = min(at_us, first_us.get(span.version, at_us))
        seen.update({span.version for span in spans})
    mix = tuple(
        Share(
            version=version,
            sampled=sampled[version],
            trained=trained[version],
            calls=seen[version],
            behind=line.behind(version, first_us[version]),
            first_us=first_us[version],
        )
        for version in sorted(sampled, key=lambda each: (each is None, each or 0))
    )
    earlier = any(line.earlier(time_us) for time_us in first_us.values())
    return RolloutVersions(mix, tuple(crossed), tuple(untold), earlier, line)


def _trained(mask: CallMask, span: VersionSpan) -> int:
    """How many tokens of a span train."""
    first, last = mask.prompt_len + span.start, mask.prompt_len + span.end
    return sum(
        max(0, min(last, each.end) - max(first, each.start))
        for each in mask.own
        if each.reason is MaskReason.SAMPLED
    )
