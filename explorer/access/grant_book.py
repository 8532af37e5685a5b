"""Where grants are kept: asked for, decided, spent; each with its row in the audit log.

Owns: every change of a grant, in one transaction with its audit row, and the copy in memory
that is asked at each use. Must not know: HTTP, the policy.

One process owns the database, so the copy in memory is the truth as soon as a change is
committed: a grant that was revoked is refused by the next look at it.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.grants import (
    Grant,
    ObjectKind,
    State,
    Step,
    SubjectKind,
    Terms,
    Use,
    Wanted,
)
from explorer.access.people import Caller
from explorer.access.policy import Kind
from explorer.access.tables import ACCESS_GRANT, GRANT_EVENT, GRANT_USE
from explorer.errors import CapacityReached, GrantNeeded, InvalidValue, NotFound

MOST_PENDING = 20

_EVENTS = {
    State.PENDING: Event.GRANT_REQUESTED,
    State.APPROVED: Event.GRANT_APPROVED,
    State.REJECTED: Event.GRANT_REJECTED,
    State.REVOKED: Event.GRANT_REVOKED,
}
# What may follow what.
_FROM = {
    State.APPROVED: (State.PENDING,),
    State.REJECTED: (State.PENDING,),
    State.REVOKED: (State.APPROVED, State.EXPIRED, State.SPENT),
}


class GrantBook:
    """Every grant of one server; safe from any thread.

    Args:
        database: where grants are kept.
        audit: gets a row for every change.
        clock: microseconds since the epoch.
    """

    def __init__(
        self, database: AccessDatabase, audit: AuditLog, clock: Callable[[], int] = now_us
    ) -> None:
        self._database = database
        self._audit = audit
        self.clock = clock
        self._lock = threading.RLock()
        self._grants = database.read(_read_all)

    @property
    def all(self) -> tuple[Grant, ...]:
        """Every grant there ever was, the newest first."""
        return tuple(reversed(list(self._grants.values())))

    def get(self, grant_id: str) -> Grant:
        """Raises:
        NotFound: there is no such grant.
        """
        grant = self._grants.get(grant_id)
        if grant is None:
            raise NotFound(f"there is no grant {grant_id[:60]}")
        return grant

    def ask(self, caller: Caller, wanted: Wanted) -> Grant:
        """Puts a request into the queue.

        Raises:
            CapacityReached: the person has as many open requests as anybody may have.
            StoreFailed: it cannot be written.
        """
        with self._lock:
            waiting = [
                grant
                for grant in self._grants.values()
                if grant.asked_by == caller.subject and grant.steps[-1].state is State.PENDING
            ]
            for grant in waiting:
                if replace(grant.wanted, purpose=wanted.purpose) == wanted:
                    return grant
            if len(waiting) >= MOST_PENDING:
                raise CapacityReached(
                    f"{MOST_PENDING} of your requests wait for a decision already; "
                    "wait for those"
                )
            return self._begin(caller, wanted, Step(State.PENDING, caller.subject, "", 0))

    def give(self, caller: Caller, wanted: Wanted, terms: Terms) -> Grant:
        """A grant that nobody asked for.

        Raises:
            StoreFailed: it cannot be written.
        """
        step = Step(State.APPROVED, caller.subject, wanted.purpose, 0, terms)
        with self._lock:
            return self._begin(caller, wanted, step)

    def decide(
        self,
        caller: Caller,
        grant_id: str,
        state: State,
        reason: str,
        terms: Terms = Terms(),  # noqa: B008 - frozen
    ) -> Grant:
        """Approves, rejects or revokes.

        Raises:
            NotFound: there is no such grant.
            InvalidValue: it does not stand where this can be done to it.
            StoreFailed: it cannot be written; nothing changed.
        """
        with self._lock:
            grant, now = self.get(grant_id), self.clock()
            was = grant.state(now)
            if was not in _FROM[state]:
                raise InvalidValue(
                    f"the grant is `{was.value}`; only one that is "
                    f"`{'` or `'.join(each.value for each in _FROM[state])}` can be "
                    f"{state.value}"
                )
            step = Step(state, caller.subject, reason, now, terms)
            changed = replace(grant, steps=(*grant.steps, step))

            def write(rows: Rows) -> None:
                rows.insert(GRANT_EVENT, _step_row(grant_id, len(grant.steps), step))
                self._audit.append(_entry(caller, changed, _EVENTS[state], reason), rows)

            self._database.write(write)
            self._keep(changed)
            return changed

    def spend(self, caller: Caller, grant_id: str, rollout_id: str, kind: Kind) -> Use:
        """One use, written down before the first byte leaves; resuming is the same use.

        Raises:
            GrantNeeded: it may not be used now.
            StoreFailed: the use cannot be written; nothing may leave.
        """
        with self._lock:
            grant, now = self.get(grant_id), self.clock()
            known = grant.same_use(caller.subject, rollout_id, kind, now)
            state = grant.state(now)
            stands = state is State.APPROVED or (known is not None and state is State.SPENT)
            if not stands or kind not in grant.wanted.kinds:
                raise GrantNeeded(f"the grant {grant_id} is {state.value}; ask for another")
            if known is not None:
                return known
            use = Use(_new_id("u"), caller.subject, rollout_id, kind, now)
            row = {
                "use_id": use.use_id,
                "grant_id": grant_id,
                "subject": use.subject,
                "rollout_id": rollout_id,
                "kind": kind.value,
                "used_time": now,
            }
            self._database.write(lambda rows: rows.insert(GRANT_USE, row))
            self._keep(replace(grant, uses=(*grant.uses, use)))
            return use

    def stands(self, grant_id: str) -> str:
        """Why a grant in use must not be used on, or nothing; cheap enough for each chunk."""
        grant = self._grants.get(grant_id)
        if grant is None:
            return "the grant is gone"
        state = grant.state(self.clock())
        # Its last use may be the one that asks.
        return "" if state in (State.APPROVED, State.SPENT) else f"the grant is {state.value}"

    def forget_pending(self) -> int:
        """Takes every open request away (a demo begins anew); returns how many."""
        with self._lock:
            waiting = [
                grant.grant_id
                for grant in self._grants.values()
                if grant.steps[-1].state is State.PENDING
            ]

            def write(rows: Rows) -> None:
                for grant_id in waiting:
                    rows.delete(GRANT_EVENT, {"grant_id": grant_id})
                    rows.delete(ACCESS_GRANT, {"grant_id": grant_id})

            self._database.write(write)
            gone = set(waiting)
            self._grants = {k: g for k, g in self._grants.items() if k not in gone}
            return len(waiting)

    def _begin(self, caller: Caller, wanted: Wanted, first: Step) -> Grant:
        now = self.clock()
        step = replace(first, time_us=now)
        grant = Grant(_new_id("g"), now, wanted, caller.subject, (step,))
        event = Event.GRANT_GIVEN if step.state is State.APPROVED else Event.GRANT_REQUESTED

        def write(rows: Rows) -> None:
            rows.insert(ACCESS_GRANT, _grant_row(grant))
            rows.insert(GRANT_EVENT, _step_row(grant.grant_id, 0, step))
            self._audit.append(_entry(caller, grant, event, wanted.purpose), rows)

        self._database.write(write)
        self._keep(grant)
        return grant

    def _keep(self, grant: Grant) -> None:
        # A new dict each time: readers go through the old one without a lock.
        self._grants = {**self._grants, grant.grant_id: grant}


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(8)


def _entry(caller: Caller, grant: Grant, event: Event, reason: str) -> Entry:
    wanted, terms = grant.wanted, grant.terms
    return Entry.by(
        caller,
        event,
        f"grant {grant.grant_id}",
        reason=reason,
        detail={
            "subject": wanted.subject,
            "object_kind": wanted.object_kind.value,
            "objects": list(wanted.objects[:50]),
            "n_objects": len(wanted.objects),
            "kinds": [kind.value for kind in wanted.kinds],
            "expires_us": terms.expires_us,
            "max_uses": terms.max_uses,
        },
    )


def _grant_row(grant: Grant) -> dict[str, Any]:
    wanted = grant.wanted
    return {
        "grant_id": grant.grant_id,
        "created_time": grant.created_us,
        "subject_kind": wanted.subject_kind.value,
        "subject": wanted.subject,
        "subject_name": wanted.subject_name,
        "object_kind": wanted.object_kind.value,
        "objects": json.dumps(list(wanted.objects)),
        "kinds": json.dumps([kind.value for kind in wanted.kinds]),
        "asked_by": grant.asked_by,
        "purpose": wanted.purpose,
    }


def _step_row(grant_id: str, sequence: int, step: Step) -> dict[str, Any]:
    return {
        "grant_id": grant_id,
        "sequence": sequence,
        "event_time": step.time_us,
        "state": step.state.value,
        "who": step.who,
        "reason": step.reason,
        "expires_time": step.terms.expires_us,
        "max_uses": step.terms.max_uses,
    }


def _read_all(rows: Rows) -> dict[str, Grant]:
    steps: dict[str, list[Step]] = {}
    for row in rows.select(GRANT_EVENT, None, "ORDER BY grant_id, sequence"):
        terms = Terms(row["expires_time"], row["max_uses"])
        step = Step(State(row["state"]), row["who"], row["reason"], row["event_time"], terms)
        steps.setdefault(row["grant_id"], []).append(step)
    uses: dict[str, list[Use]] = {}
    for row in rows.select(GRANT_USE, None, "ORDER BY used_time"):
        kind = Kind(row["kind"])
        use = Use(row["use_id"], row["subject"], row["rollout_id"], kind, row["used_time"])
        uses.setdefault(row["grant_id"], []).append(use)
    found: dict[str, Grant] = {}
    for row in rows.select(ACCESS_GRANT, None, "ORDER BY created_time, rowid"):
        grant_id = row["grant_id"]
        found[grant_id] = Grant(
            grant_id,
            row["created_time"],
            Wanted(
                SubjectKind(row["subject_kind"]),
                row["subject"],
                row["subject_name"],
                ObjectKind(row["object_kind"]),
                tuple(json.loads(row["objects"])),
                tuple(Kind(kind) for kind in json.loads(row["kinds"])),
                row["purpose"],
            ),
            row["asked_by"],
            tuple(steps[grant_id]),
            tuple(uses.get(grant_id, ())),
        )
    return found
