"""HTTP for the local Hub: requests, answers, errors in the Hub's shape, routes.

Owns: reading a request, writing an answer, and the routes' table.
Must not know: repositories, people, what goes wrong on purpose.

Only the standard library: it runs in any environment that has a client to try.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Request:
    """One request; `path` keeps its quoting, so that a quoted slash separates nothing."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Message
    body: bytes
    base: str

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            Refusal: it is none.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Refusal(400, "the body is no JSON") from error

    def form(self) -> dict[str, list[str]]:
        """The body as a form."""
        return parse_qs(self.body.decode(), keep_blank_values=True)

    def one(self, name: str, default: str = "") -> str:
        """A query parameter."""
        return self.query.get(name, [default])[0]

    @property
    def token(self) -> str | None:
        """What stands behind `Bearer`."""
        kind, _, value = (self.headers.get("authorization") or "").partition(" ")
        return value if kind.lower() == "bearer" and value else None


@dataclass
class Answer:
    """What is answered."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """An error as the Hub tells it: status, `X-Error-Code`, `X-Error-Message`, JSON body."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body

    def answer(self) -> Answer:
        headers = {"content-type": "application/json", "X-Error-Message": self.message}
        if self.code:
            headers["X-Error-Code"] = self.code
        body = json.dumps({"error": self.message} | self.body).encode()
        return Answer(self.status, body, headers)


class CutOff(Exception):
    """The connection ends here, without an answer or after `sent` bytes of it."""

    def __init__(self, answer: Answer | None = None, sent: int = 0) -> None:
        super().__init__("cut off")
        self.answer, self.sent = answer, sent


def told(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """An answer of JSON."""
    body = json.dumps(value).encode()
    return Answer(status, body, {"content-type": "application/json"} | (headers or {}))


Handler = Callable[..., Answer]
Route = tuple[str, re.Pattern[str], Handler]


def route(method: str, pattern: str, handler: Handler) -> Route:
    """A route; `<name>` stands for one part of the path, `<name...>` for the rest, `<kind>`
    for one of the kinds of repositories."""

    def part(found: re.Match[str]) -> str:
        name = found[1]
        if name == "kind":
            return "(?P<kind>models|datasets|spaces)"
        return f"(?P<{name}>.+)" if found[2] else f"(?P<{name}>[^/]+)"

    return method, re.compile(re.sub(r"<(\w+)(\.\.\.)?>", part, pattern)), handler


def found_route(routes: list[Route], method: str, path: str) -> tuple[Handler, dict[str, str]]:
    """Who answers, and the parts of the path.

    Raises:
        Refusal: nobody.
    """
    for wanted, pattern, handler in routes:
        found = pattern.fullmatch(path)
        if found and wanted == method:
            return handler, {name: unquote(part) for name, part in found.groupdict().items()}
    raise Refusal(404, "Sorry, we can't find the page you are looking for.")


class Connection(BaseHTTPRequestHandler):
    """One connection of the standard library's server, kept open from request to request."""

    answering: Callable[[Request], Answer]
    protocol_version = "HTTP/1.1"
    # Head and body go out together: each on its own would wait for the other's receipt.
    wbufsize = 1 << 16

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _serve(self) -> None:
        request = self._read()
        if request is None:
            self.close_connection = True
            return
        try:
            given = self.answering(request)
        except CutOff as cut:
            self._cut(cut)
            return
        self._write(given)

    def _read(self) -> Request | None:
        """None where it broke off in the middle: such a one never came."""
        parts = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        if "chunked" in (self.headers.get("transfer-encoding") or ""):
            body = self._chunks()
        else:
            body = self.rfile.read(length)
            if len(body) < length:
                return None
        host = self.headers.get("host") or ""
        return Request(
            method=self.command,
            path=parts.path,
            query=parse_qs(parts.query, keep_blank_values=True),
            headers=self.headers,
            body=body,
            base=f"http://{host}",
        )

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _write(self, given: Answer) -> None:
        self.send_response(given.status)
        for name, value in given.headers.items():
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name in given.headers}:
            self.send_header("content-length", str(len(given.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(given.body)
        self.wfile.flush()

    def _cut(self, cut: CutOff) -> None:
        if cut.answer is not None:
            length = str(len(cut.answer.body))
            headers = cut.answer.headers | {"content-length": length}
            short = Answer(cut.answer.status, cut.answer.body[: cut.sent], headers)
            self._write(short)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve


def handler_for(answer: Callable[[Request], Answer]) -> type[BaseHTTPRequestHandler]:
    """The class that the server wants."""
    return type("Connected", (Connection,), {"answering": staticmethod(answer)})
