"""What looks like a secret in rollouts that a dataset leaves out, each with what stands around.

Owns: the words around a finding, with every secret in them covered.
Must not know: how a secret is found, jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fastapi import Request

from explorer.errors import RecordInconsistent
from explorer.export.judged import Judged
from explorer.records import RolloutId
from explorer.trace.secret_hiding import HIDDEN_ID, HiddenVocabulary
from explorer.trace.secret_scan import Place
from explorer.trace.secret_text import BLOCK
from explorer.web.contexts_datasets import SecretHit, SecretsOf
from explorer.web.contexts_secrets import SecretItem
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text
from explorer.web.secret_part import secrets_part
from explorer.web.services import services_of

AROUND = 24
COVER = BLOCK * 5
_COVERED = re.compile(f"{BLOCK}+")
# How bodies have it, at least eight letters long.
_STARS = re.compile(r"\*{8,}")
_BODIES = ("request", "submitted", "reply")


def secrets_of(request: Request, judged: Judged) -> SecretsOf | None:
    """What looks like a secret there now, with where each stands; None where nothing does
    any more. Scans first, so call it in a worker thread."""
    part, scans = secrets_part(request, judged), services_of(request).secrets
    if part is None or scans is None:
        return None
    rollout_id = judged.record.rollout.rollout_id
    covered = judged if judged.cover is not None else scans.judged(judged)
    name = judged.record.rollout.tokenizer_id
    vocabulary = HiddenVocabulary(services_of(request).vocabulary(name))
    review = scans.review(rollout_id)
    places = {
        item.finding.finding_id: item.finding.places
        for item in (review.items if review is not None else ())
    }

    def words(item: SecretItem) -> str:
        there = places.get(item.finding_id, ())
        return _in_tokens(covered, vocabulary, there) or _in_bodies(request, rollout_id, there)

    hits = tuple(SecretHit(item, words(item)) for item in part.items if item.state != "counted")
    if not hits:
        return None
    return SecretsOf(rollout_id, rollout_href(rollout_id, "findings") + "#secrets", hits)


def _in_tokens(
    covered: Judged, vocabulary: Mapping[int, tuple[bytes, bool]], places: tuple[Place, ...]
) -> str:
    """Tokens around the first place that has any, decoded; empty where none can be."""
    for place in places:
        if place.source != "tokens" or place.call_id is None or place.start is None:
            continue
        end = place.end if place.end is not None else place.start + 1
        first = max(0, place.start - AROUND)
        try:
            ids = covered.sequences.slice(place.call_id, first, end + AROUND)
        except RecordInconsistent:
            continue
        if HIDDEN_ID not in ids[place.start - first : end - first]:
            continue  # a person let it go meanwhile
        raw = b"".join(
            vocabulary[each][0] if each in vocabulary else b"\xef\xbf\xbd"
            for each in ids.tolist()
        )
        return _shown(raw.decode("utf-8", "replace"), cut=first > 0)
    return ""


def _in_bodies(request: Request, rollout_id: RolloutId, places: tuple[Place, ...]) -> str:
    """The same from the first body that it stands in."""
    services = services_of(request)
    for place in places:
        if place.call_id is None or place.source not in _BODIES or services.secrets is None:
            continue
        found = services.store.bodies(place.call_id)
        wanted = tuple(each for each in found if each.kind.value == place.source)
        for shown in services.secrets.bodies(rollout_id, wanted):
            text = shown.data.decode("utf-8", "replace")
            covered = _STARS.search(text)
            if covered is not None:
                first = max(0, covered.start() - AROUND)
                line = _STARS.sub(COVER, text[first : covered.end() + AROUND])
                return _shown(line, cut=first > 0)
    return ""


def _shown(text: str, *, cut: bool) -> str:
    """One line, a covered secret as one mark."""
    line = _COVERED.sub(COVER, text).replace("\n", "↵").strip()
    return ("…" if cut else "") + safe_text(line)
