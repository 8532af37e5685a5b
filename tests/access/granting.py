"""Grants, levels and the log over a real access database, with a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from explorer.access.audit import AuditLog
from explorer.access.database import AccessDatabase
from explorer.access.delivery import Deliveries
from explorer.access.grant_book import GrantBook
from explorer.access.grants import ObjectKind, SubjectKind, Wanted
from explorer.access.people import Caller, How, Membership, Person, Role
from explorer.access.policy import Kind, Level
from explorer.access.visibility import Visibility

START_US = 1_800_000_000_000_000
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)


def person(name: str, *organisations: str, role: Role = Role.VIEWER) -> Caller:
    """Somebody who signed in at `test`."""
    memberships = tuple(Membership(each) for each in organisations)
    return Caller(role, How.SESSION, person=Person(f"test:u-{name}", name, memberships))


ANA, BEN = person("ana", "lab"), person("ben")


def wanted(
    subject: str = "test:u-ana",
    *objects: str,
    kind: SubjectKind = SubjectKind.PERSON,
    object_kind: ObjectKind = ObjectKind.ROLLOUTS,
    kinds: tuple[Kind, ...] = (Kind.TRAINING_TRACE,),
    purpose: str = "of the test",
) -> Wanted:
    """What is asked for or given."""
    return Wanted(kind, subject, subject, object_kind, objects or ("r1",), kinds, purpose)


class Clock:
    """Says what a test tells it."""

    def __init__(self) -> None:
        self.now = START_US

    def __call__(self) -> int:
        return self.now


@dataclass
class Book:
    """One open access database and everything over it."""

    path: Path
    clock: Clock
    database: AccessDatabase
    audit: AuditLog
    grants: GrantBook
    visibility: Visibility
    deliveries: Deliveries

    def events(self) -> list[str]:
        """What happened, the oldest first."""
        return [row["event"] for row in self.audit.every()]


@contextmanager
def book(path: Path, clock: Clock | None = None) -> Iterator[Book]:
    """Over the file `path`, made when it is not there."""
    told = clock or Clock()
    database = AccessDatabase(path)
    try:
        audit = AuditLog(database, told)
        grants = GrantBook(database, audit, told)
        visibility = Visibility(database, audit, Level.GRANTED, told)
        deliveries = Deliveries(grants, audit)
        yield Book(path, told, database, audit, grants, visibility, deliveries)
    finally:
        database.close()
