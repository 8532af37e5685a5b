"""The Training trace: OpenEnv's `TrainingTrace` v1, exactly, one turn at a time.

Owns: its shape, which calls have a row in it, and the refusal of whatever the verdict does
not allow.
Must not know: how a verdict comes about, who may read the result, the Capture audit.

The document is streamed, so that one of any size costs one row of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from explorer.errors import NotTrainable, RecordInconsistent, RolloutOpen
from explorer.records import (
    Call,
    CallId,
    Finding,
    Grade,
    LogprobArray,
    Role,
    RolloutRecord,
)
from explorer.trace.findings import FINDINGS
from explorer.trace.inputs import hash_inputs
from explorer.trace.jsontext import dump
from explorer.trace.mask import excluded
from explorer.trace.provenance import rollout_facts
from explorer.trace.refusals import Need, refusals
from explorer.trace.roles import answered
from explorer.trace.rowtext import RowText, row_texts, zeros_text
from explorer.trace.verdict import Judgement
from explorer.trace.versions import version_spans

TRACE_SCHEMA_VERSION = 1


def training_trace(
    record: RolloutRecord, judgement: Judgement, needs: Collection[Need] = ()
) -> Iterator[bytes]:
    """OpenEnv's `TrainingTrace` v1 as JSON, one chunk per call.

    Calls of the agent (and of subagents, if the policy includes them) in branch order,
    each once. A call that is wholly masked stays as context while its logprobs are
    valid.

    Args:
        needs: what the reader cannot do without beyond the verdict, such as a reward.

    Raises:
        RolloutOpen: the rollout is not closed; `details["reasons"]` says what else.
        NotTrainable: `details["reasons"]` says why.
        RecordInconsistent: the judgement is not of this record, or parts disagree.
    """
    same_inputs(record, judgement)
    reasons = refusals(judgement, needs)
    if reasons:
        words = " ".join(reason.message for reason in reasons)
        is_open = any(reason.code == "rollout_open" for reason in reasons)
        raise (RolloutOpen if is_open else NotTrainable)(
            words, reasons=[asdict(reason) for reason in reasons]
        )
    return _trace_chunks(record, judgement)


def _trace_chunks(record: RolloutRecord, judgement: Judgement) -> Iterator[bytes]:
    yield b'{"schema_version":%d,"turns":[' % TRACE_SCHEMA_VERSION
    separator = b""
    for row, call in exported_rows(record, judgement):
        yield separator + _turn(record, judgement, row, call, first=not separator)
        separator = b","
    yield b"]}"


def exported_rows(
    record: RolloutRecord, judgement: Judgement
) -> Iterator[tuple[RowText, Call]]:
    """The calls that a training export has rows for, depth first, with their text."""
    wanted = {call.call_id: call for call in exported_calls(record, judgement)}
    for row in row_texts(judgement.tree):
        call = wanted.get(row.node.call_id)
        if call is not None:
            yield row, call


def exported_calls(record: RolloutRecord, judgement: Judgement) -> Iterator[Call]:
    """The calls that a training export has rows for, depth first."""
    by_id = {call.call_id: call for call in record.calls}
    roles = {Role.AGENT}
    if judgement.policy.include_subagents:
        roles.add(Role.SUBAGENT)
    found = findings_by_call(judgement.findings)
    for node in judgement.tree.walk():
        call = by_id[node.call_id]
        if judgement.roles[node.call_id].role not in roles or call.injected:
            continue
        if not answered(call, train_aborted=judgement.policy.train_aborted):
            continue
        if excluded(call, record.overrides):
            continue
        # Graded down for a call that does not block, such a fault still spoils the row.
        faults = found.get(node.call_id, ())
        if not any(FINDINGS[item.code].grade is Grade.FATAL for item in faults):
            yield call


def findings_by_call(findings: tuple[Finding, ...]) -> dict[CallId, list[Finding]]:
    """The findings that name a call, by that call."""
    found: dict[CallId, list[Finding]] = {}
    for finding in findings:
        if finding.where.call_id is not None:
            found.setdefault(finding.where.call_id, []).append(finding)
    return found


def same_inputs(record: RolloutRecord, judgement: Judgement) -> None:
    """Raises:
    RecordInconsistent: the judgement is not of this record.
    """
    if hash_inputs(record, judgement.policy) != judgement.inputs_sha256:
        raise RecordInconsistent("the judgement was made from another record")


def turn_arrays(judgement: Judgement, row: RowText, call: Call) -> bytes:
    """The four token lists of a turn, as members of a JSON object.

    Raises:
        RecordInconsistent: ids, logprobs and mask are not of one length, a prompt token
            would train, or a logprob is no number.
    """
    node, mask = row.node, judgement.masks[call.call_id]
    logprobs = np.zeros(0, np.float32) if call.logprobs is None else call.logprobs
    bits = mask.completion_bits()
    trains_only_own = mask.prompt_len == node.prompt_len and mask.length - node.prompt_len == (
        node.completion_len
    )
    if not (
        trains_only_own
        and node.completion_len == logprobs.size == bits.size
        and bool(np.isfinite(logprobs).all())
    ):
        raise RecordInconsistent(
            f"call {call.call_id}: ids, logprobs and mask do not fit together"
        )
    zeros = zeros_text(node.prompt_len)
    own = dump(bits)[1:-1]
    return b"".join(
        (
            b'"prompt_token_ids":[',
            row.prompt,
            b'],"completion_token_ids":[',
            row.completion,
            b'],"per_token_logps":',
            # The contract allows no value above zero, not even by rounding.
            dump(wide(np.minimum(logprobs, np.float32(0)))),
            b',"loss_mask":[',
            zeros,
            b"," if zeros and own else b"",
            own,
            b"]",
        )
    )


def _turn(
    record: RolloutRecord, judgement: Judgement, row: RowText, call: Call, *, first: bool
) -> bytes:
    metadata = _turn_metadata(record, judgement, call)
    if call.logprobs is not None:
        rounded = np.flatnonzero(call.logprobs > 0)
        if rounded.size:
            metadata["rounded_to_zero"] = {
                str(place): float(call.logprobs[place]) for place in rounded
            }
    if first:
        # The contract has no place above the turns.
        metadata |= rollout_facts(record, judgement)
    rest = {
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
    name = dump({"node_id": call.call_id})[:-1]
    return b",".join((name, turn_arrays(judgement, row, call), dump(rest)[1:]))


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
        "rule": judgement.roles[call.call_id].rule,
        "mask_reason": judgement.masks[call.call_id].reason,
        "mask_spans": [
            [span.start, span.end, span.reason] for span in judgement.masks[call.call_id].own
        ],
        "n_tools": call.n_tools,
        "weight_version_start": call.weight_version_start,
        "weight_version_end": call.weight_version_end,
        "weight_version_spans": [list(span) for span in version_spans(call)],
        "chain_hash": None if call.chain_hash is None else call.chain_hash.hex(),
        "prefix_of": call.stored_parent_id,
        "prefix_len": call.prefix_len,
        "certificate_id": None if certificate is None else certificate.certificate_id,
    }


def wide(logprobs: LogprobArray) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The float32 values as doubles, so that the JSON number equals the engine's own and
    not merely its shortest float32 spelling."""
    return np.ascontiguousarray(logprobs, dtype=np.float64)
