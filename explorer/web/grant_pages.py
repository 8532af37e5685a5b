"""The pages about grants: the queue, the form that asks or gives, and one grant.

Owns: their contexts and forms. Must not know: how a grant is decided or kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from explorer.access.calling import caller_of
from explorer.access.grants import Grant, ObjectKind, State, Step
from explorer.access.people import Caller, Role
from explorer.access.policy import LEVEL_WORDS, Kind, Level
from explorer.errors import InvalidValue
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.web import granting, words
from explorer.web.access import Access, access_of
from explorer.web.annotating import read_fields
from explorer.web.contexts import Choice, Crumb
from explorer.web.contexts_grants import (
    GrantPage,
    GrantRow,
    GrantsPage,
    NewGrantPage,
    StepRow,
    TakenRow,
)
from explorer.web.frames import frame, rollout_href, run_href
from explorer.web.gate import require_change
from explorer.web.grant_routes import begin_grant, decide_grant, known_grant
from explorer.web.lists import view_link
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.services import services_of

router = APIRouter(include_in_schema=False)
CanChange = Depends(require_change)

ROWS = 200
MOST_TAKEN = 5
TONES = {
    State.PENDING: "warn",
    State.APPROVED: "good",
    State.REJECTED: "bad",
    State.REVOKED: "bad",
}
_KIND_ABOUT = {
    Kind.TRAINING_TRACE: "Training trace: ids, mask and logprobs of the calls that train",
    Kind.CAPTURE_AUDIT: "Capture audit: every call with roles, masks, findings and totals",
    Kind.RAW: "Raw bodies: the exact bytes of requests and replies",
    Kind.PUBLISH: "Publishing to the Hub",
}
_NAMES = {
    ObjectKind.ROLLOUTS: "rollout",
    ObjectKind.RUN: "the run",
    ObjectKind.VIEW: "the view",
    ObjectKind.DATASET: "the dataset",
}
CRUMB = Crumb("Grants", "/grants")


@page_and_twin(router, "/grants")
async def grants(request: Request) -> Response:
    """The queue and all grants; of somebody who decides nothing, their own."""
    access, caller = _both(request)
    outline = frame(request, title="Grants", section="grants", crumbs=(Crumb("Grants", None),))

    def work() -> GrantsPage:
        now = access.grants.clock()
        found = granting.visible_grants(access, caller)
        waiting = [each for each in reversed(found) if each.state(now) is State.PENDING]
        others = [each for each in found if each.state(now) is not State.PENDING]
        return GrantsPage(
            frame=outline,
            decides=caller.role >= Role.OPERATOR,
            n_pending=len(waiting),
            pending=tuple(grant_row(each, now) for each in waiting[:ROWS]),
            others=tuple(grant_row(each, now) for each in others[:ROWS]),
            n_others=len(others),
            new_href="/grants/new",
        )

    return await respond(request, work)


def _both(request: Request) -> tuple[Access, Caller]:
    return access_of(request), caller_of(request.scope)


def grant_row(grant: Grant, now_us: int) -> GrantRow:
    """A grant as a line."""
    wanted, terms, state = grant.wanted, grant.terms, grant.state(now_us)
    return GrantRow(
        grant_id=grant.grant_id,
        href=f"/grants/{grant.grant_id}",
        state=state.value,
        tone=TONES.get(state, ""),
        subject_name=safe_text(wanted.subject_name),
        subject=safe_text(wanted.subject),
        subject_kind=wanted.subject_kind.value.replace("_", " "),
        objects=safe_text(_objects_words(grant)),
        kinds=granting.kind_words(wanted.kinds),
        purpose=safe_text(wanted.purpose),
        when=words.clock(grant.created_us),
        expires=words.clock(terms.expires_us) if terms.expires_us is not None else "",
        uses=len(grant.uses),
        max_uses=terms.max_uses,
    )


def _objects_words(grant: Grant) -> str:
    wanted = grant.wanted
    if wanted.object_kind is ObjectKind.ROLLOUTS:
        if len(wanted.objects) == 1:
            return f"rollout {words.short_id(wanted.objects[0])}"
        return f"{len(wanted.objects)} rollouts"
    return f"{_NAMES[wanted.object_kind]} {wanted.objects[0]}"


@page_and_twin(router, "/grants/new")
async def new_grant(request: Request) -> Response:
    """The form that asks for a grant; an operator's gives one."""
    access, caller = _both(request)
    query = dict(request.query_params)
    outline = frame(
        request,
        title="Give a grant" if caller.role >= Role.OPERATOR else "Ask for a grant",
        section="grants",
        crumbs=(CRUMB, Crumb("New", None)),
    )

    def work() -> NewGrantPage:
        chosen = query.get("kind", Kind.TRAINING_TRACE.value)
        usual = "dataset" if chosen == Kind.PUBLISH.value else "rollouts"
        kind = next((name for name in ("run", "view", "dataset") if query.get(name)), usual)
        return NewGrantPage(
            frame=outline,
            gives=caller.role >= Role.OPERATOR,
            subject_name=safe_text(caller.name or caller.subject),
            object_kind=kind,
            rollouts=query.get("rollout", "")[:4000],
            run=query.get("run", "")[:200],
            view=query.get("view", "")[:200],
            dataset=query.get("dataset", "")[:200],
            kinds=tuple(
                Choice(each.value, about)
                for each, about in _KIND_ABOUT.items()
                if each is not Kind.PUBLISH
            ),
            chosen=(chosen,),
            level_note=_level_note(access, caller, query.get("rollout", "")),
            default_days=granting.DEFAULT_DAYS,
            default_uses=granting.DEFAULT_USES,
        )

    return await respond(request, work)


def _level_note(access: Access, caller: Caller, rollout_id: str) -> str:
    if not rollout_id or "," in rollout_id or "\n" in rollout_id:
        return ""
    place = access.reach.place(RolloutId(rollout_id))
    if place is None:
        return ""
    level = access.reach.holds(place).level
    if level is Level.PRIVATE and caller.role < Role.CURATOR:
        return ""
    return f"Of this rollout, {LEVEL_WORDS[level]}."


@router.post("/grants", dependencies=[CanChange])
async def ask_from_page(request: Request) -> Response:
    """Asks for a grant, or gives one, from the page's form."""
    access, caller = _both(request)
    body = form_body(read_fields(await request.body(), most=40))
    try:
        grant = await asyncio.to_thread(begin_grant, access, caller, body)
    except InvalidValue as error:
        raise _with_back(error) from error
    return RedirectResponse(f"/grants/{grant.grant_id}", 303)


def _with_back(error: InvalidValue) -> InvalidValue:
    back = "Your browser's Back leads to the form, as you filled it."
    return InvalidValue(f"{error.message}. {back}", **error.details)


def form_body(given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields of a form in the shape of the API's body.

    Raises:
        InvalidValue: a number is none.
    """
    body: dict[str, Any] = {}
    for name in ("run", "view", "dataset", "purpose", "subject", "subject_name", "reason"):
        if given.get(name):
            body[name] = given[name][0]
    if given.get("kinds"):
        body["kinds"] = list(given["kinds"])
    chosen = given.get("object_kind", ["rollouts"])[0]
    if chosen == "dataset":
        # Publishing goes with a dataset, and with nothing else.
        body["kinds"] = [Kind.PUBLISH.value]
    for name in ("run", "view", "dataset"):
        if chosen != name:
            body.pop(name, None)
    if chosen == "rollouts" and given.get("rollouts"):
        body["rollouts"] = " ".join(given["rollouts"]).replace(",", " ").split()
    if given.get("terms"):
        body |= {name: _number(given, name) for name in ("expires_days", "max_uses")}
    return body


def _number(given: Mapping[str, Sequence[str]], name: str) -> float | int | None:
    text = given.get(name, [""])[0]
    if not text:
        return None
    try:
        return int(text) if name == "max_uses" else float(text)
    except ValueError as error:
        raise InvalidValue(f"`{name}` is a number, or empty for no limit") from error


@page_and_twin(router, "/grants/{grant_id}")
async def one_grant(request: Request, grant_id: str) -> Response:
    """One grant, what happened to it, and the forms that decide."""
    access, caller = _both(request)
    grant = known_grant(access, caller, grant_id)
    store = services_of(request).store
    outline = frame(
        request,
        title=f"Grant {grant.grant_id}",
        section="grants",
        crumbs=(CRUMB, Crumb(grant.grant_id, None)),
    )

    def work() -> GrantPage:
        now, decides = access.grants.clock(), caller.role >= Role.OPERATOR
        state = grant.state(now)
        reached, private = access.reach.covered(grant)
        views = {view.name: view_link(view).href for view in store.views()}
        return GrantPage(
            frame=outline,
            grant=grant_row(grant, now),
            decides=decides,
            may_decide=decides and state is State.PENDING,
            may_revoke=decides and state in (State.APPROVED, State.EXPIRED, State.SPENT),
            object_names=tuple(
                _object_choice(grant, name, views) for name in grant.wanted.objects[:50]
            ),
            n_objects=len(grant.wanted.objects),
            covers=len(reached),
            private=private if decides else 0,
            secrets=_scan_words(store, reached) if decides else "",
            contains="; ".join(_KIND_ABOUT[kind] for kind in grant.wanted.kinds),
            steps=tuple(_step_row(step, caller) for step in grant.steps),
            taken=_taken(access, grant, None if decides else caller.subject),
            default_days=granting.DEFAULT_DAYS,
            default_uses=granting.DEFAULT_USES,
        )

    return await respond(request, work)


def _scan_words(store: Store, reached: Collection[RolloutId]) -> str:
    """What the scan for secrets found in all of them."""
    marks = store.secret_marks()
    found = [marks[each] for each in reached if each in marks]
    undecided = len(store.secrets_undecided() & set(reached))
    parts = [
        words.plural(sum(mark.n_secrets for mark in found), "secret"),
        words.plural(
            sum(mark.n_paths for mark in found), "path with a name", "paths with a name"
        ),
    ]
    if undecided:
        parts.append(f"undecided in {words.plural(undecided, 'rollout')}")
    if len(found) < len(reached):
        parts.append(f"{words.plural(len(reached) - len(found), 'rollout')} not scanned yet")
    return ", ".join(parts)


def _step_row(step: Step, caller: Caller) -> StepRow:
    return StepRow(
        state=step.state.value,
        tone=TONES.get(step.state, ""),
        who=safe_text(granting.told_who(step.who, caller)),
        reason=safe_text(step.reason),
        when=words.clock(step.time_us),
    )


def _object_choice(grant: Grant, name: str, views: Mapping[str, str]) -> Choice:
    """An object's address and text."""
    kind = grant.wanted.object_kind
    href = {
        ObjectKind.ROLLOUTS: rollout_href(name),
        ObjectKind.RUN: run_href(name),
        ObjectKind.VIEW: views.get(name, "/rollouts"),
        ObjectKind.DATASET: "",
    }[kind]
    return Choice(href, safe_text(name))


def _taken(access: Access, grant: Grant, only: str | None) -> tuple[TakenRow, ...]:
    """The newest downloads under a grant; `only` those of one subject."""
    rows = access.audit.of_grant(grant.grant_id, only, MOST_TAKEN)
    return tuple(
        TakenRow(
            who=safe_text(row["name"] or row["who"]),
            what=safe_text(row["file"]),
            size=words.size(row["bytes"]),
            sha256=row["document"],
            complete="whole" if row["complete"] else f"cut: {safe_text(row['reason'])}",
            when=words.clock(row["event_time"]),
        )
        for row in rows
    )


async def _decide(request: Request, grant_id: str, state: State) -> Response:
    access, caller = _both(request)
    body = form_body(read_fields(await request.body(), most=20))
    try:
        await asyncio.to_thread(decide_grant, access, caller, (grant_id, state), body)
    except InvalidValue as error:
        raise _with_back(error) from error
    return RedirectResponse(f"/grants/{grant_id}", 303)


@router.post("/grants/{grant_id}/approve", dependencies=[CanChange])
async def approve_from_page(request: Request, grant_id: str) -> Response:
    """Approves a request by the page's form."""
    return await _decide(request, grant_id, State.APPROVED)


@router.post("/grants/{grant_id}/reject", dependencies=[CanChange])
async def reject_from_page(request: Request, grant_id: str) -> Response:
    """Rejects a request by the page's form."""
    return await _decide(request, grant_id, State.REJECTED)


@router.post("/grants/{grant_id}/revoke", dependencies=[CanChange])
async def revoke_from_page(request: Request, grant_id: str) -> Response:
    """Revokes a grant by the page's form."""
    return await _decide(request, grant_id, State.REVOKED)
