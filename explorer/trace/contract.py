"""The shape of OpenEnv's old `contract.json`, for readers that know no other.

Owns: that shape, filled from our record. Excluded turns are in it, as its own description
says, and never train in it; of a rollout that may not be used nothing does.
Must not know: how a verdict comes about, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from explorer.records import Call, CallId, Purpose, Role, RolloutRecord
from explorer.trace.assemble import exported_calls, same_inputs, turn_arrays, wide
from explorer.trace.checks import null_logprobs
from explorer.trace.jsontext import dump
from explorer.trace.rowtext import RowText, row_texts, zeros_text
from explorer.trace.verdict import Judgement

CONTRACT_SCHEMA_VERSION = 1


def contract(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    """`contract.json` v1 as JSON, one chunk per call: `trace_entries`, then `turns`.

    Beside OpenEnv's keys it holds ``trainable`` and ``reasons`` of the one verdict.

    Raises:
        RecordInconsistent: the judgement is not of this record.
    """
    same_inputs(record, judgement)
    return _chunks(record, judgement)


def _chunks(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    by_id = {call.call_id: call for call in record.calls}
    usable: dict[CallId, Call] = {}
    if judgement.trainable:
        usable = {call.call_id: call for call in exported_calls(record, judgement)}
    yield dump(_head(record, judgement, usable))[:-1] + b',"trace_entries":['
    separator = b""
    for row in row_texts(judgement.tree):
        call = usable.get(row.node.call_id)
        if call is not None:
            yield separator + _entry(judgement, row, call)
            separator = b","
    yield b'],"turns":['
    separator = b""
    for row in row_texts(judgement.tree):
        call = by_id[row.node.call_id]
        yield separator + _turn(judgement, row, call, exported=call.call_id in usable)
        separator = b","
    yield b"]}"


def _head(
    record: RolloutRecord, judgement: Judgement, usable: dict[CallId, Call]
) -> dict[str, Any]:
    rollout, metadata = record.rollout, record.rollout.metadata
    evaluation = rollout.purpose is Purpose.EVAL
    return {
        "schema_version": CONTRACT_SCHEMA_VERSION,
        "task_id": rollout.task,
        "task_name": metadata.get("task_name", rollout.task),
        "dataset": metadata.get("dataset", rollout.run),
        "harness": rollout.harness,
        "sandbox": metadata.get("sandbox"),
        "trial_name": metadata.get("trial_name", rollout.rollout_id),
        "session_id": rollout.rollout_id,
        "reward": judgement.state.reward,
        "rewards": _rewards(record),
        "reward_key": metadata.get("reward_key"),
        "rollout_type": "eval" if evaluation else "train",
        "capture_level": _level(record),
        "n_trainable_tokens": sum(judgement.masks[name].supervised for name in usable),
        "trainable": judgement.trainable,
        "reasons": [reason.code for reason in judgement.reasons],
    }


def _rewards(record: RolloutRecord) -> dict[str, Any]:
    """The named rewards of the last event that gave any."""
    for event in reversed(record.events):
        named = event.payload.get("rewards")
        if isinstance(named, dict):
            return named
    return {}


def _level(record: RolloutRecord) -> str:
    certificate = record.certificate
    return "text" if certificate is None else certificate.capture_level.value


def _metadata(judgement: Judgement, call: Call) -> dict[str, Any]:
    return {
        "node_id": call.call_id,
        "index": call.sequence,
        "turn": call.sequence,
        "model": call.model_served,
        "n_tools": call.n_tools,
        "harness_session_id": call.claims.get("session_id"),
        "sampling_params": call.submitted_sampling,
        "requested_sampling_params": call.requested_sampling,
        "role": judgement.roles[call.call_id].role,
    }


def _entry(judgement: Judgement, row: RowText, call: Call) -> bytes:
    rest = {
        "request": {"model": call.model_requested},
        "response": {"id": call.response_id, "finish_reason": call.finish_reason},
        "metadata": _metadata(judgement, call),
    }
    return b"{" + turn_arrays(judgement, row, call) + b"," + dump(rest)[1:]


def _turn(judgement: Judgement, row: RowText, call: Call, *, exported: bool) -> bytes:
    trains = exported and judgement.masks[call.call_id].supervised > 0
    arrays = turn_arrays(judgement, row, call) if exported else _masked(row, call)
    rest = {
        "turn": call.sequence,
        "node_id": call.call_id,
        "finish_reason": call.finish_reason,
        "discarded": judgement.roles[call.call_id].role is Role.DISCARDED,
        "trainable": trains,
        "sampling_params": call.submitted_sampling,
        "requested_sampling_params": call.requested_sampling,
        "role": judgement.roles[call.call_id].role,
    }
    return b"{" + arrays + b"," + dump(rest)[1:]


def _masked(row: RowText, call: Call) -> bytes:
    """The lists of a turn that does not train; a logprob that is no number is null."""
    logprobs = np.zeros(0, np.float32) if call.logprobs is None else call.logprobs
    values = wide(np.where(null_logprobs(logprobs), np.float32(np.nan), logprobs))
    return b"".join(
        (
            b'"prompt_token_ids":[',
            row.prompt,
            b'],"completion_token_ids":[',
            row.completion,
            b'],"per_token_logps":',
            dump(values),
            b',"loss_mask":[',
            zeros_text(row.node.prompt_len + row.node.completion_len),
            b"]",
        )
    )
