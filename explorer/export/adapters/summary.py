"""One line a rollout, for people with a spreadsheet.

Owns: its columns.
Must not know: which cells a spreadsheet would run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from explorer.export.adapters.moments import iso
from explorer.export.cells import csv_line
from explorer.export.dataset.adapter import Adapter, Layout, Line, Subject
from explorer.export.dataset.rows import closed_us
from explorer.records import CallStatus, Grade
from explorer.trace.refusals import refusals

COLUMNS = (
    *("rollout_id", "run", "task", "group", "attempt", "purpose", "harness"),
    *("harness_version", "model", "ok", "reward", "trainable", "reason"),
    *("supervised_tokens", "generated_tokens", "calls", "calls_not_committed"),
    *("fatal_findings", "created", "closed"),
)


class Summary(Adapter):
    """A table of rollouts."""

    name = "summary"
    layout = Layout.LINES
    suffix = "csv"
    header = csv_line(COLUMNS)
    about = (
        "CSV, one line a rollout, trainable or not, for spreadsheets: ids, reward, verdict "
        "with its first reason, counts, times in UTC. An empty cell is null. Text that a "
        "spreadsheet would run has an apostrophe in front; line breaks stand as `\\n`. Not "
        "in it: tokens, calls, texts."
    )

    def add(self, subject: Subject) -> Iterable[Line]:
        """Its line."""
        values = _values(subject)
        yield Line(csv_line(values[name] for name in COLUMNS))


def _values(subject: Subject) -> dict[str, Any]:
    record, judgement = subject.record, subject.judgement
    rollout, state = record.rollout, judgement.state
    reasons = refusals(judgement)
    calls = record.calls
    return {
        "rollout_id": str(rollout.rollout_id),
        "run": rollout.run,
        "task": rollout.task,
        "group": rollout.group,
        "attempt": rollout.attempt,
        "purpose": rollout.purpose.value,
        "harness": rollout.harness,
        "harness_version": rollout.harness_version,
        "model": rollout.model,
        "ok": state.ok,
        "reward": state.reward,
        "trainable": judgement.trainable,
        "reason": reasons[0].code if reasons else None,
        "supervised_tokens": judgement.supervised_tokens if judgement.trainable else 0,
        "generated_tokens": judgement.generated_tokens,
        "calls": len(calls),
        "calls_not_committed": sum(call.status is not CallStatus.COMMITTED for call in calls),
        "fatal_findings": sum(item.grade is Grade.FATAL for item in judgement.findings),
        "created": iso(rollout.created_us),
        "closed": iso(closed_us(record)),
    }
