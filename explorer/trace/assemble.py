"""The two documents that leave: the Training trace and the Capture audit.

Owns: their shapes, and the refusal of whatever the verdict does not allow.
Must not know: how a verdict comes about, who may read the result.

Both are streamed, so that a document of any size costs one row of memory. The Training
trace is OpenEnv's `TrainingTrace` v1, exactly. The Capture audit shows every call that
reached us, refused ones too; it holds each token once, as the record does: a call's
prompt is the first `prefix_len` ids of `prefix_of`'s prompt+completion, then
`prompt_delta`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from explorer.errors import NotTrainable, RecordInconsistent, RolloutOpen
from explorer.records import (
    Call,
    CallId,
    CallStatus,
    Finding,
    Grade,
    LogprobArray,
    Role,
    RolloutRecord,
)
from explorer.trace.checks import null_logprobs
from explorer.trace.findings import FINDINGS
from explorer.trace.inputs import hash_inputs
from explorer.trace.jsontext import dump, non_finite
from explorer.trace.mask import excluded
from explorer.trace.verdict import Judgement

TRACE_SCHEMA_VERSION = 1
AUDIT_SCHEMA_VERSION = 1


def training_trace(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    """OpenEnv's `TrainingTrace` v1 as JSON, one chunk per call.

    Calls of the agent (and of subagents, if the policy includes them) in branch order,
    each once. A call that is wholly masked stays as context while its logprobs are
    valid.

    Raises:
        RolloutOpen: the rollout is not closed; `details["reasons"]` says what else.
        NotTrainable: `details["reasons"]` says why.
        RecordInconsistent: the judgement is not of this record, or parts disagree.
    """
    _same_inputs(record, judgement)
    if judgement.reasons:
        reasons = [asdict(reason) for reason in judgement.reasons]
        words = " ".join(reason.message for reason in judgement.reasons)
        is_open = any(reason.code == "rollout_open" for reason in judgement.reasons)
        raise (RolloutOpen if is_open else NotTrainable)(words, reasons=reasons)
    return _trace_chunks(record, judgement)


def _trace_chunks(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    yield b'{"schema_version":%d,"turns":[' % TRACE_SCHEMA_VERSION
    separator = b""
    for call in exported_calls(record, judgement):
        turn = _turn(record, judgement, call, first=not separator)
        yield separator + dump(turn)
        separator = b","
    yield b"]}"


def exported_calls(record: RolloutRecord, judgement: Judgement) -> Iterator[Call]:
    """The calls that a training export has rows for, depth first."""
    by_id = {call.call_id: call for call in record.calls}
    roles = {Role.AGENT}
    if judgement.policy.include_subagents:
        roles.add(Role.SUBAGENT)
    found = _by_call(judgement.findings)
    for node in judgement.tree.walk():
        call = by_id[node.call_id]
        if judgement.roles[node.call_id].role not in roles:
            continue
        if call.status is not CallStatus.COMMITTED or call.injected:
            continue
        if excluded(call, record.overrides):
            continue
        # Graded down for a call that does not block, such a fault still spoils the row.
        faults = found.get(node.call_id, ())
        if not any(FINDINGS[item.code].grade is Grade.FATAL for item in faults):
            yield call


def _by_call(findings: tuple[Finding, ...]) -> dict[CallId, list[Finding]]:
    found: dict[CallId, list[Finding]] = {}
    for finding in findings:
        if finding.where.call_id is not None:
            found.setdefault(finding.where.call_id, []).append(finding)
    return found


def _same_inputs(record: RolloutRecord, judgement: Judgement) -> None:
    if hash_inputs(record, judgement.policy) != judgement.inputs_sha256:
        raise RecordInconsistent("the judgement was made from another record")


def _turn(
    record: RolloutRecord, judgement: Judgement, call: Call, *, first: bool
) -> dict[str, Any]:
    prompt = judgement.tree.sequences.prompt(call.call_id)
    completion = np.zeros(0, np.int32) if call.completion is None else call.completion
    logprobs = np.zeros(0, np.float32) if call.logprobs is None else call.logprobs
    mask = judgement.masks[call.call_id].bits()
    if not (
        completion.size == logprobs.size
        and mask.size == prompt.size + completion.size
        and not mask[: prompt.size].any()
        and bool(np.isfinite(logprobs).all())
    ):
        raise RecordInconsistent(
            f"call {call.call_id}: ids, logprobs and mask do not fit together"
        )
    rounded = np.flatnonzero(logprobs > 0)
    metadata = _turn_metadata(record, judgement, call)
    if rounded.size:
        # The contract allows no value above zero, not even by rounding.
        metadata["rounded_to_zero"] = {str(place): float(logprobs[place]) for place in rounded}
    if first:
        metadata |= _provenance(record, judgement)
    return {
        "node_id": call.call_id,
        "prompt_token_ids": _ids(prompt),
        "completion_token_ids": _ids(completion),
        "per_token_logps": _wide(np.minimum(logprobs, np.float32(0))),
        "loss_mask": mask,
        "request": {
            "model": call.model_requested,
            "requested_sampling": call.requested_sampling,
            "submitted_sampling": call.submitted_sampling,
        },
        "response": {
            "id": call.response_id,
            "model": call.model_served,
            "finish_reason": call.finish_reason,
            "stop_reason": call.stop_reason,
        },
        "metadata": metadata,
    }


def _turn_metadata(record: RolloutRecord, judgement: Judgement, call: Call) -> dict[str, Any]:
    node = judgement.tree.nodes[call.call_id]
    certificate = record.certificate_of(call)
    return {
        # OpenEnv's own entries repeat the id here, and its round trip expects it.
        "node_id": call.call_id,
        "rollout_id": record.rollout.rollout_id,
        "index": call.sequence,
        "parent_id": node.parent_id,
        "root_id": node.root_id,
        "depth": node.depth,
        "role": judgement.roles[call.call_id].role,
        "mask_reason": judgement.masks[call.call_id].reason,
        "n_tools": call.n_tools,
        "weight_version_start": call.weight_version_start,
        "weight_version_end": call.weight_version_end,
        "chain_hash": None if call.chain_hash is None else call.chain_hash.hex(),
        "certificate_id": None if certificate is None else certificate.certificate_id,
    }


def _provenance(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    """What holds for the whole rollout; the contract has no place above the turns."""
    return {
        "rollout": asdict(record.rollout) | {"key_hash": None},
        "reward": judgement.state.reward,
        "ok": judgement.state.ok,
        "certificate": None if record.certificate is None else asdict(record.certificate),
        "certificates": [asdict(certificate) for certificate in record.certificates],
        "policy": judgement.policy.describe(),
        "notices": judgement.notices,
        "inputs_sha256": judgement.inputs_sha256,
    }


def _ids(ids: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.ascontiguousarray(ids, dtype=np.int32)


def _wide(logprobs: LogprobArray) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The float32 values as doubles, so that the JSON number equals the engine's own and
    not merely its shortest float32 spelling."""
    return np.ascontiguousarray(logprobs, dtype=np.float64)


def capture_audit(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    """Every call and everything decided about it, as JSON, one chunk per call.

    Raises:
        RecordInconsistent: the judgement is not of this record.
    """
    _same_inputs(record, judgement)
    return _audit_chunks(record, judgement)


def _audit_chunks(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    head = {
        "schema_version": AUDIT_SCHEMA_VERSION,
        "format": "rollout-explorer/capture-audit",
        **_provenance(record, judgement),
        "state": asdict(judgement.state),
        "verdict": {
            "trainable": judgement.trainable,
            "reasons": [asdict(reason) for reason in judgement.reasons],
            "notices": judgement.notices,
        },
        "overrides": [asdict(override) for override in record.overrides],
        "findings": [asdict(finding) for finding in judgement.findings],
        "open_calls": [asdict(admission) for admission in record.open_calls],
        "totals": _totals(record, judgement),
    }
    yield dump(head)[:-1] + b',"calls":['
    found = _by_call(judgement.findings)
    ordered = sorted(record.calls, key=lambda call: (call.sequence, call.call_id))
    for place, call in enumerate(ordered):
        codes = [item.code for item in found.get(call.call_id, ())]
        yield (b"," if place else b"") + dump(_audited(judgement, call, codes))
    yield b"]}"


def _totals(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    """Sums over `calls`: each stored token is counted once, under its mask reason."""
    roles = Counter(str(decision.role) for decision in judgement.roles.values())
    return {
        "calls": len(record.calls),
        "statuses": Counter(str(call.status) for call in record.calls),
        "roles": roles,
        "agent_calls": judgement.n_agent_calls,
        "generated_tokens": judgement.generated_tokens,
        "supervised_tokens": judgement.supervised_tokens,
        "masked_tokens": judgement.generated_tokens - judgement.supervised_tokens,
        "mask_reasons": judgement.mask_counts,
        "roots": len(judgement.tree.roots),
    }


def _audited(judgement: Judgement, call: Call, codes: list[str]) -> dict[str, Any]:
    node = judgement.tree.nodes.get(call.call_id)
    decision = judgement.roles.get(call.call_id)
    mask = judgement.masks.get(call.call_id)
    logprobs = call.logprobs
    broke = None if node is None else node.break_
    return {
        "call_id": call.call_id,
        "sequence": call.sequence,
        "parent_id": None if node is None else node.parent_id,
        "root_id": None if node is None else node.root_id,
        "prefix_break": None if broke is None else asdict(broke),
        "role": None if decision is None else decision.role,
        "rule": None if decision is None else decision.rule,
        "why": None if decision is None else decision.why,
        "status": call.status,
        "failure_kind": call.failure_kind,
        "failure_detail": call.failure_detail,
        "dialect": call.dialect,
        "started_us": call.started_us,
        "ended_us": call.ended_us,
        "capture_level": call.capture_level,
        "finish_reason": call.finish_reason,
        "n_tools": call.n_tools,
        "constraints": call.constraints,
        "greedy": call.greedy,
        "injected": call.injected,
        "requested_sampling": call.requested_sampling,
        "submitted_sampling": call.submitted_sampling,
        "claims": call.claims,
        "retry_count": call.retry_count,
        "weight_version_start": call.weight_version_start,
        "weight_version_end": call.weight_version_end,
        "usage_prompt": call.usage_prompt,
        "usage_completion": call.usage_completion,
        "chain_hash": None if call.chain_hash is None else call.chain_hash.hex(),
        "prompt_len": call.prompt_len if node is None else node.prompt_len,
        "completion_len": call.completion_len if node is None else node.completion_len,
        "supervised_tokens": 0 if mask is None else mask.supervised,
        "mask_reason": None if mask is None else mask.reason,
        "mask_from": 0 if mask is None else mask.own_start,
        "mask_spans": []
        if mask is None
        else [[span.start, span.end, span.reason] for span in mask.own],
        "findings": codes,
        "prefix_of": call.stored_parent_id,
        "prefix_len": call.prefix_len,
        "prompt_delta": None if call.prompt_delta is None else _ids(call.prompt_delta),
        "completion_token_ids": None if call.completion is None else _ids(call.completion),
        "per_token_logps": None if logprobs is None else _wide(logprobs),
        "per_token_logps_not_finite": []
        if logprobs is None
        else non_finite(logprobs, null_logprobs(logprobs)),
    }
