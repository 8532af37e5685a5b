"""Our ids and keys: time-ordered public ids, secret capture keys, their hashes.

Owns: how an id is made and what a valid one looks like.
Must not know: where they are stored.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time

from explorer.records import CallId, KeyHash, RolloutId

KEY_PREFIX = "rxk_"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def uuid7(time_us: int) -> str:
    """A UUIDv7 text: 48 bits of milliseconds, 12 of the microseconds within, 62 random.

    Made at admission, so that a repeated write of one record is recognised.
    """
    millis, micros = divmod(time_us, 1000)
    raw = bytearray(millis.to_bytes(6, "big") + bytes(2) + os.urandom(8))
    fraction = micros * 4096 // 1000
    raw[6] = 0x70 | fraction >> 8
    raw[7] = fraction & 0xFF
    raw[8] = 0x80 | raw[8] & 0x3F
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_rollout_id(time_us: int) -> RolloutId:
    """A public id for pages and files."""
    return RolloutId(uuid7(time_us))


def new_call_id(time_us: int) -> CallId:
    """An id for one call; also the tail of the id that the harness sees."""
    return CallId(uuid7(time_us))


def is_id(text: str) -> bool:
    """Whether `text` has the form of one of our ids (so it is safe in paths)."""
    return _UUID.fullmatch(text) is not None


def new_capture_key() -> str:
    """A secret of 256 bits, shown once."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> KeyHash:
    """What is stored instead of a key. The key has 256 random bits, so a plain hash
    cannot be guessed and a slow one would only slow down every call."""
    return KeyHash(hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())


def now_us() -> int:
    """The clock of the capture room: microseconds since the epoch."""
    return time.time_ns() // 1000
