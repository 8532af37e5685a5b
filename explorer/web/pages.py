"""Routes of the home page, the engine and help.

Owns: addresses and which context answers each. Must not know: how contexts are made.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from explorer.store.interface import RolloutQuery
from explorer.web import words
from explorer.web.contexts import (
    Command,
    EnginePage,
    Frame,
    HomePage,
    KeysPage,
)
from explorer.web.details import measurements
from explorer.web.frames import frame
from explorer.web.keys import KEYS
from explorer.web.lists import (
    engine_card,
    now_us,
    rollout_row,
    run_row,
    store_card,
    view_link,
)
from explorer.web.render import respond
from explorer.web.services import Services, services_of

router = APIRouter(include_in_schema=False)

HOME_RUNS = 8
HOME_ROLLOUTS = 12

Handler = Callable[..., Any]


def page_and_twin(target: APIRouter, path: str) -> Callable[[Handler], Handler]:
    """Register a handler for a page and for its JSON twin."""

    def add(handler: Handler) -> Handler:
        for address in (f"{path}.json", path):
            target.add_api_route(
                address, handler, methods=["GET", "HEAD"], include_in_schema=False
            )
        return handler

    return add


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
@router.get("/index.json", include_in_schema=False)
async def home(request: Request) -> Response:
    """What this server holds."""
    outline = frame(request, title="What this server holds", section="home", crumbs=())
    base = services_of(request).settings.public_url or str(request.base_url)
    return await respond(
        request, partial(_home, services_of(request), outline, base.rstrip("/"))
    )


def _home(services: Services, outline: Frame, base: str) -> HomePage:
    now = now_us()
    runs = services.store.list_runs()
    found = services.store.list_rollouts(RolloutQuery(limit=HOME_ROLLOUTS))
    health = services.store.health()
    return HomePage(
        frame=outline,
        n_runs=len(runs),
        n_rollouts=sum(row.n_rollouts for row in runs),
        n_open=sum(row.n_open for row in runs),
        n_trainable=sum(row.n_trainable for row in runs),
        n_calls=sum(row.n_calls for row in runs),
        generated_tokens=sum(row.generated_tokens for row in runs),
        runs=tuple(run_row(row, now) for row in runs[:HOME_RUNS]),
        more_runs=max(0, len(runs) - HOME_RUNS),
        newest=tuple(rollout_row(row, now) for row in found.rows),
        views=tuple(view_link(view) for view in services.store.views()),
        engine=engine_card(
            services.certificate(), allow_uncertified=services.settings.allow_uncertified
        ),
        store=store_card(health),
        commands=first_commands(base, health.path),
        started=words.iso(services.started_us),
    )


def first_commands(base: str, store: str) -> tuple[Command, ...]:
    """How to make a rollout on this server, with its own address and store in place."""
    here = f"--store {shlex.quote(store)}"
    return (
        Command(
            "1. Create a rollout; the answer has its key and addresses",
            f"rollout-explorer rollouts create --run first --task hello {here}",
        ),
        Command(
            "2. Point any OpenAI client at it",
            f"export OPENAI_BASE_URL={base}/k/CAPTURE_KEY/v1 OPENAI_API_KEY=unused\n"
            'curl -s "$OPENAI_BASE_URL/chat/completions" \\\n'
            '  -H "Content-Type: application/json" \\\n'
            """  -d '{"messages": [{"role": "user", "content": "Hello"}]}'""",
        ),
        Command(
            "3. Say how it ended",
            f"rollout-explorer rollouts reward ROLLOUT_ID 1.0 {here}\n"
            f"rollout-explorer rollouts close ROLLOUT_ID --ok {here}",
        ),
    )


@page_and_twin(router, "/engine")
async def engine(request: Request) -> Response:
    """The certificate of the engine in use."""
    outline = frame(request, title="Engine", section="engine", crumbs=())
    return await respond(request, partial(_engine, services_of(request), outline))


def _engine(services: Services, outline: Frame) -> EnginePage:
    found = services.certificate()
    allowed = services.settings.allow_uncertified
    return EnginePage(
        frame=outline,
        engine=engine_card(found, allow_uncertified=allowed),
        fingerprint=(found.fingerprint if found else None) or words.UNKNOWN,
        weights=services.weights(),
        numbers=measurements(found.numbers if found else {}),
        allow_uncertified=allowed,
    )


@page_and_twin(router, "/help/keys")
async def keys(request: Request) -> Response:
    """Every shortcut, and how to read the token pane."""
    outline = frame(request, title="Keyboard", section="help", crumbs=())
    return await respond(request, lambda: KeysPage(frame=outline, shortcuts=KEYS))
