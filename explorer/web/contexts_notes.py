"""Contexts of what people write beside a rollout.

Owns: the notes tab and its parts. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Choice, Frame, page, said
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class NoteRow:
    """One label or note."""

    annotation_id: str = said("Id of the annotation.")
    label: str = said("The label, empty when it has none.")
    label_href: str | None = said("List of the rollouts with this label.")
    note: str = said("The text, empty when it has none.")
    who: str = said("Who wrote it, as they said.")
    when: str = said("When, on the clock of the server, UTC.")
    concerns: str = said("What it is about: the rollout, a turn, or tokens of a turn.")
    href: str | None = said("The call or the first token it is about, null for the rollout.")
    withdraw_href: str = said("Where the form that takes it back is sent.")


@dataclass(frozen=True, slots=True)
class NoteForm:
    """The form that adds one."""

    action: str = said("Where the form is sent.")
    calls: tuple[Choice, ...] = said("Calls that it may be about.")
    call: str = said("Call chosen by the address, empty for none.")
    start: str = said("First token of the span, from the address.")
    end: str = said("End of the span, not included.")
    decide_href: str = said(
        "The form that leaves tokens out of training, which a note never does."
    )
    labels: tuple[str, ...] = said("Labels in use, as suggestions.")


@page
@dataclass(frozen=True, slots=True)
class NotesPage:
    """`/rollouts/{id}/notes`: labels and notes of people."""

    template: ClassVar[str] = "notes.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("The header of every tab.")
    notes: tuple[NoteRow, ...] = said("Labels and notes in the order they were written.")
    form: NoteForm = said("The form that adds one.")
