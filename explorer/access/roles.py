"""Roles of persons: those in the settings, and those that an operator gave.

Owns: who is curator or operator, and why. Must not know: what a role may do.

A role is looked up at every request, so giving or taking one takes effect at once. Doing so
ends the person's sessions: a reference never survives a change of what it allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.people import Caller, Person, Role
from explorer.access.tables import ROLE
from explorer.errors import InvalidValue

GIVEN = (Role.CURATOR, Role.OPERATOR)


@dataclass(frozen=True, slots=True)
class Because:
    """One reason why somebody has a role."""

    role: Role
    words: str


class Roles:
    """Every role.

    Args:
        database: open.
        audit: gets a row for each change.
        operators: subjects of the settings, `provider:sub` or `provider:org:sub`.
        curators: the same.
        end_sessions: ends the sessions of a subject, in the transaction of the rows.
        clock: microseconds since the epoch.
    """

    def __init__(
        self,
        database: AccessDatabase,
        audit: AuditLog,
        operators: Iterable[str],
        curators: Iterable[str],
        end_sessions: Callable[[str, Rows], object],
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._database = database
        self._audit = audit
        self._end_sessions = end_sessions
        self._clock = clock
        self._set = {Role.OPERATOR: frozenset(operators), Role.CURATOR: frozenset(curators)}
        self._given: dict[tuple[str, Role], bool] = {}
        database.read(self._load)

    def of(self, person: Person) -> Role:
        """The highest role of somebody who signed in."""
        return max((each.role for each in self.why(person)), default=Role.VIEWER)

    def why(self, person: Person) -> list[Because]:
        """Every reason for a role above viewer, the highest first."""
        found: list[Because] = []
        for role in (Role.OPERATOR, Role.CURATOR):
            listed = self._set[role]
            if person.subject in listed:
                found.append(Because(role, "the settings name you"))
            found += [
                Because(role, f"the settings name the organisation {each.name}")
                for each in person.memberships
                if f"{person.provider}:org:{each.subject}" in listed
            ]
            if self._given.get((person.subject, role)):
                found.append(Because(role, "an operator gave it to you"))
        return found

    def given(self) -> list[tuple[str, Role]]:
        """Subjects and the roles that operators gave them."""
        return sorted(key for key, value in list(self._given.items()) if value)

    def change(self, subject: str, role: Role, given: bool, by: Caller, reason: str) -> None:
        """Gives a role to a person, or takes it.

        Raises:
            InvalidValue: no such role can be given, or nothing would change.
        """
        if role not in GIVEN:
            raise InvalidValue("`role` must be curator or operator", path="$.role")
        if ":" not in subject:
            raise InvalidValue("`subject` must be `provider:sub`", path="$.subject")
        if self._given.get((subject, role), False) is given:
            had = "has the role already" if given else "was not given the role here"
            raise InvalidValue(f"{subject} {had}", path="$.subject")

        def work(rows: Rows) -> None:
            key = {"subject": subject, "role": role.word}
            change = {
                "sequence": rows.count(ROLE, key),
                "set_time": self._clock(),
                "given": given,
                "who": by.subject,
                "reason": reason,
            }
            rows.insert(ROLE, {**key, **change})
            self._end_sessions(subject, rows)
            event = Event.ROLE_GIVEN if given else Event.ROLE_TAKEN
            detail = {"role": role.word}
            self._audit.append(Entry.by(by, event, subject, reason=reason, detail=detail), rows)

        self._database.write(work)
        self._given[subject, role] = given

    def _load(self, rows: Rows) -> None:
        words = {role.word: role for role in GIVEN}
        for row in rows.select(ROLE, None, "ORDER BY sequence"):
            if row["role"] in words:
                self._given[row["subject"], words[row["role"]]] = row["given"]
