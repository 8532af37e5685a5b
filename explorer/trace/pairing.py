"""Which step of a trajectory is which call: in order, by tokens.

Owns: `pair` and what makes a step fit a call.
Must not know: roles, findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from explorer.records import Call
from explorer.trace.trajectory import TrajectoryStep

Fits = Callable[[TrajectoryStep, Call], bool]
# Places of a step and of the calls that it stands for.
Pairs = list[tuple[int, range]]


def sampled(call: Call) -> int | None:
    """How many tokens were sampled; the proxy's own replies have none."""
    if call.completion is not None:
        return int(call.completion.size)
    return call.usage_completion or 0 if call.injected else call.usage_completion


def by_count(step: TrajectoryStep, call: Call) -> bool:
    """Equal counts; a count that either side does not have says nothing."""
    ours = sampled(call)
    return step.completion is None or ours is None or step.completion == ours


def by_ids(step: TrajectoryStep, call: Call) -> bool:
    """Equal counts, and equal ids where both sides have them."""
    if not by_count(step, call):
        return False
    theirs, ours = step.completion_ids, call.completion
    return theirs is None or ours is None or np.array_equal(ours, theirs)


def pair(
    steps: Sequence[TrajectoryStep],
    calls: Sequence[Call],
    fits: Fits,
    *,
    backwards: bool = False,
) -> Pairs | None:
    """Every step with its call, or with as many neighbours as it says it stands for whose
    tokens add up; in order, each as early as possible (`backwards`: as late).

    None when some step has no call. Taking the first that fits is exact: whatever comes
    later can only use what lies behind it.
    """
    last = len(calls) - 1
    counts = [sampled(call) for call in (reversed(calls) if backwards else calls)]
    sums = np.cumsum([0, *(count or 0 for count in counts)])
    pairs: Pairs = []
    at = 0
    order = range(len(steps) - 1, -1, -1) if backwards else range(len(steps))
    for number in order:
        step = steps[number]
        found = None
        for place in range(at, len(calls)):
            call = calls[last - place if backwards else place]
            start = place - (step.calls or 1) + 1
            if fits(step, call):
                found = range(place, place + 1)
            elif (
                at <= start < place
                and sums[place + 1] - sums[start] == step.completion
                and None not in counts[start : place + 1]
            ):
                found = range(start, place + 1)
            if found is not None:
                break
        if found is None:
            return None
        at = found.stop
        if backwards:
            found = range(last - found.stop + 1, last - found.start + 1)
        pairs.append((number, found))
    return pairs


def is_within(needle: Sequence[int | None], hay: Sequence[int | None]) -> bool:
    """Whether `needle` is what is left of `hay` when some entries are taken out."""
    rest = iter(hay)
    return all(any(item == other for other in rest) for item in needle)
