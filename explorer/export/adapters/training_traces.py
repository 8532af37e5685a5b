"""OpenEnv's Training trace, one document a rollout.

Owns: which rollouts have one.
Must not know: what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from explorer.export.adapters.kept import stem_of
from explorer.export.dataset.adapter import Adapter, File, Layout, Subject
from explorer.trace.assemble import training_trace
from explorer.trace.refusals import refusals


class TrainingTraces(Adapter):
    """The document of the API, byte for byte."""

    name = "training_traces"
    layout = Layout.FILES
    suffix = "json"
    about = (
        "OpenEnv's `TrainingTrace`, version 1, one file a trainable rollout, byte for byte "
        "the document that the API gives: for OpenEnv and TRL's asynchronous GRPO. Not in "
        "it: rollouts that may not train, and calls that no training export holds "
        "(auxiliary, discarded and failed ones)."
    )

    def add(self, subject: Subject) -> Iterable[File]:
        """Its file; none where the verdict forbids training."""
        if not refusals(subject.judgement):
            document = b"".join(training_trace(subject.record, subject.judgement))
            yield File(stem_of(subject.record), document)
