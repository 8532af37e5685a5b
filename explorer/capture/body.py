"""Reads a request body from ASGI messages: whole, bounded, decompressed.

Owns: the size limit, the encodings we take, and noticing that the client left.
Must not know: what is in the body.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from explorer.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

Receive = Callable[[], Awaitable[dict[str, Any]]]

SETTING = "ROLLOUT_EXPLORER_MAX_BODY_BYTES"


class ClientDisconnected(Exception):
    """The client left before its request was whole."""


async def read_body(
    receive: Receive, headers: Iterable[tuple[bytes, bytes]], limit_bytes: int
) -> bytes:
    """The decoded body.

    Raises:
        BodyTooLarge: over `limit_bytes` before or after decompression; names the setting.
        UnsupportedEncoding: a content-encoding other than gzip, deflate or identity.
        BadRequest: the compressed data is broken.
        ClientDisconnected: the client left.
    """
    encoding = b""
    for name, value in headers:
        if name == b"content-encoding":
            encoding = value.strip().lower()
        elif name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if chunk:
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    raw = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return decode(raw, encoding.decode("latin-1"), limit_bytes)


def decode(raw: bytes, encoding: str, limit_bytes: int) -> bytes:
    """`raw` undone from its content-encoding, never growing beyond the limit."""
    if encoding in ("", "identity"):
        return raw
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedEncoding(
            f"content-encoding {encoding!r} is not supported; send gzip, deflate or none"
        )
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        data = inflater.decompress(raw, limit_bytes + 1)
    except zlib.error as error:
        raise BadRequest(f"the body is not valid {encoding}: {error}") from error
    if len(data) > limit_bytes:
        raise _too_large(limit_bytes)
    if not inflater.eof:
        raise BadRequest(f"the {encoding} body is cut short")
    return data


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body is larger than {limit_bytes} bytes; raise {SETTING} to allow it",
        setting=SETTING,
        limit_bytes=limit_bytes,
    )
