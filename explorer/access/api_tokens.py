"""API tokens: how a program shows that it acts for a person.

Owns: making, finding and taking them back. Must not know: HTTP, what a scope allows.

A token is shown once; its SHA-256 is kept. It ends by itself, at the latest after as many
days as the settings allow. One of the operator's also ends when the operator's token is another
one: its hash is made with that, so that changing a token that leaked locks out whoever had it.
A token carries its owner's organisations as the newest sign-in told
them, and for a week only: nobody asks the provider in between, and people leave.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.logins import fingerprint
from explorer.access.people import (
    OPERATOR_SUBJECT,
    Caller,
    How,
    Membership,
    Person,
    Role,
    Scope,
)
from explorer.access.sessions import memberships_json, memberships_of
from explorer.access.tables import API_TOKEN, PERSON
from explorer.errors import InvalidValue, NotFound

PREFIX = "rxt_"
MOST_OF_A_PERSON = 50
LONGEST_LABEL = 80
MINUTE_US = 60 * 1_000_000
DAY_US = 24 * 3600 * 1_000_000
MEMBERSHIPS_LAST_US = 7 * DAY_US


@dataclass(frozen=True, slots=True)
class ApiToken:
    """One token, without its secret.

    Attributes:
        told_us: when the provider told the memberships.
        used_us: newest use, to the minute.
    """

    token_id: str
    token_hash: str = field(repr=False)
    subject: str
    name: str
    label: str
    memberships: tuple[Membership, ...]
    told_us: int
    scopes: frozenset[Scope]
    created_us: int
    expires_us: int
    revoked_us: int | None = None
    used_us: int | None = None

    def person(self, now: int) -> Person | None:
        """Whom it acts for; None is the operator."""
        if self.subject == OPERATOR_SUBJECT:
            return None
        fresh = now - self.told_us <= MEMBERSHIPS_LAST_US
        return Person(self.subject, self.name, self.memberships if fresh else ())


def scopes_for(owner: Caller) -> frozenset[Scope]:
    """What a token of `owner` may be made for."""
    found = {Scope.READ, Scope.DOWNLOAD}
    if owner.role >= Role.CURATOR:
        found.add(Scope.CURATE)
    if owner.role >= Role.OPERATOR:
        found.add(Scope.OPERATE)
    return frozenset(found if owner.scopes is None else found & owner.scopes)


class ApiTokens:
    """Every API token.

    Args:
        database: open.
        audit: gets a row when one is made or taken back.
        most_days: longest life of a token.
        clock: microseconds since the epoch.
        operator: the operator's token of now.
    """

    def __init__(
        self,
        database: AccessDatabase,
        audit: AuditLog,
        most_days: float,
        clock: Callable[[], int] = now_us,
        operator: str = "",
    ) -> None:
        self._operator = operator
        self._database = database
        self._audit = audit
        self.most_days = most_days
        self._clock = clock
        self._by_hash: dict[str, ApiToken] = {}
        self._used: dict[str, int] = {}
        self._lock = threading.Lock()
        database.write(self._load)

    def make(
        self, owner: Caller, label: str, scopes: Iterable[Scope], days: float
    ) -> tuple[str, ApiToken]:
        """A new token of `owner`: what the program shows, and what is kept.

        Raises:
            InvalidValue: a value that cannot be.
        """
        if owner.how is How.NOTHING:
            raise InvalidValue(
                "sign in first: nobody is known here, and a token would outlast that anybody "
                "may do anything"
            )
        chosen = frozenset(scopes)
        label = "".join(each for each in label if each.isprintable()).strip()
        if not label or len(label) > LONGEST_LABEL:
            raise InvalidValue(
                f"`label` says what the token is for, in 1 to {LONGEST_LABEL} letters",
                path="$.label",
            )
        if not chosen or not chosen <= scopes_for(owner):
            allowed = ", ".join(sorted(scopes_for(owner)))
            raise InvalidValue(f"`scopes` must be some of: {allowed}", path="$.scopes")
        if not 0 < days <= self.most_days:
            raise InvalidValue(
                f"`days` must be above 0 and at most {self.most_days:g}", path="$.days"
            )
        if len(self.of(owner.subject)) >= MOST_OF_A_PERSON:
            raise InvalidValue(
                f"you have {MOST_OF_A_PERSON} tokens; take one back before you make another"
            )
        secret, now = PREFIX + secrets.token_urlsafe(32), self._clock()
        token = ApiToken(
            token_id=f"tk_{secrets.token_hex(8)}",
            token_hash=self._hash(secret, owner.subject),
            subject=owner.subject,
            name=owner.name,
            label=label,
            memberships=owner.person.memberships if owner.person is not None else (),
            told_us=now,
            scopes=chosen,
            created_us=now,
            expires_us=now + int(days * DAY_US),
        )
        entry = Entry.by(
            owner,
            Event.TOKEN_MADE,
            token.token_id,
            detail={"scopes": sorted(chosen), "days": days, "label": label},
        )

        def work(rows: Rows) -> ApiToken:
            known = rows.select(PERSON, {"subject": owner.subject})
            kept = replace(token, told_us=known[0]["last_time"]) if known else token
            rows.insert(API_TOKEN, _row(kept))
            self._audit.append(entry, rows)
            return kept

        kept = self._database.write(work)
        self._by_hash[kept.token_hash] = kept
        return secret, kept

    def find(self, secret: str) -> ApiToken | None:
        """The token a program shows; None when it ended, was taken back, or never was."""
        for subject in ("", OPERATOR_SUBJECT):
            found = self._by_hash.get(self._hash(secret, subject))
            if found is not None and (found.subject == OPERATOR_SUBJECT) is bool(subject):
                return found if self._lives(found) else None
        return None

    def _hash(self, secret: str, subject: str) -> str:
        return fingerprint(
            f"{secret} {self._operator}" if subject == OPERATOR_SUBJECT else secret
        )

    def stands(self, token_id: str) -> bool:
        """Whether a token may be used now."""
        found = (each for each in list(self._by_hash.values()) if each.token_id == token_id)
        return any(self._lives(each) for each in found)

    def of(self, subject: str) -> list[ApiToken]:
        """Tokens of a subject that work, the newest first."""
        found = [
            replace(each, used_us=self._used.get(each.token_id))
            for each in list(self._by_hash.values())
            if each.subject == subject and self._lives(each)
        ]
        return sorted(found, key=lambda each: (-each.created_us, each.token_id))

    def revoke(self, token_id: str, by: Caller) -> None:
        """Takes a token of the caller back, at once; an operator may take back anybody's.

        Raises:
            NotFound: the caller has no such token.
        """
        found = next(
            (each for each in list(self._by_hash.values()) if each.token_id == token_id), None
        )
        own = found is not None and (found.subject == by.subject or by.role is Role.OPERATOR)
        if found is None or not own or not self._lives(found):
            raise NotFound("there is no such token; it may have ended or been taken back")
        now = self._clock()

        def work(rows: Rows) -> None:
            rows.update(API_TOKEN, {"token_id": token_id}, {"revoked_time": now})
            self._audit.append(Entry.by(by, Event.TOKEN_REVOKED, token_id), rows)

        # Out of memory first: should the write fail, it is over all the same.
        with self._lock:
            self._by_hash.pop(found.token_hash, None)
        self._database.write(work)

    def touched(self, token: ApiToken) -> bool:
        """Whether this use is the first of its minute, so that `keep_use` is due."""
        minute = self._clock() // MINUTE_US * MINUTE_US
        if self._used.get(token.token_id, 0) >= minute:
            return False
        self._used[token.token_id] = minute
        return True

    def keep_use(self, token: ApiToken) -> None:
        """Writes the newest use down."""
        used = {"used_time": self._used.get(token.token_id)}
        self._database.write(
            lambda rows: rows.update(API_TOKEN, {"token_id": token.token_id}, used)
        )

    def tell_memberships(self, person: Person) -> None:
        """A new sign-in told the organisations of a person: their tokens have these now."""
        now, text = self._clock(), memberships_json(person)
        mine = self.of(person.subject)
        if not mine:
            return
        self._database.write(
            lambda rows: rows.update(
                API_TOKEN, {"subject": person.subject}, {"organisations": text}
            )
        )
        with self._lock:
            # One that was taken back in the meantime must not come back.
            for each in mine:
                if each.token_hash in self._by_hash:
                    self._by_hash[each.token_hash] = replace(
                        each, memberships=person.memberships, told_us=now
                    )

    def forget_all(self, rows: Rows) -> int:
        """Takes every token away with its row; how many there were."""
        found = list(self._by_hash.values())
        with self._lock:
            self._by_hash.clear()
        for each in found:
            rows.delete(API_TOKEN, {"token_id": each.token_id})
        return len(found)

    def _lives(self, token: ApiToken) -> bool:
        return token.revoked_us is None and token.expires_us > self._clock()

    def _load(self, rows: Rows) -> None:
        seen = {row["subject"]: row["last_time"] for row in rows.select(PERSON)}
        for row in rows.select(API_TOKEN):
            token = _read(row, seen.get(row["subject"], row["created_time"]))
            if self._lives(token):
                self._by_hash[token.token_hash] = token
                if token.used_us is not None:
                    self._used[token.token_id] = token.used_us


def _row(token: ApiToken) -> dict[str, Any]:
    person = Person(token.subject, token.name, token.memberships)
    return {
        "token_id": token.token_id,
        "token_hash": token.token_hash,
        "subject": token.subject,
        "name": token.name,
        "label": token.label,
        "organisations": memberships_json(person),
        "scopes": json.dumps(sorted(token.scopes)),
        "created_time": token.created_us,
        "expires_time": token.expires_us,
    }


def _read(row: dict[str, Any], told_us: int) -> ApiToken:
    return ApiToken(
        token_id=row["token_id"],
        token_hash=row["token_hash"],
        subject=row["subject"],
        name=row["name"],
        label=row["label"],
        memberships=memberships_of(row["organisations"])[0],
        told_us=told_us,
        scopes=frozenset(Scope(each) for each in json.loads(row["scopes"])),
        created_us=row["created_time"],
        expires_us=row["expires_time"],
        revoked_us=row["revoked_time"],
        used_us=row["used_time"],
    )
