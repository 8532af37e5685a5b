"""What the pages are given: one frozen bundle, built by the application.

Owns: the `Services` bundle and how a request reaches it.
Must not know: how any of the services is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from fastapi import Request

from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.records import RolloutId
from explorer.trace.secret_hiding import HiddenVocabulary
from explorer.web.gate import pass_of
from explorer.web.narrowing import Hiding, NarrowJudged, NarrowStore

if TYPE_CHECKING:
    from explorer.export.judged import JudgedSource
    from explorer.export.sealing import Sealing
    from explorer.export.secrets import SecretScans
    from explorer.records import Certificate, TokenizerId
    from explorer.settings import Settings
    from explorer.store.interface import Store
    from explorer.store.search_index import SearchIndex
    from explorer.web.access import Access

    Vocabulary = Mapping[int, tuple[bytes, bool]]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a page may ask for.

    `certificate` answers the newest one of the engine in use, `vocabulary` the bytes
    and special flag of each id of a tokenizer (empty when it was never stored), `alert`
    what everybody must know at once, or nothing, `weights` how the weight fence stands.
    `index` is the search's side file, None
    where there is none, `secrets` what looks like one in each rollout, `sealing` issues
    and compares receipts.
    """

    store: Store
    judged: JudgedSource
    settings: Settings
    certificate: Callable[[], Certificate | None]
    vocabulary: Callable[[TokenizerId | None], Vocabulary]
    started_us: int
    alert: Callable[[], str] = str
    weights: Callable[[], str] = str
    index: SearchIndex | None = None
    secrets: SecretScans | None = None
    sealing: Sealing | None = None


def services_of(request: Request) -> Services:
    """The bundle as the caller of this request may see it: of what is hidden, nothing.

    An application that has no gate, as in tests of pages alone, hides nothing.
    """
    whole = cast("Services", request.app.state.services)
    if not hasattr(request.app.state, "access"):
        return whole
    seen = seen_by(request, whole.store, whole.judged)
    if seen is None:
        return whole
    return replace(
        whole,
        store=seen.store,
        judged=seen.judged,
        vocabulary=lambda name: HiddenVocabulary(whole.vocabulary(name)),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """The store and the verdicts as a caller may see them."""

    store: Store
    judged: JudgedSource


def seen_by(request: Request, store: Store, judged: JudgedSource) -> Seen | None:
    """What the caller of a request may see; None: everything, uncovered."""
    held = pass_of(request)
    if held is not None and held.visible is None and held.whole:
        return None
    access = cast("Access", request.app.state.access)
    visible: frozenset[RolloutId] = frozenset()
    if held is not None and held.visible is not None:
        visible = held.visible
    hiding = Hiding() if held is not None and held.whole else hiding_of(request)
    levels = {Level.PUBLIC}
    if held is not None and held.caller.signed_in:
        levels.add(Level.SIGNED_IN)
    return Seen(
        NarrowStore(
            store,
            visible,
            lambda name: access.visibility.own(Target.VIEW, name),
            frozenset(levels),
            hiding,
        ),
        NarrowJudged(judged, visible, hiding),
    )


def hiding_of(request: Request) -> Hiding:
    """What is covered up for readers who may not see secrets."""
    made = getattr(request.app.state, "hiding", None)
    return made if isinstance(made, Hiding) else Hiding()
