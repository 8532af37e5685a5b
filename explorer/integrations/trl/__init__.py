"""For TRL's `GRPOTrainer`: a `rollout_func` over captured rollouts, with its mask.

    trainer = GRPOTrainer(
        ..., reward_funcs=[captured_reward], rollout_func=LiveRollouts(server, agent)
    )

Nothing here imports torch or TRL. See docs/how-to/train-with-trl.md.
"""

from explorer.integrations.attempts import Agent, Attempt, Ended, Endpoint
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.command import CommandAgent, Finished
from explorer.integrations.contract import MalformedTrace
from explorer.integrations.rows import Row, branches, choose_row
from explorer.integrations.trl.batch import NothingToTrain, RowOptions, UnscoredRollout
from explorer.integrations.trl.guard import (
    MasklessRollouts,
    guard_rollout_func,
    guarded_harness_rollout_func,
)
from explorer.integrations.trl.logprobs import TrainerLogprobs
from explorer.integrations.trl.push import WeightPush
from explorer.integrations.trl.rewards import captured_reward, skip_unscored
from explorer.integrations.trl.rollout import LiveRollouts, ReplayedRollouts, calling
from explorer.integrations.trl.transfer import FencedTransfer
from explorer.integrations.trl.weights import WeightFence
from explorer.integrations.trl.worker import ExplorerRolloutWorker, GroupOptions

__all__ = [
    "Agent",
    "Attempt",
    "CommandAgent",
    "Ended",
    "Endpoint",
    "ExplorerRolloutWorker",
    "ExplorerServer",
    "FencedTransfer",
    "Finished",
    "GroupOptions",
    "LiveRollouts",
    "MalformedTrace",
    "MasklessRollouts",
    "NothingToTrain",
    "ReplayedRollouts",
    "Row",
    "RowOptions",
    "TraceRefused",
    "TrainerLogprobs",
    "UnscoredRollout",
    "WeightFence",
    "WeightPush",
    "branches",
    "calling",
    "captured_reward",
    "choose_row",
    "guard_rollout_func",
    "guarded_harness_rollout_func",
    "skip_unscored",
]
