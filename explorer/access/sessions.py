"""Sessions: which browser is signed in as whom.

Owns: making, finding and ending them, and the provider's token of each.
Must not know: HTTP, how somebody proved who they are.

A session is a row of the access database; the browser holds a random reference of which only
the SHA-256 is kept, so the file lets nobody in. All live ones are in memory, too: finding one
is a look into a dictionary. The operator's sessions are in memory only: they must not outlive
the token that they were opened with, which may change at a restart.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from explorer.access.audit import AuditLog, Entry
from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.logins import fingerprint
from explorer.access.oidc import ProviderToken, SignedIn
from explorer.access.people import OPERATOR_SUBJECT, Membership, Person
from explorer.access.tables import PERSON, SESSION

MOST_OF_A_PERSON = 20
HOUR_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser.

    Attributes:
        person: None for the operator.
        restricted: organisations that do not count, by name.
    """

    session_hash: str = field(repr=False)
    person: Person | None
    restricted: tuple[str, ...]
    created_us: int
    expires_us: int

    @property
    def subject(self) -> str:
        """Whose it is."""
        return self.person.subject if self.person is not None else OPERATOR_SUBJECT

    @property
    def session_id(self) -> str:
        """What pages call it; says nothing about the cookie."""
        return self.session_hash[:16]


class Sessions:
    """Every session.

    Args:
        database: open.
        audit: gets a row for each start and end.
        hours: how long a session lasts.
        clock: microseconds since the epoch.
    """

    def __init__(
        self,
        database: AccessDatabase,
        audit: AuditLog,
        hours: float,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._database = database
        self._audit = audit
        self._life_us = int(hours * HOUR_US)
        self._clock = clock
        self._live: dict[str, Session] = {}
        self._provider_tokens: dict[str, ProviderToken] = {}
        database.write(self._load)

    @property
    def life_s(self) -> int:
        """How long a session lasts, in seconds."""
        return self._life_us // 1_000_000

    def find(self, value: str) -> Session | None:
        """The session whose cookie has this value; None when it ended or never was."""
        found = self._live.get(fingerprint(value))
        return found if found is not None and found.expires_us > self._clock() else None

    def get(self, session_hash: str) -> Session | None:
        """The session of this hash, while it lasts."""
        found = self._live.get(session_hash)
        return found if found is not None and found.expires_us > self._clock() else None

    def start(
        self, signed_in: SignedIn | None, entry: Entry, old: str = ""
    ) -> tuple[str, Session]:
        """A new session and the value of its cookie; `None` is the operator.

        The session that the browser had (`old`, a hash) ends: a reference never survives a
        change of what it allows.
        """
        value, now = secrets.token_urlsafe(32), self._clock()
        session = Session(
            session_hash=fingerprint(value),
            person=signed_in.person if signed_in is not None else None,
            restricted=signed_in.restricted if signed_in is not None else (),
            created_us=now,
            expires_us=now + self._life_us,
        )
        own = sorted(self.of(session.subject), key=lambda each: each.created_us)
        ended = [each.session_hash for each in own[: max(0, len(own) + 1 - MOST_OF_A_PERSON)]]
        if old and old not in ended:
            ended.append(old)

        def work(rows: Rows) -> None:
            for each in ended:
                rows.update(SESSION, {"session_hash": each}, {"ended_time": now})
            if session.person is not None:
                _keep_person(rows, session.person, now)
                rows.insert(SESSION, _row(session, session.person))
            self._audit.append(entry, rows)

        self._database.write(work)
        for each in ended:
            self._drop(each)
        self._live[session.session_hash] = session
        if signed_in is not None and signed_in.token is not None:
            self._provider_tokens[session.session_hash] = signed_in.token
        self._drop_old(now)
        return value, session

    def end(self, session_hash: str, entry: Entry) -> bool:
        """Ends a session at once; whether there was one."""
        if self.get(session_hash) is None:
            return False
        now = self._clock()

        def work(rows: Rows) -> None:
            rows.update(SESSION, {"session_hash": session_hash}, {"ended_time": now})
            self._audit.append(entry, rows)

        # Out of memory first: should the write fail, it is over all the same.
        self._drop(session_hash)
        self._database.write(work)
        return True

    def end_all(self, subject: str, rows: Rows | None = None) -> int:
        """Ends every session of a subject, such as when what it may do changes; how many
        there were. In the transaction of `rows`, where one is given."""
        found, now = self.of(subject), self._clock()

        def work(rows: Rows) -> None:
            for each in found:
                rows.update(SESSION, {"session_hash": each.session_hash}, {"ended_time": now})

        for each in found:
            self._drop(each.session_hash)
        if rows is not None:
            work(rows)
        else:
            self._database.write(work)
        return len(found)

    def forget_all(self, rows: Rows) -> int:
        """Ends every session, the operator's too, and removes its row; how many there were."""
        found = list(self._live)
        for each in found:
            self._drop(each)
            rows.delete(SESSION, {"session_hash": each})
        return len(found)

    def of(self, subject: str) -> list[Session]:
        """Live sessions of a subject, the newest first."""
        now = self._clock()
        found = [
            each
            for each in list(self._live.values())
            if each.subject == subject and each.expires_us > now
        ]
        return sorted(found, key=lambda each: -each.created_us)

    def provider_token(self, session_hash: str) -> ProviderToken | None:
        """The provider's access token of a session; None when there is none that lasts, as
        after a restart: then the person has to sign in again."""
        found = self._provider_tokens.get(session_hash)
        if found is None or found.expires_us <= self._clock() or not self.get(session_hash):
            return None
        return found

    def _load(self, rows: Rows) -> None:
        now = self._clock()
        # The audit log says who was signed in; dead rows say nothing more.
        for row in rows.select(SESSION):
            if row["ended_time"] is not None or row["expires_time"] <= now:
                rows.delete(SESSION, {"session_hash": row["session_hash"]})
            else:
                session = _read(row)
                self._live[session.session_hash] = session

    def _drop(self, session_hash: str) -> None:
        self._live.pop(session_hash, None)
        self._provider_tokens.pop(session_hash, None)

    def _drop_old(self, now: int) -> None:
        for each in [each for each in list(self._live.values()) if each.expires_us <= now]:
            self._drop(each.session_hash)


def memberships_json(person: Person, restricted: tuple[str, ...] = ()) -> str:
    """Memberships as they are stored; those that do not count are marked."""
    listed: list[dict[str, Any]] = [
        {"sub": each.subject, "name": each.name, "role": each.role}
        for each in person.memberships
    ]
    return json.dumps([*listed, *({"restricted": name} for name in restricted)])


def memberships_of(text: str) -> tuple[tuple[Membership, ...], tuple[str, ...]]:
    """Memberships, and the names of those that do not count, as they were stored."""
    listed = json.loads(text)
    counted = tuple(
        Membership(each["sub"], each["name"], each["role"])
        for each in listed
        if "restricted" not in each
    )
    return counted, tuple(each["restricted"] for each in listed if "restricted" in each)


def _keep_person(rows: Rows, person: Person, now: int) -> None:
    key, told = {"subject": person.subject}, {"name": person.name, "last_time": now}
    if rows.count(PERSON, key):
        rows.update(PERSON, key, told)
    else:
        rows.insert(PERSON, {**key, **told, "provider": person.provider, "first_time": now})


def _row(session: Session, person: Person) -> dict[str, Any]:
    return {
        "session_hash": session.session_hash,
        "subject": person.subject,
        "name": person.name,
        "organisations": memberships_json(person, session.restricted),
        "created_time": session.created_us,
        "expires_time": session.expires_us,
    }


def _read(row: dict[str, Any]) -> Session:
    counted, restricted = memberships_of(row["organisations"])
    return Session(
        session_hash=row["session_hash"],
        person=Person(row["subject"], row["name"], counted),
        restricted=restricted,
        created_us=row["created_time"],
        expires_us=row["expires_time"],
    )
