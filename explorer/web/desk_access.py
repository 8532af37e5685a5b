"""What the API routes are given, and the gate in front of changes.

Owns: the bundle of services for programs, and the dependency of every route that
changes something. Reading is gated for all paths at once, in `access`.
Must not know: JSON shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from fastapi import Request

from explorer.access.operator import Operator
from explorer.capture.desk import Desk
from explorer.export.judged import JudgedRollouts
from explorer.records import Certificate, Rollout
from explorer.settings import Settings
from explorer.store.interface import Store
from explorer.web.live import LiveRollouts


@dataclass(frozen=True, slots=True)
class ApiServices:
    """Everything an API route may ask for.

    Attributes:
        template: completes a wanted rollout with the engine's facts.
        in_flight: calls that are being worked on now.
    """

    store: Store
    judged: JudgedRollouts
    desk: Desk
    settings: Settings
    operator: Operator
    certificate: Callable[[], Certificate | None]
    template: Callable[[Rollout], Rollout]
    in_flight: Callable[[], int]
    live: LiveRollouts

    def base_url(self, request: Request) -> str:
        """The address that harnesses reach us by."""
        if self.settings.public_url:
            return self.settings.public_url.rstrip("/")
        return f"{request.url.scheme}://{request.url.netloc}"


def api_services(request: Request) -> ApiServices:
    """The bundle of the application that serves this request."""
    return cast("ApiServices", request.app.state.api)


def require_change(request: Request) -> None:
    """Raises:
    AdminTokenNeeded: the request is not the operator's.
    """
    operator = api_services(request).operator
    operator.require_change(_client(request), request.headers)


def _client(request: Request) -> str | None:
    return request.client.host if request.client else None
