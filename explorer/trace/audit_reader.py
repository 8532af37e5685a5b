"""Reads a Capture audit back into the record it was written from.

Owns: what a readable audit is, and errors that name the place.
Must not know: what is decided from the record. The document is somebody's file: any value
may be of any type, and nothing in it is believed before it was judged again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from explorer.errors import InvalidValue
from explorer.records import (
    NULL_LOGPROB_BITS,
    Admission,
    Call,
    CallId,
    Certificate,
    IdArray,
    LogprobArray,
    Note,
    Override,
    Rollout,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
    WeightSpan,
)
from explorer.trace.audit import AUDIT_FORMAT, AUDIT_SCHEMA_VERSION, PLAIN_FIELDS
from explorer.trace.policy import Policy

T = TypeVar("T")
# Of all calls put together; a crafted file could name each of them cheaply.
_MOST_DIGESTS = 20_000_000
_INT32 = (-(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class ReadAudit:
    """The record of an audit, with the policy that it was judged by."""

    record: RolloutRecord
    policy: Policy


def is_audit(document: object) -> bool:
    """Whether a JSON document says that it is a Capture audit."""
    return isinstance(document, dict) and document.get("format") == AUDIT_FORMAT


def read_audit(document: Mapping[str, Any]) -> ReadAudit:
    """The record and the policy of a parsed audit.

    Raises:
        InvalidValue: names the place and what is wrong there.
    """
    version = document.get("schema_version")
    if type(version) is not int or version != AUDIT_SCHEMA_VERSION:
        raise InvalidValue(
            f"this program reads audits of schema version {AUDIT_SCHEMA_VERSION}, "
            f"not {str(version)[:40]}",
            path="$.schema_version",
        )
    given = _member(document, "rollout", dict, "$")
    rollout = read_part(Rollout, given | {"key_hash": ""}, "$.rollout")
    calls = _calls(_member(document, "calls", list, "$"), rollout)
    certificate = document.get("certificate")
    record = RolloutRecord(
        rollout=rollout,
        events=_all(RolloutEvent, document, "events"),
        calls=calls,
        certificate=None
        if certificate is None
        else read_part(Certificate, certificate, "$.certificate"),
        overrides=_all(Override, document, "overrides"),
        open_calls=_all(Admission, document, "open_calls"),
        certificates=_all(Certificate, document, "certificates"),
        contradicted=_contradicted(document),
    )
    return ReadAudit(record, read_part(Policy, document.get("policy"), "$.policy"))


def _contradicted(document: Mapping[str, Any]) -> dict[CallId, str]:
    given = _member(document, "contradicted", dict, "$")
    if not all(isinstance(words, str) for words in given.values()):
        raise InvalidValue("must hold texts by call", path="$.contradicted")
    return {CallId(name): words for name, words in given.items()}


def _member(document: Mapping[str, Any], key: str, kind: type[T], path: str) -> T:
    value = document.get(key)
    if not isinstance(value, kind):
        raise InvalidValue(f"`{key}` must be a JSON {kind.__name__}", path=f"{path}.{key}")
    return value


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def read_part(kind: type[T], value: Any, path: str) -> T:
    """A record from its JSON value; nothing is converted, nothing may be left out.

    Raises:
        InvalidValue: names the place.
    """
    if not isinstance(value, dict):
        raise InvalidValue("must be a JSON object", path=path)
    missing = [item.name for item in fields(kind) if item.name not in value]  # type: ignore[arg-type]
    if missing:
        raise InvalidValue(f"`{missing[0]}` is missing", path=path)
    try:
        return _adapter(kind).validate_json(_text(value, path), strict=True)
    except ValidationError as error:
        raise _refusal(error, path) from error


def _text(value: Any, path: str) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise InvalidValue("is nested too deeply", path=path) from error


def _refusal(error: ValidationError, path: str) -> InvalidValue:
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(
        f"[{part}]" if isinstance(part, int) else f".{str(part)[:60]}" for part in first["loc"]
    )
    return InvalidValue(first["msg"], path=path + place)


def _all(kind: type[T], document: Mapping[str, Any], key: str) -> tuple[T, ...]:
    values = _member(document, key, list, "$")
    return tuple(
        read_part(kind, value, f"$.{key}[{place}]") for place, value in enumerate(values)
    )


@lru_cache(maxsize=1)
def _plain_call() -> type[BaseModel]:
    hints = get_type_hints(Call)
    wanted: dict[str, Any] = {name: (hints[name], ...) for name in PLAIN_FIELDS}
    wanted["notes"] = (list[Note], ...)
    # Audits from before the engine's spans were kept have none.
    wanted["weight_spans"] = (tuple[WeightSpan, ...], ())
    wanted["chain_hash"] = (str | None, ...)
    wanted["message_digests"] = (tuple[str, ...], ...)
    wanted["digests_shared"] = (int, ...)
    wanted["digests_of"] = (str | None, ...)
    wanted["prefix_of"] = (str | None, ...)
    return create_model("StoredCall", __config__=ConfigDict(strict=True), **wanted)


def _calls(entries: list[Any], rollout: Rollout) -> tuple[Call, ...]:
    digests: dict[str, tuple[str, ...]] = {}
    room = _MOST_DIGESTS
    calls = []
    for place, entry in enumerate(entries):
        path = f"$.calls[{place}]"
        if not isinstance(entry, dict):
            raise InvalidValue("a call must be a JSON object", path=path)
        plain = _plain_of(entry, path)
        name = plain["call_id"]
        if name in digests:
            raise InvalidValue(f"call {name[:80]} stands here twice", path=path)
        digests[name] = _digests(plain, digests, path)
        room -= len(digests[name])
        if room < 0:
            raise InvalidValue(
                f"its calls have more than {_MOST_DIGESTS} message digests", path=path
            )
        top = entry.get("top_logprobs")
        arrays = CallArrays(
            _ids(entry, "prompt_delta", path),
            _ids(entry, "completion_token_ids", path),
            _logprobs(entry, path),
            None if top is None else _text(top, f"{path}.top_logprobs"),
        )
        calls.append(_call(plain, arrays, digests[name], rollout.rollout_id, path))
    return tuple(calls)


class CallArrays(NamedTuple):
    """What a call has a value a token of."""

    prompt_delta: IdArray | None
    completion: IdArray | None
    logprobs: LogprobArray | None
    top_logprobs: bytes | None


def read_call(
    entry: Mapping[str, Any],
    arrays: CallArrays,
    rollout_id: RolloutId,
    known: Mapping[str, tuple[str, ...]],
    path: str,
) -> Call:
    """A call from its other fields as JSON values, and its arrays.

    Args:
        known: message digests by call, of the calls that stand before it.

    Raises:
        InvalidValue: names the place.
    """
    plain = _plain_of(entry, path)
    return _call(plain, arrays, _digests(plain, known, path), rollout_id, path)


def _plain_of(entry: Mapping[str, Any], path: str) -> dict[str, Any]:
    model = _plain_call()
    given = {name: entry[name] for name in model.model_fields if name in entry}
    try:
        return dict(model.model_validate_json(_text(given, path)))
    except ValidationError as error:
        raise _refusal(error, path) from error


def _digests(
    plain: Mapping[str, Any], known: Mapping[str, tuple[str, ...]], path: str
) -> tuple[str, ...]:
    shared, other = plain["digests_shared"], plain["digests_of"]
    if not shared:
        return tuple(plain["message_digests"])
    held = known.get(other, ())
    if not 0 < shared <= len(held):
        raise InvalidValue(
            f"{shared} digests are shared with a call that has {len(held)}",
            path=f"{path}.digests_shared",
        )
    return held[:shared] + tuple(plain["message_digests"])


def _call(
    plain: dict[str, Any],
    arrays: CallArrays,
    digests: tuple[str, ...],
    rollout_id: RolloutId,
    path: str,
) -> Call:
    facts = {name: plain[name] for name in PLAIN_FIELDS}
    facts["notes"] = tuple(plain["notes"])
    facts["chain_hash"] = _hash(plain["chain_hash"], f"{path}.chain_hash")
    parent = plain["prefix_of"]
    return Call(
        rollout_id=rollout_id,
        stored_parent_id=None if parent is None else CallId(parent),
        **arrays._asdict(),
        message_digests=digests,
        **facts,
    )


def _hash(text: str | None, path: str) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError as error:
        raise InvalidValue("must be hexadecimal digits", path=path) from error


def _ids(entry: Mapping[str, Any], key: str, path: str) -> IdArray | None:
    values = entry.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InvalidValue("must be a list of token ids", path=f"{path}.{key}")
    if values and not (_INT32[0] <= min(values) and max(values) <= _INT32[1]):
        raise InvalidValue("a token id has 32 bits", path=f"{path}.{key}")
    return np.array(values, dtype=np.int32)


_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _logprobs(entry: Mapping[str, Any], path: str) -> LogprobArray | None:
    values = entry.get("per_token_logps")
    if values is None:
        return None
    where = f"{path}.per_token_logps"
    if not isinstance(values, list) or not all(
        value is None or type(value) in (int, float) for value in values
    ):
        raise InvalidValue("must be a list of numbers and nulls", path=where)
    with np.errstate(over="ignore"):
        wide = np.array([0.0 if value is None else value for value in values], np.float64)
        found: LogprobArray = wide.astype(np.float32)
    bits = found.view(np.uint32)
    for place, value in enumerate(values):
        if value is None:
            bits[place] = NULL_LOGPROB_BITS
    named = entry.get("per_token_logps_not_finite")
    for item in named if isinstance(named, list) else ():
        if not (isinstance(item, list) and len(item) == 2 and item[1] in _NAMED):
            raise InvalidValue("must be pairs of position and name", path=f"{where}_not_finite")
        if type(item[0]) is not int or not 0 <= item[0] < found.size:
            raise InvalidValue("names no position", path=f"{where}_not_finite")
        found[item[0]] = _NAMED[item[1]]
    return found
