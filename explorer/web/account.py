"""One's own account: who one is here, sessions, API tokens.

Owns: their page and routes. Must not know: grants, how somebody proved who they are.
"""

from __future__ import annotations

import asyncio
import shlex

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from explorer.access.api_tokens import ApiToken, scopes_for
from explorer.access.audit import Entry, Event
from explorer.access.people import ANONYMOUS_SUBJECT, Caller, How, Role, Scope
from explorer.access.signing_in import SignIn
from explorer.errors import InvalidValue, NotFound
from explorer.web import words
from explorer.web.annotating import read_fields
from explorer.web.api_requests import only, read_object
from explorer.web.calling import asking, origin_of, sign_in_of, sign_in_or_none
from explorer.web.contexts import Crumb
from explorer.web.contexts_account import (
    AccountPage,
    MadeToken,
    OrganisationRow,
    ScopeChoice,
    SessionRow,
    TokenRow,
)
from explorer.web.frames import frame
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.services import services_of
from explorer.web.sign_in import NO_STORE

programs = APIRouter(prefix="/api/v1")
router = APIRouter(include_in_schema=False)
USUAL_DAYS = 30.0
_ABOUT = {
    Scope.READ: "see what you may see",
    Scope.DOWNLOAD: "take documents that your role or a grant allows",
    Scope.CURATE: "write labels, notes and decisions",
    Scope.OPERATE: "everything an operator may do",
}
_HOW = {
    How.NOTHING: "Nothing in the request says who you are.",
    How.LOOPBACK: "The request comes from this machine.",
    How.OPERATOR_TOKEN: "The request shows the operator's token.",
    How.API_TOKEN: "The request shows an API token.",
}


@page_and_twin(router, "/account")
async def account(request: Request) -> Response:
    """Who you are here."""
    return await _page(request)


@router.post("/account/tokens")
async def make_from_page(request: Request) -> Response:
    """Makes a token and shows it, this once."""
    sign_in, caller = sign_in_of(request), asking(request)
    given = read_fields(await request.body())
    secret, token = await asyncio.to_thread(
        sign_in.tokens.make,
        caller,
        given.get("label", [""])[0],
        _scopes(given.get("scopes", [])),
        _days(given.get("days", [str(USUAL_DAYS)])[0], sign_in),
    )
    return await _page(request, made=(secret, token))


@router.post("/account/tokens/{token_id}/revoke")
async def revoke_from_page(request: Request, token_id: str) -> Response:
    """Takes a token back by the page's button."""
    await asyncio.to_thread(sign_in_of(request).tokens.revoke, token_id, asking(request))
    return RedirectResponse("/account#tokens", 303, headers=NO_STORE)


@router.post("/account/sessions/{session_id}/end")
async def end_session(request: Request, session_id: str) -> Response:
    """Ends one of one's own sessions, such as of a browser left signed in elsewhere."""
    sign_in, caller = sign_in_of(request), asking(request)
    mine = sign_in.sessions.of(caller.subject)
    found = next((each for each in mine if each.session_id == session_id), None)
    if found is None:
        raise NotFound("you have no such session; it may have ended")
    entry = Entry.by(caller, Event.SIGNED_OUT, f"session {session_id}")
    await asyncio.to_thread(sign_in.sessions.end, found.session_hash, entry)
    return RedirectResponse("/account#sessions", 303, headers=NO_STORE)


@programs.get("/whoami")
async def whoami(request: Request) -> JSONResponse:
    """Who the server takes the caller for."""
    caller = asking(request)
    told = {
        "subject": caller.subject,
        "name": caller.name,
        "role": caller.role.word,
        "how": caller.how.value,
        "scopes": None if caller.scopes is None else sorted(caller.scopes),
        "organisations": [
            {"subject": row.subject, "name": row.name}
            for row in _organisations(caller, sign_in_or_none(request))
            if row.counts
        ],
    }
    return JSONResponse(told, headers=NO_STORE)


@programs.get("/tokens")
async def list_tokens(request: Request) -> JSONResponse:
    """Your API tokens that work, without their secrets."""
    found = sign_in_of(request).tokens.of(asking(request).subject)
    return JSONResponse({"tokens": [_shape(each) for each in found]}, headers=NO_STORE)


@programs.post("/tokens", status_code=201)
async def make_token(request: Request) -> JSONResponse:
    """A new API token of yours; `token` is in this answer and nowhere else."""
    sign_in, caller = sign_in_of(request), asking(request)
    body = read_object(await request.body())
    only(body, {"label", "scopes", "days"})
    label, listed = body.get("label"), body.get("scopes")
    if not isinstance(label, str):
        raise InvalidValue("`label` must be text", path="$.label")
    if not isinstance(listed, list):
        raise InvalidValue("`scopes` must be a list", path="$.scopes")
    days = _days(body.get("days", USUAL_DAYS), sign_in)
    secret, token = await asyncio.to_thread(
        sign_in.tokens.make, caller, label, _scopes(listed), days
    )
    told = {"token": secret, **_shape(token)}
    return JSONResponse(told, status_code=201, headers=NO_STORE)


@programs.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(request: Request, token_id: str) -> Response:
    """Takes a token back, at once."""
    await asyncio.to_thread(sign_in_of(request).tokens.revoke, token_id, asking(request))
    return Response(status_code=204)


def _scopes(listed: list[object] | list[str]) -> list[Scope]:
    known = {each.value: each for each in Scope}
    for each in listed:
        if not isinstance(each, str) or each not in known:
            raise InvalidValue(f"`scopes` holds one of: {', '.join(known)}", path="$.scopes")
    return [known[str(each)] for each in listed]


def _days(given: object, sign_in: SignIn) -> float:
    try:
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            raise TypeError
        days = float(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValue("`days` must be a number", path="$.days") from error
    # Also what is no number at all (nan).
    if not 0 < days <= sign_in.tokens.most_days:
        most = sign_in.tokens.most_days
        raise InvalidValue(f"`days` must be above 0 and at most {most:g}", path="$.days")
    return days


def _shape(token: ApiToken) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "label": token.label,
        "scopes": sorted(token.scopes),
        "created": words.iso(token.created_us),
        "expires": words.iso(token.expires_us),
        "used": words.iso(token.used_us),
    }


async def _page(request: Request, made: tuple[str, ApiToken] | None = None) -> Response:
    sign_in, caller = sign_in_or_none(request), asking(request)

    def build() -> AccountPage:
        return AccountPage(
            frame=frame(
                request, title="Account", section="account", crumbs=(Crumb("Account", None),)
            ),
            subject=safe_text(caller.subject),
            name=safe_text(caller.name),
            role=caller.role.word,
            how=_how(caller, sign_in),
            reasons=_reasons(caller, sign_in),
            organisations=_organisations(caller, sign_in),
            sessions=_sessions(caller, sign_in),
            tokens=_tokens(caller, sign_in),
            scopes=_choices(caller, sign_in),
            most_days=sign_in.tokens.most_days if sign_in is not None else USUAL_DAYS,
            made=_made(request, made),
        )

    response = await respond(request, build)
    response.headers["cache-control"] = "no-store"
    return response


def _how(caller: Caller, sign_in: SignIn | None) -> str:
    if caller.how is not How.SESSION or sign_in is None:
        return _HOW.get(caller.how, "")
    if caller.person is None:
        return "You signed in with the operator's token."
    titles = {each.name: each.title for each in sign_in.providers.all}
    provider = caller.person.provider
    return f"You signed in with {titles.get(provider, provider)}."


def _reasons(caller: Caller, sign_in: SignIn | None) -> tuple[str, ...]:
    if caller.person is None or sign_in is None:
        return ()
    return tuple(
        f"{each.role.word}: {safe_text(each.words)}"
        for each in sign_in.roles.why(caller.person)
    )


def _organisations(caller: Caller, sign_in: SignIn | None) -> tuple[OrganisationRow, ...]:
    person = caller.person
    if person is None or sign_in is None:
        return ()
    counted = [
        OrganisationRow(
            f"{person.provider}:org:{each.subject}",
            safe_text(each.name),
            safe_text(each.role),
            True,
        )
        for each in person.memberships
    ]
    session = sign_in.sessions.get(caller.session_hash)
    restricted = session.restricted if session is not None else ()
    return (
        *counted,
        *(OrganisationRow("", safe_text(name), "", False) for name in restricted),
    )


def _sessions(caller: Caller, sign_in: SignIn | None) -> tuple[SessionRow, ...]:
    if sign_in is None or caller.subject == ANONYMOUS_SUBJECT:
        return ()
    return tuple(
        SessionRow(
            session_id=each.session_id,
            started=words.clock(each.created_us),
            ends=words.clock(each.expires_us),
            here=each.session_hash == caller.session_hash,
            end_action=f"/account/sessions/{each.session_id}/end",
        )
        for each in sign_in.sessions.of(caller.subject)
    )


def _tokens(caller: Caller, sign_in: SignIn | None) -> tuple[TokenRow, ...]:
    if sign_in is None or caller.subject == ANONYMOUS_SUBJECT:
        return ()
    return tuple(
        TokenRow(
            token_id=each.token_id,
            label=safe_text(each.label),
            scopes=tuple(sorted(each.scopes)),
            made=words.clock(each.created_us),
            ends=words.clock(each.expires_us),
            used=words.clock(each.used_us) if each.used_us is not None else "",
            revoke_action=f"/account/tokens/{each.token_id}/revoke",
        )
        for each in sign_in.tokens.of(caller.subject)
    )


def _choices(caller: Caller, sign_in: SignIn | None) -> tuple[ScopeChoice, ...]:
    if sign_in is None or caller.role is Role.ANONYMOUS:
        return ()
    allowed = scopes_for(caller)
    return tuple(
        ScopeChoice(each.value, about, each is Scope.READ)
        for each, about in _ABOUT.items()
        if each in allowed
    )


def _made(request: Request, made: tuple[str, ApiToken] | None) -> MadeToken | None:
    if made is None:
        return None
    secret, token = made
    address = origin_of(request, services_of(request).settings) + "/api/v1/whoami"
    return MadeToken(
        secret=secret,
        label=safe_text(token.label),
        ends=words.clock(token.expires_us),
        command=f"curl -s -H 'Authorization: Bearer {secret}' {shlex.quote(address)}",
    )
