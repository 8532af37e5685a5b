"""What stands in front of every route, put together from settings. Wiring only.

Owns: which requests are harnesses', which bodies may be larger, who is not counted.
"""

from __future__ import annotations

import re
from functools import partial

from fastapi import FastAPI

from explorer.access.bodies import BodyLimits
from explorer.access.guard import App, Guard, HostPolicy, Rates, Receive, Scope, Send
from explorer.access.headers import HeaderPolicy
from explorer.access.limits import Limiter
from explorer.access.signing_in import SignIn
from explorer.capture import refusing
from explorer.capture.credentials import SCOPE_KEY, capture_keys
from explorer.capture.desk import Desk
from explorer.errors import ExplorerError
from explorer.external_custody import ExternalCustody
from explorer.settings import Settings
from explorer.web import refusing as pages_refusing
from explorer.web.closing import MOST_CLOSING
from explorer.wire.routes import find_route

WIRE_KEY = "rollout_explorer.wire"
_WIRE_PREFIXES = ("/v1/", "/v1beta/")


def is_wire(scope: Scope) -> bool:
    """Whether a request is a harness's; asked once, after the key left the path."""
    return scope.get(SCOPE_KEY) is not None or (
        scope["path"].lower().startswith(_WIRE_PREFIXES)
        # A base address that lacks its `/v1` is understood, too.
        or (scope["method"] == "POST" and find_route("POST", scope["path"]) is not None)
    )


def body_limits(settings: Settings) -> BodyLimits:
    """Imports and trajectories are large; everything else is a form or a small document."""
    return BodyLimits(
        settings.max_request_bytes,
        (
            (re.compile(r"/api/v1/imports"), settings.max_body_bytes),
            (
                re.compile(r"/api/v1/(rollouts|runs)/.+/trainer-logprobs"),
                settings.max_body_bytes,
            ),
            (re.compile(r"/api/v1/rollouts/[^/]+/close"), MOST_CLOSING),
        ),
    )


def guard(
    settings: Settings,
    sign_in: SignIn,
    desk: Desk,
    dispatch: App,
    pages: FastAPI,
    custody: ExternalCustody | None,
) -> Guard:
    """The outermost layer of an application; a framework that reads manifests with the control
    token is counted as little as an operator."""
    is_operator = sign_in.identity.is_operator
    rates = Rates(
        Limiter(settings.rate_per_minute, settings.rate_burst),
        is_wire=lambda scope: bool(scope.get(WIRE_KEY)),
        has_key=lambda scope: desk.knows(capture_keys(scope)),
        is_operator=lambda scope: (
            (custody is not None and custody.route.admits(scope)) or is_operator(scope)
        ),
        refused=sign_in.identity.slowed_down,
    )
    return Guard(
        dispatch,
        HostPolicy.of(settings.host, settings.allowed_hosts, settings.public_url),
        SCOPE_KEY,
        headers=HeaderPolicy(framed=settings.framed),
        bodies=body_limits(settings),
        rates=rates,
        refuse=partial(_refuse, pages),
    )


async def _refuse(
    pages: FastAPI, scope: Scope, receive: Receive, send: Send, error: ExplorerError
) -> None:
    if scope.get(WIRE_KEY):
        await refusing.refuse(scope, send, error)
    else:
        await pages_refusing.refuse(pages, scope, receive, send, error)
