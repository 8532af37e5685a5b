"""Contexts of the pages about grants, levels, roles and the audit log.

Owns: these pages and their parts. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Choice, Frame, page, said
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One grant as a line of a list."""

    grant_id: str = said("Id of the grant.")
    href: str = said("Page of the grant.")
    state: str = said("pending, approved, rejected, revoked, expired or spent.")
    tone: str = said("How the state is coloured: good, warn, bad or nothing.")
    subject_name: str = said("What people call who gets it.")
    subject: str = said("Who gets it, as the provider names them.")
    subject_kind: str = said("person, organisation or hub gate.")
    objects: str = said("What it covers, in words.")
    kinds: str = said("What may be taken.")
    purpose: str = said("What it is for, in the words of who asked.")
    when: str = said("When it was asked for or given, UTC.")
    expires: str = said("Until when it may be used, UTC; empty without an end.")
    uses: int = said("Times it was used.")
    max_uses: int | None = said("Times it may be used, null for no limit.")


@page
@dataclass(frozen=True, slots=True)
class GrantsPage:
    """`/grants`: the queue and all grants of an operator; one's own of everybody else."""

    template: ClassVar[str] = "grants.html"
    frame: Frame = said("What surrounds the page.")
    decides: bool = said("Whether the reader decides about requests.")
    n_pending: int = said("Requests that wait for a decision.")
    pending: tuple[GrantRow, ...] = said("Requests that wait, the oldest first.")
    others: tuple[GrantRow, ...] = said("All other grants, the newest first.")
    n_others: int = said("How many others there are.")
    new_href: str = said("Where one asks for a grant or gives one.")


@page
@dataclass(frozen=True, slots=True)
class NewGrantPage:
    """`/grants/new`: the form that asks for a grant, or gives one."""

    template: ClassVar[str] = "grant_new.html"
    frame: Frame = said("What surrounds the page.")
    gives: bool = said("Whether the form gives a grant, as an operator's does.")
    subject_name: str = said("Who asks.")
    object_kind: str = said("What the form is filled with: rollouts, run, view or dataset.")
    rollouts: str = said("Ids of rollouts, one a line.")
    run: str = said("Name of a run.")
    view: str = said("Name of a saved view.")
    dataset: str = said("Dataset of the Hub to publish to.")
    kinds: tuple[Choice, ...] = said("Kinds that may be asked for.")
    chosen: tuple[str, ...] = said("Kinds that are ticked.")
    level_note: str = said("What may be seen of the rollout already, empty when unknown.")
    default_days: int = said("Days until a grant ends, unless changed.")
    default_uses: int = said("Times it may be used, unless changed.")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One thing that happened to a grant."""

    state: str = said("What it became.")
    tone: str = said("How the state is coloured: good, warn, bad or nothing.")
    who: str = said("Who did it; `operator` for a reader who decides nothing.")
    reason: str = said("Why.")
    when: str = said("When, UTC.")


@dataclass(frozen=True, slots=True)
class TakenRow:
    """One download under a grant."""

    who: str = said("Who took it.")
    what: str = said("File that was sent.")
    size: str = said("Bytes that were sent.")
    sha256: str = said("SHA-256 of the whole document, however it was packed on the way.")
    complete: str = said("Whether it was sent whole, or why not.")
    when: str = said("When the last byte left, UTC.")


@page
@dataclass(frozen=True, slots=True)
class GrantPage:
    """`/grants/{id}`: one grant, what happened to it, and the forms that decide."""

    template: ClassVar[str] = "grant.html"
    frame: Frame = said("What surrounds the page.")
    grant: GrantRow = said("The grant.")
    decides: bool = said("Whether the reader decides about it.")
    may_decide: bool = said("Whether it waits for a decision.")
    may_revoke: bool = said("Whether it can be revoked.")
    object_names: tuple[Choice, ...] = said("Objects with their addresses, at most 50.")
    n_objects: int = said("How many objects it names.")
    covers: int = said("Rollouts that it reaches now.")
    private: int = said("Rollouts that it names beside these and that are private.")
    secrets: str = said("What the scan for secrets says of them, empty when it cannot tell.")
    contains: str = said("What the documents hold.")
    steps: tuple[StepRow, ...] = said("What happened to it, the oldest first.")
    taken: tuple[TakenRow, ...] = said("The newest downloads under it.")
    default_days: int = said("Days until it ends, unless changed.")
    default_uses: int = said("Times it may be used, unless changed.")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the audit log."""

    sequence: int = said("Number of the row, from 0.")
    when: str = said("When it happened, UTC.")
    event: str = said("What happened.")
    tone: str = said("How the event is coloured: good, warn, bad or nothing.")
    who: str = said("Who did it.")
    name: str = said("What people call them.")
    address: str = said("Address the request came from.")
    object: str = said("What it was about.")
    short: str = said("The same, shortened.")
    href: str | None = said("Page of what it was about.")
    reason: str = said("Why, or the rule that refused it.")
    detail: str = said("Further values, in words.")
    size: str = said("Bytes that were sent, empty for no download.")
    sha256: str = said("SHA-256 of the bytes that were sent.")
    document: str = said("SHA-256 of the whole document, however it was packed on the way.")
    outcome: str = said("whole, cut or nothing.")
    hash: str = said("Hash of the row.")


@page
@dataclass(frozen=True, slots=True)
class AuditPage:
    """`/audit`: who did what, the newest first, and whether the chain is whole."""

    template: ClassVar[str] = "audit.html"
    frame: Frame = said("What surrounds the page.")
    rows: tuple[AuditRow, ...] = said("Rows that match.")
    events: tuple[Choice, ...] = said("Events to filter by.")
    event: str = said("Event that the list is narrowed to, empty for all.")
    who: str = said("Subject that the list is narrowed to, empty for all.")
    total: int = said("Rows in the whole log.")
    whole: bool = said("Whether every row of the log follows from the one before it.")
    newest_hash: str = said("Hash of the newest row.")
    why_not: str = said("Where the chain is broken and why, empty when it is whole.")
    next_href: str | None = said("Older rows.")
    csv_href: str = said("The rows as CSV.")


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One thing that somebody may want to do with a rollout."""

    action: str = said("Name of the action or kind.")
    what: str = said("The action in words.")
    allowed: bool = said("Whether the policy allows it.")
    rule: str = said("Rule that decided.")
    words: str = said("The decision in words.")


@dataclass(frozen=True, slots=True)
class LevelLine:
    """A level that was set."""

    target: str = said("rollout, run or view.")
    object_id: str = said("Id or name.")
    href: str = said("Page of the object.")
    level: str = said("Who may see it.")
    who: str = said("Who set it.")
    reason: str = said("Why.")
    when: str = said("When, UTC.")


@dataclass(frozen=True, slots=True)
class RoleLine:
    """A role that was given."""

    subject: str = said("Whose.")
    name: str = said("What people call them, empty when unknown.")
    role: str = said("curator or operator.")


@dataclass(frozen=True, slots=True)
class RuleLine:
    """One rule of the policy."""

    rule: str = said("Name of the rule.")
    words: str = said("What it says.")


@page
@dataclass(frozen=True, slots=True)
class RolloutAccessPage:
    """`/rollouts/{id}/access`: who may do what with a rollout, and why."""

    template: ClassVar[str] = "rollout_access.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("The header of every tab.")
    level: str = said("Level that holds.")
    level_words: str = said("The level in words.")
    because: str = said("What the level was set on; empty for who decides nothing.")
    subject: str = said("Whose answers these are.")
    role: str = said("Their role.")
    answers: tuple[AnswerRow, ...] = said("What they may do.")
    held_back: str = said("Why no document leaves under any grant, empty when they may.")
    decides: bool = said("Whether the reader may set the level and ask about others.")
    own_level: str = said("Level set on the rollout itself, empty when none is.")
    levels: tuple[Choice, ...] = said("Levels to choose from.")
    asked: str = said("Subject that the answers are about, from the address.")
    action: str = said("Where the form that sets the level is sent.")
    ask_href: str = said("Where a grant is asked for or given.")


@page
@dataclass(frozen=True, slots=True)
class AccessPage:
    """`/access`: levels, roles and rules of the server."""

    template: ClassVar[str] = "access.html"
    frame: Frame = said("What surrounds the page.")
    default_level: str = said("Level that holds where none was set.")
    default_words: str = said("The same in words.")
    levels: tuple[LevelLine, ...] = said("Levels that were set.")
    choices: tuple[Choice, ...] = said("Levels to choose from.")
    roles: tuple[RoleLine, ...] = said("Roles that operators gave.")
    settings_roles: tuple[RoleLine, ...] = said("Roles of the settings.")
    rules: tuple[RuleLine, ...] = said("Every rule that may decide.")
    people: tuple[RoleLine, ...] = said("People who signed in, with the role they have now.")
