"""The permission pages: who may do what with a rollout, and the server's levels and roles.

Owns: their contexts and forms. Must not know: how a decision is made or kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from explorer.access.calling import caller_of
from explorer.access.people import Caller, How, Person, Role
from explorer.access.policy import LEVEL_WORDS, RULES, Level
from explorer.access.tables import PERSON
from explorer.access.visibility import LevelRow, Target
from explorer.errors import InvalidValue
from explorer.web import words
from explorer.web.access import access_of
from explorer.web.annotating import read_form
from explorer.web.contexts import Choice, Crumb
from explorer.web.contexts_grants import (
    AccessPage,
    AnswerRow,
    LevelLine,
    RoleLine,
    RolloutAccessPage,
    RuleLine,
)
from explorer.web.frames import frame, rollout_href, run_href
from explorer.web.gate import pass_of, require_change
from explorer.web.grant_routes import change_level, set_role
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.lists import view_link
from explorer.web.pages import page_and_twin
from explorer.web.permissions import answers, held_back
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of
from explorer.web.version_words import line_now

router = APIRouter(include_in_schema=False)
CanChange = Depends(require_change)

LEVELS = tuple(Choice(level.value, f"{level.value}: {LEVEL_WORDS[level]}") for level in Level)
ANONYMOUS = "anonymous"
MOST_PEOPLE = 500


@page_and_twin(router, "/rollouts/{rollout_id}/access")
async def rollout_access(request: Request, rollout_id: str) -> Response:
    """Who may do what with a rollout, and which rule says so."""
    judged = await judged_or_404(request, rollout_id)
    access, caller = access_of(request), caller_of(request.scope)
    store = services_of(request).store
    held = pass_of(request)
    assert held is not None
    assert held.place is not None
    place = held.place
    decides = caller.role >= Role.OPERATOR
    asked = request.query_params.get("subject", "").strip()[:260] if decides else ""
    about = _about(request, asked) if asked else caller

    def work() -> RolloutAccessPage:
        holds, found = answers(access, about, place)
        own = access.visibility.own(Target.ROLLOUT, rollout_id)
        notes = store.annotations(judged.record.rollout.rollout_id)
        return RolloutAccessPage(
            frame=rollout_frame(request, judged, "access"),
            header=rollout_header(
                judged,
                "access",
                members_of(store, judged),
                notes=notes,
                line=line_now(store),
            ),
            level=holds.level.value,
            level_words=LEVEL_WORDS[holds.level],
            because=safe_text(holds.because) if caller.role >= Role.CURATOR else "",
            subject=safe_text(asked or caller.name or caller.subject),
            role=about.role.word,
            answers=tuple(
                AnswerRow(
                    each.question.name,
                    each.question.words,
                    each.decision.allowed,
                    each.decision.rule,
                    safe_text(each.decision.words),
                )
                for each in found
            ),
            held_back=held_back(request, rollout_id),
            decides=decides,
            own_level=own.value if own is not None else "",
            levels=LEVELS,
            asked=safe_text(asked),
            action=rollout_href(rollout_id, "access"),
            ask_href=f"/grants/new?rollout={rollout_id}",
        )

    return await respond(request, work)


def _about(request: Request, subject: str) -> Caller:
    """Somebody as the policy would see them in a browser, without their organisations."""
    if subject == ANONYMOUS:
        return Caller(Role.ANONYMOUS, How.NOTHING)
    person = Person(subject, subject)
    roles = request.app.state.sign_in.roles
    return Caller(roles.of(person), How.SESSION, person=person)


@router.post("/rollouts/{rollout_id}/access", dependencies=[CanChange])
async def set_rollout_level(request: Request, rollout_id: str) -> Response:
    """Sets who may see a rollout by the page's form."""
    await judged_or_404(request, rollout_id)
    given = read_form(await request.body())
    await _set_level(request, {"rollout": rollout_id, **given})
    return RedirectResponse(rollout_href(rollout_id, "access"), 303)


async def _set_level(request: Request, given: dict[str, Any]) -> None:
    services, caller = services_of(request), caller_of(request.scope)
    body = dict(given)
    # An empty choice takes the level away.
    body.setdefault("level", None)
    await asyncio.to_thread(change_level, access_of(request), services.store, caller, body)


@page_and_twin(router, "/access")
async def access_page(request: Request) -> Response:
    """Levels, roles and rules of the server."""
    access = access_of(request)
    outline = frame(
        request, title="Who may do what", section="access", crumbs=(Crumb("Access", None),)
    )
    settings, store = services_of(request).settings, services_of(request).store
    roles = request.app.state.sign_in.roles

    def work() -> AccessPage:
        newest = "ORDER BY last_time DESC LIMIT ?"
        people = access.database.read(
            lambda rows: rows.select(PERSON, None, newest, MOST_PEOPLE)
        )
        views = {view.name: view_link(view).href for view in store.views()}
        names = {row["subject"]: row["name"] for row in people}
        listed = ((settings.operators, Role.OPERATOR), (settings.curators, Role.CURATOR))
        return AccessPage(
            frame=outline,
            default_level=access.visibility.default.value,
            default_words=LEVEL_WORDS[access.visibility.default],
            levels=tuple(_level_line(row, views) for row in access.visibility.rows),
            choices=LEVELS,
            roles=tuple(_role_line(names, subject, role) for subject, role in roles.given()),
            settings_roles=tuple(
                _role_line(names, subject, role)
                for subjects, role in listed
                for subject in subjects
            ),
            rules=tuple(RuleLine(name, text) for name, text in RULES.items()),
            people=tuple(
                _role_line(names, row["subject"], roles.of(Person(row["subject"], "")))
                for row in people
            ),
        )

    return await respond(request, work)


def _level_line(row: LevelRow, views: Mapping[str, str]) -> LevelLine:
    href = {
        Target.ROLLOUT: rollout_href(row.object_id, "access"),
        Target.RUN: run_href(row.object_id),
        Target.VIEW: views.get(row.object_id, "/rollouts"),
    }[row.target]
    return LevelLine(
        target=row.target.value,
        object_id=safe_text(row.object_id),
        href=href,
        level=row.level.value,
        who=safe_text(row.who),
        reason=safe_text(row.reason),
        when=words.clock(row.time_us),
    )


def _role_line(names: dict[str, str], subject: str, role: Role) -> RoleLine:
    return RoleLine(safe_text(subject), safe_text(names.get(subject, "")), role.word)


@router.post("/access/levels", dependencies=[CanChange])
async def set_level_from_page(request: Request) -> Response:
    """Sets the level of a run, a view or a rollout by the page's form."""
    given = read_form(await request.body())
    target = given.pop("target", "")
    if target not in set(Target):
        raise InvalidValue("choose a run, a view or a rollout")
    await _set_level(request, {target: given.pop("id", ""), **given})
    return RedirectResponse("/access", 303)


@router.post("/access/roles", dependencies=[CanChange])
async def set_role_from_page(request: Request) -> Response:
    """Gives or takes a role by the page's form."""
    given: dict[str, Any] = dict(read_form(await request.body()))
    given["given"] = given.get("given") == "yes"
    await asyncio.to_thread(set_role, request, given)
    return RedirectResponse("/access", 303)
