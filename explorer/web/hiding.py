"""Secrets, and names of those who decided, covered up wherever readers' pages read from.

Owns: joining the scans of rollouts with the narrowed store.
Must not know: who the reader is, how a secret is found.
"""

from __future__ import annotations

from dataclasses import replace

from explorer.export.judged import Judged
from explorer.export.secrets import SecretScans
from explorer.records import Body, Override, RolloutId, RolloutRecord
from explorer.trace.secret_text import masked_text
from explorer.trace.verdict import Judgement
from explorer.web.narrowing import Hiding


class HiddenSecrets(Hiding):
    """What looks like a secret is covered until a person lets it go.

    Args:
        scans: knows every rollout's secrets.
    """

    def __init__(self, scans: SecretScans) -> None:
        self._scans = scans

    def record(self, record: RolloutRecord) -> RolloutRecord:
        """The record as it is shown; may scan the rollout first."""
        return _unnamed(self._scans.record(record))

    def judged(self, judged: Judged) -> Judged:
        """The judged rollout as it is shown; may scan the rollout first."""
        shown = self._scans.judged(judged)
        if not shown.record.overrides:
            return shown
        return replace(
            shown,
            record=_unnamed(shown.record),
            judgement=_unnamed_verdict(shown.judgement, shown.record.overrides),
            # Documents are of the whole record: none that is known is of this one.
            contents={},
        )

    def bodies(self, rollout_id: RolloutId, bodies: tuple[Body, ...]) -> tuple[Body, ...]:
        """A call's bodies as they are shown."""
        return self._scans.bodies(rollout_id, bodies)

    def text(self, text: str, rollout_id: RolloutId | None = None) -> str:
        """Words about a rollout; without one, what looks like a secret by itself."""
        return masked_text(text) if rollout_id is None else self._scans.text(rollout_id, text)

    def unlisted(self) -> frozenset[RolloutId]:
        """Rollouts that no list tells of."""
        return self._scans.unlisted()


def _unnamed(record: RolloutRecord) -> RolloutRecord:
    """The record without the names of those who decided about it: curators are told these,
    and whoever takes a document."""
    if not record.overrides:
        return record
    return replace(record, overrides=tuple(replace(each, who="") for each in record.overrides))


def _unnamed_verdict(judgement: Judgement, overrides: tuple[Override, ...]) -> Judgement:
    """The verdict without these names where it repeats a decision in words."""

    def told(text: str) -> str:
        for each in overrides:
            text = text.replace(f"{each.who}: {each.reason}", f"a curator: {each.reason}")
            text = text.replace(f"{each.kind} by {each.who}.", f"{each.kind} by a curator.")
        return text

    return replace(
        judgement,
        roles={
            call_id: replace(role, why=told(role.why)) if role.rule == "override" else role
            for call_id, role in judgement.roles.items()
        },
        findings=tuple(
            replace(each, message=told(each.message)) for each in judgement.findings
        ),
        notices=tuple(told(each) for each in judgement.notices),
    )
