"""A guard in front of rollout functions that are not ours.

Owns: what of a foreign rollout function may reach TRL.
Must not know: HTTP, torch. OpenEnv is imported only by who wraps its function.

OpenEnv's `build_harness_rollout_func` returns no mask. With more than one model call a
row it joins all prompts and then all completions, so that TRL trains a sequence which no
engine ever saw, tool results included.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from explorer.integrations.trl.batch import check_batch

RolloutFunction = Callable[[list[Any], Any], dict[str, Any]]


class MasklessRollouts(ValueError):
    """A rollout function returned tokens without saying which of them were sampled."""


def guard_rollout_func(
    function: RolloutFunction, calls: Callable[[], Sequence[int]] | None = None
) -> RolloutFunction:
    """`function`, whose rows are checked before TRL sees them.

    Args:
        calls: how many model calls each row of the last batch was made of. Without it a
            batch without `env_mask` is always refused: nothing in it tells one call
            from many.

    A row of exactly one call needs no mask (all of its completion was sampled) and is
    given one. Everything else without a mask is refused with `MasklessRollouts`.
    """

    def guarded(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        batch = dict(function(prompts, trainer))
        if batch.get("env_mask") is None:
            batch["env_mask"] = _masks_of_single_calls(batch, calls, len(prompts))
        check_batch(batch, len(prompts))
        return batch

    return guarded


def _masks_of_single_calls(
    batch: dict[str, Any], calls: Callable[[], Sequence[int]] | None, count: int
) -> list[list[int]]:
    if calls is None:
        raise MasklessRollouts(
            "the rollout function returned no `env_mask`, so TRL would train every token of "
            "a row, tool results included; use LiveRollouts, or for OpenEnv's function "
            "guarded_harness_rollout_func, which lets single calls through"
        )
    counted = list(calls())
    if len(counted) != count:
        raise MasklessRollouts(f"{len(counted)} rows were counted, and {count} are needed")
    for place, number in enumerate(counted):
        if number != 1:
            raise MasklessRollouts(
                f"row {place} was made of {number} model calls and has no mask; OpenEnv's "
                "rollout function is for single calls only: use LiveRollouts"
            )
    return [[1] * len(ids) for ids in batch["completion_ids"]]


def guarded_harness_rollout_func(
    *,
    session_factory: Any,
    harness_adapter: Any,
    model_step_builder: Callable[[Any, Any], Any],
    **more: Any,
) -> RolloutFunction:
    """OpenEnv's `build_harness_rollout_func` with its calls counted and its rows checked.

    Takes the same arguments.
    """
    from openenv.core.harness import build_harness_rollout_func

    counting = _Counting(harness_adapter)

    def counted_builder(trainer: Any, session: Any) -> Any:
        return counting.counted(model_step_builder(trainer, session))

    function = build_harness_rollout_func(
        session_factory=session_factory,
        harness_adapter=counting,
        model_step_builder=counted_builder,
        **more,
    )
    guarded = guard_rollout_func(function, counting.taken)
    lock = threading.Lock()

    def one_at_a_time(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        with lock:
            counting.rows.clear()
            return guarded(prompts, trainer)

    return one_at_a_time


class _Counting:
    """Stands in front of an adapter and counts the model calls of every row."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._steps = 0
        self.rows: list[int] = []

    def counted(self, model_step: Any) -> Any:
        """`model_step`, counted."""

        def step(*given: Any, **named: Any) -> Any:
            self._steps += 1
            return model_step(*given, **named)

        return step

    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
        """The adapter's; remembers how many calls it made."""
        self._steps = 0
        result = self._adapter.run_white_box(
            model_step=model_step, session=session, limits=limits
        )
        owned = result.metrics.get("model_calls")
        # An adapter that owns its loop says how many calls it saw; ours does. Its word
        # takes nothing away from what was counted here.
        self.rows.append(max(owned, self._steps) if type(owned) is int else self._steps)
        return result

    def taken(self) -> list[int]:
        """Calls by row since the last batch."""
        return list(self.rows)
