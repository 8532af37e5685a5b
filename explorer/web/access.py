"""What the routes are given to look after grants, levels, roles and the audit log.

Owns: the bundle, and how it is made for an application. Must not know: routes, pages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from fastapi import Request

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.calling import caller_of
from explorer.access.database import AccessDatabase
from explorer.access.delivery import Deliveries, Parcel, Still
from explorer.access.grant_book import GrantBook
from explorer.access.identity import Identity
from explorer.access.limits import Limiter
from explorer.access.people import Role
from explorer.access.policy import Level
from explorer.access.visibility import Visibility
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.web.gate import Gate, Pass, PassedGates, no_gates
from explorer.web.reach import Reach

LOOK_AGAIN_S = 1.0


def access_of(request: Request) -> Access:
    """The bundle of the application that serves this request."""
    return cast("Access", request.app.state.access)


async def note_down(
    request: Request, event: Event, about: str, reason: str, **detail: Any
) -> None:
    """A row in the audit log about what the caller of a request did.

    Raises:
        StoreFailed: it cannot be written.
    """
    entry = Entry.by(caller_of(request.scope), event, about, reason=reason, detail=detail)
    await asyncio.to_thread(access_of(request).audit.append, entry)


@dataclass(frozen=True, slots=True)
class Access:
    """Everything about who may do what."""

    database: AccessDatabase
    audit: AuditLog
    visibility: Visibility
    grants: GrantBook
    deliveries: Deliveries
    reach: Reach
    gate: Gate
    identity: Identity

    @classmethod
    def of(
        cls,
        database: AccessDatabase,
        audit: AuditLog,
        store: Store,
        default: Level,
        identity: Identity,
        gates: PassedGates = no_gates,
        limiter: Limiter | None = None,
    ) -> Access:
        """The bundle over an open access database."""
        clock = audit.clock
        visibility = Visibility(database, audit, default, clock)
        grants = GrantBook(database, audit, clock)
        reach = Reach(store, visibility, grants, clock)
        return cls(
            database=database,
            audit=audit,
            visibility=visibility,
            grants=grants,
            deliveries=Deliveries(grants, audit),
            reach=reach,
            gate=Gate(identity.caller, reach, audit, gates, limiter),
            identity=identity,
        )

    async def stands(self, held: Pass) -> bool:
        """Whether who was let in to look would be let in now, such as before a live tail
        tells the next thing."""
        return not self.identity.ended(held.caller) and await self.gate.stands(held)

    def still(self, held: Pass, parcel: Parcel) -> Still:
        """Asks, for each chunk of a document, whether it may still be sent."""

        looked = monotonic()

        def look() -> str:
            nonlocal looked
            if monotonic() - looked >= LOOK_AGAIN_S:
                # The one question that the store must be asked.
                looked = monotonic()
                if not self.reach.there(RolloutId(parcel.rollout_id)):
                    return "the rollout was deleted"
            ended = self.identity.ended(held.caller)
            if not ended and parcel.grant_id:
                ended = self.grants.stands(parcel.grant_id)
            if ended:
                return ended
            if held.place is None or held.caller.role >= Role.CURATOR:
                return ""
            closed = self.reach.holds(held.place).level is Level.PRIVATE
            return "the rollout is private now" if closed else ""

        return look
