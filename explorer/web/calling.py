"""Who is shown at the head of a page, and how a route reaches what signing in needs.

Owns: the few facts of the caller that every page shows. Must not know: any single page.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request

from explorer.access.calling import CALLER_KEY, caller_of
from explorer.access.people import OPERATOR_SUBJECT, Caller, How, Role
from explorer.access.signing_in import SignIn
from explorer.errors import NotFound
from explorer.settings import Settings
from explorer.web.pretty import safe_text


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page says about its reader.

    Attributes:
        who: name, empty where nothing need be said.
        signed_in: there is a session to sign out of.
        sign_in_href: where to sign in; empty where there is nothing to offer.
        direct_href: this page outside of the frame it is shown in; empty outside of one.
    """

    who: str = ""
    signed_in: bool = False
    sign_in_href: str = ""
    direct_href: str = ""


def sign_in_or_none(request: Request) -> SignIn | None:
    """What signing in needs; None in an application without it, as in tests of pages."""
    found = getattr(request.app.state, "sign_in", None)
    return found if isinstance(found, SignIn) else None


def sign_in_of(request: Request) -> SignIn:
    """What signing in needs.

    Raises:
        NotFound: nobody can sign in here.
    """
    found = sign_in_or_none(request)
    if found is None:
        raise NotFound("nobody can sign in here")
    return found


def asking(request: Request) -> Caller:
    """Who asks; where no gate looked, as on an error page, by the session alone."""
    sign_in = sign_in_or_none(request)
    if CALLER_KEY not in request.scope and sign_in is not None:
        return sign_in.identity.look(request.scope)
    return caller_of(request.scope)


def shown(request: Request, settings: Settings) -> Shown:
    """What the head of a page says about its reader."""
    sign_in = sign_in_or_none(request)
    if sign_in is None:
        return Shown()
    caller = asking(request)
    direct = _direct(request, settings) if sign_in.framed else ""
    if caller.how in (How.SESSION, How.OPERATOR_TOKEN, How.API_TOKEN):
        who = safe_text(caller.name or OPERATOR_SUBJECT)
        return Shown(who, caller.how is How.SESSION, "", direct)
    offered = bool(sign_in.providers) or caller.role is Role.ANONYMOUS
    return Shown("", False, _sign_in_href(request) if offered else "", direct)


def origin_of(request: Request, settings: Settings) -> str:
    """The address by which people reach this server."""
    public = settings.public_url
    return public.rstrip("/") if public else f"{request.url.scheme}://{request.url.netloc}"


def _sign_in_href(request: Request) -> str:
    path = str(request.scope["path"])
    if request.method not in ("GET", "HEAD") or path.startswith(("/sign-in", "/api/")):
        return "/sign-in"
    query = request.url.query
    return "/sign-in?" + urlencode({"next": f"{path}?{query}" if query else path})


def _direct(request: Request, settings: Settings) -> str:
    """Browsers say that they load a page into a frame; cookies may be blocked in there."""
    if request.headers.get("sec-fetch-dest") != "iframe":
        return ""
    query, path = request.url.query, request.url.path
    if path.startswith("/sign-in"):
        # The way back from a provider has a code in its query.
        query, path = "", "/sign-in"
    path = f"{path}?{query}" if query else path
    return origin_of(request, settings) + path
