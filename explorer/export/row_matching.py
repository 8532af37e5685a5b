"""Finds the calls whose tokens stand in a trainer's rows, by the tokens themselves.

Owns: what a row is, and which calls it tells logprobs of. Must not know: file formats, HTTP.

A trainer's dump has no ids of ours. A call is in a row when the row begins with exactly the
call's prompt and sampled ids; then the trainer's values at the sampled ids are the call's.
Where the row also says what the engine's logprobs were, these must be the ones on record: a
column that is shifted by one is refused instead of being compared. Equal ids that other weights
sampled in another rollout are passed over, as long as some call fits.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer.errors import BadRequest, InvalidValue
from explorer.export.telling import ToldCall, logps_of
from explorer.records import NULL_LOGPROB_BITS, Call, LogprobArray, RolloutId, RolloutRecord
from explorer.trace.sequences import Sequences

# Some dumps round to four decimals.
_SAME = 2e-3
_FIELDS = frozenset(("token_ids", "logps", "rollout_logps", "mask", "line"))


@dataclass(frozen=True, slots=True, eq=False)
class TrainerRow:
    """One sequence as a trainer has it; all arrays have one entry per token.

    Attributes:
        logps: the trainer's; null where it has none.
        rollout_logps: the engine's, as the trainer was given them; None: not in the dump.
        mask: False where `logps` is only padding of the array; None: everywhere a value.
        line: where it comes from, for messages.
    """

    ids: np.ndarray[Any, np.dtype[np.int32]]
    logps: LogprobArray
    rollout_logps: LogprobArray | None
    mask: np.ndarray[Any, np.dtype[np.bool_]] | None
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """What rows tell: calls by rollout, and the lines in which no call was found."""

    calls: Mapping[RolloutId, tuple[ToldCall, ...]]
    unmatched: tuple[int, ...]


def read_row(item: Any, path: str, line: int) -> TrainerRow:
    """`{token_ids, logps, rollout_logps?, mask?, line?}`.

    Raises:
        InvalidValue: names what is wrong.
    """
    if not isinstance(item, dict) or not set(item) <= _FIELDS:
        raise InvalidValue(f"{path} must be an object with {', '.join(sorted(_FIELDS))}")
    ids = item.get("token_ids")
    if not isinstance(ids, list) or not all(
        type(each) is int and 0 <= each < 2**31 for each in ids
    ):
        raise InvalidValue(f"{path}.token_ids must be a list of token ids")
    logps, size = _values(item, "logps", path), len(ids)
    if logps is None:
        raise InvalidValue(f"{path}.logps must be a list of numbers and nulls")
    given = _values(item, "rollout_logps", path)
    mask = item.get("mask")
    if mask is not None and not (
        isinstance(mask, list) and set(map(type, mask)) <= {int, bool}
    ):
        raise InvalidValue(f"{path}.mask must be a list of 0 and 1")
    for name, found in (("logps", logps), ("rollout_logps", given), ("mask", mask)):
        if found is not None and len(found) != size:
            raise InvalidValue(f"{path}.{name} has {len(found)} entries for {size} tokens")
    told = item.get("line", line)
    return TrainerRow(
        np.array(ids, np.int32),
        logps,
        given,
        None if mask is None else np.array(mask, np.bool_),
        told if type(told) is int else line,
    )


def _values(item: Mapping[str, Any], name: str, path: str) -> LogprobArray | None:
    values = item.get(name)
    if values is None:
        return None
    if not isinstance(values, list):
        raise InvalidValue(f"{path}.{name} must be a list of numbers and nulls")
    return logps_of(values, f"{path}.{name}")


def match(rows: Sequence[TrainerRow], records: Iterable[RolloutRecord]) -> Matched:
    """The calls of these rollouts that the rows tell logprobs of.

    Raises:
        BadRequest: a row says that the engine's logprobs were others than those on record
            of every call with these ids.
    """
    index = _Index(rows)
    agreed: set[tuple[int, int]] = set()
    refused: dict[tuple[int, int], BadRequest] = {}
    found: dict[RolloutId, list[ToldCall]] = defaultdict(list)
    seen: set[int] = set()
    for record in records:
        sequences = Sequences(record.calls)
        for call in record.calls:
            if call.completion is None or not call.completion.size:
                continue
            if sequences.problem(call.call_id) is not None:
                continue
            full = sequences.full(call.call_id)
            start = int(full.size - call.completion.size)
            places = index.find(full)
            seen.update(places)
            fitting = []
            for place in places:
                problem = _problem(call, rows[place], start)
                if problem is None:
                    fitting.append(rows[place])
                    agreed.add((place, int(full.size)))
                else:
                    refused.setdefault((place, int(full.size)), problem)
            told = _told(call, fitting, start, int(full.size))
            if told is not None:
                found[record.rollout.rollout_id].append(told)
    for where, problem in refused.items():
        if where not in agreed:
            raise problem
    lost = tuple(row.line for place, row in enumerate(rows) if place not in seen)
    return Matched({key: tuple(calls) for key, calls in found.items()}, lost)


class _Index:
    """Rows by their first tokens, so that each call asks once."""

    def __init__(self, rows: Sequence[TrainerRow]) -> None:
        self._rows = rows
        self._by_head: dict[bytes, list[int]] = defaultdict(list)
        self._head = min((int(row.ids.size) for row in rows if row.ids.size), default=0)
        for place, row in enumerate(rows):
            if row.ids.size:
                self._by_head[self._key(row.ids)].append(place)

    def _key(self, ids: np.ndarray[Any, np.dtype[np.int32]]) -> bytes:
        return hashlib.sha256(ids[: self._head].tobytes()).digest()

    def find(self, full: np.ndarray[Any, np.dtype[np.int32]]) -> list[int]:
        """The rows that begin with exactly these ids."""
        if full.size >= self._head > 0:
            places: Iterable[int] = self._by_head.get(self._key(full), ())
        else:
            places = range(len(self._rows))
        size = int(full.size)
        return [
            place
            for place in places
            if self._rows[place].ids.size >= size
            and np.array_equal(self._rows[place].ids[:size], full)
        ]


def _told(call: Call, rows: Sequence[TrainerRow], start: int, end: int) -> ToldCall | None:
    """The values of a call from the row that has most of them."""
    best: LogprobArray | None = None
    most = 0
    for row in rows:
        values = _values_of(row, start, end)
        count = int((~np.isnan(values)).sum())
        if count > most:
            best, most = values, count
    return None if best is None else ToldCall(str(call.call_id), best)


def _values_of(row: TrainerRow, start: int, end: int) -> LogprobArray:
    values = row.logps[start:end].copy()
    if row.mask is not None:
        values.view(np.uint32)[~row.mask[start:end]] = NULL_LOGPROB_BITS
    return values


def _problem(call: Call, row: TrainerRow, start: int) -> BadRequest | None:
    """What is wrong with a row that has a call's ids: other logprobs than those on record."""
    if row.rollout_logps is None or call.logprobs is None:
        return None
    end = start + int(call.logprobs.size)
    given = row.rollout_logps[start:end]
    told = ~np.isnan(_values_of(row, start, end))
    both = np.isfinite(given) & np.isfinite(call.logprobs) & told
    off = np.abs(given[both] - call.logprobs[both])
    if not off.size or float(off.max()) <= _SAME:
        return None
    return BadRequest(
        f"line {row.line}: its own rollout logprobs are not those on record of call "
        f"{call.call_id} (off by up to {float(off.max()):.3g}); is a column shifted?",
        call_id=str(call.call_id),
        line=row.line,
    )
