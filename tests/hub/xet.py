"""The storage behind buckets: files as runs of chunks of blocks, as the Xet protocol has them.

Owns: reading uploaded blocks and shards, and putting files together from them.
Must not know: buckets, rights.

Written from the published protocol (huggingface.co/docs/xet). It checks nothing of what a
client claims of hashes, and never finds a chunk that it has already.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

ENTRY = 48
_VERIFIED, _EXTENDED = 0x80000000, 0x40000000
_PLAIN, _LZ4, _GROUPED = 0, 1, 2


def text_of(name: bytes) -> str:
    """A hash as it stands in addresses: four little-endian numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", name))


@dataclass(frozen=True)
class Term:
    """A run of chunks of a block."""

    block: str
    length: int
    start: int
    end: int


@dataclass
class Storage:
    """Blocks by hash, and files as runs of their chunks."""

    blocks: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, list[Term]] = field(default_factory=dict)

    def add_shard(self, shard: bytes) -> list[str]:
        """Registers the files of a shard.

        Returns:
            Their hashes.
        """
        at, added = ENTRY, []
        while (name := shard[at : at + 32]) != b"\xff" * 32:
            flags, count = struct.unpack_from("<II", shard, at + 32)
            at += ENTRY
            terms = []
            for _ in range(count):
                _, length, start, end = struct.unpack_from("<IIII", shard, at + 32)
                terms.append(Term(text_of(shard[at : at + 32]), length, start, end))
                at += ENTRY
            at += ENTRY * (count if flags & _VERIFIED else 0)
            at += ENTRY if flags & _EXTENDED else 0
            if any(term.block not in self.blocks for term in terms):
                raise ValueError("a shard names a block that is not here")
            self.files[text_of(name)] = terms
            added.append(text_of(name))
        return added

    def read(self, name: str) -> bytes:
        """A whole file."""
        return b"".join(
            b"".join(
                content for _, _, content in self._chunks(term.block)[term.start : term.end]
            )
            for term in self.files[name]
        )

    def _chunks(self, block: str) -> list[tuple[int, int, bytes]]:
        """Where each chunk of a block lies, and what it says."""
        return list(chunks(self.blocks[block]))

    def reconstruction(self, name: str, address: Any) -> dict[str, Any]:
        """How a reader puts a file together; `address` signs where a block lies."""
        terms: list[dict[str, Any]] = []
        fetch: dict[str, list[dict[str, Any]]] = {}
        for term in self.files[name]:
            spans = self._chunks(term.block)[term.start : term.end]
            span = {"start": term.start, "end": term.end}
            terms.append({"hash": term.block, "unpacked_length": term.length, "range": span})
            fetch.setdefault(term.block, []).append(
                {
                    "range": span,
                    "url": address(term.block),
                    "url_range": {"start": spans[0][0], "end": spans[-1][1] - 1},
                }
            )
        return {"offset_into_first_range": 0, "terms": terms, "fetch_info": fetch}


def chunks(block: bytes) -> Any:
    """(start, end, content) of each chunk; behind them a block may have a footer."""
    at = 0
    while at + 8 <= len(block) and not block.startswith(b"XETBLOB", at):
        packed = int.from_bytes(block[at + 1 : at + 4], "little")
        scheme = block[at + 4]
        size = int.from_bytes(block[at + 5 : at + 8], "little")
        end = at + 8 + packed
        yield at, end, _unpacked(block[at + 8 : end], scheme, size)
        at = end


def _unpacked(content: bytes, scheme: int, size: int) -> bytes:
    if scheme == _PLAIN:
        return content
    plain = pa.Codec("lz4").decompress(content, decompressed_size=size, asbytes=True)
    if scheme == _LZ4:
        return bytes(plain)
    assert scheme == _GROUPED
    found, at = bytearray(size), 0
    # The first, second, third and fourth bytes of every four were put together.
    for offset in range(4):
        count = len(range(offset, size, 4))
        found[offset::4] = plain[at : at + count]
        at += count
    return bytes(found)
