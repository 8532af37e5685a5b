"""JSON shapes of the API's answers, each built in one place.

Owns: field names of what goes out.
Must not know: routes, SQL.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from explorer.export.judged import Judged
from explorer.records import (
    NULL_LOGPROB_BITS,
    Call,
    CallId,
    Certificate,
    Finding,
    LogprobArray,
    MaskReason,
)
from explorer.store.interface import (
    RolloutState,
    RolloutSummary,
    StoreHealth,
)
from explorer.trace.atif import agreement


def plain(value: Any) -> Any:
    """A dataclass, enum or container as JSON values; NaN and infinities as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


def logprobs_json(values: LogprobArray | None) -> list[float | str | None] | None:
    """Logprobs as JSON: null stays null; what is no number is named, never invented."""
    if values is None:
        return None
    nulls = values.view(np.uint32) == NULL_LOGPROB_BITS
    return [
        None if null else value if math.isfinite(value) else str(value)
        for value, null in zip(values.tolist(), nulls.tolist(), strict=True)
    ]


def summary_json(row: RolloutSummary) -> dict[str, Any]:
    """One line of a listing."""
    found: dict[str, Any] = plain(row)
    return found


def verdict_json(judged: Judged) -> dict[str, Any]:
    """The one verdict, as every surface shows it."""
    judgement = judged.judgement
    return {
        "trainable": judgement.trainable,
        "reasons": [plain(reason) for reason in judgement.reasons],
        "notices": list(judgement.notices),
        "supervised_tokens": judgement.supervised_tokens,
        "generated_tokens": judgement.generated_tokens,
        "masked_tokens": masked_tokens(judged),
        "policy": {
            "name": judgement.policy.name,
            "version": judgement.policy.version,
            "sha256": judgement.policy.sha256,
        },
        "inputs_sha256": judgement.inputs_sha256,
    }


def masked_tokens(judged: Judged) -> dict[str, int]:
    """Sampled tokens that do not train, counted by reason, the most frequent first."""
    found: Counter[str] = Counter()
    for mask in judged.judgement.masks.values():
        for span in mask.completion:
            if span.reason is not MaskReason.SAMPLED:
                found[span.reason.value] += span.end - span.start
    return dict(found.most_common())


def rollout_json(judged: Judged, state: RolloutState | None) -> dict[str, Any]:
    """`GET /api/v1/rollouts/{id}`."""
    rollout = judged.record.rollout
    facts: dict[str, Any] = plain(rollout)
    facts.pop("key_hash")
    statuses = [call.status.value for call in judged.record.calls]
    return facts | {
        "status": state.status.value if state else "open",
        "reward": state.reward if state else None,
        "ok": state.ok if state else None,
        "reason": state.reason if state else None,
        "closed_us": state.closed_us if state else None,
        "counts": {
            "calls": len(statuses),
            "open_calls": len(judged.record.open_calls),
            "by_status": {status: statuses.count(status) for status in sorted(set(statuses))},
            "agent_calls": judged.judgement.n_agent_calls,
        },
        "trajectory": agreement(judged.judgement.findings).value,
        "overrides": [plain(override) for override in judged.record.overrides],
        "verdict": verdict_json(judged),
    }


def call_json(judged: Judged, call: Call) -> dict[str, Any]:
    """One call as `/calls` lists it: no ids, no bodies."""
    node = judged.judgement.tree.nodes.get(call.call_id)
    decision = judged.judgement.roles.get(call.call_id)
    mask = judged.judgement.masks.get(call.call_id)
    return {
        "call_id": call.call_id,
        "sequence": call.sequence,
        "parent_id": node.parent_id if node else None,
        "stored_parent_id": call.stored_parent_id,
        "role": decision.role.value if decision else None,
        "rule": decision.rule if decision else None,
        "status": call.status.value,
        "failure_kind": call.failure_kind.value if call.failure_kind else None,
        "failure_detail": call.failure_detail,
        "dialect": call.dialect.value,
        "stream": call.stream,
        "http_status": call.http_status,
        "upstream_status": call.upstream_status,
        "started_us": call.started_us,
        "ended_us": call.ended_us,
        "engine_ms": call.engine_ms,
        "finish_reason": call.finish_reason,
        "capture_level": call.capture_level.value,
        "prompt_len": call.prompt_len,
        "completion_len": call.completion_len,
        "supervised": mask.supervised if mask else 0,
        "response_id": call.response_id,
        "model_served": call.model_served,
        "n_tools": call.n_tools,
        "requested_sampling": call.requested_sampling,
        "submitted_sampling": call.submitted_sampling,
        "constraints": list(call.constraints),
        "greedy": call.greedy,
        "weight_version_start": call.weight_version_start,
        "weight_version_end": call.weight_version_end,
        "notes": [asdict(note) for note in call.notes],
        "preview": call.preview,
    }


def call_detail_json(judged: Judged, call: Call) -> dict[str, Any]:
    """One call with ids, logprobs and its mask."""
    prompt = None
    if call.prompt_delta is not None and judged.sequences.problem(call.call_id) is None:
        prompt = judged.sequences.prompt(call.call_id).tolist()
    mask = judged.judgement.masks.get(call.call_id)
    return call_json(judged, call) | {
        "prompt_token_ids": prompt,
        "completion_token_ids": None if call.completion is None else call.completion.tolist(),
        "per_token_logps": logprobs_json(call.logprobs),
        "mask_spans": [plain(span) for span in mask.spans] if mask else [],
        "top_logprobs": None if call.top_logprobs is None else json.loads(call.top_logprobs),
        "chain_hash": call.chain_hash.hex() if call.chain_hash else None,
        "claims": call.claims,
        "usage": {
            "prompt": call.usage_prompt,
            "completion": call.usage_completion,
            "cached": call.usage_cached,
            "reasoning": call.usage_reasoning,
        },
    }


def tree_json(judged: Judged) -> dict[str, Any]:
    """`GET …/tree`."""
    tree, roles = judged.judgement.tree, judged.judgement.roles
    nodes = []
    for call_id, node in tree.nodes.items():
        decision = roles[call_id]
        nodes.append(
            {
                "call_id": call_id,
                "sequence": node.sequence,
                "parent_id": node.parent_id,
                "children": list(node.children),
                "root_id": node.root_id,
                "depth": node.depth,
                "prompt_len": node.prompt_len,
                "completion_len": node.completion_len,
                "shared_len": node.shared_len,
                "adopted": node.adopted,
                "break": plain(node.break_),
                "role": decision.role.value,
                "rule": decision.rule,
                "why": decision.why,
            }
        )
    nodes.sort(key=lambda item: item["sequence"])
    roots: list[CallId] = list(tree.roots)
    return {"roots": roots, "nodes": nodes}


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding."""
    found: dict[str, Any] = plain(finding)
    return found


def certificate_json(certificate: Certificate | None) -> dict[str, Any]:
    """An engine's certificate with its numbers, or why there is none."""
    if certificate is None:
        return {"certificate": None, "passing": False}
    return {"certificate": plain(certificate), "passing": certificate.passing}


def download_headers(name: str, etag: str | None) -> dict[str, str]:
    """Headers of an attachment; `name` is made of our own ids, so it is plain ASCII."""
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "cache-control": "private, no-store",
    }
    if etag is not None:
        headers |= {"etag": etag, "cache-control": "private, no-cache"}
    return headers


def metrics_text(
    health: StoreHealth, in_flight: int, unknown_keys: int, found: Mapping[str, int]
) -> str:
    """Prometheus exposition of the gauges; `found` counts findings of arriving calls."""
    rows = {
        "calls_in_flight": in_flight,
        "unknown_key_requests_total": unknown_keys,
        "store_size_bytes": health.size_bytes,
        "store_wal_bytes": health.wal_bytes,
        "store_free_bytes": health.free_bytes,
        "store_queue_depth": health.queue_depth,
        "store_commits_total": health.commits,
        "store_last_commit_ms": health.last_commit_ms,
        "store_quarantined_rows": health.quarantined,
        "store_spilling": int(health.spilling),
    }
    lines = [f"rollout_explorer_{name} {value}\n" for name, value in rows.items()]
    lines += [
        f'rollout_explorer_call_findings_total{{code="{code}"}} {count}\n'
        for code, count in sorted(found.items())
    ]
    return "".join(lines)
