"""A refusal before any route runs: a page for a browser, JSON for a program.

Owns: nothing but that. Must not know: why it is refused.
"""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI, Request
from starlette.types import Send as Starlette

from explorer.access.guard import Receive, Scope, Send
from explorer.errors import ExplorerError
from explorer.web.setup import on_explorer_error


async def refuse(
    app: FastAPI, scope: Scope, receive: Receive, send: Send, error: ExplorerError
) -> None:
    """Answers with the error as the application's own routes would."""
    inside: dict[str, Any] = {**scope, "app": app}
    response = await on_explorer_error(Request(inside, receive), error)
    await response(scope, receive, cast("Starlette", send))
