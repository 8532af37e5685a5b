"""Messages between the engine and its child: four bytes of length, then JSON.

Owns: the framing. Must not know: what the messages mean.
"""

from __future__ import annotations

import asyncio
from typing import Any, BinaryIO

import orjson

LONGEST_BYTES = 256 * 1024 * 1024


class BrokenFrame(Exception):
    """The other side ended in the middle of a message, or wrote something else."""


def pack(message: dict[str, Any]) -> bytes:
    """One message as bytes."""
    data = orjson.dumps(message)
    return len(data).to_bytes(4, "big") + data


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end. Raises BrokenFrame."""
    head = stream.read(4)
    if not head:
        return None
    size = _size(head)
    data = stream.read(size)
    if len(data) < size:
        raise BrokenFrame("the stream ended inside a message")
    return _load(data)


async def receive_frame(stream: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message, or None at the end. Raises BrokenFrame."""
    try:
        head = await stream.readexactly(4)
        return _load(await stream.readexactly(_size(head)))
    except asyncio.IncompleteReadError as problem:
        if not problem.partial:
            return None
        raise BrokenFrame("the stream ended inside a message") from problem


def _size(head: bytes) -> int:
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > LONGEST_BYTES:
        raise BrokenFrame("not a message")
    return size


def _load(data: bytes) -> dict[str, Any]:
    message = orjson.loads(data)
    if not isinstance(message, dict):
        raise BrokenFrame("not a message")
    return message
