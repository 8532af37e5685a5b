"""Reads a request body from ASGI messages: whole, bounded, decompressed.

Owns: the size limit, the encodings we take, and noticing that the client left.
Must not know: what is in the body.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from explorer.errors import BadRequest, BodyTooLarge, BodyTooSlow, UnsupportedEncoding

Receive = Callable[[], Awaitable[dict[str, Any]]]

SETTING = "ROLLOUT_EXPLORER_MAX_BODY_BYTES"
TIMEOUT_SETTING = "ROLLOUT_EXPLORER_BODY_TIMEOUT_S"


class ClientDisconnected(Exception):
    """The client left before its request was whole."""


async def read_body(
    receive: Receive,
    headers: Iterable[tuple[bytes, bytes]],
    limit_bytes: int,
    timeout_s: float | None = None,
) -> bytes:
    """The decoded body.

    Raises:
        BodyTooSlow: not whole within `timeout_s` seconds; names the setting.
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
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError as error:
            raise BodyTooSlow(
                f"the request body was not whole within {timeout_s:g} s; raise "
                f"{TIMEOUT_SETTING} to wait longer",
                setting=TIMEOUT_SETTING,
            ) from error
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
    parts: list[bytes] = []
    left = limit_bytes
    while raw or not parts:  # gzip data may stand one after the other
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            part = inflater.decompress(raw, left + 1)
        except zlib.error as error:
            raise BadRequest(f"the body is not valid {encoding}: {error}") from error
        left -= len(part)
        if left < 0:
            raise _too_large(limit_bytes)
        if not inflater.eof:
            raise BadRequest(f"the {encoding} body is cut short")
        parts.append(part)
        raw = inflater.unused_data
    return b"".join(parts)


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body is larger than {limit_bytes} bytes; raise {SETTING} to allow it",
        setting=SETTING,
        limit_bytes=limit_bytes,
    )
