"""Reads the body of an engine's HTTP reply: whole, bounded, its encoding undone.

Owns: the limit on one reply, and what happens when its content-encoding is not true.
Must not know: what is in the body.

We ask for no encoding. A server in between may encode all the same, and some only say so:
a body that is not what its header says is taken as it came, with a note.
"""

from __future__ import annotations

import zlib

import aiohttp

from explorer.errors import EngineMalformed
from explorer.records import Note

# Far above any completion: 128k tokens with 20 alternatives each take about 250 MB.
DEFAULT_REPLY_LIMIT = 1024 * 1024 * 1024
_INFLATED = ("gzip", "x-gzip", "deflate")


async def read_reply(
    response: aiohttp.ClientResponse, limit_bytes: int = DEFAULT_REPLY_LIMIT
) -> tuple[bytes, tuple[Note, ...]]:
    """The body as the engine wrote it, and what was odd about its encoding.

    Raises:
        EngineMalformed: over `limit_bytes`, as sent or undone.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    raw = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return raw, ()
    plain = _inflated(raw, limit_bytes) if encoding in _INFLATED else None
    if plain is not None:
        return plain, ()
    said = encoding.encode("ascii", "backslashreplace").decode()[:40]
    return raw, (Note("content_encoding_untrue", f"the header says {said}; taken as it came"),)


def _inflated(raw: bytes, limit_bytes: int) -> bytes | None:
    """`raw` undone, None when it is not whole compressed data to its last byte."""
    parts: list[bytes] = []
    left = limit_bytes
    while raw:  # gzip data may stand one after the other
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            part = inflater.decompress(raw, left + 1)
        except zlib.error:
            return None
        left -= len(part)
        if left < 0:
            raise _too_large(limit_bytes)
        if not inflater.eof:
            return None
        parts.append(part)
        raw = inflater.unused_data
    return b"".join(parts)


def _too_large(limit_bytes: int) -> EngineMalformed:
    return EngineMalformed(f"the engine's reply is larger than {limit_bytes} bytes")
