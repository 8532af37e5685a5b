"""A dialect behind a real HTTP server on loopback, for the official OpenAI client.

The server answers each request with the next chat completion of a list, through the
dialect's own functions; nothing of the dialect is replaced.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai

from explorer.errors import BadRequest
from explorer.wire import ids
from explorer.wire.neutral import Earlier, NeutralRequest
from explorer.wire.protocol import Wire, WireError

CALL = "01a22881-d7a4-7cf1-a4ef-{:012x}"


@dataclass
class Served:
    """What the server saw and remembers.

    Attributes:
        live: pieces (reasoning, text) streamed before the reply is whole.
        fail: an error that ends the stream after those pieces.
    """

    client: openai.OpenAI
    replies: list[dict[str, Any]]
    requests: list[NeutralRequest] = field(default_factory=list)
    earlier: dict[str, Earlier] = field(default_factory=dict)
    served: list[dict[str, Any]] = field(default_factory=list)
    live: Sequence[tuple[str, str]] = ()
    fail: WireError | None = None


@contextlib.contextmanager
def serving(wire: Wire, *replies: dict[str, Any]) -> Iterator[Served]:
    """A server of one dialect and a client that talks to it."""
    state: list[Served] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            answer(self, wire, state[0], raw)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", api_key="k", max_retries=0
    )
    state.append(Served(client, list(replies)))
    try:
        yield state[0]
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join(5)


def answer(handler: BaseHTTPRequestHandler, wire: Wire, state: Served, raw: bytes) -> None:
    """One request, as the proxy treats it."""
    try:
        request = wire.parse_request(raw)
        if request.recall:
            request = wire.parse_request(raw, earlier=state.earlier)
    except BadRequest as error:
        told = wire.refusal(WireError(400, error.code, error.message, error.details["param"]))
        send(handler, told.status, "application/json", told.body)
        return
    call_id = CALL.format(len(state.requests))
    state.requests.append(request)
    reply = ids.with_our_ids(state.replies.pop(0), call_id)
    talk = [m for m in request.messages if m.get("role") != "system"]
    state.earlier[call_id] = Earlier(tuple(talk), reply["choices"][0]["message"])
    served = wire.serve(reply, request, call_id)
    state.served.append(served)
    if not request.stream:
        send(handler, 200, "application/json", wire.encode_reply(served))
        return
    stream = wire.streamer(request, call_id, "early")
    body = b"".join(stream.live(*piece) for piece in state.live)
    body += wire.error_event(state.fail) if state.fail else stream.finish(served)
    send(handler, 200, "text/event-stream", body)


def send(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    """A whole HTTP response."""
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
