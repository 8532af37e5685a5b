"""The rows of one rollout, as Arrow batches of the three configs.

Owns: which value of the record and the verdict stands in which column.
Must not know: files, who may read them, secrets.

Batches are bounded: a rollout of any size costs what its largest row costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from explorer.errors import RecordInconsistent
from explorer.export.dataset.paths import Row, training_rows
from explorer.export.dataset.schema import CONFIGS, REASON_CODES, schema_of
from explorer.export.dataset.values import (
    Versions,
    json_text,
    list_array,
    logprob_array,
    text_array,
    version_array,
)
from explorer.records import Call, CallId, EventKind, RolloutRecord
from explorer.trace.assemble import findings_by_call
from explorer.trace.audit import SharedDigests
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.mask import CallMask
from explorer.trace.policy import Policy
from explorer.trace.provenance import weight_versions
from explorer.trace.verdict import Judgement

BATCH_BYTES = 8 * 1024 * 1024
BATCH_ROWS = 512
_USUAL = 32_768

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


class Counts(NamedTuple):
    """Rows of one rollout, and tokens that train in them."""

    calls: int
    sequences: int
    supervised_tokens: int


def batches_of(
    record: RolloutRecord,
    judgement: Judgement,
    texts: Texts = no_texts,
    batch_bytes: int = BATCH_BYTES,
) -> list[Batch]:
    """All rows of one rollout; raises as `Gatherer.add`."""
    made: list[Batch] = []
    gatherer = Gatherer(lambda config, rows: made.append(Batch(config, rows)), batch_bytes)
    gatherer.add(record, judgement, texts)
    gatherer.finish()
    return made


class _Held(NamedTuple):
    """A row before it is Arrow: `made` has what was decided, `stored` the other fields."""

    stored: Any
    made: dict[str, Any]


class Gatherer:
    """Makes batches of the rows of many rollouts: a batch a rollout would cost more than its
    rows do.

    Args:
        sink: takes the batches of each config, in the order of the rows.
    """

    def __init__(
        self, sink: Callable[[str, Any], None], batch_bytes: int = BATCH_BYTES
    ) -> None:
        self._sink = sink
        self._most = batch_bytes
        self._held: dict[str, list[_Held]] = {config: [] for config in CONFIGS}
        self._sizes = dict.fromkeys(CONFIGS, 0)

    def add(
        self, record: RolloutRecord, judgement: Judgement, texts: Texts = no_texts
    ) -> Counts:
        """The rows of a rollout.

        Raises:
            RecordInconsistent: it is open, or its parts do not fit together; some of its rows
                may have been given away by then.
        """
        closed = closed_us(record)
        supervised = n_sequences = 0
        whole = _of_rollout(record, judgement)
        for row in training_rows(record, judgement):
            n_sequences += 1
            supervised += row.supervised
            made = whole | _sequence(row, judgement)
            self._hold("sequences", record.rollout, made, 20 * int(row.token_ids.size))
        self._add_calls(record, judgement, texts)
        made = _rollout(record, judgement) | {
            "closed_us": closed,
            "n_sequences": n_sequences,
            "supervised_tokens": supervised,
        }
        self._hold("rollouts", record.rollout, made, 4000)
        return Counts(len(record.calls), n_sequences, supervised)

    def _add_calls(self, record: RolloutRecord, judgement: Judgement, texts: Texts) -> None:
        digests = SharedDigests()
        found = findings_by_call(judgement.findings)
        for call in sorted(record.calls, key=lambda call: (call.sequence, call.call_id)):
            request, reply = texts(call.call_id)
            made = {
                **digests.of(call),
                **_decided(judgement, call),
                "prefix_of": call.stored_parent_id,
                "findings": [item.code for item in found.get(call.call_id, ())],
                "request": request,
                "reply": reply,
            }
            self._hold("calls", call, made, _size(call, made))

    def _hold(self, config: str, stored: Any, made: dict[str, Any], size: int) -> None:
        held = self._held[config]
        if held and (self._sizes[config] + size > self._most or len(held) >= BATCH_ROWS):
            self._flush(config)
        held.append(_Held(stored, made))
        self._sizes[config] += size

    def _flush(self, config: str) -> None:
        if self._held[config]:
            self._sink(config, _batch(config, self._held[config]))
            self._held[config].clear()
            self._sizes[config] = 0

    def finish(self) -> None:
        """Gives away what is left."""
        for config in CONFIGS:
            self._flush(config)


def _rollout(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    state = judgement.state
    return {
        "reward": state.reward,
        "ok": state.ok,
        "reason": state.reason,
        "trainable": judgement.trainable,
        "reason_codes": [reason.code for reason in judgement.reasons],
        "reasons": judgement.reasons,
        "notices": list(judgement.notices),
        "n_calls": len(record.calls),
        "generated_tokens": judgement.generated_tokens,
        "mask_counts": dict(sorted(judgement.mask_counts.items())),
        "weight_versions": weight_versions(record),
        "policy": judgement.policy,
        "policy_sha256": _policy_sha256(judgement.policy),
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


@lru_cache(maxsize=16)
def _policy_sha256(policy: Policy) -> str:
    return policy.sha256


def _of_rollout(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    """What each sequence says of its rollout beside the stored fields."""
    return {
        "reward": judgement.state.reward,
        "ok": judgement.state.ok,
        "policy_sha256": _policy_sha256(judgement.policy),
        "inputs_sha256": judgement.inputs_sha256,
    }


def _sequence(row: Row, judgement: Judgement) -> dict[str, Any]:
    leaf, parts = row.leaf, row.stretches
    return {
        "sequence_id": f"{leaf.rollout_id}:{leaf.call_id}",
        "role": judgement.roles[leaf.call_id].role,
        "call_ids": [part.call.call_id for part in parts],
        "completion_starts": [part.start for part in parts],
        "completion_ends": [part.end for part in parts],
        "owned": [part.owned for part in parts],
        "length": int(row.token_ids.size),
        "supervised_tokens": row.supervised,
        "token_ids": row.token_ids,
        "loss_mask": row.loss_mask,
        "mask_reasons": row.reasons,
        "logprobs": row.logprobs,
        "weight_versions": Versions(
            int(row.token_ids.size),
            [
                (part.start + span.start, part.start + span.end, span.version)
                for part in parts
                for span in part.versions
                if span.version is not None
            ],
        ),
    }


def _size(call: Call, made: Mapping[str, Any]) -> int:
    """About the bytes of a call's row."""
    size = 2000 + len(call.top_logprobs or b"") + 64 * len(made["message_digests"])
    for array in (call.prompt_delta, call.completion, call.logprobs):
        if array is not None:
            size += array.nbytes
    return size + 4 * (len(made["request"] or "") + len(made["reply"] or ""))


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
        "mask_reasons": None if call.completion is None else _codes(mask),
    }


def _codes(mask: CallMask | None) -> np.ndarray[Any, np.dtype[np.int8]] | None:
    if mask is None:
        return None
    before, size = mask.prompt_len, mask.length - mask.prompt_len
    spans = [span for span in mask.own if span.start >= before]
    if len(spans) == 1 and spans[0].start == before and spans[0].end == mask.length:
        return _uniform(REASON_CODES[spans[0].reason], size)
    codes = np.full(size, -1, np.int8)
    for span in spans:
        codes[span.start - before : span.end - before] = REASON_CODES[span.reason]
    return codes


def _uniform(code: int, size: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    """An array of one code; those of usual length are parts of one that is kept."""
    return _kept(code)[:size] if size <= _USUAL else np.full(size, code, np.int8)


@lru_cache(maxsize=32)
def _kept(code: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    made = np.full(_USUAL, code, np.int8)
    made.flags.writeable = False
    return made


def _batch(config: str, held: Sequence[_Held]) -> Any:
    """A batch of the config's schema.

    Raises:
        RecordInconsistent: a value that must be there is missing.
    """
    schema = _schema(config)
    decided = held[0].made
    made = [row.made for row in held]
    stored = [row.stored for row in held]
    arrays = []
    for (name, kind, needed), wanted in zip(_KINDS[config], schema.types, strict=True):
        if name in decided:
            values = [row[name] for row in made]
        else:
            values = list(map(attrgetter(name), stored))
        if name in _BYTES:
            values = [None if value is None else value.hex() for value in values]
        array = _array(config, kind, wanted, values)
        if needed and array.null_count:
            raise RecordInconsistent(f"{config}: `{name}` is missing in a row")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(config: str, kind: str, wanted: Any, values: list[Any]) -> Any:
    if kind in ("ids", "codes"):
        return list_array(values, wanted.value_type)
    if kind == "logprobs":
        return logprob_array(values, numbers_only=config == "sequences")
    if kind == "ints" and isinstance(values[0], Versions):
        return version_array(values)
    if values.count(values[0]) == len(values):
        if values[0] is None:
            return pa.nulls(len(values), wanted)
        # Much is the same in all rows of a batch. Equal numbers and JSON may be told apart.
        if kind in ("text", "bool"):
            one = _array(config, "one", wanted, values[:1])
            return pa.repeat(one[0], len(values))
    if kind in ("text", "texts", "one"):
        return text_array(values, wanted)
    if kind == "json":
        values = [
            None if value is None else _json(value) if value else _EMPTY[type(value)]
            for value in values
        ]
    return pa.array(values, type=wanted)


_schema = lru_cache(schema_of)
# Digests, which are the only texts that the record has as bytes.
_BYTES = frozenset(("chain_hash",))
_KINDS = {
    config: tuple((column.name, column.kind, column.needed) for column in columns)
    for config, columns in CONFIGS.items()
}


def _json(value: Any) -> str:
    """Bytes are JSON already, exactly as they came."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else json_text(value)


_EMPTY: dict[Any, str] = {dict: "{}", list: "[]", tuple: "[]", str: '""', bytes: ""}
