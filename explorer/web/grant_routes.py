"""Grants, levels, roles and the audit log, for programs.

Owns: their routes under `/api/v1`. Must not know: pages, how decisions are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from explorer.access.audit import AuditLog, Event
from explorer.access.audit_file import report_json
from explorer.access.calling import caller_of
from explorer.access.grants import Grant, State
from explorer.access.people import Caller, Role
from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.web import granting
from explorer.web.access import Access
from explorer.web.api import Api
from explorer.web.api_requests import only, read_object, text
from explorer.web.gate import require_change
from explorer.web.permissions import permissions_json

programs = APIRouter(prefix="/api/v1")
CanChange = Depends(require_change)

_REASON_LETTERS = 2000
_ROLES = {role.word: role for role in (Role.CURATOR, Role.OPERATOR)}


def shown(access: Access, caller: Caller, grant: Grant) -> dict[str, Any]:
    """A grant for a caller."""
    return granting.grant_json(grant, access.grants.clock(), caller)


def known_grant(access: Access, caller: Caller, grant_id: str) -> Grant:
    """A grant that the caller may read.

    Raises:
        NotFound: there is none, or it is somebody else's.
    """
    grant = access.grants.get(grant_id)
    if not granting.may_read_grant(caller, grant):
        raise NotFound(f"there is no grant {grant_id[:60]}")
    return grant


@programs.get("/grants")
async def list_grants(request: Request, api: Api) -> JSONResponse:
    """Grants the caller may read, the newest first: an operator's are all of them.

    `?state=pending` is the queue.
    """
    caller = caller_of(request.scope)
    wanted = _state(request.query_params.get("state"))
    now = api.access.grants.clock()
    found = [
        shown(api.access, caller, grant)
        for grant in granting.visible_grants(api.access, caller)
        if wanted is None or grant.state(now) is wanted
    ]
    return JSONResponse({"grants": found})


def _state(given: str | None) -> State | None:
    if given is None:
        return None
    try:
        return State(given)
    except ValueError as error:
        known = ", ".join(f"`{state.value}`" for state in State)
        raise InvalidValue(f"`state` is one of {known}") from error


@programs.post("/grants", status_code=201, dependencies=[CanChange])
async def ask_or_give(request: Request, api: Api) -> JSONResponse:
    """Asks for a grant; an operator who names a `subject` gives it at once."""
    caller = caller_of(request.scope)
    body = read_object(await request.body())
    grant = await asyncio.to_thread(begin_grant, api.access, caller, body)
    return JSONResponse(shown(api.access, caller, grant), status_code=201)


def begin_grant(access: Access, caller: Caller, body: dict[str, Any]) -> Grant:
    """A request, or a grant that is given.

    Raises:
        InvalidValue, NotFound: it cannot be asked for or given like this.
    """
    wanted, gives = granting.read_wanted(body, caller)
    granting.check_asked(access, caller, wanted)
    if not gives:
        return access.grants.ask(caller, wanted)
    terms = granting.read_terms(body, access.grants.clock())
    return access.grants.give(caller, wanted, terms)


@programs.get("/grants/{grant_id}")
async def show_grant(grant_id: str, request: Request, api: Api) -> JSONResponse:
    """One grant with everything that happened to it."""
    caller = caller_of(request.scope)
    return JSONResponse(shown(api.access, caller, known_grant(api.access, caller, grant_id)))


@programs.post("/grants/{grant_id}/approve", dependencies=[CanChange])
async def approve(grant_id: str, request: Request, api: Api) -> JSONResponse:
    """Approves a request, for 7 days and 500 uses unless the body says otherwise."""
    return await _decide(request, api.access, grant_id, State.APPROVED)


@programs.post("/grants/{grant_id}/reject", dependencies=[CanChange])
async def reject(grant_id: str, request: Request, api: Api) -> JSONResponse:
    """Rejects a request with a `reason`."""
    return await _decide(request, api.access, grant_id, State.REJECTED)


@programs.delete("/grants/{grant_id}", dependencies=[CanChange])
async def revoke(grant_id: str, request: Request, api: Api) -> JSONResponse:
    """Revokes a grant at once, also for downloads that are under way."""
    return await _decide(request, api.access, grant_id, State.REVOKED)


async def _decide(
    request: Request, access: Access, grant_id: str, state: State
) -> JSONResponse:
    caller = caller_of(request.scope)
    body = read_object(await request.body())
    if state is State.REVOKED:
        body.setdefault("reason", "no reason was given")
    grant = await asyncio.to_thread(decide_grant, access, caller, (grant_id, state), body)
    return JSONResponse(shown(access, caller, grant))


def decide_grant(
    access: Access, caller: Caller, what: tuple[str, State], body: dict[str, Any]
) -> Grant:
    """The grant after somebody decided.

    Raises:
        InvalidValue, NotFound: it cannot be decided like this.
    """
    grant_id, state = what
    decided = granting.read_decision(body, state, access.grants.clock())
    return access.grants.decide(caller, grant_id, state, decided.reason, decided.terms)


# -- levels


@programs.get("/visibility")
async def list_levels(api: Api) -> JSONResponse:
    """Every level that was set, and the default."""
    visibility = api.access.visibility
    return JSONResponse(
        {
            "default": visibility.default.value,
            "levels": [
                {
                    "target": row.target.value,
                    "id": row.object_id,
                    "level": row.level.value,
                    "who": row.who,
                    "reason": row.reason,
                    "time_us": row.time_us,
                }
                for row in visibility.rows
            ],
        }
    )


@programs.post("/visibility", dependencies=[CanChange])
async def set_level(request: Request, api: Api) -> JSONResponse:
    """Sets who may see a `rollout`, a `run` or a `view`; `level: null` takes it away."""
    body = read_object(await request.body())
    caller = caller_of(request.scope)
    await asyncio.to_thread(change_level, api.access, api.store, caller, body)
    return await list_levels(api)


def change_level(access: Access, store: Store, caller: Caller, body: dict[str, Any]) -> None:
    """Sets a level as a body says.

    Raises:
        InvalidValue, NotFound: it cannot be set like this.
    """
    only(body, {"rollout", "run", "view", "level", "reason"})
    named = [target for target in Target if body.get(target.value)]
    if len(named) != 1:
        raise InvalidValue("name one of `rollout`, `run` or `view`", path="$.rollout")
    target = named[0]
    object_id = text(body, target.value) or ""
    known: dict[Target, Callable[[], bool]] = {
        Target.ROLLOUT: lambda: store.rollout(RolloutId(object_id)) is not None,
        Target.RUN: lambda: store.run_summary(object_id) is not None,
        Target.VIEW: lambda: any(view.name == object_id for view in store.views()),
    }
    if not known[target]():
        raise NotFound(f"there is no {target.value} {object_id[:80]!r}")
    if "level" not in body:
        raise InvalidValue("`level` says who may see it; null takes it away", path="$.level")
    level = None
    if body["level"] is not None:
        try:
            level = Level(body["level"])
        except ValueError as error:
            words = ", ".join(f"`{each.value}`" for each in Level)
            raise InvalidValue(f"`level` is {words} or null", path="$.level") from error
    access.visibility.set(caller, target, object_id, level, _reason(body))


def _reason(body: dict[str, Any]) -> str:
    given = body.get("reason", "")
    if not isinstance(given, str) or len(given) > _REASON_LETTERS:
        raise InvalidValue(
            f"`reason` is text of at most {_REASON_LETTERS} letters", path="$.reason"
        )
    return given.strip()


# -- roles


@programs.get("/roles")
async def list_roles(request: Request) -> JSONResponse:
    """Roles that operators gave to persons; those of the settings are not repeated."""
    return JSONResponse({"roles": roles_json(request)})


def roles_json(request: Request) -> list[dict[str, str]]:
    """The given roles."""
    given = request.app.state.sign_in.roles.given()
    return [{"subject": subject, "role": role.word} for subject, role in given]


@programs.post("/roles", dependencies=[CanChange])
async def change_role(request: Request) -> JSONResponse:
    """Gives (`given: true`) or takes a `role` of a `subject`; their sessions end."""
    body = read_object(await request.body())
    await asyncio.to_thread(set_role, request, body)
    return await list_roles(request)


def set_role(request: Request, body: dict[str, Any]) -> None:
    """Gives or takes a role as a body says.

    Raises:
        InvalidValue: it cannot be done like this.
    """
    only(body, {"subject", "role", "given", "reason"})
    role = _ROLES.get(str(body.get("role")))
    if role is None:
        raise InvalidValue("`role` is curator or operator", path="$.role")
    if not isinstance(body.get("given"), bool):
        raise InvalidValue("`given` is true to give, false to take", path="$.given")
    subject = text(body, "subject") or ""
    request.app.state.sign_in.roles.change(
        subject, role, body["given"], caller_of(request.scope), _reason(body)
    )


# -- the log


@programs.get("/audit")
async def read_audit(
    request: Request,
    api: Api,
    cursor: Annotated[int | None, Query(ge=0)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> JSONResponse:
    """Rows of the audit log, the newest first, by `event` and `who`.

    `?check=1` also says whether the whole chain is whole.
    """
    key = audit_filter(request)
    rows = await asyncio.to_thread(api.access.audit.page, key, cursor, limit)
    following = rows[-1]["sequence"] if len(rows) == limit else None
    answer: dict[str, Any] = {"rows": rows, "next": following}
    if request.query_params.get("check") == "1":
        head = request.query_params.get("head")
        answer["chain"] = await asyncio.to_thread(_checked, api.access.audit, head)
    return JSONResponse(answer)


def _checked(log: AuditLog, head: str | None) -> dict[str, Any]:
    seen = (row["hash"] for row in log.every()) if head else ()
    return report_json(log.check(), head, seen)


def audit_filter(request: Request) -> dict[str, str]:
    """What the address narrows the log to.

    Raises:
        InvalidValue: there is no such event.
    """
    key: dict[str, str] = {}
    event = request.query_params.get("event")
    if event:
        if event not in set(Event):
            known = ", ".join(each.value for each in Event)
            raise InvalidValue(f"`event` is one of {known}")
        key["event"] = event
    for name in ("who", "object"):
        value = request.query_params.get(name)
        if value:
            key[name] = value
    return key


@programs.get("/rollouts/{rollout_id}/access")
async def show_access(rollout_id: str, request: Request, api: Api) -> JSONResponse:
    """What the caller may do with a rollout, and which rule says so."""
    del rollout_id
    found = await asyncio.to_thread(permissions_json, request, api.access, now_us())
    return JSONResponse(found)
