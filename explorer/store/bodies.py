"""Raw bodies: compressed against the body they continue, decoded and checked.

Owns: the choice of base, key frames, codecs, the writer's memory of recent bodies, and
decoding a chain. Must not know: tables, transactions, what the bytes mean.

A request repeats its conversation, so its bytes minus the previous request's are small:
zstd takes the base body as a raw dictionary (measured: 160 times smaller over 200
growing bodies). Every `KEY_FRAME_EVERY`-th body of a chain stands alone, so that a
decode touches at most that many. Bases never cross rollouts: deleting a rollout never
breaks another one's chain.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from explorer.errors import StoreDamaged
from explorer.records import Body, BodyKind, Call, CallId, RolloutId
from explorer.store import jsontext

KEY_FRAME_EVERY = 32
# Level 2: a tenth of a millisecond for 70 KB against its base, within 4 % of level 3.
_LEVEL = 2
_MAX_WINDOW_LOG = 27
_CODEC_RAW, _CODEC_ZSTD, _CODEC_SAME = "raw", "zstd", "same"


@dataclass(frozen=True, slots=True)
class Packed:
    """The four body columns of a call row."""

    index: str | None = None
    request: bytes | None = None
    submitted: bytes | None = None
    reply: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    call_id: CallId
    kind: BodyKind
    sha256: str
    data: bytes
    depth: int


def _window_log(base: bytes, data: bytes) -> int:
    return max(10, min(_MAX_WINDOW_LOG, (len(base) + len(data)).bit_length()))


def _dictionary(base: bytes) -> Any:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def compress(data: bytes, base: bytes | None) -> bytes:
    """Compress bytes, against a base if there is one."""
    if not base:
        return bytes(zstandard.ZstdCompressor(level=_LEVEL).compress(data))
    # The window must span base and data, else matches at the base's start are lost.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=len(data),
        dict_size=len(base),
        window_log=_window_log(base, data),
    )
    compressor = zstandard.ZstdCompressor(
        compression_params=parameters, dict_data=_dictionary(base)
    )
    return bytes(compressor.compress(data))


def decompress(packed: bytes, base: bytes | None, size: int) -> bytes:
    """Undo `compress`; `StoreDamaged` when the bytes are not what was written."""
    try:
        decompressor = zstandard.ZstdDecompressor(
            dict_data=_dictionary(base) if base else None, max_window_size=1 << _MAX_WINDOW_LOG
        )
        return bytes(decompressor.decompress(packed, max_output_size=max(size, 1)))
    except zstandard.ZstdError as error:
        raise StoreDamaged(f"a stored body cannot be decompressed: {error}") from error


class BodyMemory:
    """The writer's memory of recent bodies, by call, up to a limit of bytes.

    A base that is no longer here costs a key frame, never a read: the writer thread
    does not wait for queries.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._calls: OrderedDict[CallId, dict[BodyKind, _Known]] = OrderedDict()
        self._latest: OrderedDict[RolloutId, CallId] = OrderedDict()

    def pack(self, call: Call, bodies: Sequence[Body]) -> Packed:
        """Compress a call's bodies and remember them.

        Raises `ValueError` for a body of another call or two of one kind.
        """
        base_id = call.stored_parent_id or self._latest.get(call.rollout_id)
        parent = {} if base_id is None else self._calls.get(base_id, {})
        if any(each.call_id != call.call_id for each in bodies):
            raise ValueError("a body belongs to another call")
        own: dict[BodyKind, _Known] = {}
        index: list[dict[str, Any]] = []
        columns: dict[str, bytes | None] = {}
        for body in sorted(bodies, key=lambda each: each.kind is BodyKind.SUBMITTED):
            if body.kind in own:
                raise ValueError(f"two bodies of kind {body.kind.value}")
            submitted = body.kind is BodyKind.SUBMITTED
            base = own.get(BodyKind.REQUEST) if submitted else parent.get(body.kind)
            entry, packed, own[body.kind] = _pack_one(body, base)
            index.append(entry)
            columns[body.kind.value] = packed
        self._remember(call, own)
        return Packed(jsontext.dump(index), **columns) if index else Packed()

    def forget(self, call_id: CallId) -> None:
        """Drop a call whose row was not written, so that nothing builds on it."""
        for known in self._calls.pop(call_id, {}).values():
            self._bytes -= len(known.data)

    def _remember(self, call: Call, own: dict[BodyKind, _Known]) -> None:
        self.forget(call.call_id)
        kept: dict[BodyKind, _Known] = {
            kind: each for kind, each in own.items() if kind is not BodyKind.SUBMITTED
        }
        if not kept:
            return
        self._calls[call.call_id] = kept
        self._latest[call.rollout_id] = call.call_id
        self._latest.move_to_end(call.rollout_id)
        self._bytes += sum(len(each.data) for each in kept.values())
        while self._bytes > self._limit and self._calls:
            self.forget(next(iter(self._calls)))
        while len(self._latest) > 65_536:
            self._latest.popitem(last=False)


def _pack_one(body: Body, base: _Known | None) -> tuple[dict[str, Any], bytes | None, _Known]:
    data = bytes(body.data)
    digest = hashlib.sha256(data).hexdigest()
    submitted = body.kind is BodyKind.SUBMITTED
    if base is not None and not submitted and base.depth + 1 >= KEY_FRAME_EVERY:
        base = None
    packed: bytes | None
    if base is not None and base.sha256 == digest:
        packed, codec = None, _CODEC_SAME
    else:
        packed, codec = compress(data, base.data if base else None), _CODEC_ZSTD
        if len(packed) >= len(data):
            packed, codec, base = data, _CODEC_RAW, None
    depth = 0 if base is None else base.depth + 1
    entry: dict[str, Any] = {
        "kind": body.kind.value,
        "sha256": digest,
        "size": len(data),
        "codec": codec,
        "depth": depth,
        "headers": body.headers,
    }
    if base is not None:
        entry["base_call"], entry["base_kind"] = base.call_id, base.kind.value
    return entry, packed, _Known(body.call_id, body.kind, digest, data, depth)


Index = dict[tuple[str, str], dict[str, Any]]


def read_index(rows: Sequence[tuple[str, str | None]]) -> Index:
    """Read the body index of (call id, `body_index`) rows, by call and kind.

    Raises `StoreDamaged` when one holds what no encoder writes.
    """
    found: Index = {}
    for call_id, text in rows:
        try:
            for entry in jsontext.load(text) if text else ():
                found[(call_id, entry["kind"])] = entry
        except (KeyError, TypeError, ValueError) as error:
            raise StoreDamaged(f"the body index of call {call_id} cannot be read") from error
    return found


def chain_calls(index: Index, call_id: CallId) -> set[str]:
    """Return every call whose stored bytes decoding this call's bodies needs."""
    needed = {str(call_id)}
    for kind in BodyKind:
        key = (str(call_id), kind.value)
        for _ in range(2 * KEY_FRAME_EVERY):  # a damaged chain may lead back to itself
            if key not in index or "base_call" not in index[key]:
                break
            key = (index[key]["base_call"], index[key]["base_kind"])
            needed.add(key[0])
    return needed


def decode_bodies(
    index: Index,
    stored: Callable[[str, str], bytes | None],
    call_id: CallId,
    rollout_id: RolloutId,
) -> tuple[Body, ...]:
    """Decode a call's bodies; ``stored`` gives the bytes of (call, kind).

    Raises `StoreDamaged` when a base is missing or a digest differs.
    """
    cache: dict[tuple[str, str], bytes] = {}
    found: list[Body] = []
    for kind in BodyKind:
        entry = index.get((str(call_id), kind.value))
        if entry is None:
            continue
        data = _decode_one(index, stored, (str(call_id), kind.value), cache)
        headers = tuple((name, value) for name, value in entry["headers"])
        found.append(Body(call_id, rollout_id, kind, data, headers))
    return tuple(found)


# Decoded replies kept as bases of the next ones.
_BASES_KEPT = 2 * KEY_FRAME_EVERY


def decode_replies(
    index: Index, stored: Callable[[str, str], bytes | None]
) -> Iterator[tuple[CallId, bytes | str]]:
    """Every reply in the order of `index`, each link decoded about once.

    What is damaged comes as words instead of bytes, so that it stands alone.
    """
    cache: dict[tuple[str, str], bytes] = {}
    for key in [key for key in index if key[1] == BodyKind.REPLY.value]:
        try:
            yield CallId(key[0]), _decode_one(index, stored, key, cache)
        except StoreDamaged as error:
            yield CallId(key[0]), error.message
        while len(cache) > _BASES_KEPT:
            del cache[next(iter(cache))]


# Decoded bodies kept as bases of the next ones.
_BASES_BYTES = 64 * 1024 * 1024


def decode_every(
    index: Index, stored: Callable[[str, str], bytes | None], rollout_id: RolloutId
) -> Iterator[tuple[CallId, tuple[Body, ...] | str]]:
    """The bodies of every call in the order of `index`, each link decoded about once.

    Of a call with a damaged body come words instead.
    """
    cache: dict[tuple[str, str], bytes] = {}
    for call_id in dict.fromkeys(key[0] for key in index):
        found: list[Body] = []
        try:
            for kind in BodyKind:
                entry = index.get((call_id, kind.value))
                if entry is not None:
                    data = _decode_one(index, stored, (call_id, kind.value), cache)
                    headers = tuple((name, value) for name, value in entry["headers"])
                    found.append(Body(CallId(call_id), rollout_id, kind, data, headers))
            yield CallId(call_id), tuple(found)
        except StoreDamaged as error:
            yield CallId(call_id), error.message
        # Nothing builds on what was sent to the engine.
        cache.pop((call_id, BodyKind.SUBMITTED.value), None)
        total = sum(map(len, cache.values()))
        while cache and total > _BASES_BYTES:
            total -= len(cache.pop(next(iter(cache))))


def _decode_one(
    index: Index,
    stored: Callable[[str, str], bytes | None],
    key: tuple[str, str],
    cache: dict[tuple[str, str], bytes],
) -> bytes:
    chain = [key]
    while chain[-1] not in cache and "base_call" in index.get(chain[-1], {}):
        entry = index[chain[-1]]
        chain.append((entry["base_call"], entry["base_kind"]))
        if len(chain) > 2 * KEY_FRAME_EVERY:
            raise StoreDamaged(f"the body chain of call {key[0]} does not end")
    data: bytes | None = None
    for link in reversed(chain):
        if link in cache:
            data = cache[link]
            continue
        if link not in index:
            raise StoreDamaged(f"call {key[0]} needs the {link[1]} body of {link[0]}: missing")
        entry, packed = index[link], stored(*link)
        if entry["codec"] == _CODEC_ZSTD and packed is not None:
            data = decompress(packed, data, entry["size"])
        elif entry["codec"] == _CODEC_RAW:
            data = packed
        if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise StoreDamaged(f"the {link[1]} body of call {link[0]} has another digest")
        cache[link] = data
    assert data is not None
    return data
