"""Routes that put calls and rollouts side by side.

Owns: addresses and which context answers each. Must not know: how contexts are made.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from explorer.errors import InvalidValue, NotFound
from explorer.web import words
from explorer.web.compare import MOST, NAMES, compare_href, compare_page
from explorer.web.contexts import Crumb
from explorer.web.contexts_compare import ForkPage
from explorer.web.fork import ForkCompare, read_wanted
from explorer.web.frames import frame, list_href, rollout_href, run_href
from explorer.web.header import members_of, rollout_frame, rollout_header
from explorer.web.pages import page_and_twin
from explorer.web.render import respond, wants_twin
from explorer.web.rollout_pages import judged_or_404
from explorer.web.services import services_of
from explorer.web.version_words import line_now

router = APIRouter(include_in_schema=False)


@page_and_twin(router, "/rollouts/{rollout_id}/compare")
async def fork(request: Request, rollout_id: str) -> Response:
    """Two calls of one rollout, token by token."""
    judged = await judged_or_404(request, rollout_id)
    services = services_of(request)
    wanted = read_wanted(request.query_params)

    def work() -> ForkPage:
        outline = rollout_frame(request, judged, "tokens", last="compare")
        short = words.short_id(judged.record.rollout.rollout_id)
        header = rollout_header(
            judged,
            "compare",
            members_of(services.store, judged),
            notes=services.store.annotations(judged.record.rollout.rollout_id),
            line=line_now(services.store),
        )
        named = replace(outline, title=f"Compare · rollout {short}")
        return ForkCompare(services, judged).page(named, header, wanted)

    return await respond(request, work)


@page_and_twin(router, "/compare")
async def compare(request: Request, turn: int = 1) -> Response:
    """Two to four rollouts, aligned by turn."""
    wanted = list(dict.fromkeys(each for each in request.query_params.getlist("id") if each))
    if not 2 <= len(wanted) <= MOST:
        raise InvalidValue(
            f"name two to {MOST} different rollouts, as /compare?id=…&id=…; "
            f"{words.plural(len(wanted), 'was', 'were')} named",
            given=len(wanted),
        )
    if "label" in request.query_params and not wants_twin(request):
        # Without a script the list sends its label's fields, too: a link has only the ids.
        return RedirectResponse(compare_href([quote(each, safe="") for each in wanted]), 303)
    judged = [await judged_or_404(request, each) for each in wanted]
    runs = list(dict.fromkeys(each.record.rollout.run for each in judged))
    crumbs = [Crumb("Runs", "/runs"), *(Crumb(run, run_href(run)) for run in runs[:1])]
    crumbs.append(Crumb(f"compare {len(judged)} rollouts", None))
    title = f"Compare {' '.join(NAMES[: len(judged)])}"
    outline = frame(request, title=title, section="rollouts", crumbs=tuple(crumbs))
    services = services_of(request)
    return await respond(request, lambda: compare_page(services, judged, outline, max(1, turn)))


@page_and_twin(router, "/runs/{run:path}/groups/{group:path}")
async def group_samples(request: Request, run: str, group: str) -> Response:
    """The samples of a group beside each other.

    Those named by `a`, `b`, … as a rollout's id or its attempt, else the first ones.

    Raises:
        NotFound: no such group, or no such sample of it.
    """
    store = services_of(request).store
    named = f"{run}/groups/{group}"
    if any(each.run == named for each in store.list_runs()):
        # A run may be called so; this address would hide its page.
        return RedirectResponse(list_href(run=named), status_code=303)
    found = store.group_members(run, group=group) or store.group_members(run, task=group)
    if not found:
        raise NotFound(f"the run “{run}” has no group or task “{group}”")
    known = {str(each.rollout_id): str(each.rollout_id) for each in found}
    for each in found:
        known.setdefault(str(each.attempt), str(each.rollout_id))
    asked = [value for name, value in request.query_params.items() if name in "abcd"]
    for value in asked:
        if value not in known:
            raise NotFound(f"the group “{group}” has no sample “{value}”")
    chosen = [known[value] for value in asked] or list(known.values())
    ids = list(dict.fromkeys(chosen))[:MOST]
    if len(ids) == 1:
        return RedirectResponse(rollout_href(ids[0], "group"), status_code=303)
    target = compare_href(ids)
    if wants_twin(request):
        target = target.replace("/compare?", "/compare.json?", 1)
    return RedirectResponse(target, status_code=303)
