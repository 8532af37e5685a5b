"""The rows of one rollout, as Arrow batches of the three configs.

Owns: which value of the record and the verdict stands in which column.
Must not know: files, who may read them, secrets.

Batches are bounded: a rollout of any size costs what its largest row costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from explorer.errors import RecordInconsistent
from explorer.export.dataset.paths import Row, training_rows
from explorer.export.dataset.schema import CONFIGS, REASON_CODES, schema_of
from explorer.export.dataset.values import (
    json_text,
    list_array,
    logprob_array,
    valid,
    version_array,
)
from explorer.records import Call, CallId, EventKind, RolloutRecord
from explorer.trace.assemble import findings_by_call
from explorer.trace.audit import SharedDigests
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.mask import CallMask
from explorer.trace.provenance import weight_versions
from explorer.trace.verdict import Judgement

BATCH_BYTES = 16 * 1024 * 1024

# Reads the request and the reply of a call as text, None where there is none or it is none.
Texts = Callable[[CallId], tuple[str | None, str | None]]


class Batch(NamedTuple):
    """Rows of one config."""

    config: str
    rows: Any


def no_texts(_: CallId) -> tuple[str | None, str | None]:
    """Without bodies."""
    return None, None


def closed_us(record: RolloutRecord) -> int:
    """When a rollout was sealed.

    Raises:
        RecordInconsistent: it was not.
    """
    times = [event.time_us for event in record.events if event.kind is EventKind.CLOSED]
    if not times:
        raise RecordInconsistent("an open rollout has no place in a dataset")
    return min(times)


def batches_of(
    record: RolloutRecord,
    judgement: Judgement,
    texts: Texts = no_texts,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Batch]:
    """All rows of a rollout: its sequences, its calls, then its own.

    Raises:
        RecordInconsistent: it is open, or its parts do not fit together.
    """
    supervised = n_sequences = 0
    for rows in _sequences(record, judgement, batch_bytes):
        n_sequences += len(rows)
        supervised += sum(row.supervised for row in rows)
        yield Batch("sequences", _sequence_batch(record, judgement, rows))
    for calls in _calls(record, texts, batch_bytes):
        yield Batch("calls", _call_batch(judgement, calls))
    yield Batch("rollouts", _rollout_batch(record, judgement, n_sequences, supervised))


# -- rollouts


def _rollout_batch(
    record: RolloutRecord, judgement: Judgement, n_sequences: int, supervised: int
) -> Any:
    rollout, state = record.rollout, judgement.state
    decided = {
        "closed_us": closed_us(record),
        "reward": state.reward,
        "ok": state.ok,
        "reason": state.reason,
        "trainable": judgement.trainable,
        "reason_codes": [reason.code for reason in judgement.reasons],
        "reasons": judgement.reasons,
        "notices": list(judgement.notices),
        "n_calls": len(record.calls),
        "n_sequences": n_sequences,
        "supervised_tokens": supervised,
        "generated_tokens": judgement.generated_tokens,
        "mask_counts": dict(sorted(judgement.mask_counts.items())),
        "weight_versions": weight_versions(record),
        "policy": judgement.policy,
        "policy_sha256": judgement.policy.sha256,
        "judge_version": JUDGE_VERSION,
        "inputs_sha256": judgement.inputs_sha256,
        "findings": judgement.findings,
        "events": record.events,
        "certificate": record.certificate,
        "certificates": record.certificates,
        "overrides": record.overrides,
        "open_calls": record.open_calls,
        "contradicted": dict(record.contradicted),
    }
    values = {
        column.name: decided[column.name]
        if column.name in decided
        else getattr(rollout, column.name)
        for column in CONFIGS["rollouts"]
    }
    return _batch("rollouts", {name: [value] for name, value in values.items()})


# -- calls


class _Entry(NamedTuple):
    call: Call
    digests: dict[str, Any]
    request: str | None
    reply: str | None

    @property
    def size(self) -> int:
        """About the bytes of its row."""
        arrays = (self.call.prompt_delta, self.call.completion, self.call.logprobs)
        size = 2000 + sum(array.nbytes for array in arrays if array is not None)
        size += len(self.call.top_logprobs or b"") + len(self.request or "")
        return size + len(self.reply or "") + 64 * len(self.digests["message_digests"])


def _calls(record: RolloutRecord, texts: Texts, batch_bytes: int) -> Iterator[list[_Entry]]:
    """Calls in order of arrival, as many at once as a batch may hold."""
    digests = SharedDigests()
    held: list[_Entry] = []
    size = 0
    for call in sorted(record.calls, key=lambda call: (call.sequence, call.call_id)):
        entry = _Entry(call, digests.of(call), *texts(call.call_id))
        if held and size + entry.size > batch_bytes:
            yield held
            held, size = [], 0
        held.append(entry)
        size += entry.size
    if held:
        yield held


def _call_batch(judgement: Judgement, entries: Sequence[_Entry]) -> Any:
    found = findings_by_call(judgement.findings)
    rows = [
        entry.digests
        | _decided(judgement, entry.call)
        | {
            "prefix_of": entry.call.stored_parent_id,
            "notes": entry.call.notes,
            "findings": [item.code for item in found.get(entry.call.call_id, ())],
            "top_logprobs": entry.call.top_logprobs,
            "request": entry.request,
            "reply": entry.reply,
        }
        for entry in entries
    ]
    calls = [entry.call for entry in entries]
    made: dict[str, Any] = {
        "prompt_delta": list_array([call.prompt_delta for call in calls], pa.int32()),
        "completion": list_array([call.completion for call in calls], pa.int32()),
        "logprobs": logprob_array([call.logprobs for call in calls], numbers_only=False),
        "mask_reasons": list_array(
            [
                None if call.completion is None else _codes(judgement.masks.get(call.call_id))
                for call in calls
            ],
            pa.int8(),
        ),
    }
    ours = rows[0]
    columns = {
        name: made[name]
        if name in made
        else [row[name] for row in rows]
        if name in ours
        else list(map(attrgetter(name), calls))
        for name in (column.name for column in CONFIGS["calls"])
    }
    return _batch("calls", columns)


def _decided(judgement: Judgement, call: Call) -> dict[str, Any]:
    """What was decided about a call; None for one that was refused."""
    node = judgement.tree.nodes.get(call.call_id)
    decision = judgement.roles.get(call.call_id)
    mask = judgement.masks.get(call.call_id)
    broke = None if node is None else node.break_
    return {
        "parent_id": None if node is None else node.parent_id,
        "root_id": None if node is None else node.root_id,
        "depth": None if node is None else node.depth,
        "role": None if decision is None else decision.role,
        "rule": None if decision is None else decision.rule,
        "why": None if decision is None else decision.why,
        "mask_reason": None if mask is None else mask.reason,
        "prefix_break": broke,
    }


def _codes(mask: CallMask | None) -> np.ndarray[Any, np.dtype[np.int8]] | None:
    if mask is None:
        return None
    codes = np.full(mask.length - mask.prompt_len, -1, np.int8)
    for span in mask.completion:
        first, last = span.start - mask.prompt_len, span.end - mask.prompt_len
        codes[first:last] = REASON_CODES[span.reason]
    return codes


# -- sequences


def _sequences(
    record: RolloutRecord, judgement: Judgement, batch_bytes: int
) -> Iterator[list[Row]]:
    held: list[Row] = []
    size = 0
    for row in training_rows(record, judgement):
        need = 20 * int(row.token_ids.size)
        if held and size + need > batch_bytes:
            yield held
            held, size = [], 0
        held.append(row)
        size += need
    if held:
        yield held


def _sequence_batch(record: RolloutRecord, judgement: Judgement, rows: Sequence[Row]) -> Any:
    rollout, state = record.rollout, judgement.state
    whole = {
        **{name: getattr(rollout, name) for name in _OF_ROLLOUT},
        "reward": state.reward,
        "ok": state.ok,
        "policy_sha256": judgement.policy.sha256,
        "inputs_sha256": judgement.inputs_sha256,
    }
    columns: dict[str, Any] = {name: [value] * len(rows) for name, value in whole.items()}
    columns |= {
        "sequence_id": [f"{rollout.rollout_id}:{row.leaf.call_id}" for row in rows],
        "role": [judgement.roles[row.leaf.call_id].role for row in rows],
        "call_ids": [[part.call.call_id for part in row.stretches] for row in rows],
        "completion_starts": [[part.start for part in row.stretches] for row in rows],
        "completion_ends": [[part.end for part in row.stretches] for row in rows],
        "owned": [[part.owned for part in row.stretches] for row in rows],
        "length": [int(row.token_ids.size) for row in rows],
        "supervised_tokens": [row.supervised for row in rows],
        "token_ids": list_array([row.token_ids for row in rows], pa.int32()),
        "loss_mask": list_array([row.loss_mask for row in rows], pa.int8()),
        "mask_reasons": list_array([row.reasons for row in rows], pa.int8()),
        "logprobs": logprob_array([row.logprobs for row in rows], numbers_only=True),
        "weight_versions": version_array([(row.versions, row.gaps) for row in rows]),
    }
    return _batch("sequences", columns)


_OF_ROLLOUT = ("rollout_id", "run", "task", "group", "attempt", "model", "tokenizer_id")


def _batch(config: str, columns: Mapping[str, Any]) -> Any:
    """A batch of the config's schema.

    Raises:
        RecordInconsistent: a value that must be there is missing.
    """
    schema, kinds = _schema(config), _KINDS[config]
    types = schema.types
    arrays = []
    for place, (name, kind, needed) in enumerate(kinds):
        values = columns[name]
        if isinstance(values, list):
            read = _READERS.get(kind)
            if read is not None:
                values = [None if value is None else read(value) for value in values]
            values = pa.array(values, type=types[place])
        if needed and values.null_count:
            raise RecordInconsistent(f"{config}: `{name}` is missing in a row")
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_schema = lru_cache(schema_of)
_KINDS = {
    config: tuple((column.name, column.kind, column.needed) for column in columns)
    for config, columns in CONFIGS.items()
}


def _json(value: Any) -> str:
    """Bytes are JSON already, exactly as they came."""
    if not value:
        return _EMPTY[type(value)]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else json_text(value)


_EMPTY: dict[Any, str] = {dict: "{}", list: "[]", tuple: "[]", str: '""', bytes: ""}

_READERS: dict[str, Callable[[Any], Any]] = {
    "text": valid,
    "json": _json,
    "texts": lambda values: [valid(value) for value in values],
}


def counts_of(batches: Sequence[Batch]) -> dict[str, int]:
    """Rows by config."""
    found: Counter[str] = Counter()
    for config, rows in batches:
        found[config] += rows.num_rows
    return {config: found[config] for config in CONFIGS}
