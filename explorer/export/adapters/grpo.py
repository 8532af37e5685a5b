"""Rows that a `rollout_func` of TRL's `GRPOTrainer` gives back.

Owns: which path of a rollout is its row, and where the prompt ends in it.
Must not know: TRL, masks beyond their bits.

That trainer takes one row a rollout. All paths as rows would train the turns they share as
often as they are shared, or leave to the reader which are whole. So there is one row, by the
rule of the integration (`integrations.rows.choose_row`), and it says what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from explorer.errors import RecordInconsistent
from explorer.export.adapters.kept import FACTS, Trained, facts_of, numbers_only, sampling_of
from explorer.export.dataset.adapter import Adapter, Layout, Row, Subject
from explorer.export.dataset.paths import Row as Path
from explorer.export.dataset.paths import path_row
from explorer.export.dataset.schema import Column
from explorer.records import CallId, Role
from explorer.trace.verdict import Judgement


class Grpo(Adapter):
    """One row a rollout."""

    name = "grpo"
    layout = Layout.PARQUET
    about = (
        "Rows that a `rollout_func` of TRL's `GRPOTrainer` gives back, one a trainable "
        "rollout: the path on which most tokens train (no subagent's where there is another; "
        "of equal ones the last). A rollout without a reward is in it, with null. Not in it: "
        "rollouts that may not train and what stands on other paths, counted in "
        "`left_out_tokens`; all of it is in `sequences`."
    )
    columns = (
        Column("prompt_ids", "ids", "Everything before the first sampled token.", True),
        Column("completion_ids", "ids", "The rest, up to the last sampled token.", True),
        Column("logprobs", "logprobs", "As long; null where none was sampled, never 0.", True),
        Column("env_mask", "codes", "As long; 1 where the token trains, else 0.", True),
        *FACTS,
        Column("temperature", "float", "Of the calls that train; null if not one and known."),
        Column("left_out_tokens", "int", "Tokens that would train on other paths.", True),
    )

    def add(self, subject: Subject) -> Iterable[Row]:
        """Its row; none where the verdict forbids training."""
        record, judgement = subject.record, subject.judgement
        trained = Trained(record, judgement)
        if not trained.leaves:
            return
        path = path_row(record, judgement, chosen(judgement, trained))
        start = next(each.start for each in path.stretches if each.end > each.start)
        values = {
            "prompt_ids": path.token_ids[:start],
            "completion_ids": path.token_ids[start:],
            "logprobs": numbers_only(path.logprobs[start:]),
            "env_mask": path.loss_mask[start:],
            **facts_of(record, judgement, path),
            "temperature": _temperature(path),
            "left_out_tokens": judgement.supervised_tokens - path.supervised,
        }
        _check(values)
        yield Row(values)


def chosen(judgement: Judgement, trained: Trained) -> CallId:
    """The last call of the path that stands for the rollout."""

    def rank(leaf: CallId) -> tuple[bool, int, int]:
        line = judgement.tree.path(leaf)
        # A subagent's conversation is the main one of no rollout.
        main = all(judgement.roles[name].role is not Role.SUBAGENT for name in line)
        return main, trained.count(line), judgement.tree.nodes[leaf].sequence

    return max(trained.leaves, key=rank)


def _temperature(path: Path) -> float | None:
    """The trainer divides its logits by one temperature, which must be this one."""
    found: set[float | None] = set()
    for stretch in path.stretches:
        if path.loss_mask[stretch.start : stretch.end].any():
            value = sampling_of(stretch.call).get("temperature")
            if isinstance(value, bool) or not isinstance(value, int | float):
                value = None
            found.add(None if value is None else float(value))
    return found.pop() if len(found) == 1 else None


def _check(values: dict[str, Any]) -> None:
    """Nobody downstream does: TRL pads a short mask with ones.

    Raises:
        RecordInconsistent: prompt or completion is empty, lengths differ, the row does not
            end with a sampled token, or a prompt token would train.
    """
    size = values["completion_ids"].size
    fits = size == values["logprobs"].size == values["env_mask"].size
    trains = int((values["env_mask"] == 1).sum()) == values["supervised_tokens"]
    if not (fits and trains and size and values["prompt_ids"].size):
        raise RecordInconsistent(f"{values['sequence_id']}: no row for GRPO can be made of it")
