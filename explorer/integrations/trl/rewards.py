"""Reward functions for TRL that keep "unscored" apart from zero.

Owns: how a recorded reward, or a function of the trainer's user, reaches TRL.
Must not know: HTTP, traces.

TRL takes None from every reward function of a row as "unscored": the row is left out of
its group's mean, and its advantage is zero. A function that gives such a row a number
would shift the advantages of the whole group.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

RewardFunction = Callable[..., Any]
_SAFE = "_leaves_unscored_rows_out"


def captured_reward(reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """TRL reward function: the reward on each rollout's record, None where there is none."""
    return list(reward)


setattr(captured_reward, _SAFE, captured_reward)


def skip_unscored(function: RewardFunction) -> RewardFunction:
    """A reward function of your own that is not asked about unscored rows.

    It still sees every row's arguments; what it says of an unscored row is replaced by None.
    """

    def only_scored(found: Sequence[Any], unscored: Sequence[str | None]) -> list[Any]:
        if len(found) != len(unscored):
            raise ValueError(f"{len(found)} rewards came for {len(unscored)} rows")
        return [None if why else value for value, why in zip(found, unscored, strict=True)]

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*, unscored: Sequence[str | None], **given: Any) -> list[Any]:
            return only_scored(await function(unscored=unscored, **given), unscored)

        setattr(later, _SAFE, later)
        return later

    @functools.wraps(function)
    def at_once(*, unscored: Sequence[str | None], **given: Any) -> list[Any]:
        found = function(unscored=unscored, **given)
        assert not asyncio.iscoroutine(found), "make the function `async def`"
        return only_scored(found, unscored)

    setattr(at_once, _SAFE, at_once)
    return at_once


def leaves_unscored_out(function: Any) -> bool:
    """Whether a trainer's reward function is known to give unscored rows None."""
    # Itself, since `functools.wraps` copies the mark to whatever wraps such a function.
    return getattr(function, _SAFE, None) is function
