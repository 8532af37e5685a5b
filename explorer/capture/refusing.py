"""A refusal before a call begins, in the dialect of its address.

Owns: nothing but that. Must not know: why it is refused.
"""

from __future__ import annotations

from explorer.capture.answers import Answers
from explorer.capture.credentials import Scope
from explorer.capture.driver import Send
from explorer.capture.ids import new_call_id, now_us
from explorer.capture.proxy import send_whole
from explorer.errors import ExplorerError
from explorer.wire.protocol import PLAIN
from explorer.wire.routes import find_route, wire_at


async def refuse(scope: Scope, send: Send, error: ExplorerError) -> None:
    """Answers a request on a wire address with one of our errors."""
    route = find_route(scope["method"], scope["path"], scope.get("query_string", b""))
    wire = wire_at(scope["path"]) if route is None else route.wire
    await send_whole(send, Answers(wire, PLAIN, new_call_id(now_us())).of(error))
