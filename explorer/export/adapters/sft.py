"""Rows for supervised fine-tuning: ids and labels.

Owns: labels.
Must not know: which paths are rows, TRL.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from explorer.export.adapters.kept import FACTS, facts_of, numbers_only
from explorer.export.dataset.adapter import Adapter, Layout, Row, Subject
from explorer.export.dataset.paths import training_rows
from explorer.export.dataset.schema import Column

IGNORED = -100


class Sft(Adapter):
    """One row a training sequence."""

    name = "sft"
    layout = Layout.PARQUET
    about = (
        "Rows for TRL's `SFTTrainer`: `input_ids` with `labels`, one a training path, the "
        "same rows as `sequences`; each token that trains does so in one row. The trainer "
        "ignores all other columns. Not in it: rollouts that may not train, and calls on no "
        "training path."
    )
    columns = (
        Column("input_ids", "ids", "What the engine read and sampled, in order.", True),
        Column("labels", "ids", "The id where the token trains, -100 elsewhere.", True),
        Column("logprobs", "logprobs", "Of sampled tokens; null elsewhere, never 0.0.", True),
        *FACTS,
    )

    def add(self, subject: Subject) -> Iterable[Row]:
        """Its training rows."""
        record, judgement = subject.record, subject.judgement
        for path in training_rows(record, judgement):
            labels = np.where(path.loss_mask == 1, path.token_ids, np.int32(IGNORED))
            yield Row(
                {
                    "input_ids": path.token_ids,
                    "labels": labels.astype(np.int32),
                    "logprobs": numbers_only(path.logprobs),
                    **facts_of(record, judgement, path),
                }
            )
