"""A batch for TRL's `GRPOTrainer`: rows of captured rollouts in the trainer's keys.

Owns: the keys, what stands for a rollout without a score, what a trainer must not be set to.
Must not know: HTTP, how an agent is run, torch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from explorer.errors import ConfigurationError
from explorer.integrations.contract import Trace
from explorer.integrations.rows import BRANCH_RULES, BranchRule, Row, choose_row
from explorer.integrations.trl.rewards import leaves_unscored_out

logger = logging.getLogger(__name__)
_TEMPERATURE_TOLERANCE = 1e-6


class NothingToTrain(RuntimeError):
    """No rollout of a batch has a score and tokens that train: a step would be spent on
    nothing, and so would all that follow."""


class UnscoredRollout(RuntimeError):
    """A rollout has no score, and the options say that this stops training."""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rollouts become rows.

    Attributes:
        on_unscored: "mask" keeps the place of a refused, failed or unscored rollout with a
            row that trains nothing and counts in no mean; "raise" stops training.
        branch: which branch of a tree is the row, see `rows.choose_row`.
        max_tokens: a longer row counts as unscored, because cutting it would train half a
            rollout on the whole one's reward.
        check_temperature: refuse rollouts sampled at another temperature than the
            trainer divides its logits by.
    """

    on_unscored: str = "mask"
    branch: BranchRule = "most_supervised"
    max_tokens: int | None = None
    check_temperature: bool = True

    def __post_init__(self) -> None:
        if self.on_unscored not in ("mask", "raise"):
            raise ConfigurationError('`on_unscored` must be "mask" or "raise"')
        if self.branch not in BRANCH_RULES:
            raise ConfigurationError(f"`branch` must be one of {', '.join(BRANCH_RULES)}")


@dataclass(frozen=True, slots=True)
class Captured:
    """One rollout of a batch: its trace and reward, or why it has none."""

    rollout_id: str
    trace: Trace | None = None
    problem: str | None = None


def check_trainer(trainer: Any, options: RowOptions) -> None:
    """Looks for settings under which TRL would not use what we return as it is meant.

    Raises:
        ConfigurationError: one is set; says what to change.
    """
    if getattr(trainer, "tools", None):
        raise ConfigurationError(
            "GRPOTrainer ignores `env_mask` when it is given `tools`; the agent has its own "
            "tools, so leave them out of the trainer"
        )
    functions = getattr(trainer, "reward_funcs", None) or []
    unsafe = [function for function in functions if not leaves_unscored_out(function)]
    if options.on_unscored == "mask" and unsafe:
        name = getattr(unsafe[0], "__name__", type(unsafe[0]).__name__)
        raise ConfigurationError(
            f"the reward function {name} may give a rollout without a score a number, which "
            "would shift its whole group; use `captured_reward`, wrap it in "
            '`skip_unscored`, or choose RowOptions(on_unscored="raise")'
        )


def make_batch(
    captured: Sequence[Captured], trainer: Any, options: RowOptions
) -> dict[str, list[Any]]:
    """What `rollout_func` returns: one row a rollout, in order.

    Beside TRL's keys: ``reward`` (None where unscored), ``rollout_id``, ``node_ids``,
    ``unscored`` (None, or why), ``left_out_tokens`` (of other branches).

    Raises:
        NothingToTrain: not one rollout can train.
        UnscoredRollout: one cannot, and the options do not allow that.
        ConfigurationError: rollouts were sampled at another temperature.
    """
    known = [one.rollout_id for one in captured if one.rollout_id]
    if len(set(known)) != len(known):
        raise ConfigurationError(
            "one rollout stands twice in a batch: its tokens would train twice"
        )
    rows = [_row(one, trainer, options) for one in captured]
    unscored = {
        one.rollout_id or "(not made)": why
        for one, (row, _, why) in zip(captured, rows, strict=True)
        if row is None
    }
    if len(unscored) and options.on_unscored == "raise":
        raise UnscoredRollout(_told(unscored))
    if all(row is None for row, _, _ in rows) and _alone(trainer):
        raise NothingToTrain(f"no rollout of this batch can train. {_told(unscored)}")
    if unscored:
        logger.warning("%s", _told(unscored))
    made = [row for row, _, _ in rows if row is not None]
    _check_vocabulary(made, trainer)
    _warn_left_out(made)
    stand_in = _stand_in(trainer)
    placed = [stand_in if row is None else row for row, _, _ in rows]
    batch: dict[str, list[Any]] = {
        "prompt_ids": [list(row.prompt_ids) for row in placed],
        "completion_ids": [list(row.completion_ids) for row in placed],
        "logprobs": [list(row.logprobs) for row in placed],
        "env_mask": [list(row.env_mask) for row in placed],
        "reward": [reward for _, reward, _ in rows],
        "rollout_id": [one.rollout_id for one in captured],
        "node_ids": [list(row.node_ids) for row in placed],
        "unscored": [why for _, _, why in rows],
        "left_out_tokens": [row.left_out_tokens for row in placed],
    }
    check_batch(batch, len(captured))
    return batch


def check_batch(batch: dict[str, Any], count: int) -> None:
    """The lengths that TRL does not check: it pads a short mask with ones.

    Raises:
        ValueError: names the row that does not fit.
    """
    keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    for key in keys:
        if not isinstance(batch.get(key), list) or len(batch[key]) != count:
            raise ValueError(
                f"`{key}` must be a list with one entry for each of {count} prompts"
            )
    for place in range(count):
        prompt, ids, logprobs, mask = (batch[key][place] for key in keys)
        if not prompt or not ids:
            raise ValueError(f"row {place} has an empty prompt or completion")
        if not len(ids) == len(logprobs) == len(mask):
            raise ValueError(
                f"row {place} has {len(ids)} tokens, {len(logprobs)} logprobs and "
                f"{len(mask)} mask bits; TRL would train the missing ones"
            )
        if any(type(bit) is not int or bit not in (0, 1) for bit in mask):
            raise ValueError(f"row {place}: `env_mask` holds 0 and 1 only")
        if any(
            bit and not _is_number(value) for bit, value in zip(mask, logprobs, strict=True)
        ):
            raise ValueError(f"row {place} would train a token without a logprob")
        if any(value is not None and not _is_number(value) for value in logprobs):
            # Times a mask of zero it is still no number, and so is the whole loss.
            raise ValueError(f"row {place} has a logprob that is no number")


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False


Placed = tuple[Row | None, float | None, str | None]


def _row(one: Captured, trainer: Any, options: RowOptions) -> Placed:
    """The row, its reward, and why there is none."""
    if one.trace is None:
        return None, None, one.problem or "there is no trace"
    if one.trace.reward is None:
        return None, None, "reward_missing: nobody scored the rollout"
    if options.check_temperature:
        _check_temperature(one, trainer)
    row = choose_row(one.trace, options.branch)
    length = len(row.prompt_ids) + len(row.completion_ids)
    if options.max_tokens is not None and length > options.max_tokens:
        return None, None, f"too_long: {length} tokens, the limit is {options.max_tokens}"
    return row, one.trace.reward, None


def _check_temperature(one: Captured, trainer: Any) -> None:
    wanted = getattr(trainer, "temperature", None)
    if one.trace is None or not isinstance(wanted, int | float):
        return
    for turn in one.trace.turns:
        sent = turn.request.get("submitted_sampling")
        found = sent.get("temperature") if isinstance(sent, dict) else None
        if not turn.supervised or isinstance(found, bool) or not isinstance(found, int | float):
            continue
        if abs(found - wanted) > _TEMPERATURE_TOLERANCE:
            raise ConfigurationError(
                f"rollout {one.rollout_id} was sampled at temperature {found}, but the trainer "
                f"divides its logits by {wanted}: set GRPOConfig(temperature={found})"
            )


def _alone(trainer: Any) -> bool:
    """Whether this is the only process: one that stops would leave the others waiting, and
    its few rows may all be unscored where the whole batch is not."""
    return int(getattr(getattr(trainer, "accelerator", None), "num_processes", 1)) == 1


def _check_vocabulary(rows: list[Row], trainer: Any) -> None:
    size = getattr(getattr(getattr(trainer, "model", None), "config", None), "vocab_size", None)
    if type(size) is not int:
        return
    highest = max((max(row.prompt_ids + row.completion_ids) for row in rows), default=0)
    if highest >= size:
        raise ConfigurationError(
            f"a captured token has the id {highest}, the trainer's model {size} tokens: "
            "the rollouts were sampled by another model"
        )


def _stand_in(trainer: Any) -> Row:
    """Keeps a place in the group: TRL crashes on an empty row. It trains nothing."""
    pad = getattr(getattr(trainer, "processing_class", None), "pad_token_id", None)
    token = pad if type(pad) is int else 0
    return Row((token,), (token,), (0.0,), (0,))


def _told(unscored: dict[str, Any]) -> str:
    words = "; ".join(f"{rollout_id}: {why}" for rollout_id, why in list(unscored.items())[:8])
    more = f"; and {len(unscored) - 8} more" if len(unscored) > 8 else ""
    return f"{len(unscored)} rollouts have no score and train nothing: {words}{more}"


def _warn_left_out(rows: list[Row]) -> None:
    left = [row for row in rows if row.left_out_tokens]
    if left:
        tokens = sum(row.left_out_tokens for row in left)
        logger.warning(
            "trees among the rollouts: %d; tokens of other branches left out: %d, because "
            "GRPOTrainer takes one row a rollout (the asynchronous trainer takes all)",
            len(left),
            tokens,
        )
