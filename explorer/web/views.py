"""Saved views: named query strings of the rollout list, for programs and for the page.

Owns: their routes, names and checks. Must not know: rows, what a query shows.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from explorer.access.calling import caller_of
from explorer.access.people import Role
from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound, RoleNeeded
from explorer.store.interface import Store
from explorer.store.remarks import SavedView
from explorer.web import api_requests as requests
from explorer.web import api_shapes as shapes
from explorer.web.access import access_of
from explorer.web.annotating import read_form
from explorer.web.api import Api
from explorer.web.desk_access import require_change
from explorer.web.gate import who_of
from explorer.web.list_query import checked, href, read_address
from explorer.web.services import services_of

programs = APIRouter(prefix="/api/v1")
router = APIRouter(include_in_schema=False)
CanChange = Depends(require_change)

MOST_LETTERS = 80
MOST_VIEWS = 500
MOST_QUERY = 4000


@programs.get("/views")
async def list_views(services: Api) -> JSONResponse:
    """Saved views of the rollout list, by name."""
    found = await asyncio.to_thread(services.store.views)
    return JSONResponse({"views": [shapes.plain(view) for view in found]})


@programs.post("/views", status_code=201, dependencies=[CanChange])
async def save_view(request: Request, services: Api) -> JSONResponse:
    """Saves `query` under `name`; a view of that name is replaced."""
    body = requests.read_object(await request.body())
    requests.only(body, {"name", "query", "who"})
    _require_change_of(request, body.get("name"))
    view = await _save(
        services.store, body | {"who": who_of(request, requests.text(body, "who"))}
    )
    return JSONResponse(shapes.plain(view), status_code=201)


@programs.delete("/views/{name:path}", status_code=204, dependencies=[CanChange])
async def drop_view(name: str, request: Request, services: Api) -> Response:
    """Takes a saved view away."""
    _require_change_of(request, name)
    await _drop(services.store, name, who_of(request))
    return Response(status_code=204)


@router.post("/views", dependencies=[CanChange])
async def save_from_page(request: Request) -> Response:
    """Saves the list that a page shows, and shows it again."""
    given: dict[str, Any] = dict(read_form(await request.body()))
    who = who_of(request, requests.text(given, "who"))
    _require_change_of(request, given.get("name"))
    view = await _save(services_of(request).store, given | {"who": who})
    return RedirectResponse(_list(view.query), 303)


@router.post("/views/drop", dependencies=[CanChange])
async def drop_from_page(request: Request) -> Response:
    """Takes a view away by the page's button."""
    given = read_form(await request.body())
    _require_change_of(request, given.get("name"))
    await _drop(services_of(request).store, given.get("name", ""), who_of(request))
    return RedirectResponse(_list(given.get("query", "")), 303)


def _list(query: str) -> str:
    """The list of a query; read and written again, so that it is an address of ours."""
    return href("/rollouts", parse_qsl(query)[:100])


def _require_change_of(request: Request, name: Any) -> None:
    """What a view matches may decide who sees it; then only who decides that may change it.

    Raises:
        RoleNeeded: a level or a grant names the view, and the caller is no operator.
    """
    if caller_of(request.scope).role >= Role.OPERATOR:
        return
    if isinstance(name, str) and access_of(request).reach.opens(name):
        raise RoleNeeded(
            "a level or a grant names this view, so what it matches is who may see what: "
            "changing it needs the role `operator`; save yours under another name"
        )


async def _save(store: Store, body: dict[str, Any]) -> SavedView:
    name = requests.text(body, "name")
    query = body.get("query", "")
    if name is None or len(name) > MOST_LETTERS:
        raise InvalidValue(
            f"`name` must be a text of 1 to {MOST_LETTERS} letters", path="$.name"
        )
    if name != name.strip() or "=" in name:
        raise InvalidValue(
            "`name` has no = and neither begins nor ends with a space", path="name"
        )
    if not isinstance(query, str) or len(query) > MOST_QUERY:
        raise InvalidValue(
            f"`query` must be a query string of at most {MOST_QUERY} characters", path="$.query"
        )
    address = checked(read_address(parse_qsl(query.removeprefix("?")), now_us()))
    known = await asyncio.to_thread(store.views)
    if len(known) >= MOST_VIEWS and all(view.name != name for view in known):
        raise InvalidValue(f"there are {MOST_VIEWS} views already; drop one first")
    view = SavedView(
        name=name,
        query=href("", address.pairs).removeprefix("?"),
        who=requests.text(body, "who") or "operator",
        time_us=now_us(),
    )
    await store.add_view(view)
    return view


async def _drop(store: Store, name: str, who: str) -> None:
    known = await asyncio.to_thread(store.views)
    if all(view.name != name for view in known):
        raise NotFound(f"there is no saved view “{name[:MOST_LETTERS]}”")
    await store.add_view(SavedView(name, "", who, now_us(), dropped=True))
