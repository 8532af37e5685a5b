"""What looks like a secret in a rollout, as its findings tab tells it.

Owns: how a finding, its places and a decision read.
Must not know: how a secret is found, what is hidden because of it.
"""

from __future__ import annotations

from fastapi import Request

from explorer.export.judged import Judged
from explorer.export.secret_review import NOT_A_SECRET, RELEASE, WITHHOLD, Reviewed
from explorer.trace.secret_scan import Place
from explorer.web import words
from explorer.web.contexts import Choice
from explorer.web.contexts_secrets import SecretItem, SecretPlace, SecretsPart
from explorer.web.frames import rollout_href
from explorer.web.gate import pass_of
from explorer.web.pretty import safe_text
from explorer.web.services import services_of

_STATES = {NOT_A_SECRET: "not a secret", RELEASE: "released", WITHHOLD: "withheld"}
CHOICES = (
    Choice(NOT_A_SECRET, "it is no secret: show it and let files leave"),
    Choice(RELEASE, "it is one, and may be seen: show it and let files leave"),
    Choice(WITHHOLD, "it is one: keep it hidden, and let no file leave"),
)


def secrets_part(request: Request, judged: Judged) -> SecretsPart | None:
    """What the findings tab says; scans the rollout first, so call it in a worker thread."""
    scans = services_of(request).secrets
    if scans is None:
        return None
    rollout_id = judged.record.rollout.rollout_id
    review = scans.review(rollout_id)
    if review is None:
        return None
    held = pass_of(request)
    may_decide = held is None or (held.visible is None and held.whole)
    # Not by what was decided: a line that moves away under a hand is decided by mistake.
    order = sorted(review.items, key=lambda item: not item.finding.blocks)
    return SecretsPart(
        n_secrets=len(review.secrets),
        n_undecided=review.n_undecided,
        n_paths=review.n_paths,
        refusal=review.refusal or "",
        items=tuple(_item(judged, item, may_decide=may_decide) for item in order),
        may_decide=may_decide,
        action=rollout_href(rollout_id, "secrets"),
        choices=CHOICES,
    )


def _item(judged: Judged, item: Reviewed, *, may_decide: bool) -> SecretItem:
    found, decision = item.finding, item.decision
    preview = ""
    if may_decide and found.length:
        start = f"{found.preview}… " if found.preview else ""
        preview = f"{start}({words.plural(found.length, 'character')})"
    state, decided = ("undecided" if found.blocks else "counted"), ""
    if decision is not None:
        state = _STATES.get(decision.decision, decision.decision)
        decided = (
            f"{words.clock(decision.time_us)} · {safe_text(decision.who)}: "
            f"{safe_text(decision.reason)}"
            if may_decide
            else words.clock(decision.time_us)
        )
    return SecretItem(
        finding_id=found.finding_id,
        kind=found.kind,
        title=found.title,
        preview=preview,
        state=state,
        hidden=item.hidden,
        decided=decided,
        places=tuple(_place(judged, place) for place in _best(found.places)),
        n_places=found.n_places,
    )


def _best(places: tuple[Place, ...]) -> list[Place]:
    """The places worth a line: tokens first, where one sees what stands around."""
    return sorted(places, key=lambda place: place.source != "tokens")[:8]


_SOURCES = {
    "metadata": "names and metadata",
    "event": "an event",
    "call": "the record of",
    "note": "a label or note",
    "request": "the request of",
    "submitted": "the submitted request of",
    "reply": "the reply of",
    "tokens": "tokens of",
}


def _place(judged: Judged, place: Place) -> SecretPlace:
    rollout_id = judged.record.rollout.rollout_id
    said = _SOURCES.get(place.source, place.source)
    if place.call_id is None:
        tab = {"note": "notes", "metadata": "provenance", "event": "provenance"}
        return SecretPlace(said, rollout_href(rollout_id, tab.get(place.source, "findings")))
    numbers = {call.call_id: call.sequence for call in judged.record.calls}
    said = f"{said} call {numbers.get(place.call_id, words.short_id(place.call_id))}"
    if place.source == "tokens" and place.start is not None and place.end is not None:
        said += f", {place.start:,}–{place.end - 1:,}"
        known = place.call_id in judged.judgement.tree.nodes
        if known:
            href = rollout_href(rollout_id, "tokens", branch=place.call_id, t=place.start)
            return SecretPlace(said, f"{href}#t{place.start}")
    return SecretPlace(said, rollout_href(rollout_id, f"requests/{place.call_id}"))
