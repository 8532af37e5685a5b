"""Where a rollout comes from: what every export says of it, in one form.

Owns: `provenance` and the weight versions of a record.
Must not know: calls' tokens, documents.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from explorer.records import RolloutRecord
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.token_in import counted
from explorer.trace.verdict import Judgement


def weight_versions(record: RolloutRecord) -> list[int]:
    """Every weight version that a call began or ended with, or the engine named, in order."""
    found = {
        version
        for call in record.calls
        for version in (
            call.weight_version_start,
            call.weight_version_end,
            *(span.weight_version for span in call.weight_spans),
        )
        if version is not None
    }
    return sorted(found)


def provenance(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    """What holds for the whole rollout, beside its calls.

    ``None`` stands where nobody said it; nothing here is guessed.
    """
    rollout, certificate = record.rollout, record.certificate
    numbers = {} if certificate is None else certificate.numbers
    return {
        "harness": {
            "name": rollout.harness,
            "version": rollout.harness_version,
            "config_sha256": rollout.harness_config_sha256,
        },
        "engine": {
            "kind": rollout.engine_kind,
            "name": rollout.engine_name,
            "version": rollout.engine_version,
            "model": rollout.model,
            "flags": numbers.get("flags"),
            "tokenizer_sha256": numbers.get("tokenizer_sha256"),
            "chat_template_sha256": rollout.chat_template_sha256,
            "certificate_id": rollout.certificate_id,
        },
        "weight_versions": weight_versions(record),
        "token_in": _token_in(record),
        "app_version": rollout.app_version,
        "judge_version": JUDGE_VERSION,
        "policy_sha256": judgement.policy.sha256,
    }


def _token_in(record: RolloutRecord) -> dict[str, Any] | None:
    """How far the model read other prompts than the harness wrote; None without token-in."""
    if not record.rollout.token_in:
        return None
    found = counted(record.calls)
    return asdict(found) | {"fallbacks": dict(found.fallbacks)}


def rollout_facts(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    """The rollout, its outcome and what it was judged by; in every export."""
    return {
        "rollout": asdict(record.rollout) | {"key_hash": None},
        "reward": judgement.state.reward,
        "ok": judgement.state.ok,
        "certificate": None if record.certificate is None else asdict(record.certificate),
        "certificates": [asdict(certificate) for certificate in record.certificates],
        "policy": judgement.policy.describe(),
        "overrides": [asdict(override) for override in record.overrides],
        "notices": judgement.notices,
        "inputs_sha256": judgement.inputs_sha256,
        "provenance": provenance(record, judgement),
    }
