"""Request bodies: bounded, decompressed with a cap, and the client may leave."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import pytest

from explorer.capture.body import ClientDisconnected, decode, read_body
from explorer.errors import BadRequest, BodyTooLarge, BodyTooSlow, UnsupportedEncoding

LIMIT = 100_000


def read(chunks: list[bytes], headers: list[tuple[bytes, bytes]] | None = None) -> bytes:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": n < len(chunks) - 1}
        for n, chunk in enumerate(chunks)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    return asyncio.run(read_body(receive, headers or [], LIMIT))


def test_chunks_are_joined() -> None:
    assert read([b"a", b"", b"bc"]) == b"abc"


def test_size_01_the_limit_names_its_setting() -> None:
    assert len(read([b"x" * LIMIT])) == LIMIT
    with pytest.raises(BodyTooLarge, match="ROLLOUT_EXPLORER_MAX_BODY_BYTES"):
        read([b"x" * LIMIT, b"x"])
    with pytest.raises(BodyTooLarge):
        read([b""], [(b"content-length", b"100001")])


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate"])
def test_compressed_bodies_are_taken(encoding: str) -> None:
    raw = b'{"a":1}' * 100
    packed = zlib.compress(raw) if encoding == "deflate" else gzip.compress(raw)
    assert read([packed], [(b"content-encoding", encoding.encode())]) == raw


def test_gzip_data_one_after_the_other_is_one_body() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decode(packed, "gzip", LIMIT) == b"one two"
    with pytest.raises(BadRequest, match="not valid gzip"):
        decode(packed + b"rest", "gzip", LIMIT)
    with pytest.raises(BodyTooLarge):
        decode(gzip.compress(b"x" * LIMIT) + gzip.compress(b"y"), "gzip", LIMIT)
    with pytest.raises(BadRequest, match="cut short"):
        decode(b"", "gzip", LIMIT)


def test_a_body_that_does_not_come_ends_in_words() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    with pytest.raises(BodyTooSlow, match="ROLLOUT_EXPLORER_BODY_TIMEOUT_S"):
        asyncio.run(read_body(receive, [], LIMIT, 0.05))


def test_enc_02_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(b" " * (LIMIT * 50))
    assert len(bomb) < LIMIT
    with pytest.raises(BodyTooLarge):
        decode(bomb, "gzip", LIMIT)


def test_enc_02_unknown_encodings_are_refused() -> None:
    with pytest.raises(UnsupportedEncoding, match="'br'"):
        decode(b"x", "br", LIMIT)


def test_broken_compression_is_a_clear_error() -> None:
    with pytest.raises(BadRequest, match="not valid gzip"):
        decode(b"not gzip", "gzip", LIMIT)
    with pytest.raises(BadRequest, match="cut short"):
        decode(gzip.compress(b"abc" * 100)[:-9], "gzip", LIMIT)


def test_a_client_that_leaves_is_noticed() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnected):
        asyncio.run(read_body(receive, [], LIMIT))
