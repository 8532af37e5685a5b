"""Mounts the pages on an application.

Owns: routers, static files, the error pages and their order.
Must not know: how the services were made; who may ask (the guard's part).
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from explorer.errors import ExplorerError, GrantNeeded, NotFound
from explorer.web import (
    access_pages,
    account,
    audit_pages,
    compare_pages,
    dataset_pages,
    delta_tab,
    drift,
    drift_pages,
    grant_pages,
    list_pages,
    message_pages,
    notes,
    pages,
    rollout_pages,
    search_pages,
    secret_pages,
    sign_in,
    sql_pages,
    token_pages,
    views,
)
from explorer.web.assets import Static, find
from explorer.web.contexts import Choice, ErrorPage
from explorer.web.frames import frame
from explorer.web.render import accepts_gzip, packed, render_html, wants_twin
from explorer.web.services import Services

log = logging.getLogger(__name__)

_STATUS_WORDS = {
    404: "There is nothing at this address.",
    405: "This address does not take that kind of request.",
}


def mount(app: FastAPI, services: Services) -> None:
    """Add the pages, their static files and error pages to `app`."""
    app.state.services = services
    app.include_router(token_pages.router)
    app.include_router(rollout_pages.router)
    app.include_router(delta_tab.router)
    app.include_router(compare_pages.router)
    app.include_router(message_pages.router)
    app.include_router(drift_pages.router)
    app.include_router(drift.router)
    app.include_router(notes.router)
    app.include_router(secret_pages.router)
    app.include_router(grant_pages.router)
    app.include_router(dataset_pages.router)
    app.include_router(access_pages.router)
    app.include_router(audit_pages.router)
    app.include_router(sql_pages.router)
    app.include_router(search_pages.router)
    app.include_router(list_pages.router)
    app.include_router(views.router)
    app.include_router(sign_in.router)
    app.include_router(account.router)
    app.include_router(pages.router)
    app.mount("/static", Static(directory=find("static")), name="static")
    app.add_exception_handler(ExplorerError, on_explorer_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(Exception, on_crash)


def error_response(
    request: Request, status: int, code: str, message: str, ask_href: str = ""
) -> Response:
    """One error, as the one JSON shape for twins and the API, else as a page; `ask_href` is
    where the reader may ask for what was refused."""
    if wants_twin(request) or request.url.path.startswith("/api/"):
        return JSONResponse(
            {"error": {"code": code, "message": message, "details": {}}}, status_code=status
        )
    title = f"{status} · {code.replace('_', ' ')}"
    outline = frame(request, title=title, section="", crumbs=())
    steps = [Choice("/", "Home"), Choice("/rollouts", "All rollouts")]
    if code == GrantNeeded.code:
        steps.insert(0, Choice("/grants", "Your grants"))
        steps.insert(0, Choice(ask_href or "/grants/new", "Ask for a grant"))
    elif outline.sign_in_href and status in (401, 403, 404):
        # What is hidden from strangers looks as if it were not there.
        steps.insert(0, Choice(outline.sign_in_href, "Sign in"))
    context = ErrorPage(
        frame=outline,
        status=status,
        code=code,
        message=message,
        steps=tuple(steps),
    )
    template = "error_fragment.html" if request.headers.get("hx-request") else None
    text = render_html(context, theme=request.cookies.get("theme", ""), template=template)
    return packed(text.encode(), "text/html", compress=accepts_gzip(request), status=status)


async def on_explorer_error(request: Request, error: Exception) -> Response:
    """Ours: the message was written to be shown."""
    assert isinstance(error, ExplorerError)
    if wants_twin(request) or request.url.path.startswith("/api/"):
        shape = {"code": error.code, "message": error.message, "details": error.details}
        response: Response = JSONResponse({"error": shape}, status_code=error.status)
    else:
        ask = str(error.details.get("ask", ""))
        response = error_response(request, error.status, error.code, error.message, ask)
    wait_s = error.details.get("retry_after_s")
    if wait_s is not None:
        response.headers["retry-after"] = str(wait_s)
    return response


async def on_http_error(request: Request, error: Exception) -> Response:
    """The framework's, by status."""
    assert isinstance(error, HTTPException)
    message = _STATUS_WORDS.get(error.status_code, str(error.detail))
    code = NotFound.code if error.status_code == 404 else f"http_{error.status_code}"
    return error_response(request, error.status_code, code, message)


async def on_validation_error(request: Request, error: Exception) -> Response:
    """A value in the address or body that cannot be read."""
    assert isinstance(error, RequestValidationError)
    parts = [
        f"{'.'.join(str(step) for step in item['loc'])}: {item['msg']}"
        for item in error.errors()
    ]
    return error_response(request, 422, "invalid_value", "; ".join(parts))


async def on_crash(request: Request, error: Exception) -> Response:
    """Anything else: logged whole, shown without its insides."""
    log.error("unhandled error at %s", request.url.path, exc_info=error)
    return error_response(
        request, 500, "internal_error", "Something went wrong here; the server's log says what."
    )
