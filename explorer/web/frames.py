"""The frame of a page: title, breadcrumb line and the address of its twin.

Owns: `Frame`s and addresses of pages. Must not know: the store.
"""

from __future__ import annotations

import shlex
from urllib.parse import quote, urlencode

from fastapi import Request

from explorer import __version__
from explorer.access.people import Role
from explorer.web.calling import asking, shown
from explorer.web.contexts import Command, Crumb, Frame
from explorer.web.services import services_of


def frame(request: Request, *, title: str, section: str, crumbs: tuple[Crumb, ...]) -> Frame:
    """The frame of the page that answers `request`."""
    twin = _twin(request)
    base = services_of(request).settings.public_url or str(request.base_url)
    reader = shown(request, services_of(request).settings)
    # An application without people, as in tests of pages alone, has one reader: its operator.
    role = asking(request).role if hasattr(request.app.state, "access") else Role.OPERATOR
    return Frame(
        title=title,
        twin=twin,
        section=section,
        crumbs=crumbs,
        app_version=__version__,
        alert=services_of(request).alert(),
        banner=services_of(request).settings.banner_text,
        console=services_of(request).settings.sql_console_on and role is Role.OPERATOR,
        who=reader.who,
        signed_in=reader.signed_in,
        sign_in_href=reader.sign_in_href,
        direct_href=reader.direct_href,
        # A store that is only read takes no notes and no decisions either.
        edits=role >= Role.CURATOR and not services_of(request).settings.read_only,
        operates=role is Role.OPERATOR,
        grants=role > Role.ANONYMOUS and hasattr(request.app.state, "access"),
        datasets=role > Role.ANONYMOUS and hasattr(request.app.state, "publishing"),
        taking=(),
        commands=twin_commands(base.rstrip("/") + twin),
    )


def _twin(request: Request) -> str:
    """Address of the JSON twin of a page, with the same query."""
    path = str(request.scope["path"]).removesuffix(".json")
    for own in ("/sign-in", "/account"):
        # What answers below these is that page; and the way back from a provider has a code
        # in its query.
        if path.startswith(f"{own}/"):
            return f"{own}.json"
    twin = quote("/index" if path in ("", "/", "/index") else path) + ".json"
    query = request.url.query
    return f"{twin}?{query}" if query else twin


def twin_commands(url: str) -> tuple[Command, ...]:
    """How a program asks for the twin of a page: what the page says, with the same filter."""
    return (
        Command("curl", f"curl -s {shlex.quote(url)}"),
        Command(
            "Python",
            "import json, urllib.request\n\n"
            f"with urllib.request.urlopen({url!r}) as reply:\n"
            "    page = json.load(reply)",
        ),
    )


def run_href(run: str) -> str:
    """Address of a run."""
    return f"/runs/{quote(run, safe='')}"


def rollout_href(rollout_id: str, tab: str = "", **query: str | int | None) -> str:
    """Address of a rollout, or of one of its tabs."""
    base = f"/rollouts/{quote(rollout_id, safe='')}"
    return with_query(f"{base}/{tab}" if tab else base, **query)


def list_href(**query: str | int | None) -> str:
    """Address of the rollout list with filters."""
    return with_query("/rollouts", **query)


def with_query(path: str, **query: str | int | None) -> str:
    """`path` with those parameters that have a value."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path
