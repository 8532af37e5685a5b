"""The gate in front of every route: one rule, one decision, one narrowed view.

Owns: asking the policy before a route runs, refusing in words, and what a route then gets to
see. Must not know: what routes do, how callers are recognised.

It is a dependency of the whole application, so it runs with the route that was really
matched, before any of the route's own code and before its body is read. A route without a
rule is refused for everybody.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fastapi import Request

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.calling import caller_of, set_caller
from explorer.access.grants import Place
from explorer.access.limits import Limiter
from explorer.access.people import Caller, How, Role
from explorer.access.policy import NO_GRANT, Action, Decision, Level, Rule, decide, sees_all
from explorer.errors import (
    AccessDenied,
    AdminTokenNeeded,
    ExplorerError,
    GrantNeeded,
    NoRule,
    NotFound,
    RateLimited,
    RoleNeeded,
    ScopeNeeded,
    SignInNeeded,
)
from explorer.records import RolloutId
from explorer.web.reach import Ids, Reach
from explorer.web.rules import rule_of

PASS_KEY = "rollout_explorer.pass"  # noqa: S105 - a key of the scope, no secret
_ERRORS: dict[str, type[ExplorerError]] = {
    error.code: error
    for error in (
        AdminTokenNeeded,
        GrantNeeded,
        NotFound,
        RoleNeeded,
        ScopeNeeded,
        SignInNeeded,
    )
}
# What only curators and operators are let do.
_OF_STAFF = frozenset((Action.CURATE, Action.DECIDE, Action.OPERATE))
# What an id may look like at all; the store says whether it is one.
_ID = re.compile("[A-Za-z0-9_-]{1,64}")
# Rows of refusals in a minute; beyond these they are only counted, so that nobody can fill
# the disk by knocking.
MOST_REFUSALS = 60
Identify = Callable[[Mapping[str, Any]], Awaitable[Caller]]
# Which of some Hub datasets let this caller in, asked with their own token; anew or not.
PassedGates = Callable[[Caller, tuple[str, ...], bool], Awaitable[frozenset[str]]]


async def no_gates(caller: Caller, datasets: tuple[str, ...], fresh: bool) -> frozenset[str]:
    """Nobody passes a gate where none can be asked."""
    del caller, datasets, fresh
    return frozenset()


@dataclass(frozen=True, slots=True)
class Pass:
    """What the gate gives a request: who, by which rule, and what may be seen.

    Attributes:
        visible: ids of the rollouts that may be seen; None: all.
        whole: what is seen is not covered up: a document that leaves whole, or a reader
            who may see secrets.
    """

    caller: Caller
    rule: Rule
    decision: Decision
    place: Place | None = None
    visible: Ids | None = frozenset()
    whole: bool = False


@dataclass(slots=True)
class _Minute:
    """Refusals written down in the current minute."""

    began: float = 0.0
    rows: int = 0
    left_out: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gate:
    """Decides for one application.

    Args:
        identify: who makes a request.
        reach: what they reach.
        audit: gets refusals.
        gates: asks the Hub.
        limiter: how often one person may ask, from wherever; none for curators.
    """

    def __init__(
        self,
        identify: Identify,
        reach: Reach,
        audit: AuditLog,
        gates: PassedGates = no_gates,
        limiter: Limiter | None = None,
    ) -> None:
        self.reach = reach
        self._identify = identify
        self._audit = audit
        self._gates = gates
        self._limiter = limiter
        self._minute = _Minute()

    async def admit(self, request: Request) -> Pass:
        """The pass of a request.

        Raises:
            AccessDenied, NotFound: with the rule that refused it.
        """
        caller = await self._identify(request.scope)
        set_caller(request.scope, caller)
        self._slow_down(caller)
        path = str(getattr(request.scope.get("route"), "path", ""))
        rule = rule_of(request.method, path)
        if rule is None:
            raise NoRule(f"{request.method} {path} has no access rule; nobody may use it")
        place, decision = await self._decided(
            caller, rule, str(request.path_params.get("rollout_id", ""))
        )
        if decision.allowed and _sent_here_by_another_site(request, caller, rule):
            raise AccessDenied(
                "another site's link led to this document; open it from the page of the "
                "rollout, so that nobody spends your grant for you",
                rule="cross_site",
            )
        if not decision.allowed:
            await self._refuse(request, caller, rule, decision, place)
        return await self._pass(caller, rule, decision, place)

    async def stands(self, held: Pass) -> bool:
        """Whether who was let in to a rollout would be let in now."""
        if held.place is None:
            return held.decision.allowed
        found = await self._decided(held.caller, held.rule, held.place.rollout_id)
        return found[1].allowed

    async def _decided(
        self, caller: Caller, rule: Rule, rollout_id: str
    ) -> tuple[Place | None, Decision]:
        """What the policy says, and the rollout that it is about."""
        if rule.action not in (Action.SEE, Action.TAKE):
            return None, decide(caller, rule)
        place = await self._place(rollout_id)
        level, grants = None, NO_GRANT
        if place is not None:
            level = self.reach.holds(place).level
            if caller.role < Role.CURATOR and level is not Level.PRIVATE:
                asked = self.reach.gates(place)
                taking = rule.action is Action.TAKE
                gates = await self._gates(caller, asked, taking) if asked else ()
                grants = self.reach.facts(caller, place, rule.kind, gates)
        return place, decide(caller, rule, level, grants)

    def _slow_down(self, caller: Caller) -> None:
        """Raises:
        RateLimited: a person asked too often; addresses are counted before.
        """
        if self._limiter is None or caller.person is None or caller.role >= Role.CURATOR:
            return
        wait = self._limiter.take(f"person:{caller.subject}")
        if wait is not None:
            seconds = max(1, math.ceil(wait))
            raise RateLimited(
                f"too many requests of one person; try again in {seconds} s",
                retry_after_s=seconds,
            )

    async def _place(self, rollout_id: str) -> Place | None:
        if not _ID.fullmatch(rollout_id):
            return None
        return await asyncio.to_thread(self.reach.place, RolloutId(rollout_id))

    async def _pass(
        self, caller: Caller, rule: Rule, decision: Decision, place: Place | None
    ) -> Pass:
        if sees_all(caller) or rule.action in _OF_STAFF:
            # Staff whose token was made for this only: what they do, they do on the whole.
            return Pass(caller, rule, decision, place, None, whole=True)
        if rule.action is Action.TAKE and place is not None:
            # The decision was about this rollout; a document leaves whole or not at all.
            only = frozenset((RolloutId(place.rollout_id),))
            return Pass(caller, rule, decision, place, only, whole=True)
        if rule.action is Action.OPEN:
            return Pass(caller, rule, decision)
        visible = await asyncio.to_thread(self.reach.visible, caller)
        if place is not None and visible is not None:
            # A Hub gate that was passed just now opens this one rollout.
            visible |= {RolloutId(place.rollout_id)}
        return Pass(caller, rule, decision, place, visible)

    async def _refuse(
        self,
        request: Request,
        caller: Caller,
        rule: Rule,
        decision: Decision,
        place: Place | None,
    ) -> None:
        about = f"rollout {place.rollout_id}" if place is not None else request.url.path
        await self._write_down(
            Entry.by(
                caller,
                Event.REFUSED,
                about,
                reason=decision.rule,
                detail={
                    "action": rule.action.value,
                    "kind": rule.kind.value if rule.kind is not None else None,
                    "how": caller.how.value,
                },
            )
        )
        error = _ERRORS.get(decision.code, AccessDenied)
        details: dict[str, Any] = {"rule": decision.rule}
        if place is not None and decision.code == GrantNeeded.code:
            kind = f"&kind={rule.kind.value}" if rule.kind is not None else ""
            details["ask"] = f"/grants/new?rollout={place.rollout_id}{kind}"
        raise error(decision.words, **details)

    async def _write_down(self, entry: Entry) -> None:
        minute = self._minute
        async with minute.lock:
            now = time.monotonic()
            if now - minute.began > 60:
                minute.began, minute.rows = now, 0
            if minute.rows >= MOST_REFUSALS:
                minute.left_out += 1
                return
            minute.rows += 1
            left_out, minute.left_out = minute.left_out, 0
        if left_out:
            entry = replace(entry, detail={**entry.detail, "not_written_before": left_out})
        await asyncio.to_thread(self._audit.append, entry)


def _sent_here_by_another_site(request: Request, caller: Caller, rule: Rule) -> bool:
    """A link from elsewhere carries the cookie, and a download spends a use."""
    if rule.action is not Action.TAKE or caller.how is not How.SESSION:
        return False
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


async def authorise(request: Request) -> None:
    """The dependency of the whole application.

    Raises:
        AccessDenied, NotFound: the request is refused.
    """
    request.scope[PASS_KEY] = await cast("Gate", request.app.state.gate).admit(request)


def pass_of(request: Request) -> Pass | None:
    """The pass of a request; None where the gate has not looked (an error page)."""
    found = request.scope.get(PASS_KEY)
    return found if isinstance(found, Pass) else None


def require_change(request: Request) -> None:
    """A second lock on routes that change something, should their rule be wrong.

    Raises:
        NoRule: the rule of the route does not say that it changes anything.
    """
    held = pass_of(request)
    if held is None or not held.rule.changes:
        raise NoRule("a route that changes something has a rule that does not say so")


def who_of(request: Request, claimed: str | None = None) -> str:
    """Whose name goes beside a decision: the person's who is signed in; the operator may
    name somebody."""
    caller = caller_of(request.scope)
    if caller.person is not None:
        return caller.person.name or caller.person.subject
    return claimed or "operator"
