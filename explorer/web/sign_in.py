"""Signing in and out: the page that offers it, the way to a provider and back.

Owns: their routes, the cookies they set, and the page of a failure.
Must not know: what is proved how, what a session allows.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from explorer.access.audit import Entry, Event
from explorer.access.calling import caller_of
from explorer.access.cookies import (
    LOGIN_COOKIE,
    SESSION_COOKIE,
    drop_cookie,
    set_cookie,
    takes_secure_cookies,
    values_of,
)
from explorer.access.logins import LIFE_S, safe_next
from explorer.access.people import How
from explorer.access.signing_in import SignIn
from explorer.errors import CapacityReached, CredentialsRefused, SignInFailed
from explorer.web.annotating import read_form
from explorer.web.calling import origin_of, shown, sign_in_of, sign_in_or_none
from explorer.web.contexts import Crumb
from explorer.web.contexts_account import ProviderChoice, SignInPage
from explorer.web.frames import frame
from explorer.web.pages import page_and_twin
from explorer.web.render import respond
from explorer.web.services import services_of

router = APIRouter(include_in_schema=False)
_UNREACHED = "provider"
NO_STORE = {"cache-control": "no-store"}


@page_and_twin(router, "/sign-in")
async def choose(request: Request) -> Response:
    """With whom to sign in."""
    return await _page(request, next=request.query_params.get("next"))


@router.post("/sign-in/operator")
async def operator(request: Request) -> Response:
    """A session for whoever shows the operator's token, so that no browser must ask."""
    sign_in, caller = sign_in_of(request), caller_of(request.scope)
    given = read_form(await request.body())
    after = safe_next(given.get("next"))
    if not takes_secure_cookies(origin_of(request, services_of(request).settings)):
        return await _failed(request, "", _plain_http(), after)
    try:
        await sign_in.identity.operator_shown(given.get("token", ""), caller.address)
    except (CredentialsRefused, CapacityReached) as error:
        words = (
            "This is not the operator's token."
            if isinstance(error, CredentialsRefused)
            else "Too many wrong tokens came from this address; wait a minute."
        )
        return await _page(request, next=after, failure=words, why="token", status=error.status)
    value, _ = await asyncio.to_thread(sign_in.open_operator_session, caller)
    return _signed_in(sign_in, value, after)


@router.get("/sign-in/{provider}")
async def start(request: Request, provider: str) -> Response:
    """Sends the browser to the provider."""
    sign_in = sign_in_of(request)
    sign_in.providers.get(provider)
    query = request.query_params
    after, origin = (
        safe_next(query.get("next")),
        origin_of(request, services_of(request).settings),
    )
    if not takes_secure_cookies(origin):
        return await _failed(request, provider, _plain_http(), after)
    browser = sign_in.logins.browser(_cookies(request, LOGIN_COOKIE))
    login = sign_in.logins.start(
        provider=provider,
        browser=browser,
        next=after,
        publish=query.get("publish") == "1",
        redirect_uri=f"{origin}/sign-in/{provider}/callback",
    )
    try:
        address = await sign_in.openid.address(login)
    except SignInFailed as error:
        return await _failed(request, provider, error, after)
    response = RedirectResponse(address, 303, headers=NO_STORE)
    cookie = set_cookie(LOGIN_COOKIE, browser, max_age_s=int(LIFE_S), framed=sign_in.framed)
    response.headers.append("set-cookie", cookie)
    return response


@router.get("/sign-in/{provider}/callback")
async def finish(request: Request, provider: str) -> Response:
    """The browser comes back from the provider: a session, or a page that says why not."""
    sign_in = sign_in_of(request)
    sign_in.providers.get(provider)
    reply = dict(request.query_params)
    after = "/"
    try:
        login = sign_in.logins.finish(
            provider=provider,
            state=reply.get("state", ""),
            browsers=_cookies(request, LOGIN_COOKIE),
        )
        after = login.next
        signed_in = await sign_in.openid.finish(login, reply)
    except SignInFailed as error:
        return await _failed(request, provider, error, after)
    caller = caller_of(request.scope)
    value, _ = await asyncio.to_thread(sign_in.open_session, signed_in, caller)
    return _signed_in(sign_in, value, after)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Ends the session at once, here and in the browser."""
    sign_in, caller = sign_in_of(request), caller_of(request.scope)
    if caller.how is How.SESSION:
        entry = Entry.by(caller, Event.SIGNED_OUT)
        await asyncio.to_thread(sign_in.sessions.end, caller.session_hash, entry)
    response = RedirectResponse("/", 303, headers=NO_STORE)
    response.headers.append("set-cookie", drop_cookie(SESSION_COOKIE, framed=sign_in.framed))
    return response


def _signed_in(sign_in: SignIn, value: str, after: str) -> Response:
    """On to where the person wanted to go, with a new session."""
    response = RedirectResponse(after, 303, headers=NO_STORE)
    life = sign_in.sessions.life_s
    response.headers.append(
        "set-cookie", set_cookie(SESSION_COOKIE, value, max_age_s=life, framed=sign_in.framed)
    )
    return response


def _cookies(request: Request, name: str) -> list[str]:
    return [
        value for line in request.headers.getlist("cookie") for value in values_of(line, name)
    ]


def _plain_http() -> SignInFailed:
    return SignInFailed(
        "Signing in needs https: over plain http, browsers keep no secure cookie, except of "
        "this machine. Put a proxy with a certificate in front and set "
        "ROLLOUT_EXPLORER_PUBLIC_URL to its https address.",
        why="plain_http",
    )


async def _failed(request: Request, provider: str, error: SignInFailed, after: str) -> Response:
    """What happened, and a way to try again; written down, of one address not without end."""
    sign_in, caller = sign_in_of(request), caller_of(request.scope)
    if sign_in.identity.tries.note("sign_in", caller.address):
        await asyncio.to_thread(sign_in.note_failure, caller, provider, error)
    status = HTTPStatus.BAD_GATEWAY if error.why == _UNREACHED else HTTPStatus.FORBIDDEN
    retry = ""
    if provider and error.why != "plain_http":
        retry = f"/sign-in/{provider}?{urlencode({'next': after})}"
    return await _page(
        request,
        next=after,
        failure=error.message,
        why=error.why,
        retry_href=retry,
        status=status,
    )


async def _page(
    request: Request,
    *,
    next: str | None,
    failure: str = "",
    why: str = "",
    retry_href: str = "",
    status: int = 200,
) -> Response:
    sign_in, after = sign_in_or_none(request), safe_next(next)
    settings = services_of(request).settings
    query = urlencode({"next": after})

    def build() -> SignInPage:
        return SignInPage(
            frame=frame(
                request,
                title="Sign in" if not failure else "You are not signed in",
                section="sign-in",
                crumbs=(Crumb("Sign in", None),),
            ),
            failure=failure,
            why=why,
            retry_href=retry_href,
            providers=tuple(
                ProviderChoice(each.name, each.title, f"/sign-in/{each.name}?{query}")
                for each in (sign_in.providers.all if sign_in is not None else ())
            ),
            next=after,
            plain_http=not takes_secure_cookies(origin_of(request, settings)),
            current=shown(request, settings).who,
        )

    response = await respond(request, build, status=status)
    response.headers["cache-control"] = "no-store"
    return response
