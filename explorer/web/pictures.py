"""Pictures inside messages: named as text, shown only when a person asks for one.

Owns: which bytes are a picture that may be shown. Must not know: HTML, calls.

What a message claims to be is compared with the first bytes. A drawing that can hold
scripts (SVG) is never shown, and nothing is ever loaded from another address.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from typing import Any, Final

from explorer.web.pretty import Pairs, Spelled, safe_text

ADDRESS_CHARS: Final = 140
MOST_BYTES: Final = 16 * 1024 * 1024
_BEGINNINGS: Final = (
    ("image/png", b"\x89PNG\r\n\x1a\n", 0),
    ("image/jpeg", b"\xff\xd8\xff", 0),
    ("image/gif", b"GIF8", 0),
    ("image/webp", b"WEBP", 8),
)


def picture_address(part: Any) -> str | None:
    """The address in a content part, None when it is no picture."""
    inner = part.get("image_url") if isinstance(part, Pairs) else None
    url = inner.get("url") if isinstance(inner, Pairs) else inner
    return str(url) if isinstance(url, str) and not isinstance(url, Spelled) else None


def picture_words(url: str) -> str:
    """A picture or file as its type and size; its bytes are no text."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        return f"[picture at {safe_text(url[:ADDRESS_CHARS])}, not loaded]"
    kind = safe_text(head.removeprefix("data:").partition(";")[0][:40]) or "data"
    digest = hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()[:12]
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return f"[{kind}, {size:,} bytes, sha256 of its text {digest}]"


def picture_bytes(url: str) -> tuple[str, bytes] | None:
    """Type and bytes of a picture that may be shown.

    None when it is no `data:` address, its base64 is broken, it is too large, or its first
    bytes are not those of the type that it claims.
    """
    head, comma, data = url.partition(",")
    claimed = head.removeprefix("data:").partition(";")[0].lower()
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        return None
    if len(data) > MOST_BYTES * 4 // 3:
        return None
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    for kind, magic, at in _BEGINNINGS:
        if (
            claimed in (kind, kind.replace("jpeg", "jpg"))
            and raw[at : at + len(magic)] == magic
        ):
            return kind, raw
    return None


def picture_parts(item: Any) -> Iterator[tuple[int, str]]:
    """Place and address of each picture of a message."""
    content = item.get("content") if isinstance(item, Pairs) else None
    if not isinstance(content, list) or isinstance(content, Pairs):
        return
    for place, part in enumerate(content):
        url = picture_address(part)
        if url is not None:
            yield place, url
