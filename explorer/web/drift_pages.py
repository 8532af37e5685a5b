"""The drift check for people: a part of the provenance tab, and a page of its own.

Owns: its address and what a row says. Must not know: how a request is rendered.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from explorer.export.drift import CallDrift, DriftResult, Form, RolloutDrift, Side
from explorer.export.judged import Judged
from explorer.web.contexts_tabs import DriftPage, DriftRow, DriftSide
from explorer.web.drift import CALLS, checker_of, number_of
from explorer.web.frames import rollout_href
from explorer.web.header import rollout_frame
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.rollout_pages import judged_or_404
from explorer.web.turn_tree import TurnTree

router = APIRouter(include_in_schema=False)

_SHOWN = 400
# White space is what templates most often differ in; as on the tokens tab.
_LINES = str.maketrans({"\t": "→", "\n": "↵"})
_WHITE = str.maketrans({" ": "·", "\t": "→", "\n": "↵"})


@page_and_twin(router, "/rollouts/{rollout_id}/drift")
async def drift(request: Request, rollout_id: str) -> Response:
    """The check of the next calls: a part of the provenance tab, or a page of its own."""
    judged = await judged_or_404(request, rollout_id)
    first = number_of(request, "cursor", 0, 10**9)
    fragment = bool(request.headers.get("hx-request"))

    def work() -> DriftPage:
        found = checker_of(request).check(judged, first, CALLS)
        return _page(request, judged, found, first)

    return await respond(request, work, template="drift.html" if fragment else None)


def _page(request: Request, judged: Judged, found: RolloutDrift, first: int) -> DriftPage:
    rollout_id = judged.record.rollout.rollout_id
    labels = TurnTree(judged).labels
    more = None
    if found.following is not None:
        more = rollout_href(rollout_id, "drift", cursor=found.following)
    return DriftPage(
        frame=rollout_frame(request, judged, "provenance", last="template check"),
        renderer=found.renderer,
        template_sha256=found.template_sha256 or "",
        served_template=found.served_template_sha256 or "",
        same_template=found.same_template,
        rows=tuple(
            _row(rollout_id, call, labels.get(call.call_id, "–")) for call in found.calls
        ),
        first=first,
        total=found.total,
        more_href=more,
    )


def _row(rollout_id: str, call: CallDrift, label: str) -> DriftRow:
    form = call.nearest
    differs = form is not None and form.result is DriftResult.MISMATCH
    return DriftRow(
        turn=label,
        call_href=rollout_href(rollout_id, f"requests/{call.call_id}"),
        result=call.result.value,
        reason=safe_text(call.reason),
        arguments=_arguments(call.forms),
        prompt_tokens=call.prompt_tokens,
        position=form.position if form is not None else None,
        before=_visible(form.before) if form is not None and differs else "",
        engine=_side(form.engine) if form is not None else None,
        rendered=_side(form.rendered) if form is not None else None,
    )


def _arguments(found: tuple[Form, ...]) -> str:
    """Which forms of the arguments match, in words; empty where there is one form only."""
    if len(found) < 2:
        return ""
    return ", ".join(f"{form.arguments.value}: {form.result.value}" for form in found)


def _side(side: Side | None) -> DriftSide | None:
    if side is None:
        return None
    if side.token_id is None:
        return DriftSide(piece="(its end)", token_id=None, text="")
    return DriftSide(
        piece=_visible(side.token, _WHITE),
        token_id=side.token_id,
        text=_visible(side.text)[:_SHOWN],
    )


def _visible(text: str, marks: dict[int, str] = _LINES) -> str:
    return safe_text(text.translate(marks))
