"""What the API routes are given.

Owns: the bundle of services for programs, narrowed to what their caller may see.
Must not know: JSON shapes, who may do what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from fastapi import Request

from explorer.access.operator import Operator
from explorer.access.public_address import PublicAddress
from explorer.capture.desk import Desk
from explorer.capture.fence_desk import FenceDesk
from explorer.export.judged import JudgedSource
from explorer.records import Certificate, Rollout
from explorer.settings import Settings
from explorer.store.interface import Store
from explorer.web.access import Access
from explorer.web.gate import require_change as require_change
from explorer.web.live import LiveRollouts
from explorer.web.removing import Removal
from explorer.web.services import seen_by


@dataclass(frozen=True, slots=True)
class ApiServices:
    """Everything an API route may ask for.

    Attributes:
        template: completes a wanted rollout with the engine's facts.
        in_flight: calls that are being worked on now.
    """

    store: Store
    judged: JudgedSource
    desk: Desk
    settings: Settings
    operator: Operator
    certificate: Callable[[], Certificate | None]
    template: Callable[[Rollout], Rollout]
    in_flight: Callable[[], int]
    live: LiveRollouts
    access: Access
    public: PublicAddress
    remove: Removal
    fences: FenceDesk

    def base_url(self, request: Request) -> str:
        """The address that harnesses reach us by."""
        if self.settings.public_url:
            return self.settings.public_url.rstrip("/")
        return f"{request.url.scheme}://{request.url.netloc}"


def api_services(request: Request) -> ApiServices:
    """The bundle as the caller of this request may see it."""
    whole = cast("ApiServices", request.app.state.api)
    seen = seen_by(request, whole.store, whole.judged)
    if seen is None:
        return whole
    return replace(whole, store=seen.store, judged=seen.judged)
