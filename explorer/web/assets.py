"""Templates and static files: where they are, and addresses that change with content.

Owns: finding both folders (a checkout has them at its top, a wheel inside the
package), content-hashed addresses, and serving with immutable caching.
Must not know: pages.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PACKAGE = Path(__file__).resolve().parent.parent
IMMUTABLE = "public, max-age=31536000, immutable"


def find(name: str) -> Path:
    """The folder `templates` or `static`.

    Raises:
        FileNotFoundError: neither a checkout nor an installed wheel has it.
    """
    for folder in (PACKAGE / "_assets" / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no folder {name!r} beside or inside the package {PACKAGE}")


@lru_cache(maxsize=64)
def digest(name: str) -> str:
    """First twelve hex digits of the SHA-256 of a static file."""
    return hashlib.sha256((find("static") / name).read_bytes()).hexdigest()[:12]


def static_url(name: str) -> str:
    """Address of a static file; it changes when, and only when, the bytes do."""
    return f"/static/{name}?v={digest(name)}"


class Static(StaticFiles):
    """Static files; an address that carries the right hash may be kept for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Serve one file with the caching that its address allows."""
        response = await super().get_response(path, scope)
        query = bytes(scope.get("query_string", b"")).decode("latin-1")
        if response.status_code == 200 and query == f"v={digest(path)}":
            response.headers["Cache-Control"] = IMMUTABLE
        else:
            response.headers["Cache-Control"] = "no-cache"
        return response
