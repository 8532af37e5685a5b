"""What the pages are given: one frozen bundle, built by the application.

Owns: the `Services` bundle and how a request reaches it.
Must not know: how any of the services is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from fastapi import Request

if TYPE_CHECKING:
    from explorer.export.judged import JudgedRollouts
    from explorer.records import Certificate, TokenizerId
    from explorer.settings import Settings
    from explorer.store.interface import Store
    from explorer.store.search_index import SearchIndex

    Vocabulary = Mapping[int, tuple[bytes, bool]]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a page may ask for.

    `certificate` answers the newest one of the engine in use, `vocabulary` the bytes
    and special flag of each id of a tokenizer (empty when it was never stored), `alert`
    what everybody must know at once, or nothing. `index` is the search's side file, None
    where there is none.
    """

    store: Store
    judged: JudgedRollouts
    settings: Settings
    certificate: Callable[[], Certificate | None]
    vocabulary: Callable[[TokenizerId | None], Vocabulary]
    started_us: int
    alert: Callable[[], str] = str
    index: SearchIndex | None = None


def services_of(request: Request) -> Services:
    """The bundle of the application that serves this request."""
    return cast("Services", request.app.state.services)
