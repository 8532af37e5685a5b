"""Takes trainer logprobs: read, checked against the calls they are about, stored.

Owns: the shape of a posting and what makes one wrong. All of it is stored, or nothing.
Must not know: HTTP, file formats of trainers, what a difference is.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from explorer.errors import BadRequest, InvalidValue
from explorer.records import NULL_LOGPROB_BITS, Call, CallId, LogprobArray, RolloutRecord
from explorer.store.deltas import LogpsKind, TrainerLogps, TrainerPost
from explorer.store.interface import Store

LONGEST_SOURCE = 80
# A logprob is at most 0; rounding in half precision may leave a little above it.
_MOST = 0.05
_FIELDS = frozenset(("weight_version", "source", "kind", "calls"))
_CALL_FIELDS = frozenset(("call_id", "per_token_logps", "completion_token_ids"))


@dataclass(frozen=True, slots=True, eq=False)
class ToldCall:
    """One call of a posting; `ids` are the sampled ids as the trainer has them."""

    call_id: str
    logps: LogprobArray
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """One posting, read."""

    kind: LogpsKind
    source: str
    weight_version: int | None
    calls: tuple[ToldCall, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a posting: calls that are on record now, and of these, those whose
    earlier values were others, and those that were told the same before."""

    stored: int
    replaced: int
    unchanged: int


def read_told(raw: bytes) -> Told:
    """`{weight_version, source, kind?, calls: [{call_id, per_token_logps, …}]}`.

    Takes as long as the arrays are. `-Infinity` and `NaN`, which JSON has not, are taken as
    trainers write them; they count as missing, and apart from null.

    Raises:
        InvalidValue: names the path of what is wrong.
    """
    return told_of(read_json(raw))


def read_json(raw: bytes) -> Any:
    """JSON as trainers write it.

    Raises:
        InvalidValue: it is none, or holds +Infinity, which no logprob is.
    """
    try:
        return json.loads(raw, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"the body is not valid JSON: {error}") from error


def _constant(name: str) -> float:
    if name == "Infinity":
        raise ValueError("a logprob is never +Infinity")
    return float(name.replace("Infinity", "inf"))


def told_of(body: Any) -> Told:
    """The same of a value that was read already; raises as `read_told`."""
    if not isinstance(body, dict):
        _refuse("$", "must be an object")
    _only(body, _FIELDS, "$")
    calls = body.get("calls")
    if not isinstance(calls, list) or not calls:
        _refuse("$.calls", "must be a list of at least one call")
    read = tuple(_call(each, f"$.calls[{place}]") for place, each in enumerate(calls))
    seen: set[str] = set()
    for each in read:
        if each.call_id in seen:
            _refuse("$.calls", f"names call {each.call_id} twice")
        seen.add(each.call_id)
    return replace(head_of(body), calls=read)


def _refuse(path: str, why: str) -> NoReturn:
    raise InvalidValue(f"{path} {why}", path=path)


def _only(body: Mapping[str, Any], known: AbstractSet[str], path: str) -> None:
    unknown = sorted(str(key)[:80] for key in body if key not in known)
    if unknown:
        _refuse(path, f"has no field `{unknown[0]}`; known: {', '.join(sorted(known))}")


def head_of(body: Mapping[str, Any]) -> Told:
    """Kind, source and version of a posting, without calls; raises as `read_told`."""
    return Told(_kind(body), _source(body), _version(body), ())


def _kind(body: Mapping[str, Any]) -> LogpsKind:
    value = body.get("kind", LogpsKind.TRAINER)
    if not isinstance(value, str) or value not in set(LogpsKind):
        _refuse("$.kind", f"must be one of {', '.join(LogpsKind)}")
    return LogpsKind(value)


def _source(body: Mapping[str, Any]) -> str:
    value = body.get("source")
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value
    if not plain or not 0 < len(value) <= LONGEST_SOURCE:  # type: ignore[arg-type]
        _refuse(
            "$.source",
            f"must say who computed them: 1 to {LONGEST_SOURCE} printable characters, such as "
            "`trl`",
        )
    return str(value)


def _version(body: Mapping[str, Any]) -> int | None:
    value = body.get("weight_version")
    if value is not None and (type(value) is not int or not 0 <= value < 2**63):
        _refuse("$.weight_version", "must be a whole number from 0, or null for unknown")
    return value


def _call(item: Any, path: str) -> ToldCall:
    if not isinstance(item, dict):
        _refuse(path, "must be an object")
    _only(item, _CALL_FIELDS, path)
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id.isascii() or not 0 < len(call_id) <= 80:
        _refuse(f"{path}.call_id", "must be the id of a call")
    ids = item.get("completion_token_ids")
    if ids is not None and not (
        isinstance(ids, list) and all(type(each) is int for each in ids)
    ):
        _refuse(f"{path}.completion_token_ids", "must be a list of token ids")
    values = item.get("per_token_logps")
    if not isinstance(values, list):
        _refuse(f"{path}.per_token_logps", "must be a list of numbers and nulls")
    return ToldCall(
        call_id,
        logps_of(values, f"{path}.per_token_logps"),
        None if ids is None else tuple(ids),
    )


def logps_of(values: Sequence[Any], path: str) -> LogprobArray:
    """Numbers and nulls as a stored array.

    Raises:
        InvalidValue: something else stands there, or a number that is no logprob.
    """
    nulls = []
    for place, value in enumerate(values):
        if value is None:
            nulls.append(place)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(f"{path}[{place}]", "must be a number or null")
        elif value > _MOST:
            _refuse(
                f"{path}[{place}]",
                f"is {_shown(value)}: a logprob is at most 0; were −logprobs or probabilities "
                "sent?",
            )
    made = np.array([_number(value) for value in values], dtype=np.float64)
    with np.errstate(over="ignore"):
        logps: LogprobArray = made.astype(np.float32)
    if nulls:
        logps.view(np.uint32)[nulls] = NULL_LOGPROB_BITS
    return logps


def _shown(value: float) -> str:
    # A whole number may be longer than any float.
    return f"{value:g}" if value < 1e300 else "beyond any logprob"


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    # A whole number may be longer than any float.
    return float(value) if abs(value) < 1e300 or math.isnan(value) else -math.inf


async def take(store: Store, record: RolloutRecord, told: Told, now_us: int) -> Taken:
    """Checks a posting against the calls of its rollout and stores it.

    Raises:
        BadRequest: names the call that does not fit, and both lengths; nothing is stored.
    """
    made = await asyncio.to_thread(_rows, store, record, told, now_us)
    if made.rows:
        await store.add_trainer_logps(TrainerPost(record.rollout.rollout_id, made.rows))
    return made.taken


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    rows: tuple[TrainerLogps, ...]
    taken: Taken


def _rows(store: Store, record: RolloutRecord, told: Told, now_us: int) -> _Made:
    rollout_id = record.rollout.rollout_id
    calls = {call.call_id: call for call in record.calls}
    for each in told.calls:
        check(calls.get(CallId(each.call_id)), each)
    before = {row.key: row for row in store.trainer_logps(rollout_id)}
    # Rows are ordered by time, whatever the clock does.
    time_us = max([now_us, *(row.time_us + 1 for row in before.values())])
    post_id = f"tl_{secrets.token_hex(8)}"
    rows, replaced = [], 0
    for each in told.calls:
        row = TrainerLogps(
            rollout_id=rollout_id,
            call_id=CallId(each.call_id),
            post_id=post_id,
            time_us=time_us,
            kind=told.kind,
            source=told.source,
            weight_version=told.weight_version,
            logps=each.logps,
        )
        known = before.get(row.key)
        if known is not None and known.logps.tobytes() == row.logps.tobytes():
            continue
        rows.append(row)
        replaced += known is not None
    taken = Taken(len(told.calls), replaced, len(told.calls) - len(rows))
    return _Made(tuple(rows), taken)


def check(call: Call | None, told: ToldCall) -> None:
    """Whether logprobs fit the call they are said to be of.

    Raises:
        BadRequest: they do not.
    """
    name, n_told = told.call_id, int(told.logps.size)
    if call is None:
        raise BadRequest(f"this rollout has no ended call {name}", call_id=name)
    if call.completion is None:
        raise BadRequest(
            f"call {name} has no sampled ids on record, so {n_told} logprobs cannot be matched",
            call_id=name,
        )
    sampled = int(call.completion.size)
    if n_told != sampled:
        raise BadRequest(
            f"call {name} has {sampled} sampled tokens and {n_told} logprobs were told; give "
            "one per sampled token, null where there is none",
            call_id=name,
            sampled=sampled,
            told=n_told,
        )
    if told.ids is None:
        return
    if len(told.ids) != sampled:
        raise BadRequest(
            f"call {name} has {sampled} sampled ids and {len(told.ids)} were told",
            call_id=name,
            sampled=sampled,
            told=len(told.ids),
        )
    for place, (own, theirs) in enumerate(zip(call.completion.tolist(), told.ids, strict=True)):
        if own != theirs:
            raise BadRequest(
                f"call {name}: sampled token {place} of {sampled} is id {own}, not {theirs}; "
                "the logprobs are of other tokens",
                call_id=name,
                index=place,
            )
