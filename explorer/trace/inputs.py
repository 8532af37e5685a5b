"""One hash of everything a verdict depends on.

Owns: `hash_inputs`.
Must not know: what is decided from the inputs.

Two records with the same hash get the same verdict from the same version of the judge,
so the hash serves as cache key. Only what the Capture audit carries is hashed, in the form
in which it carries it: whoever has the audit can compute the hash again.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from explorer.records import Call, RolloutRecord
from explorer.trace.jsontext import clean, plain_value
from explorer.trace.policy import Policy

# Raise when a rule changes, so that no cache serves an older judge's answer.
JUDGE_VERSION = 16

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_ARRAYS = ("prompt_delta", "completion", "logprobs")
# Not read by the judge: what a page or a file shows beside the verdict.
_SHOWN_ONLY = frozenset({"preview", "top_logprobs", "served_sha256", "engine_ms"})


def hash_inputs(record: RolloutRecord, policy: Policy) -> str:
    """SHA-256 in hexadecimal over the calls, events, certificate, overrides and policy."""
    digest = hashlib.sha256(b"rollout-explorer-judge-%d" % JUDGE_VERSION)
    head = {
        # The key's hash leaves with no export and decides nothing.
        "rollout": asdict(record.rollout) | {"key_hash": None},
        "events": [asdict(event) for event in record.events],
        "certificate": None if record.certificate is None else asdict(record.certificate),
        "certificates": [asdict(certificate) for certificate in record.certificates],
        "overrides": [asdict(override) for override in record.overrides],
        "open_calls": [asdict(admission) for admission in record.open_calls],
        "contradicted": dict(record.contradicted),
        "policy": policy.describe(),
    }
    _add(digest, _dump(head))
    for call in sorted(record.calls, key=lambda call: (call.sequence, call.call_id)):
        _add(digest, _dump(_plain_fields(call)))
        for name in _ARRAYS:
            value = getattr(call, name)
            _add(digest, b"-" if value is None else _array_bytes(value))
    return digest.hexdigest()


def _add(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "big"))
    digest.update(part)


def _array_bytes(value: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    return b"+" + np.ascontiguousarray(value).tobytes()


def _plain_fields(call: Call) -> dict[str, Any]:
    return {
        name: getattr(call, name)
        for name in Call.__slots__
        if name not in _ARRAYS and name not in _SHOWN_ONLY
    }


def _dump(value: Any) -> bytes:
    """JSON with sorted keys, written as every export writes it."""
    try:
        return orjson.dumps(value, default=plain_value, option=_OPTIONS)
    except TypeError:
        return orjson.dumps(clean(value), default=plain_value, option=_OPTIONS)
