"""From a context to bytes: the HTML page, or its JSON twin.

Owns: the template environment and the response headers of pages.
Must not know: any single page.

Building a context, rendering and compressing all happen in a worker thread; the
event loop only hands the bytes over.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from explorer.web import charts, words
from explorer.web.assets import find, static_url
from explorer.web.keys import KEYS
from explorer.web.workers import in_page_thread

# What a template may use beside its context; the test of contexts knows this list.
AMBIENT = ("static", "theme", "keys", "words", "plots")
THEMES = ("light", "dark")
COMPRESS_ABOVE = 1024
LARGE = 256 * 1024
TWIN = ".json"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one template environment: autoescape always, unknown names are errors."""
    made = Environment(
        loader=FileSystemLoader(find("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(static=static_url, words=words, plots=charts, keys=KEYS)
    made.filters.update(count=words.thousands)
    return made


def render_html(context: Any, *, theme: str = "", template: str | None = None) -> str:
    """The page, or the fragment `template`, of a context."""
    values = {item.name: getattr(context, item.name) for item in fields(context)}
    made = environment().get_template(template or context.template)
    return made.render(theme=theme if theme in THEMES else "", **values)


def plain(value: Any) -> Any:
    """A context without the fields that only a page has."""
    if is_dataclass(value):
        return {
            item.name: plain(getattr(value, item.name))
            for item in fields(value)
            if not item.metadata.get("markup")
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def render_json(context: Any) -> bytes:
    """The JSON twin of a context."""
    return orjson.dumps(plain(context), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def accepts_gzip(request: Request) -> bool:
    """Whether the caller can read a compressed reply."""
    return "gzip" in request.headers.get("accept-encoding", "").lower()


@lru_cache(maxsize=12)
def _compressed_large(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6, mtime=0)


def forget_kept() -> None:
    """Keeps no page: a rollout was deleted."""
    _compressed_large.cache_clear()


def compressed(body: bytes) -> bytes:
    """gzip of a reply; of a large page, that of the same bytes the last time.

    Reloading a long rollout gives the same megabytes, and compressing them takes longer
    than everything else.
    """
    if len(body) > LARGE:
        return _compressed_large(body)
    return gzip.compress(body, compresslevel=6, mtime=0)


def packed(body: bytes, media_type: str, *, compress: bool, status: int = 200) -> Response:
    """A reply that is private to its reader and compressed when that pays."""
    headers = {
        "Cache-Control": "private, no-cache",
        "Vary": "Accept-Encoding, Cookie, HX-Request",
    }
    if compress and len(body) > COMPRESS_ABOVE:
        body = compressed(body)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status_code=status, media_type=media_type, headers=headers)


def wants_twin(request: Request) -> bool:
    """Whether the address asks for JSON."""
    return request.url.path.endswith(TWIN)


async def respond(
    request: Request,
    build: Callable[[], Any],
    *,
    template: str | None = None,
    status: int = 200,
) -> Response:
    """Build the context and answer with the page, a fragment of it, or the twin.

    Errors that `build` raises go to the error handlers.
    """
    twin = wants_twin(request)
    compress = accepts_gzip(request)
    theme = request.cookies.get("theme", "")

    def work() -> Response:
        context = build()
        if twin:
            return packed(
                render_json(context), "application/json", compress=compress, status=status
            )
        text = render_html(context, theme=theme, template=template)
        return packed(
            text.encode(errors="replace"), "text/html", compress=compress, status=status
        )

    return await in_page_thread(work)
