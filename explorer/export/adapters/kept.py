"""What several formats say of a rollout in the same way.

Owns: the names of files, the columns that training rows share, which sampled tokens train.
Must not know: any one format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from explorer.errors import RecordInconsistent
from explorer.export.dataset.paths import Row as Path
from explorer.export.dataset.paths import training_leaves
from explorer.export.dataset.schema import Column
from explorer.records import NULL_LOGPROB_BITS, Call, CallId, LogprobArray, RolloutRecord
from explorer.trace.jsontext import dump
from explorer.trace.policy import Policy
from explorer.trace.verdict import Judgement

_STEM = re.compile(r"[A-Za-z0-9-]{1,80}")

# Beside a trainer's own columns; what they mean is the same in every format.
FACTS: tuple[Column, ...] = (
    Column("sequence_id", "text", "Rollout and last call, by a colon.", True),
    Column("rollout_id", "text", "Its rollout.", True),
    Column("run", "text", "Of the rollout.", True),
    Column("task", "text", "Of the rollout."),
    Column("group", "text", "Of the rollout."),
    Column("attempt", "int", "Of the rollout."),
    Column("reward", "float", "Of the whole rollout; null where nobody scored it, never 0."),
    Column("ok", "bool", "Of the whole rollout, where somebody said so."),
    Column("model", "text", "Of the rollout.", True),
    Column("tokenizer_id", "text", "Of the rollout."),
    Column("call_ids", "texts", "From the root to the last call.", True),
    Column("supervised_tokens", "int", "Tokens that train in the row.", True),
    Column("policy_sha256", "text", "The policy it was judged by.", True),
    Column("inputs_sha256", "text", "The verdict that it rests on.", True),
)


def facts_of(record: RolloutRecord, judgement: Judgement, path: Path) -> dict[str, Any]:
    """The values of `FACTS`."""
    rollout = record.rollout
    return {
        "sequence_id": f"{rollout.rollout_id}:{path.leaf.call_id}",
        "rollout_id": rollout.rollout_id,
        "run": rollout.run,
        "task": rollout.task,
        "group": rollout.group,
        "attempt": rollout.attempt,
        "reward": judgement.state.reward,
        "ok": judgement.state.ok,
        "model": rollout.model,
        "tokenizer_id": rollout.tokenizer_id,
        "call_ids": [stretch.call.call_id for stretch in path.stretches],
        "supervised_tokens": path.supervised,
        "policy_sha256": policy_sha256(judgement.policy),
        "inputs_sha256": judgement.inputs_sha256,
    }


@lru_cache(maxsize=16)
def policy_sha256(policy: Policy) -> str:
    """Digest of the switches; asked for with every row."""
    return policy.sha256


def stem_of(record: RolloutRecord, number: int = 1) -> str:
    """The name of a rollout's file, or of its `number`th.

    Raises:
        RecordInconsistent: its id is none of ours.
    """
    stem = str(record.rollout.rollout_id)
    if not _STEM.fullmatch(stem):
        raise RecordInconsistent("a rollout whose id is no file name has no file")
    return stem if number == 1 else f"{stem}-{number}"


def numbers_only(logprobs: LogprobArray) -> LogprobArray:
    """A copy with the record's "missing" for everything that is no finite number."""
    made = np.array(logprobs, np.float32)
    made.view(np.uint32)[~np.isfinite(made)] = NULL_LOGPROB_BITS
    return made


def sampling_of(call: Call) -> dict[str, Any]:
    """What the engine was asked for, as JSON has it: the same from a store and a dataset."""
    found: dict[str, Any] = orjson.loads(dump(call.submitted_sampling))
    return found


class Trained:
    """Which sampled tokens of a rollout train: the verdict's bits, all zero where it forbids
    training.

    Raises:
        RecordInconsistent: the record's parts do not fit.
    """

    def __init__(self, record: RolloutRecord, judgement: Judgement) -> None:
        self._judgement = judgement
        self.leaves = training_leaves(record, judgement)

    def bits(self, call: Call) -> NDArray[np.int8]:
        """One entry a sampled token."""
        size = 0 if call.completion is None else int(call.completion.size)
        mask = self._judgement.masks.get(call.call_id)
        if not self._judgement.trainable or mask is None or not mask.supervised:
            return np.zeros(size, np.int8)
        bits = mask.completion_bits()
        if bits.size != size:
            raise RecordInconsistent(f"call {call.call_id}: ids and mask do not fit together")
        return bits

    def count(self, calls: Iterable[CallId]) -> int:
        """How many tokens of these calls train."""
        if not self._judgement.trainable:
            return 0
        masks = self._judgement.masks
        return sum(masks[name].supervised for name in calls if name in masks)
